"""The project's own files agree with each other, and its tools work."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import run

ROOT: Final = Path(__file__).resolve().parent.parent
PYPROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: Final = PYPROJECT["project"]
TOOL: Final = PYPROJECT["tool"]
CONFTEST: Final = (ROOT / "tests" / "conftest.py").read_text()


def noxfile_value(name: str) -> Any:
    """Return the value of a constant in noxfile.py, without importing nox."""
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(name)


@pytest.mark.parametrize("package", ["lro", "lro_client", "lro_conform", "pytest_lro"])
def test_package_has_py_typed(package: str) -> None:
    source = importlib.import_module(package).__file__
    assert source is not None
    assert Path(source).with_name("py.typed").is_file()


def test_pytest_finds_plugin_in_wheel() -> None:
    """The entry point of pytest names a package that is in the wheel."""
    assert PROJECT["entry-points"]["pytest11"] == {"pytest_lro": "pytest_lro"}
    assert "src/pytest_lro" in TOOL["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_lowest_python_is_the_same_everywhere() -> None:
    """Packaging, linter, type checkers, run script and nox sessions have the same lowest Python."""
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert TOOL["mypy"]["python_version"] == TOOL["pyright"]["pythonVersion"] == lowest
    assert TOOL["ruff"]["target-version"] == "py" + lowest.replace(".", "")
    assert f"sys.version_info < ({lowest.replace('.', ', ')})" in Path(run.__file__).read_text()
    assert noxfile_value("PYTHONS")[0] == lowest


def test_promised_pythons_are_tested() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert promised
    assert set(promised) <= set(noxfile_value("PYTHONS"))


def test_policy_lists_promised_pythons() -> None:
    """The table of supported Pythons lists the versions of the classifiers, lowest first."""
    policy = (ROOT / "docs" / "explanation" / "versions.md").read_text("utf-8")
    listed = re.findall(r"^\| (3\.\d+) \| \w+ 20\d\d \|", policy, re.MULTILINE)
    assert listed == re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert listed[0] == PROJECT["requires-python"].removeprefix(">=")


def test_missing_extras_can_be_installed() -> None:
    """If an error message tells the user to install an extra, this extra exists."""
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = re.findall(r'MissingExtra\([^()]*?"(\w+)"\)', sources)
    assert set(named) <= set(PROJECT["optional-dependencies"])


def test_developer_tools_are_dependency_groups_not_extras() -> None:
    """Tools for developers are dependency groups, which are not published with the package."""
    groups = set(PYPROJECT["dependency-groups"])
    assert {"bench", "lint", "test", "types"} <= groups
    assert not groups & set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("name", ["demo", "tests"])
def test_readme_has_both_first_commands(name: str) -> None:
    """The README has both commands of the run script that a new user runs first, verbatim."""
    assert f"python3 run.py {name}\n" in (ROOT / "README.md").read_text()


def test_fragments_are_well_formed() -> None:
    """A changelog fragment is named NAME.KIND.md and has one entry of whole sentences."""
    kinds = [kind["directory"] for kind in TOOL["towncrier"]["type"]]
    name = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(kinds)})\.md")
    for path in (ROOT / "changelog.d").iterdir():
        if path.name not in {"README.md", "_template.md.jinja"}:
            assert name.fullmatch(path.name), path.name
            text = path.read_text()
            assert text.endswith(".\n"), path.name
            assert not re.search(r"^([#*-]|\s*$)", text.rstrip(), re.MULTILINE), path.name


def test_ci_stops_at_the_first_failure() -> None:
    """The CI script is executable and stops at the first failure."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize(
    ("required", "expected"),
    [("", {"skipped": 2, "xfailed": 1}), ("1", {"failed": 1, "skipped": 1, "xfailed": 1})],
)
def test_skips_fail_where_services_are_promised(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    required: str,
    expected: dict[str, int],
) -> None:
    """Under LRO_REQUIRE_SERVICES a skipped test fails unless it is marked ``platform``."""
    monkeypatch.setenv("LRO_REQUIRE_SERVICES", required)
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers = platform: may be skipped")
    pytester.makepyfile("""
        import pytest

        def test_service():
            pytest.skip("no server")

        @pytest.mark.platform
        def test_platform():
            pytest.skip("not on this system")

        @pytest.mark.xfail
        def test_known():
            assert False
    """)
    pytester.runpytest().assert_outcomes(**expected)


def test_skipped_modules_fail_where_services_are_promised(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under LRO_REQUIRE_SERVICES a module that skips itself fails, with its reason."""
    monkeypatch.setenv("LRO_REQUIRE_SERVICES", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import pytest; pytest.importorskip('no_such_package')")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*LRO_REQUIRE_SERVICES is set, but:*no_such_package*"])


def test_run_script_picks_the_session_of_its_python() -> None:
    """``run.py tests`` selects the nox session of the running Python, which nox must find."""
    command = run.nox("tests", ["--", "-x"])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert command[-4:] == ["--session", f"tests-{version}", "--", "-x"]
    assert "--error-on-missing-interpreters" in command
    assert run.nox("demo", [])[-2:] == ["--session", "demo"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["tests", "-x"]])
def test_run_script_refuses_unknown_arguments(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With wrong arguments, the run script prints its usage and sets nothing up."""
    assert run.main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_run_script_explains_a_missing_pip_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without pip, the run script prints one sentence that says so."""
    monkeypatch.setattr(run, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(run, "make_venv", lambda: None)
    monkeypatch.setattr(run, "works", lambda *command, **options: False)
    assert run.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said == "run.py: this Python has no ensurepip and no pip, and apt-get gave none\n"


def test_no_merge_is_left_unfinished() -> None:
    """No file of the project has conflict markers of git."""
    # Hidden files are left out, because tools may delete them meanwhile.
    tops = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    ours = [
        path
        for top in tops
        for path in ([top] if top.is_file() else top.rglob("*"))
        if path.suffix in (".py", ".md", ".toml")
    ]
    marks = (b"<" * 7 + b" ", b">" * 7 + b" ")
    assert [path for path in ours if any(mark in path.read_bytes() for mark in marks)] == []
