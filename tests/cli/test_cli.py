"""``lro lint``, ``breaking`` and ``proto``: input, output and exit status."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

pytest.importorskip("rich")
pytest.importorskip("google.longrunning.operations_pb2")

from lro.cli import main
from lro.lint import lint
from tests.cli.asking import Lro
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
    """The current folder, with the descriptor sets ``good``, ``bad`` and ``warned``."""
    for name, method in (("good", GOOD), ("bad", BARE), ("warned", WARNED)):
        (here / name).write_bytes(packed(located(proto(method), 41, 2)))
    return here


def module(name: str, response: str = "ExportResponse", field: str = "rows: lro.Int32 = 0") -> None:
    """Write a module with a service; each test uses its own module names."""
    Path(f"{name}.py").write_text(MODULE.format(response=response, field=field), encoding="utf-8")


def test_lint_without_findings_prints_number_of_methods(command: Lro) -> None:
    """Without findings ``lint`` exits with 0 and prints the number of checked methods."""
    assert command("lint", "good", status=0).out == "no findings in 1 long-running method\n"


def test_finding_is_printed_on_one_line_after_its_position(command: Lro) -> None:
    """A finding is one line that begins with its position, as editors need. The status is 1."""
    heading, line, summary = command("lint", "bad", status=1).lines
    assert heading.split() == ["where", "method", "code", "what"]
    place, method, code, *what = line.split()
    assert (place, method) == ("acme/v1/books.proto:42:3", "acme.v1.Books.Export")
    assert code == "missing-operation-info"
    assert what[:2] == ["returns", "google.longrunning.Operation"]
    assert summary == "1 error in 1 long-running method"


def test_lines_of_a_pipe_are_not_padded(command: Lro) -> None:
    """Lines of a pipe are not padded. Without source information, a position is a file name."""
    far = Declared("Import", ("ExportResponse", "Metadata"), output="acme.v1.Metadata")
    Path("bad").write_bytes(packed(proto(BARE, far, Declared("Add"))))
    lines = command("lint", "bad", status=1).lines
    assert lines[1].startswith("acme/v1/books.proto ")
    assert lines[-1] == "3 errors in 2 long-running methods"
    assert [line.rstrip() for line in lines] == lines
    assert len({line.index(" acme.v1.Books.") for line in lines[1:4]}) == 1


def test_position_of_a_finding_is_not_wrapped(
    command: Lro, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a narrow terminal a position stays in one piece; messages wrap between words."""
    drawing = attrs.evolve(command, terminal=True)
    monkeypatch.setenv("COLUMNS", "60")
    name = f"acme/{'long' * 20}/v1/books.proto"
    Path("bad").write_bytes(packed(located(proto(BARE, name=name), 41, 2)))
    out = re.sub(r"\x1b\[[\d;]*m", "", drawing("lint", "bad", status=1).out)
    place, method, *what, _ = out.splitlines()
    assert place == f"{name}:42:3"
    assert method == "  acme.v1.Books.Export missing-operation-info"
    assert len(what) > 1
    assert all(line.startswith("    ") for line in what)
    assert max(map(len, what)) <= 60
    assert "…" not in out
    Path("bad").write_bytes(packed(proto(BARE), proto(name="a.proto")))
    out = drawing("lint", "bad", "--allow", "*:streaming-response", status=1).out
    out = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert out.startswith("  * unused-allowance\n    the allowance")
    assert " \n" not in out


def test_error_of_source_file_says_how_to_make_a_set(command: Lro) -> None:
    """For a .proto file the error shows how protoc or buf makes a descriptor set."""
    Path("books.proto").write_text('syntax = "proto3";\n', encoding="utf-8")
    ways = "protoc --include_imports --descriptor_set_out=FILE, or by buf build -o FILE"
    for arguments in (["lint", "books.proto"], ["breaking", "good", "books.proto"]):
        printed = command(*arguments, status=2).err
        assert "books.proto: 19 bytes that are not a FileDescriptorSet" in printed
        assert ways in printed


def test_json_output_is_a_list_of_objects(command: Lro) -> None:
    """``--json`` prints a list of findings with their position, severity and message."""
    (found,) = json.loads(command("lint", "--json", "bad", status=1).out)
    assert list(found) == ["method", "code", "severity", "message", "file", "line", "column"]
    assert (found["severity"], found["line"], found["column"]) == ("error", 42, 3)
    assert json.loads(command("lint", "--json", "good", status=0).out) == []


def test_warnings_count_only_when_strict(command: Lro, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are printed, but fail the check only with ``--strict``; ``-`` is standard input."""
    assert "1 warning in 1 long-running method" in command("lint", "warned", status=0).out
    given = SimpleNamespace(buffer=io.BytesIO(Path("warned").read_bytes()))
    monkeypatch.setattr(sys, "stdin", given)
    command("lint", "--strict", "-", status=1)
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in command("lint", "-", status=2).err


def test_allowed_findings_are_not_reported(command: Lro) -> None:
    """``--allow`` and ``--allow-file`` suppress findings. An unused allowance is a warning."""
    Path("allowed.txt").write_text("# known\n*:missing-operation-info\n", encoding="utf-8")
    by_file = ("lint", "--allow-file", "allowed.txt")
    command("lint", "bad", "--allow", "acme.v1.Books.Export", status=0)
    command(*by_file, "bad", status=0)
    assert "unused-allowance" in command(*by_file, "good", status=0).out
    command(*by_file, "--strict", "good", status=1)


def test_several_descriptor_sets_are_merged(command: Lro) -> None:
    """A method and its types may be in different descriptor sets of one command."""
    far = Declared("Export", ("ExportResponse", "far.Meta"))
    Path("a").write_bytes(packed(proto(far, imports=["far.proto"])))
    Path("b").write_bytes(packed(proto(name="far.proto", package="far", messages=["Meta"])))
    command("lint", "a", status=1)
    command("lint", "a", "b", status=0)


def test_target_option_limits_the_checked_files(command: Lro) -> None:
    """``--target`` limits ``lint`` and ``breaking`` to a file of the first descriptor set."""
    other = proto(BARE, name="o.proto", service="O", messages=())
    Path("two").write_bytes(packed(proto(GOOD), other))
    command("lint", "two", status=1)
    command("lint", "two", "--target", "acme/v1/books.proto", status=0)
    command("lint", "two", "--target", "gone.proto", status=2)
    command("breaking", "two", "good", status=1)
    command("breaking", "two", "good", "--target", "acme/v1/books.proto", status=0)


def test_breaking_reports_old_and_new_types(command: Lro) -> None:
    """``breaking`` prints findings like ``lint``; its JSON also has the old and the new type."""
    command("breaking", "good", "good", status=0)
    command("breaking", "good", "bad", "--allow", "*:operation-info-removed", status=0)
    (found,) = json.loads(command("breaking", "good", "warned", "--json", status=1).out)
    assert list(found)[-2:] == ["old", "new"]
    assert (found["old"], found["new"]) == ("acme.v1.ExportResponse", "acme.v1.Metadata")


def test_python_service_is_checked_like_a_descriptor_set(command: Lro) -> None:
    """``module:service`` is checked like a descriptor set. The module is in the current folder."""
    module("kept")
    module("altered", "ExportResult")
    command("lint", "kept:books", status=0)
    Path("a:b").write_bytes(Path("good").read_bytes())  # an existing file is preferred to a module
    command("lint", "a:b", status=0)
    found = command("lint", "altered:books", "--strict", status=1)
    assert "response-type-convention" in found.out
    found = command("breaking", "kept:books", "altered:books", status=1)
    assert "response-type-changed" in found.out


def test_proto_files_are_printed(command: Lro) -> None:
    module("one_file")
    printed = command("proto", "one_file:books", status=0).out
    assert printed.startswith('syntax = "proto3";\n\npackage acme.v1;\n')
    assert "rpc Export(ExportRequest) returns (google.longrunning.Operation) {" in printed
    module("two_files", field="row: Row | None = None")
    printed = command("proto", "two_files:books", status=0).out
    assert "// acme/other/v1/other.proto\n\nsyntax" in printed
    assert "// acme/v1/acme.proto\n\nsyntax" in printed


def test_proto_files_are_written(command: Lro) -> None:
    """``lro proto`` writes files and a set that ``lint`` accepts. A failed write names its file."""
    module("written")
    write = functools.partial(command, "proto", "written:books")
    found = write("--out", "out/protos", "--descriptor-set", "out/set.pb", status=0)
    assert found.out == "out/protos/acme/v1/acme.proto\n"
    assert write("--descriptor-set", "again.pb", status=0).out == ""
    assert "message ExportRequest {" in Path("out/protos/acme/v1/acme.proto").read_text("utf-8")
    assert lint(Path("out/set.pb").read_bytes()) == []
    Path("taken").write_text("", "utf-8")
    refused = write("--out", "taken/here", status=2)
    assert "taken/here/acme/v1/acme.proto: cannot be written" in refused.err


BOTH = (["lint"], ["breaking", "good"])
PYTHON = (*BOTH, ["proto"], ["openapi"])
UNUSABLE = [
    (BOTH, "nowhere", "Error: nowhere: cannot be read: No such file or directory"),
    (BOTH, "no\0where", "cannot be read: embedded null"),
    (BOTH, "text", "Error: text: 19 bytes that are not a FileDescriptorSet"),
    (PYTHON, "no_such_module:books", "cannot be imported: ModuleNotFoundError: No module named"),
    (PYTHON, "failing:books", "Error: failing:books: cannot be imported: ZeroDivisionError"),
    (PYTHON, "leaving:books", "cannot be imported: SystemExit: 3"),
    (PYTHON, "plain:gone", "Error: plain:gone: there is no 'gone' in it"),
    (PYTHON[:3], "plain:number", "Error: plain:number: is int, not an lro.Service"),
    (PYTHON, "plain:books.gone", "there is no 'gone'"),
    (PYTHON, "odd:garage", "'garage' cannot be read: ValueError: no garage"),
    (PYTHON[2:], "books", "Error: books: is not module:service"),
    ([[]], "nonsense", "Error: "),
    ([["lint", "good"]], "--nonsense", "Error: "),
    ([["breaking"]], "good", "Error: "),
    ([["lint", "good", "--allow"]], "*:typo", "Error: "),
    ([["lint", "good", "--allow-file"]], "nowhere", "Error: "),
    ([["lint", "good", "--allow-file"]], "binary", "Error: "),
]


@pytest.mark.parametrize(("commands", "source", "why"), UNUSABLE)
def test_unusable_input_is_named(
    commands: list[list[str]], source: str, why: str, command: Lro
) -> None:
    """For unusable input the status is 2 and the error names the input and the problem."""
    module("plain")
    Path("failing.py").write_text("1 / 0", encoding="utf-8")
    Path("leaving.py").write_text("raise SystemExit(3)", encoding="utf-8")
    Path("odd.py").write_text("def __getattr__(name): raise ValueError(f'no {name}')", "utf-8")
    Path("text").write_text("syntax = 'proto3';\n", encoding="utf-8")
    Path("binary").write_bytes(b"\xff")
    for arguments in commands:
        found = command(*arguments, source, status=2)
        assert (found.out, why in found.err) == ("", True), found


def test_version_and_help_are_printed(command: Lro) -> None:
    """``--version`` prints the distribution's version; ``--help`` lists commands or arguments."""
    version = importlib.metadata.version("lro")
    assert command("--version", status=0).out == f"lro {version}\n"
    assert {"lint", "breaking"} <= {*command("--help", status=0).out.split()}
    assert "OLD" in command("breaking", "-h", status=0).out


def missing(monkeypatch: pytest.MonkeyPatch, package: str, *modules: str) -> None:
    """Unload a package of this library, and make these modules fail to import."""
    for name in [one for one in [*sys.modules] if one.startswith(package)]:
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
    package: str, modules: list[str], said: str, command: Lro, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(monkeypatch, package, *modules)
    drawing = attrs.evolve(command, terminal=True)  # coloured findings need rich
    assert said in drawing("lint", "bad", status=2).err


def test_import_error_of_another_module_is_raised_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ImportError that no extra would prevent is raised unchanged."""
    missing(monkeypatch, "lro.cli.", "lro.cli._commands")
    with pytest.raises(ModuleNotFoundError, match=r"lro\.cli\._commands"):
        main(["lint", "good"])


def test_command_in_its_own_process_returns_the_status(here: Path) -> None:
    """The process exits with the command's status, although the service has maintenance threads.

    An import of ``lro.cli.__main__`` does not run the command.
    """
    module("alive", "ExportResult")
    text = Path("alive.py").read_text(encoding="utf-8").replace(", maintenance=False", "")
    Path("alive.py").write_text(text, encoding="utf-8")
    program = [sys.executable, "-W", "error", "-m", "lro.cli", "lint", "alive:books", "--strict"]
    run = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stderr) == (1, "")
    runpy.run_module("lro.cli.__main__", run_name="imported")
