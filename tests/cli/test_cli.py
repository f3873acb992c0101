"""The command: what it reads, what it prints, and how it ends."""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("google.longrunning.operations_pb2")

from lro.cli import main
from lro.lint import lint
from tests.lint.sets import BARE, GOOD, Declared, located, packed, proto

WARNED = Declared("Export", ("Metadata", "Metadata"))
MODULE = """
import attrs
import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore

@attrs.frozen
class ExportRequest:
    name: str = ""

@attrs.frozen
class ExportMetadata:
    rows: lro.Int32 = 0

@lro.message("acme.other.v1.Row")
@attrs.frozen
class Row:
    text: str = ""

@attrs.frozen
class {response}:
    {field}

books = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
number = 7

@books.method("acme.v1.Books.Export")
def export(request: ExportRequest, job: lro.Job[ExportMetadata]) -> {response}:
    return {response}()
"""


@pytest.fixture(autouse=True)
def here(here: Path) -> Path:
    """The folder, with the files ``good``, ``bad`` and ``warned``."""
    for name, method in (("good", GOOD), ("bad", BARE), ("warned", WARNED)):
        (here / name).write_bytes(packed(located(proto(method), 41, 2)))
    return here


def module(name: str, response: str = "ExportResponse", field: str = "rows: lro.Int32 = 0") -> None:
    """Write a module with a Python service in it; each test has names of its own."""
    text = MODULE.format(response=response, field=field)
    Path(f"{name}.py").write_text(text, encoding="utf-8")


def test_lint_without_findings_prints_number_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0, and the number of methods that were examined."""
    assert main(["lint", "good"]) == 0
    assert capsys.readouterr().out == "no findings in 1 long-running method\n"


def test_a_finding_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With its place first, so that editors and CI find it; status 1."""
    assert main(["lint", "bad"]) == 1
    heading, line, summary = capsys.readouterr().out.splitlines()
    assert heading.split() == ["where", "method", "code", "what"]
    place, method, code, *what = line.split()
    assert (place, method) == ("acme/v1/books.proto:42:3", "acme.v1.Books.Export")
    assert code == "missing-operation-info"
    assert what[:2] == ["returns", "google.longrunning.Operation"]
    assert summary == "1 error in 1 long-running method"


def test_lines_of_a_pipe_are_not_padded(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing stands behind the sentence; a set without source information names the file."""
    far = Declared("Import", ("ExportResponse", "Metadata"), output="acme.v1.Metadata")
    Path("bad").write_bytes(packed(proto(BARE, far, Declared("Add"))))
    assert main(["lint", "bad"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("acme/v1/books.proto ")
    assert lines[-1] == "3 errors in 2 long-running methods"
    assert [line.rstrip() for line in lines] == lines
    assert len({line.index(" acme.v1.Books.") for line in lines[1:4]}) == 1


def test_a_place_is_never_broken_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terminals and editors find the file by it; sentences break between words."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    name = f"acme/{'long' * 20}/v1/books.proto"
    Path("bad").write_bytes(packed(located(proto(BARE, name=name), 41, 2)))
    assert main(["lint", "bad"]) == 1
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    place, method, *what, _ = out.splitlines()
    assert place == f"{name}:42:3"
    assert method == "  acme.v1.Books.Export missing-operation-info"
    assert len(what) > 1
    assert all(line.startswith("    ") for line in what)
    assert max(map(len, what)) <= 60
    assert "…" not in out
    Path("bad").write_bytes(packed(proto(BARE), proto(name="a.proto")))
    assert main(["lint", "bad", "--allow", "*:streaming-response"]) == 1
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert out.startswith("  * unused-allowance\n    the allowance")
    assert " \n" not in out


def test_error_of_source_file_says_how_to_make_a_set(capsys: pytest.CaptureFixture[str]) -> None:
    """By protoc or by buf."""
    Path("books.proto").write_text('syntax = "proto3";\n', encoding="utf-8")
    for command in (["lint", "books.proto"], ["breaking", "good", "books.proto"]):
        assert main(command) == 2
        printed = capsys.readouterr().err
        assert "books.proto: 19 bytes that are no FileDescriptorSet" in printed
        assert (
            "protoc --include_imports --descriptor_set_out=FILE, or by buf build -o FILE" in printed
        )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A list of objects which all have the same keys."""
    assert main(["lint", "--json", "bad"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert list(found) == ["method", "code", "severity", "message", "file", "line", "column"]
    assert (found["severity"], found["line"], found["column"]) == ("error", 42, 3)
    assert main(["lint", "--json", "good"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_warnings_count_only_when_strict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are printed in either case; ``-`` reads what another program writes."""
    assert main(["lint", "warned"]) == 0
    assert "1 warning in 1 long-running method" in capsys.readouterr().out
    given = SimpleNamespace(buffer=io.BytesIO(Path("warned").read_bytes()))
    monkeypatch.setattr(sys, "stdin", given)
    assert main(["lint", "--strict", "-"]) == 1
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["lint", "-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_allowances(capsys: pytest.CaptureFixture[str]) -> None:
    """By option and by file, both as often as wanted; an unused one is a warning."""
    Path("allowed.txt").write_text("# known\n*:missing-operation-info\n", encoding="utf-8")
    assert main(["lint", "bad", "--allow", "acme.v1.Books.Export"]) == 0
    assert main(["lint", "--allow-file", "allowed.txt", "bad"]) == 0
    capsys.readouterr()
    assert main(["lint", "--allow-file", "allowed.txt", "good"]) == 0
    assert "unused-allowance" in capsys.readouterr().out
    assert main(["lint", "--strict", "--allow-file", "allowed.txt", "good"]) == 1


def test_several_sets_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A type may stand in another file than its method."""
    far = Declared("Export", ("ExportResponse", "far.Meta"))
    Path("a").write_bytes(packed(proto(far, imports=["far.proto"])))
    Path("b").write_bytes(packed(proto(name="far.proto", package="far", messages=["Meta"])))
    assert main(["lint", "a"]) == 1
    assert main(["lint", "a", "b"]) == 0


def test_targets(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the files that are named are examined; of a comparison, those of the old set."""
    Path("two").write_bytes(
        packed(proto(GOOD), proto(BARE, name="o.proto", service="O", messages=()))
    )
    assert main(["lint", "two"]) == 1
    assert main(["lint", "two", "--target", "acme/v1/books.proto"]) == 0
    assert main(["lint", "two", "--target", "gone.proto"]) == 2
    assert main(["breaking", "two", "good"]) == 1
    assert main(["breaking", "two", "good", "--target", "acme/v1/books.proto"]) == 0


def test_breaking(capsys: pytest.CaptureFixture[str]) -> None:
    """The same output and status, with the old and the new type in JSON."""
    assert main(["breaking", "good", "good"]) == 0
    assert main(["breaking", "good", "bad", "--allow", "*:operation-info-removed"]) == 0
    capsys.readouterr()
    assert main(["breaking", "good", "warned", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert list(found)[-2:] == ["old", "new"]
    assert (found["old"], found["new"]) == ("acme.v1.ExportResponse", "acme.v1.Metadata")


def test_a_python_service(capsys: pytest.CaptureFixture[str]) -> None:
    """A service is described and examined like any set; modules of the current folder are found."""
    module("kept")
    module("altered", "ExportResult")
    assert main(["lint", "kept:books"]) == 0
    Path("a:b").write_bytes(Path("good").read_bytes())  # a file of such a name is read
    assert main(["lint", "a:b"]) == 0
    assert main(["lint", "altered:books", "--strict"]) == 1
    assert "response-type-convention" in capsys.readouterr().out
    assert main(["breaking", "kept:books", "altered:books"]) == 1
    assert "response-type-changed" in capsys.readouterr().out


def test_proto_files_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """One as it could be kept, several under their names."""
    module("one_file")
    assert main(["proto", "one_file:books"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith('syntax = "proto3";\n\npackage acme.v1;\n')
    assert "rpc Export(ExportRequest) returns (google.longrunning.Operation) {" in printed
    module("two_files", field="row: Row | None = None")
    assert main(["proto", "two_files:books"]) == 0
    printed = capsys.readouterr().out
    assert "// acme/other/v1/other.proto\n\nsyntax" in printed
    assert "// acme/v1/acme.proto\n\nsyntax" in printed


def test_proto_files_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """With a set of descriptors that the linter takes; a folder that cannot be made is named."""
    module("written")
    options = ["--out", "out/protos", "--descriptor-set", "out/set.pb"]
    assert main(["proto", "written:books", *options]) == 0
    assert capsys.readouterr().out == "out/protos/acme/v1/acme.proto\n"
    assert main(["proto", "written:books", "--descriptor-set", "again.pb"]) == 0
    assert capsys.readouterr().out == ""
    assert "message ExportRequest {" in Path("out/protos/acme/v1/acme.proto").read_text("utf-8")
    assert lint(Path("out/set.pb").read_bytes()) == []
    Path("taken").write_text("", "utf-8")
    assert main(["proto", "written:books", "--out", "taken/here"]) == 2
    assert "taken/here/acme/v1/acme.proto: cannot be written" in capsys.readouterr().err


BOTH = (["lint"], ["breaking", "good"])
PYTHON = (*BOTH, ["proto"], ["openapi"])
UNUSABLE = [
    (BOTH, "nowhere", "Error: nowhere: cannot be read: No such file or directory"),
    (BOTH, "no\0where", "cannot be read: embedded null"),
    (BOTH, "text", "Error: text: 19 bytes that are no FileDescriptorSet"),
    (PYTHON, "no_such_module:books", "cannot be imported: ModuleNotFoundError: No module named"),
    (PYTHON, "failing:books", "Error: failing:books: cannot be imported: ZeroDivisionError"),
    (PYTHON, "leaving:books", "cannot be imported: SystemExit: 3"),
    (PYTHON, "plain:gone", "Error: plain:gone: there is no 'gone' in it"),
    (PYTHON[:3], "plain:number", "Error: plain:number: is int, not an lro.Service"),
    (PYTHON, "plain:books.gone", "there is no 'gone'"),
    (PYTHON, "odd:garage", "'garage' cannot be had: ValueError: no garage"),
    (PYTHON[2:], "books", "Error: books: is not module:service"),
    ([[]], "nonsense", "Error: "),
    ([["lint", "good"]], "--nonsense", "Error: "),
    ([["breaking"]], "good", "Error: "),
    ([["lint", "good", "--allow"]], "*:typo", "Error: "),
    ([["lint", "good", "--allow-file"]], "nowhere", "Error: "),
    ([["lint", "good", "--allow-file"]], "binary", "Error: "),
]


@pytest.mark.parametrize(("commands", "source", "why"), UNUSABLE)
def test_what_cannot_be_used_is_named(
    commands: list[list[str]], source: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and a line that says what is wrong with what; never a traceback."""
    module("plain")
    Path("failing.py").write_text("1 / 0", encoding="utf-8")
    Path("leaving.py").write_text("raise SystemExit(3)", encoding="utf-8")
    Path("odd.py").write_text("def __getattr__(name): raise ValueError(f'no {name}')", "utf-8")
    Path("text").write_text("syntax = 'proto3';\n", encoding="utf-8")
    Path("binary").write_bytes(b"\xff")
    for command in commands:
        assert main([*command, source]) == 2
        captured = capsys.readouterr()
        assert (captured.out, why in captured.err) == ("", True), captured


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """That of the distribution; each command is listed, and explains itself."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lro {importlib.metadata.version('lro')}\n"
    assert main(["--help"]) == 0
    assert {"lint", "breaking"} <= {*capsys.readouterr().out.split()}
    assert main(["breaking", "-h"]) == 0
    assert "OLD" in capsys.readouterr().out


def missing(monkeypatch: pytest.MonkeyPatch, package: str, *modules: str) -> None:
    """Forget a package of ours, and have modules that cannot be imported."""
    for name in [one for one in sys.modules if one.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("lro.cli._app", raising=False)
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("package", "modules", "said"),
    [
        ("lro.cli.", ["click"], "lro: the command lro needs the extra 'cli': pip install"),
        ("lro.lint", ["google.longrunning"], "pip install 'lro[protobuf]'"),
        ("rich", ["rich.console", "rich"], "pip install 'lro[cli]'"),
    ],
)
def test_missing_extra_is_named(
    package: str,
    modules: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence that says what to install."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # where findings are coloured
    missing(monkeypatch, package, *modules)
    assert main(["lint", "bad"]) == 2
    assert said in capsys.readouterr().err


def test_another_missing_module_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not hidden behind advice that would not help."""
    missing(monkeypatch, "lro.cli.", "lro.cli._commands")
    with pytest.raises(ModuleNotFoundError, match=r"lro\.cli\._commands"):
        main(["lint", "good"])


def test_the_module_is_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m lro.cli``, with the arguments of the process."""
    monkeypatch.setattr(sys, "argv", ["lro", "lint", "bad"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("lro.cli", run_name="__main__")
    assert end.value.code == 1
    runpy.run_module("lro.cli.__main__", run_name="imported")


def test_a_process(here: Path) -> None:
    """The status reaches the shell; a service with maintenance does not keep the process alive."""
    module("alive", "ExportResult")
    text = Path("alive.py").read_text(encoding="utf-8").replace(", maintenance=False", "")
    Path("alive.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "error", "-m", "lro.cli", "lint", "alive:books", "--strict"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stderr) == (1, "")
