"""``lro proto``: files on the screen or in a folder, and what cannot be printed."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("google.longrunning.operations_proto_pb2")

from lro.cli import main
from lro.lint import lint

MODULE = """
import attrs
import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore

@lro.message("acme.other.v1.Row")
@attrs.frozen
class Row:
    text: str = ""

@attrs.frozen
class ExportRequest:
    name: str = ""

@attrs.frozen
class ExportMetadata:
    rows: lro.Int32 = 0

@attrs.frozen
class ExportResponse:
    {field}

books = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

@books.method("acme.v1.Books.Export")
def export(request: ExportRequest, job: lro.Job[ExportMetadata]) -> ExportResponse:
    return ExportResponse()
"""


@pytest.fixture
def module(tmp_path, request):
    """Makes a module with a service, in the folder where we stand."""
    name = f"books_{abs(hash(request.node.nodeid))}"

    def make(field="rows: lro.Int32 = 0"):
        (tmp_path / f"{name}.py").write_text(MODULE.format(field=field))
        return f"{name}:books"

    yield make
    sys.modules.pop(name, None)


def test_a_file_is_printed(module, capsys):
    """As it could be kept."""
    assert main(["proto", module()]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith('syntax = "proto3";\n\npackage acme.v1;\n')
    assert "rpc Export(ExportRequest) returns (google.longrunning.Operation) {" in printed


def test_several_files_are_printed_under_their_names(module, capsys):
    """Each under its name."""
    assert main(["proto", module("row: Row | None = None")]) == 0
    printed = capsys.readouterr().out
    assert "// acme/other/v1/other.proto\n\nsyntax" in printed
    assert "// acme/v1/acme.proto\n\nsyntax" in printed


def test_files_are_written(module, tmp_path, capsys):
    """With a set of descriptors that the linter takes."""
    source = module()
    arguments = ["proto", source, "--out", "out/protos", "--descriptor-set", "out/set.pb"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "out/protos/acme/v1/acme.proto\n"
    assert main(["proto", source, "--descriptor-set", "again.pb"]) == 0
    assert capsys.readouterr().out == ""
    assert "message ExportRequest {" in (tmp_path / "out/protos/acme/v1/acme.proto").read_text()
    assert lint((tmp_path / "out/set.pb").read_bytes()) == []


def test_folder_that_cannot_be_made_is_reported(module, tmp_path, capsys):
    """A file stands where the folder would be."""
    (tmp_path / "taken").write_text("")
    assert main(["proto", module(), "--out", "taken/here"]) == 2
    assert "taken/here/acme/v1/acme.proto: cannot be written" in capsys.readouterr().err
