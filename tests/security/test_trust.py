"""What the library trusts, and what it treats only as data."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path
from typing import Final

import pytest

import lro
from lro.executors.inline import InlineExecutor
from lro.http import HttpReply, OperationsEdge
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.http.counting_service import DOMAIN, CountMetadata, CountRequest, CountResponse
from tests.http.counting_service import ask as request

SRC: Final = Path(__file__).resolve().parents[2] / "src"
SECRET: Final = "hunter2-and-more"
EXECUTES: Final = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "xml"}
"""Modules whose parsers may run code from their input, or open resources named in it."""
HOSTILE: Final = (
    "'; DROP TABLE lro_operations; --",
    '" OR "1"="1',
    "%_%",
    "\\' OR 1=1",
    "x) UNION SELECT * FROM sqlite_master --",
    "${jndi}{{7*7}}%s%n",
)


def served(store=None, function=None, **options) -> tuple[lro.Service, OperationsEdge]:
    """Make a service with one method, by default a counter, and its edge."""
    service = lro.Service(store or MemoryStore(), InlineExecutor(), domain=DOMAIN, **options)

    def count(request: CountRequest, job: lro.Job[CountMetadata]) -> CountResponse:
        job.report(CountMetadata(percent=50))
        return CountResponse(total=request.steps)

    method = service.method(
        "acme.v1.Counters.Count", request=CountRequest, response=CountResponse,
        metadata=CountMetadata,
    )(function or count)  # fmt: skip
    authenticate = (lambda headers: headers.get("x-caller", "")) if options else None
    edge = OperationsEdge(service, starts={"/v1/c": method}, authenticate=authenticate)
    return service, edge


def ask(edge, method, target, body=b"", **headers) -> HttpReply:
    """Return the edge's reply to one request."""
    return edge.handle(request(method, target, body, **headers))


def test_no_module_imports_pickle_or_evaluates_stored_text() -> None:
    """The packages import no module like pickle and call neither ``eval`` nor ``__import__``."""
    found = []
    for path in SRC.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in (*EXECUTES, "eval", "__import__")):
            continue
        for node in ast.walk(ast.parse(text)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [node.func.id] if node.func.id in ("eval", "__import__") else []
            found += [(path.name, n) for n in names if n.partition(".")[0] in {*EXECUTES, "eval"}]
    assert found == [("_report.py", "xml.etree")]  # it only writes JUnit XML


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_a_value_in_sql_statements(text: str, tmp_path: Path) -> None:
    """A hostile caller, target, payload or filter is only compared with stored values."""
    store = SQLiteStore(tmp_path / "operations.db")
    service, _ = served(store, owner_only=True)
    try:
        options = {"caller": text, "target": text}
        name = service.start("acme.v1.Counters.Count", CountRequest(3, text), **options).name
        service.start("acme.v1.Counters.Count", CountRequest(4), caller="them")
        quoted = json.dumps(text).replace("*", "\\*")
        everything = lro.wire.ListOperationsRequest(filter="response.total = 3")
        nothing = lro.wire.ListOperationsRequest(filter=f"name = {quoted}")
        assert [o.name for o in service.list(everything, caller=text).operations] == [name]
        assert service.list(nothing, caller=text).operations == ()
        assert len(service.list(lro.wire.ListOperationsRequest(), caller="them").operations) == 1
    finally:
        service.close()


@pytest.mark.parametrize(
    "type_url",
    [
        "type.googleapis.com/os.system",
        "type.googleapis.com/builtins.eval",
        "evil.example/antigravity.Module",
    ],
)
def test_a_stored_type_url_imports_nothing(type_url: str) -> None:
    """An operation whose stored type URL names a module is shown as data or answers 500."""
    service, edge = served(MemoryStore())
    name = service.start("acme.v1.Counters.Count", CountRequest(1)).name
    stored = lro.AnyMessage(type_url, {"command": "echo", "__class__": "os"})
    before = set(sys.modules)
    service.store.update(name, lambda record: record.next_version(metadata=stored, result=stored))
    reply = ask(edge, "GET", f"/v1/{name}")
    assert reply.status in (200, 500)
    if reply.status == 200:
        assert json.loads(reply.body)["response"] == {"@type": type_url, **stored.payload}
    assert {name for name in set(sys.modules) - before if "antigravity" in name} == set()
    service.close()


def test_log_has_no_payload_and_no_header(caplog: pytest.LogCaptureFixture) -> None:
    """At no level does the log contain a request, filter, page token or header value."""
    caplog.set_level(logging.DEBUG)

    def echo(request: CountRequest, job: lro.Job[CountMetadata]) -> CountResponse:
        return CountResponse(total=request.steps)

    service, edge = served(function=echo, owner_only=True)
    secret = {"authorization": f"Bearer {SECRET}", "cookie": SECRET, "x_caller": "me"}
    made = ask(edge, "POST", "/v1/c", {"steps": 1, "label": SECRET}, **secret)
    name = json.loads(made.body)["name"]
    for method, path in (
        ("GET", f"/v1/{name}"),
        ("GET", f"/v1/operations?pageToken={SECRET}"),
        ("GET", f'/v1/operations?filter=metadata.label="{SECRET}"'),
        ("POST", f"/v1/{name}:cancel"),
        ("POST", f"/v1/{name}:nothing"),
        ("DELETE", f"/v1/{name}"),
    ):
        ask(edge, method, path, **secret)
    service.close()
    assert SECRET not in caplog.text


def test_every_caller_may_do_everything_without_hooks() -> None:
    """Without hooks, an edge lets every caller start, read, list and delete."""
    service, edge = served()
    name = json.loads(ask(edge, "POST", "/v1/c", {"steps": 1}).body)["name"]
    assert ask(edge, "GET", f"/v1/{name}").status == 200
    assert len(json.loads(ask(edge, "GET", "/v1/operations").body)["operations"]) == 1
    assert ask(edge, "DELETE", f"/v1/{name}").status == 200
    service.close()


def test_a_page_token_grants_no_access() -> None:
    """A caller who uses the page token of another caller sees only their own operations."""
    service, edge = served(owner_only=True)
    names = []
    for caller in ("them", "me", "me"):
        made = ask(edge, "POST", "/v1/c", {"steps": 1}, x_caller=caller)
        names.append(json.loads(made.body)["name"])
    page = json.loads(ask(edge, "GET", "/v1/operations?pageSize=1", x_caller="me").body)
    path = f"/v1/operations?pageToken={page['nextPageToken']}"
    seen = json.loads(ask(edge, "GET", path, x_caller="them").body)
    assert [one["name"] for one in seen["operations"]] == names[:1]
    service.close()


def test_operation_of_another_caller_looks_missing() -> None:
    """For another caller's operation, the replies are the same as for a missing one."""
    service, edge = served(owner_only=True)
    made = ask(edge, "POST", "/v1/c", {"steps": 1}, x_caller="them")
    theirs = json.loads(made.body)["name"]
    missing = theirs[:-4] + "AAAA"
    replies = [
        ask(edge, method, f"/v1/{name}{verb}", x_caller="me")
        for name in (theirs, missing)
        for method, verb in (("GET", ""), ("DELETE", ""), ("POST", ":cancel"), ("POST", ":wait"))
    ]
    answers = [
        (r.status, r.body.replace(theirs.encode(), b"NAME").replace(missing.encode(), b"NAME"))
        for r in replies
    ]
    assert answers[:4] == answers[4:]
    assert {status for status, _ in answers} == {404}
    service.close()
