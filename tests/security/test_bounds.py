"""Bounds: each has a row in docs/reference/limits.md, and is tested at it and one over it."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import re
import threading
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

from google.longrunning import operations_proto_pb2 as pb

import lro
import lro.wire
import lro.wsgi
from lro._base.errors import MAX_CHALLENGE
from lro._engine.limits import LARGE_AT_ONCE, ByteBudget, CallCount, ReplyReservation, size_of
from lro._engine.store_port import READ_BYTES
from lro._filters.parse import MAX_DEPTH as FILTER_DEPTH
from lro._filters.parse import MAX_LENGTH, MAX_UNITS
from lro._http.requests import MAX_CONTENT_TYPE, MAX_PARAMETERS, MAX_QUERY, parse_query, read_object
from lro._http.responses import MAX_DETAILS, MAX_TEXT
from lro._messages.json_text import MAX_DEPTH, MAX_LISTS
from lro._model.http_rules import MAX_PATH, check_path
from lro._model.operation import MAX_NAME, MAX_NAMES
from lro._model.page_tokens import MAX_PAGE_SIZE, MAX_TOKEN
from lro.adapters import Record
from lro.asgi import MAX_HEADERS, OperationsApp, _broken_off_if_slow, _Headers
from lro.errors import InvalidPageToken
from lro.executors.inline import InlineExecutor
from lro.grpc import DEFAULT_MAX_REQUEST
from lro.grpc._messages import MAX_DETAILS as MAX_GRPC_DETAILS
from lro.grpc._messages import MAX_MESSAGE as MAX_GRPC_MESSAGE
from lro.grpc._messages import OperationWriter
from lro.grpc._rpcs import MAX_PAGE, OperationsRpc
from lro.http import DEFAULT_MAX_BODY, HttpRequest, OperationsEdge, drive, error_reply
from lro.stores._rows import from_row
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.http.counting_service import ask, build
from tests.http.test_asgi import scope_of
from tests.security.memory import SIZE, Served, together
from tests.virtual_loop import run_virtual
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

TABLE: Final = Path(__file__).parent.parent.parent / "docs/reference/limits.md"
DEFAULTS: Final = lro.Limits()
LEAST: Final = 100
METHOD: Final = "acme.v1.Works.Work"

CONSTANTS: Final = {
    "`max_body` of an edge": DEFAULT_MAX_BODY,
    "`max_request` of `add_to`": DEFAULT_MAX_REQUEST,
    "path of a request, characters": MAX_PATH,
    "query of a request, characters": MAX_QUERY,
    "parameters of a query": MAX_PARAMETERS,
    "headers of a request under ASGI": MAX_HEADERS,
    "Content-Type, characters": MAX_CONTENT_TYPE,
    "page of a list over gRPC, bytes": MAX_PAGE,
    "name of an operation, characters": MAX_NAME,
    "parent, characters": MAX_NAME,
    "names of a BatchGet, Describe or Watch": MAX_NAMES,
    "operations of a page": MAX_PAGE_SIZE,
    "page token, characters": MAX_TOKEN,
    "filter, characters": MAX_LENGTH,
    "parentheses in a filter, levels": FILTER_DEPTH,
    "tests and groups of a filter": MAX_UNITS,
    "request id, characters": len(str(uuid.uuid4())),
    "objects and lists in a body, levels": MAX_DEPTH,
    "lists in a body": MAX_LISTS,
    "message of an error's reply, and each text in its details, characters": MAX_TEXT,
    "details of an error's reply, bytes": MAX_DETAILS,
    "message of an error over gRPC, bytes": MAX_GRPC_MESSAGE,
    "code, message and details of an error over gRPC, bytes": MAX_GRPC_DETAILS,
    "challenge of an `Unauthenticated`, characters": MAX_CHALLENGE,
    "`MemoryStore(request_ids=...)`": 100_000,
    **{f"`Limits.{field.name}`": field.default for field in attrs.fields(lro.Limits)},
}


def rows() -> dict[str, list[str]]:
    """The rows of the first table, by what they bound."""
    first, _, _ = TABLE.read_text().partition("\n## ")
    lines = [line for line in first.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("what", list(rows()))
def test_the_table_has_the_defaults_of_the_code(what: str) -> None:
    """Each row's number is that of its constant or setting, and its reason one that exists."""
    default, setting, _, reason = rows()[what]
    assert int(default) == CONSTANTS[what if what in CONSTANTS else setting]
    reasons = {cls.reason for cls in vars(lro.errors).values() if hasattr(cls, "reason")}
    assert reason in reasons | {""}


def test_the_table_has_a_row_for_each_limit() -> None:
    """No setting of ``Limits`` is left out."""
    settings = {setting for _, setting, _, _ in rows().values()}
    assert {f"`Limits.{field.name}`" for field in attrs.fields(lro.Limits)} <= settings
    assert {*PROBES, *ELSEWHERE} == set(rows())


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(lro.Limits)])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "9", None])
def test_limits_are_whole_numbers_from_1(field: str, wrong: Any) -> None:
    """Anything else is refused when they are made."""
    with pytest.raises(lro.DeclarationError, match=f"^{field}: must be a whole number from 1, got"):
        lro.Limits(**{field: wrong})


def test_all_replies_have_room_for_one_page() -> None:
    """Else no large page could ever be answered."""
    lro.Limits(page_bytes=5, replies_bytes=5)
    with pytest.raises(lro.DeclarationError, match=r"^replies_bytes: must be at least page_bytes"):
        lro.Limits(page_bytes=6, replies_bytes=5)
    with pytest.raises(lro.DeclarationError, match=r"^limits: must be Limits\(...\), got"):
        build(limits={"waits": 5})


# -- each bound, and one over it --------------------------------------------------------------


def service_of(store: Any = None, **limits: int) -> lro.Service:
    """A service without maintenance, whose method returns what the test puts into the request."""
    service = lro.Service(
        store or MemoryStore(), InlineExecutor(), maintenance=False, limits=lro.Limits(**limits)
    )
    service.declare(METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata)
    return service


def body(size: int) -> None:
    edge = OperationsEdge(service_of(), max_body=LEAST)
    request = ask("POST", "/v1/operations/x:cancel", b"{}".ljust(size))
    edge._check_size(request)
    assert (edge.handle(request).status == 413) is (size > LEAST)


def grpc_request(size: int) -> None:
    rpc = OperationsRpc(service_of(), "GetOperation", None, max_request=LEAST)  # type: ignore[arg-type]
    rpc._check_size(b"x" * size)


def text_of(cls: type, size: int) -> Any:
    """A message with so many bytes of JSON; not by ASCII alone."""
    field = "note" if cls is WorkMetadata else "text"
    letters = size - len(f'{{"{field}":""}}')
    return cls(**{field: "\u00e9" * (letters // 2) + "x" * (letters % 2)})


def metadata(size: int) -> None:
    service = service_of(metadata_bytes=LEAST)
    name = service.start(METHOD, WorkRequest()).name
    service.reporter(name).report(text_of(WorkMetadata, size))


def response(size: int) -> None:
    service = service_of(response_bytes=LEAST)
    name = service.start(METHOD, WorkRequest()).name
    service.reporter(name).complete(text_of(WorkResponse, size))


def batch(size: int) -> None:
    service = service_of(page_bytes=1000)
    names = [service.start(METHOD, WorkRequest()).name for _ in range(2)]
    bare = sum(service.store.get(name).weight for name in names)
    packed = lro.Any("type.googleapis.com/acme.v1.WorkResponse", {"text": ""})
    added = len(packed.type_url) + len('["",{"text":""}]')
    text = "x" * (1000 + size - LEAST - bare - added)
    service.reporter(names[0]).complete(WorkResponse(text))
    service.batch_get(names)


def replies(size: int) -> None:
    budget = ByteBudget(LEAST, iter(range(0, 100, 9)).__next__)
    turn = budget.take(size)
    assert budget.held == LEAST
    turn.release()


def waits(count: int, caller: str = "", **limits: int) -> None:
    service = service_of(**limits)
    name = service.start(METHOD, WorkRequest()).name

    async def main() -> None:
        tasks = [
            asyncio.create_task(service.wait_async(name, caller=caller)) for _ in range(count - 1)
        ]
        await asyncio.sleep(0)
        try:
            await service.wait_async(name, 0.0, caller=caller)
        finally:
            service.reporter(name).complete(WorkResponse())
            await asyncio.gather(*tasks)
        await service.wait_async(name, caller=caller)

    run_virtual(main())


def streams(count: int, caller: str = "", each: int = 1, **limits: int) -> None:
    service = service_of(**limits)
    names = [service.start(METHOD, WorkRequest()).name for _ in range(each)]

    async def main() -> None:
        held = [await service.watch(names, caller=caller) for _ in range(count)]
        for stream in held:
            batches = stream.batches(60)
            await anext(batches)
            await batches.aclose()
        again = [await service.watch(names, caller=caller) for _ in range(count)]
        del again  # those that are never iterated free their places, too

    run_virtual(main())


def listed(**fields: Any) -> None:
    service_of().list(lro.ListOperationsRequest(**fields))


def name(size: int) -> None:
    with pytest.raises(lro.errors.OperationNotFound):
        service_of().get("operations/" + "x" * (size - len("operations/")))


def page_token(size: int) -> None:
    with pytest.raises(InvalidPageToken) as caught:
        listed(page_token="x" * size)
    if "at most" in str(caught.value):
        raise caught.value


def request_id(size: int) -> None:
    service_of().start(METHOD, WorkRequest(), request_id=str(uuid.uuid4()).ljust(size, "0"))


def content_type(size: int) -> None:
    read_object("application/json".ljust(size, ";"), b"{}")


def nested(levels: int) -> None:
    read_object(None, b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1))


def lists(count: int) -> None:
    read_object(None, b'{"a":[%s]}' % b",".join([b"[]"] * (count - 1)))


Probe = tuple[Callable[[int], None], int]
PROBES: Final[dict[str, Probe]] = {
    "body of a request, bytes": (body, LEAST),
    "request over gRPC, bytes": (grpc_request, LEAST),
    "path of a request, characters": (lambda n: check_path("/".ljust(n, "x")), MAX_PATH),
    "query of a request, characters": (
        lambda n: str(parse_query("ListOperations", "filter=".ljust(n, "x"))) and None,
        MAX_QUERY,
    ),
    "parameters of a query": (
        lambda n: str(parse_query("ListOperations", "&".join(["key=1"] * n))) and None,
        MAX_PARAMETERS,
    ),
    "headers of a request under ASGI": (
        lambda n: str(len(_Headers([(b"x", b"y")] * n))) and None,
        MAX_HEADERS,
    ),
    "Content-Type, characters": (content_type, MAX_CONTENT_TYPE),
    "metadata of an operation, bytes": (metadata, LEAST),
    "response or error of an operation, bytes": (response, LEAST),
    "operations of a BatchGet or Describe, bytes": (batch, LEAST),
    "pages, batches and events of all callers, bytes": (replies, LEAST),
    "calls of Wait held": (lambda n: waits(n, waits=3), 3),
    "calls of Wait held for one caller": (lambda n: waits(n, "ann", waits_per_caller=3), 3),
    "streams of Watch": (lambda n: streams(n, streams=3), 3),
    "streams of Watch for one caller": (lambda n: streams(n, "ann", streams_per_caller=3), 3),
    "operations in all streams": (lambda n: streams(1, each=n, watched=3), 3),
    "name of an operation, characters": (name, MAX_NAME),
    "parent, characters": (lambda n: listed(name="p/" + "x" * (n - 2)), MAX_NAME),
    "names of a BatchGet, Describe or Watch": (
        lambda n: str(service_of().batch_get([f"operations/{k}" for k in range(n)])) and None,
        MAX_NAMES,
    ),
    "page token, characters": (page_token, MAX_TOKEN),
    "filter, characters": (lambda n: listed(filter="done".ljust(n)), MAX_LENGTH),
    "parentheses in a filter, levels": (
        lambda n: listed(filter="(" * n + "done = true" + ")" * n),
        FILTER_DEPTH,
    ),
    "tests and groups of a filter": (
        lambda n: listed(filter=" OR ".join(["done = true"] * n)),
        MAX_UNITS,
    ),
    "request id, characters": (request_id, 36),
    "objects and lists in a body, levels": (nested, MAX_DEPTH),
    "lists in a body": (lists, MAX_LISTS),
}
"""Who passes at a number, and raises above it."""

ELSEWHERE: Final = {
    "page of a list, bytes",
    "page of a list over gRPC, bytes",
    "operations of a page",
    "message of an error's reply, and each text in its details, characters",
    "details of an error's reply, bytes",
    "message of an error over gRPC, bytes",  # tests/grpc/test_server.py
    "code, message and details of an error over gRPC, bytes",  # tests/grpc/test_server.py
    "challenge of an `Unauthenticated`, characters",  # tests/http/test_operations_edge.py
    "request ids kept in memory, each for 24 hours",
}
"""Those that refuse nothing; each has a test of its own."""


@pytest.mark.parametrize("what", list(PROBES))
def test_a_bound_holds_at_its_number_and_not_one_over_it(what: str) -> None:
    """At the bound a request is accepted; one over it is refused with the reason in the table."""
    probe, at = PROBES[what]
    probe(at)
    with pytest.raises(lro.LroError) as caught:
        probe(at + 1)
    _, setting, refused, reason = rows()[what]
    assert caught.value.reason == reason
    if setting.startswith("`Limits."):
        assert setting.strip("`") in str(caught.value)
    code = re.search("[A-Z]+_[A-Z_]+|INTERNAL", refused)
    assert code is not None
    assert caught.value.status_code.name == code[0]
    status = re.search(r"\b[45]\d\d\b", refused)
    assert status is None or error_reply(caught.value, lro.TypeRegistry(), "").status == int(
        status[0]
    )


def error_body(error: lro.LroError) -> Any:
    """The reply for an error, as JSON."""
    return json.loads(error_reply(error, lro.TypeRegistry(), "acme.test").body)["error"]


@pytest.mark.parametrize("letter", ["x", "\U0001f600", "\x00"])
def test_texts_of_an_error_are_cut(letter: str) -> None:
    """One text of the application, or of a request that it quotes, is in the reply many times."""
    whole = error_body(lro.InvalidArgument("", letter * MAX_TEXT))
    assert whole["message"] == letter * MAX_TEXT
    assert whole["details"][1]["fieldViolations"][0]["description"] == letter * MAX_TEXT
    cut = error_body(lro.InvalidArgument(letter * 100_000, letter * (MAX_TEXT + 1)))
    short = letter * (MAX_TEXT - 3) + "..."
    info, wrong = cut["details"]
    assert (cut["code"], cut["message"]) == (400, short)
    assert info["metadata"] == {"field": short}
    assert wrong["fieldViolations"] == [{"field": short, "description": short}]
    odd = lro.Any("type.googleapis.com/google.rpc.Odd", {"number": 5})
    assert error_body(lro.StatusError(lro.Code.ABORTED, "", (odd,)))["details"][1]["number"] == 5
    reason = lro.StatusError(lro.Code.INTERNAL, "", why=letter * 100_000)
    assert error_body(reason)["details"][0]["reason"] == short


def test_details_of_an_error_are_bounded() -> None:
    """Details that fit are sent, in their order; the ErrorInfo always, if need be without facts."""
    info = lro.types.ErrorInfo(reason="ABORTED", domain="acme.test")
    room = MAX_DETAILS - size_of(lro.TypeRegistry().pack(info))
    fits = lro.Any("type.googleapis.com/a.b.C", {"x": "y" * (room - len('{"x":""}'))})
    over = lro.Any(fits.type_url, {"x": f"{fits.payload['x']}y"})
    retry = lro.types.RetryInfo()
    for extra, kept in (((fits, retry), ["a.b.C"]), ((over, retry), ["google.rpc.RetryInfo"])):
        found = error_body(lro.StatusError(lro.Code.ABORTED, "no", extra))["details"]
        assert [one["@type"].rpartition("/")[2] for one in found[1:]] == kept
        assert found[0]["reason"] == "ABORTED"

    class Talkative(lro.errors.PermissionDenied):
        def facts(self) -> dict[str, str]:
            return {str(k): "x" * MAX_TEXT for k in range(40)}

    assert [{**one, "@type": ""} for one in error_body(Talkative())["details"]] == [
        {"@type": "", "reason": "PERMISSION_DENIED", "domain": "acme.test"}
    ]


def test_a_page_has_a_thousand_operations_and_no_more() -> None:
    """A larger size is taken for that."""
    service = service_of()
    for _ in range(MAX_PAGE_SIZE + 1):
        service.start(METHOD, WorkRequest())
    page = service.list(lro.ListOperationsRequest(page_size=MAX_PAGE_SIZE + 1))
    assert len(page.operations) == MAX_PAGE_SIZE
    assert page.next_page_token


def test_memory_forgets_the_oldest_request_id() -> None:
    """With one more than it keeps, a start repeated with the oldest is a second operation."""
    service = service_of(MemoryStore(request_ids=2))
    ids = [str(uuid.uuid4()) for _ in range(3)]
    names = [service.start(METHOD, WorkRequest(), request_id=one).name for one in ids[:2]]
    assert service.start(METHOD, WorkRequest(), request_id=ids[0]).name == names[0]
    service.start(METHOD, WorkRequest(), request_id=ids[2])
    assert service.start(METHOD, WorkRequest(), request_id=ids[1]).name == names[1]
    assert service.start(METHOD, WorkRequest(), request_id=ids[0]).name != names[0]
    with pytest.raises(lro.DeclarationError, match=r"^request_ids: must be a whole number from 1"):
        MemoryStore(request_ids=0)


# -- pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("text", ["", 'metadata.percent >= 0 AND response.text = "x*"'])
def test_a_page_ends_before_the_operation_that_would_pass_the_bound(
    kind: str, text: str, tmp_path: Path
) -> None:
    """It has one at least, and the walk meets each exactly once (spec §3.4(7), (9))."""
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "operations.db")
    with service_of(store, page_bytes=20_000) as service:
        names = []
        for number in range(12):
            first = WorkMetadata(percent=number)
            names.append(service.start(METHOD, WorkRequest(), metadata=first).name)
            size = 50_000 if number == 6 else 6_000
            service.reporter(names[-1]).complete(WorkResponse("x" * size))
        edge, token, seen, counts = OperationsEdge(service), "", [], []
        while True:
            request = lro.ListOperationsRequest(filter=text, page_size=1000, page_token=token)
            page = service.list(request)
            shown = edge.handle(ask("GET", f"/v1/operations?pageSize=1000&pageToken={token}"))
            if not text:
                assert len(
                    lro.wire.page_from_json(lro.wire.loads(shown.body), service.types).operations
                ) == (len(page.operations))
                assert len(shown.body) < 21_000 or len(page.operations) == 1
            counts.append(len(page.operations))
            seen += [one.name for one in page.operations]
            token = page.next_page_token
            if not token:
                break
        assert seen == names[::-1]
        assert counts == [3, 2, 1, 3, 3]


def test_a_page_over_grpc_can_be_read_by_default_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where its binary form is longer than its JSON."""
    monkeypatch.setattr("lro.grpc._rpcs.MAX_PAGE", 40_000)
    service = service_of()
    service.declare(
        "acme.v1.Works.Numbers", request=WorkRequest, response=lro.Struct, metadata=WorkMetadata
    )
    packed = lro.Any("type.googleapis.com/google.protobuf.Struct", {"n": [1] * 4_000})
    for _ in range(3):
        name = service.start("acme.v1.Works.Numbers", WorkRequest()).name
        service.reporter(name).complete(packed)
    rpc = OperationsRpc(service, "ListOperations", OperationWriter(service.types))
    payload = pb.ListOperationsRequest(name="operations", page_size=9).SerializeToString()
    counts = []
    while True:
        answer = drive(rpc.exchange(payload, Context()), service)
        page = pb.ListOperationsResponse.FromString(answer)
        assert len(answer) <= 40_000 or len(page.operations) == 1
        counts.append(len(page.operations))
        if not page.next_page_token:
            break
        payload = pb.ListOperationsRequest(
            name="operations", page_size=9, page_token=page.next_page_token
        ).SerializeToString()
    assert counts == [1, 1, 1]
    assert service.replies.held == 0


@pytest.mark.parametrize("how", ["list", "batch", "list over gRPC"])
def test_large_operations_are_let_go_before_the_next_is_read(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Read messages may take twelve times their text: of a reply, one is held."""
    monkeypatch.setattr("lro.stores._rows.MAX_BYTES", 0)
    read: list[weakref.ref[Record]] = []

    def reading(row: Any) -> Record:
        assert [known() for known in read if known() is not None] == []
        record = from_row(row)
        read.append(weakref.ref(record))
        return record

    with service_of(SQLiteStore(tmp_path / "operations.db")) as service:
        names = [service.start(METHOD, WorkRequest()).name for _ in range(4)]
        for name in names:
            service.reporter(name).complete(WorkResponse("x" * (READ_BYTES // 2)))
        monkeypatch.setattr("lro.stores.sqlite._file.from_row", reading)
        edge, types = OperationsEdge(service), service.types
        if how == "list":
            shown = edge.handle(ask("GET", "/v1/operations"))
            page = lro.wire.page_from_json(lro.wire.loads(shown.body), types)
            found = [one.name for one in page.operations]
        elif how == "batch":
            # In another order than the store's, and with one that is not there.
            asked = [names[2], "operations/none", names[0], names[3], names[1]]
            body = {"names": asked}
            shown = edge.handle(
                ask("POST", "/v1/operations:batchGet", body, content_type="application/json")
            )
            batch = lro.wire.batch_from_json(lro.wire.loads(shown.body), types)
            assert batch.missing == ("operations/none",)
            found = [one.name for one in batch.operations]
            assert found == [name for name in asked if name in names]
        else:
            rpc = OperationsRpc(service, "ListOperations", OperationWriter(types))
            payload = pb.ListOperationsRequest(name="operations").SerializeToString()
            answer = drive(rpc.exchange(payload, Context()), service)
            found = [one.name for one in pb.ListOperationsResponse.FromString(answer).operations]
    assert sorted(found) == sorted(names)
    assert len(read) == len(names)  # what does not fit is not read, and then read again


class Context:
    """The context of a call without metadata and deadline."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None


def test_a_batch_is_not_refused_for_what_its_caller_cannot_see() -> None:
    """The refusal must not reveal that operations of others exist."""
    store = MemoryStore()
    service = lro.Service(
        store,
        InlineExecutor(),
        maintenance=False,
        owner_only=True,
        limits=lro.Limits(page_bytes=900),
    )
    method = service.declare(
        METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    names = [method.start(WorkRequest(), caller="bob").name for _ in range(5)]
    for one in names:
        service.reporter(one).complete(WorkResponse("x" * 500))
    mine = method.start(WorkRequest(), caller="ann").name
    batch = service.batch_get([*names, mine], caller="ann")
    assert [one.name for one in batch.operations] == [mine]
    assert set(batch.missing) == set(names)
    with pytest.raises(lro.errors.BatchTooLarge, match="ask for fewer names at once"):
        service.batch_get(names, caller="bob")


def test_a_stream_reads_a_few_large_operations_at_a_time() -> None:
    """What is left is sent next, each once; nothing stays held."""
    service = service_of(page_bytes=1000, replies_bytes=1600)
    names = [service.start(METHOD, WorkRequest()).name for _ in range(5)]
    for one in names:
        service.reporter(one).complete(WorkResponse("x" * 40))

    async def main() -> list[int]:
        stream, sizes, received = await service.watch(names), [], []
        async for some in stream.batches(60):
            sizes.append(len(some))
            received += [one.name for one in some]
            assert 0 < service.replies.held <= 1600
        assert received == names
        return sizes

    assert max(run_virtual(main())) == 1
    assert service.replies.held == 0


def test_errors_and_cached_records_count_towards_page_bytes(tmp_path: Path) -> None:
    """An error by its message; a record that is known leaves less room for those that are not."""
    with service_of(SQLiteStore(tmp_path / "operations.db")) as service:
        names = [service.start(METHOD, WorkRequest()).name for _ in range(2)]
        service.reporter(names[0]).fail(lro.Status(lro.Code.ABORTED, "x" * 1000))
        assert 1000 < service.store.get(names[0]).weight < 1500
        service.reporter(names[1]).complete(WorkResponse("x" * 3000))
        service.store._cache.forget(names[1])  # type: ignore[attr-defined]
        found = service.store.find(names, 2000)
        assert ([one.name for one in found.records], list(found.rest)) == (names[:1], names[1:])
    memory = service_of()
    name = memory.start(METHOD, WorkRequest()).name
    memory.reporter(name).fail(lro.Status(lro.Code.ABORTED, "x" * 1000))
    assert 1000 < memory.store.get(name).weight < 1500


# -- messages of workers ----------------------------------------------------------------------


def ended(function: Callable[..., Any], **options: Any) -> tuple[lro.Service, lro.Operation]:
    """What becomes of an operation with this function."""
    limits = lro.Limits(metadata_bytes=200, response_bytes=300)
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, limits=limits)
    method = service.method(METHOD, metadata=WorkMetadata, **options)(function)
    return service, method.start(WorkRequest()).operation


def too_large(operation: lro.Operation, setting: str) -> None:
    """The operation has ended with INTERNAL, and the sentence names the setting."""
    assert operation.error is not None
    assert operation.error.code == lro.Code.INTERNAL
    assert f"(the setting is Limits.{setting})" in operation.error.message
    (info,) = operation.error.details
    assert info.payload["reason"] == "MESSAGE_TOO_LARGE"  # type: ignore[index, call-overload]


def test_a_response_that_is_too_large_ends_its_operation() -> None:
    """With its sizes and the setting; the next one is not concerned."""

    def work(request: WorkRequest) -> WorkResponse:
        return text_of(WorkResponse, 301)

    too_large(ended(work)[1], "response_bytes")


def test_a_report_that_is_too_large_is_refused_to_the_function() -> None:
    """Which may go on with a shorter one, or end the operation by letting the error pass."""

    def goes_on(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.report(text_of(WorkMetadata, 60))
        with pytest.raises(
            lro.errors.MessageTooLarge, match=r"at most 200 .*Limits.metadata_bytes"
        ):
            job.report(text_of(WorkMetadata, 400))
        return WorkResponse("fine")

    def passes(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.report(text_of(WorkMetadata, 400))
        return WorkResponse()

    assert ended(goes_on)[1].response is not None
    too_large(ended(passes)[1], "metadata_bytes")


def test_an_error_that_is_too_large_is_replaced() -> None:
    """By one that says so: callers could not read it."""

    def work(request: WorkRequest) -> WorkResponse:
        raise lro.StatusError(lro.Code.ABORTED, "x" * 300, (WorkResponse(),))

    too_large(ended(work)[1], "response_bytes")


def test_last_metadata_that_is_too_large_ends_the_operation_with_an_error() -> None:
    """What ``settle`` gives is bounded as a report is."""

    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.report(WorkMetadata(percent=1))
        return WorkResponse()

    _, operation = ended(work, final_metadata=lambda seen, state: text_of(WorkMetadata, 400))
    too_large(operation, "metadata_bytes")


def test_first_metadata_that_is_too_large_is_an_invalid_argument() -> None:
    """It is mostly made of what the caller has sent."""
    service = service_of(metadata_bytes=LEAST)
    service.start(METHOD, WorkRequest(), metadata=text_of(WorkMetadata, 40))
    with pytest.raises(lro.InvalidArgument, match=r"^metadata: has .* Limits.metadata_bytes"):
        service.start(METHOD, WorkRequest(), metadata=text_of(WorkMetadata, LEAST + 1))


def test_messages_of_every_form_are_measured() -> None:
    """Numbers, lists, bytes; what has no JSON text is refused by the store, as ever."""
    limits = lro.Limits(metadata_bytes=40)
    for payload in (
        {"n": 10**70},
        {"n": [1, 2] * 20},
        b"x" * 41,
        ["x" * 40],
        {"n": 1.5, "s": "x" * 50},
    ):
        with pytest.raises(lro.errors.MessageTooLarge):
            limits.check_metadata(lro.Any("a/b", payload))  # type: ignore[arg-type]
    for payload in ({"n": True, "m": None}, b"x" * 40, [1], {"n": [object()]}):
        limits.check_metadata(lro.Any("a/b", payload))  # type: ignore[arg-type]
    limits.check_result(None)


# -- replies at once --------------------------------------------------------------------------


def test_replies_that_wait_have_their_turn_in_order() -> None:
    """Of threads and of coroutines; those that go away are passed over."""
    budget = ByteBudget(100)
    first = budget.take(80)
    got: list[str] = []

    async def main() -> None:
        async def take(label: str, size: int) -> None:
            turn = await budget.atake(size)
            got.append(label)
            turn.release()

        tasks = [asyncio.create_task(take(*one)) for one in (("a", 90), ("b", 10), ("c", 5))]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: got.append("d" * budget.take(100).bytes))
        thread.start()
        assert got == []
        first.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(thread.join)

    asyncio.run(main())
    assert got == ["a", "c", "d" * 100]
    assert budget.held == 0


def test_few_large_replies_are_made_at_once() -> None:
    """Others have the least; a batch, which must be whole, waits; what is made frees its place."""
    budget = ByteBudget(100, iter(range(0, 1000, 9)).__next__)
    large = [budget.take(5, 20) for _ in range(LARGE_AT_ONCE)]
    assert [turn.bytes for turn in large] == [20] * LARGE_AT_ONCE
    assert budget.take(5, 20).bytes == 5
    with pytest.raises(
        lro.errors.TooManyHeld, match="bytes of replies are held: at most 100 at once"
    ):
        budget.take(20, 20)
    large[0].resize(7)
    assert budget.held == 7 + 20 * (LARGE_AT_ONCE - 1)
    assert budget.take(20, 20).bytes == 20
    del large
    assert budget.held == 0


def test_a_slow_reader_is_broken_off_when_others_wait() -> None:
    """After five seconds, the one that has been at it longest; without others, never."""
    times = iter(range(100))
    budget = ByteBudget(100, lambda: float(next(times)))
    one, other = budget.take(50), budget.take(50)
    cut: list[str] = []

    def break_off(label: str, turn: Any) -> None:
        cut.append(label)
        turn.release()

    with one.sending(lambda: break_off("one", one)), other.sending(lambda: cut.append("other")):
        assert budget.take(10).bytes == 10
    assert cut == ["one"]


def test_a_slow_reader_over_asgi_loses_its_connection_and_no_more() -> None:
    """Others are answered; the task of the server ends without an error."""
    service = service_of(page_bytes=300_000, replies_bytes=300_000, response_bytes=300_000)
    name = service.start(METHOD, WorkRequest()).name
    service.reporter(name).complete(WorkResponse("x" * 290_000))
    app, path = OperationsApp(service), "/v1/operations"

    async def main() -> None:
        stuck, begun, sending = asyncio.Event(), asyncio.Event(), asyncio.Event()
        now = [0.0]
        service.replies.clock = lambda: now[0]

        async def slow(message: Any) -> None:
            begun.set()
            if message["type"] == "http.response.body":
                sending.set()
                await stuck.wait()

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        sent: list[Any] = []

        async def quick(message: Any) -> None:
            sent.append(message)

        first = asyncio.create_task(app(scope_of("GET", path), receive, slow))
        await begun.wait()
        await asyncio.sleep(0)
        now[0] = 6.0
        await app(scope_of("GET", path), receive, quick)
        await first
        assert sent[0]["status"] == 200
        assert [len(one["body"]) for one in sent[1:-1]] == [256 * 1024]
        sending.clear()
        stopped = asyncio.create_task(app(scope_of("GET", path), receive, slow))
        await sending.wait()
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped

    run_virtual(main())
    assert service.replies.held == 0


def test_reply_whose_last_byte_is_sent_is_not_broken_off() -> None:
    """One who waits may give the order in another thread, just before the last byte is taken."""
    budget = ByteBudget(100)

    async def main() -> None:
        turn = budget.take(10)
        with _broken_off_if_slow(turn):
            ((_, cut),) = budget.sending.values()
            cut()
        await asyncio.sleep(0)  # the order is carried out now
        await asyncio.sleep(0)

    run_virtual(main())


def test_a_slow_stream_is_broken_off_when_others_wait() -> None:
    """The watcher comes again, as after any broken stream."""
    service = service_of(page_bytes=1000, replies_bytes=1000, response_bytes=900)
    name = service.start(METHOD, WorkRequest()).name
    service.reporter(name).complete(WorkResponse("x" * 800))
    app = OperationsApp(service)

    async def main() -> None:
        now, begun = [0.0], asyncio.Event()
        service.replies.clock = lambda: now[0]

        async def slow(message: Any) -> None:
            if message["type"] == "http.response.body":
                begun.set()
                await asyncio.get_running_loop().create_future()

        async def receive() -> Any:
            await asyncio.get_running_loop().create_future()

        path = f"/v1/{name}:watch"
        first = asyncio.create_task(app(scope_of("GET", path), receive, slow))
        await begun.wait()
        now[0] = 6.0
        turn = await service.replies.atake(1000)
        turn.release()
        await first

    run_virtual(main())
    assert service.replies.held == 0


def test_a_reply_that_fails_frees_its_bytes() -> None:
    """As an error of the caller does."""
    service = service_of()
    edge = OperationsEdge(service)
    assert edge.handle(ask("GET", "/v1/operations?filter=(")).status == 400
    assert service.replies.held == 0


def test_places_of_one_caller_are_counted_apart() -> None:
    """And forgotten when none is held."""
    count = CallCount("calls", 3, "waits", 2, "waits_per_caller")
    places = [count.take("ann"), count.take("ann"), count.take("bob")]
    for caller, what in (("ann", "calls: at most 3"), ("", "calls: at most 3")):
        with pytest.raises(lro.errors.TooManyHeld, match=what):
            count.take(caller)
    places.pop().release()
    with pytest.raises(lro.errors.TooManyHeld, match="calls for one caller: at most 2"):
        count.take("ann")
    del places
    assert (count._held, count._of_caller) == (0, {})


def test_a_server_stays_small_under_large_replies(tmp_path: Path) -> None:
    """Forty operations of 1.8 MB in eight lists and batches at once."""
    served = Served("sqlite", "text", str(tmp_path / "operations.db"), 40, SIZE)
    try:
        found = together(*[served.walk] * 4, *[served.batch] * 4)
        assert found == [40] * 4 + [429] * 4
        assert served.memory("VmHWM") - served.idle < 300
    finally:
        served.close()


def test_bytes_of_a_collected_turn_serve_the_next_waiter() -> None:
    """Its bytes are free when it is collected, which wakes no one: the next look finds them."""
    budget = ByteBudget(100)
    turns = [budget.take(100)]

    async def main() -> ReplyReservation:
        waiting = asyncio.create_task(budget.atake(100))
        await asyncio.sleep(0)
        turns.clear()
        gc.collect()
        return await waiting

    assert run_virtual(main()).bytes == 100


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_bytes_of_a_reply_over_wsgi_are_free_when_the_server_has_it(method: str) -> None:
    """Whatever the server keeps of the reply."""
    service = service_of()
    service.start(METHOD, WorkRequest())
    app = lro.wsgi.OperationsApp(service)
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/v1/operations", "wsgi.input": io.BytesIO()}
    kept = app(environ, lambda *_: None)
    assert (service.replies.held, len(list(kept))) == (0, method == "GET")


def test_bytes_of_a_reply_to_head_are_free_when_it_is_sent() -> None:
    """The body is not sent, and not kept."""
    service = service_of()
    reply = OperationsEdge(service).handle(HttpRequest(method="HEAD", path="/v1/operations"))
    assert (reply.body, service.replies.held > 0) == (b"", True)
    assert reply.turn is not None
    reply.turn.release()
    assert service.replies.held == 0
