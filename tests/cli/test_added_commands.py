"""Commands that other distributions add to ``lro`` by entry points in ``lro.commands``."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rich")

from tests.cli.asking import Lro

GREET = '''
import click

@click.command()
@click.argument("name")
def greet(name: str) -> None:
    """Say hello
    to a person.

    And nothing else.
    """
    click.echo(f"hello {name}")
'''


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on ``sys.path`` with a distribution ``acme-tools``; tests add its modules."""
    about = tmp_path / "acme_tools-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    (tmp_path / "acme_tools").mkdir()
    (tmp_path / "acme_tools" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if name.startswith("acme"):
            del sys.modules[name]


def write(folder: Path, source: str, *entries: str) -> None:
    """Write the module ``acme_greet`` and the entry points of the distribution."""
    (folder / "acme_greet.py").write_text(source)
    lines = ["[lro.commands]", *entries, ""]
    (folder / "acme_tools-1.0.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    importlib.invalidate_caches()


def test_command_of_another_package_is_listed_and_runs(added: Path, command: Lro) -> None:
    """An added command's help is its docstring, which is read without importing the module."""
    write(added, GREET, "greet = acme_greet:greet")
    listed = command("--help", status=0).out
    assert "Commands of other packages:\n  greet " in listed
    assert "Say hello to a person." in listed
    assert "acme_greet" not in sys.modules
    assert command("greet", "ann", status=0).out == "hello ann\n"
    assert "And nothing else." in command("greet", "--help", status=0).out


EXTRA = "from lro.errors import MissingExtra\nraise MissingExtra('the greeting', 'grpc')"


@pytest.mark.parametrize(
    ("source", "entry", "said"),
    [
        ("import missing_acme", "acme_greet:greet", "No module named 'missing_acme'"),
        ("import missing_acme", "acme_greet:greet [fast]", "pip install 'acme-tools[fast]'"),
        ("1 / 0", "acme_greet:greet", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(7)", "acme_greet:greet", "SystemExit: 7"),
        ("greet = 7", "acme_greet:greet", "acme_greet:greet is int, not a click.Command"),
        ("def (", "acme_greet:greet", "SyntaxError"),
        ("", "acme_greet:greet", "has no attribute 'greet'"),
        ("", "acme_nowhere:greet", "No module named 'acme_nowhere'"),
        ("", "acme_tools.inside:greet", "RuntimeError: imported"),
        (EXTRA, "acme_greet:greet", "the greeting needs the extra 'grpc': pip install 'lro[grpc]'"),
    ],
)
def test_broken_command_reports_why_and_breaks_no_other(
    source: str, entry: str, said: str, added: Path, command: Lro
) -> None:
    """A command that cannot be loaded reports why, and other added commands still run."""
    write(added, source, f"greet = {entry}", "good = acme_good:greet")
    (added / "acme_good.py").write_text(GREET)
    assert "  good " in command("--help", status=0).out
    for arguments in (["greet"], ["greet", "--help", "x"]):
        printed = command(*arguments, status=2).err
        assert printed.startswith("Error: the command greet of acme-tools cannot be loaded: ")
        assert said in printed
        assert ("pip install" in printed) is ("pip install" in said)
    assert command("good", "bob", status=0).out == "hello bob\n"


def test_commands_of_this_package_cannot_be_replaced(added: Path, command: Lro) -> None:
    """An entry point with the name of a built-in command is ignored."""
    write(added, GREET, "lint = acme_greet:greet", "get = acme_greet:greet")
    assert "operation_info" in command("lint", "--help", status=0).out
    assert "Say hello" not in command("get", "--help", status=0).out


def test_entry_point_without_a_distribution(command: Lro, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an entry point has no distribution, the error names its module."""
    entry = importlib.metadata.EntryPoint("greet", "acme_nowhere:greet", "lro.commands")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (entry,))
    assert "the command greet of acme_nowhere cannot be loaded" in command("greet", status=2).err
