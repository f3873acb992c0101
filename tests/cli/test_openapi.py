"""``lro openapi``: the document of a service or an application, and what has none."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("click")

from lro.cli import main

MODULE = """
import lro
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.openapi import Document
from lro.stores.memory import MemoryStore

books = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

@books.method("acme.v1.Books.Count", path="/v1/books:count")
def count(request: lro.types.Struct) -> None: ...

app = OperationsApp(books, starts={"/v1/numbers": count}, openapi=Document(title="Books"))
number = 5

class Own:
    def __init__(self, document):
        self.openapi = lambda: document()

odd = Own(lambda: {1, 2})
failing = Own(lambda: 1 / 0)
"""


@pytest.fixture
def module(tmp_path, request, monkeypatch):
    """A module with a service and an application, in the folder where we stand."""
    name = f"openapi_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_document_of_a_service_has_the_methods_with_a_path(module, capsys):
    """And the operations, also under a parent."""
    assert main(["openapi", f"{module}:books", "--parent", "projects/*"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["openapi"] == "3.1.0"
    paths = {"/v1/books:count", "/v1/operations", "/v1/projects/{project}/operations"}
    assert paths < {*document["paths"]}


def test_document_of_an_application_is_its_own(module, capsys, tmp_path):
    """In a file, too."""
    assert main(["openapi", f"{module}:app", "--out", "docs/books.json"]) == 0
    assert capsys.readouterr().out == ""
    document = json.loads((tmp_path / "docs" / "books.json").read_text())
    assert document["info"]["title"] == "Books"
    assert "/v1/numbers" in document["paths"]
    assert "/v1/books:count" not in document["paths"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["{}:number"], "is int, which has no OpenAPI document"),
        (["{}:app", "--parent", "projects/*"], "--parent: is for a service alone"),
        (["{}:books", "--parent", "/projects"], "must be patterns such as projects/*/locations/*"),
        (["{}:odd"], "Object of type set is not JSON serializable"),
        (["{}:failing"], "ZeroDivisionError: division by zero"),
    ],
)
def test_source_without_a_document_is_refused(module, capsys, arguments, complaint):
    """In one line."""
    assert main(["openapi", *(argument.format(module) for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
