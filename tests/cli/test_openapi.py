"""``lro openapi``: the OpenAPI document of a service or an application."""

from __future__ import annotations

import json
import sys

import pytest

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
def module(here, request):
    """The name of a module with a service and an application, in the current folder."""
    name = f"openapi_{abs(hash(request.node.nodeid))}"
    (here / f"{name}.py").write_text(MODULE)
    yield name
    sys.modules.pop(name, None)


def test_document_of_a_service_has_the_methods_with_a_path(module, command):
    found = command("openapi", f"{module}:books", "--parent", "projects/*", status=0)
    document = json.loads(found.out)
    assert document["openapi"] == "3.1.0"
    paths = {"/v1/books:count", "/v1/operations", "/v1/projects/{project}/operations"}
    assert paths < {*document["paths"]}


def test_document_of_an_application_is_its_own(module, command, here):
    """For an application, the command writes the application's own document to ``--out``."""
    assert command("openapi", f"{module}:app", "--out", "docs/books.json", status=0).out == ""
    document = json.loads((here / "docs" / "books.json").read_text())
    assert document["info"]["title"] == "Books"
    assert "/v1/numbers" in document["paths"]
    assert "/v1/books:count" not in document["paths"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["{}:number"], "is int, which has no OpenAPI document"),
        (["{}:app", "--parent", "projects/*"], "--parent: is only for a service"),
        (["{}:books", "--parent", "/projects"], "must be patterns such as projects/*/locations/*"),
        (["{}:odd"], "Object of type set is not JSON serializable"),
        (["{}:failing"], "ZeroDivisionError: division by zero"),
    ],
)
def test_source_without_a_document_is_refused(module, command, arguments, complaint):
    """A target without a document, or a wrong option, causes an error of one line."""
    printed = command("openapi", *(one.format(module) for one in arguments), status=2)
    assert printed.out == ""
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
