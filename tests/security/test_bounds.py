"""Each bound has a row in docs/reference/limits.md and is tested at its number and one above."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
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

import grpc
from google.longrunning import operations_proto_pb2 as pb

import lro
import lro.wire
import lro.wsgi
from lro._engine.store_port import READ_BYTES
from lro.adapters import Record
from lro.asgi import EdgeApp, OperationsApp, _broken_off_if_slow
from lro.azure import AzureEdge
from lro.errors import InvalidPageToken
from lro.executors.inline import InlineExecutor
from lro.grpc import DEFAULT_MAX_REQUEST
from lro.grpc._messages import MAX_DETAILS as MAX_GRPC_DETAILS
from lro.grpc._messages import MAX_MESSAGE as MAX_GRPC_MESSAGE
from lro.grpc._rpcs import MAX_PAGE
from lro.http import DEFAULT_MAX_BODY, HttpReply, HttpRequest, OperationsEdge, error_reply
from lro.stores._rows import from_row
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.grpc.serving import serving
from tests.http.counting_service import Wrapped, ask, build
from tests.http.test_asgi import Line, part, scope_of, serve
from tests.virtual_loop import run_virtual
from tests.waiting import PATIENCE, joined
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

TABLE: Final = Path(__file__).parent.parent.parent / "docs/reference/limits.md"
LEAST: Final = 100
METHOD: Final = "acme.v1.Works.Work"

SETTINGS: Final = {
    "`max_body` of an edge": DEFAULT_MAX_BODY,
    "`max_request` of `add_to`": DEFAULT_MAX_REQUEST,
    "`MemoryStore(request_ids=...)`": 100_000,
    "`Service(max_wait=...)`": 60,
    "`max_wait` of an edge": 20,
    **{f"`Limits.{field.name}`": field.default for field in attrs.fields(lro.Limits)},
}


def rows() -> dict[str, list[str]]:
    """Return the rows of the first table of limits.md, by the name of the bound."""
    first, _, _ = TABLE.read_text().partition("\n## ")
    lines = [line for line in first.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {row[0]: row[1:] for row in cells}


ROWS: Final = rows()
BOUNDS: Final = {what: int(row[0]) for what, row in ROWS.items()}
MAX_TEXT: Final = BOUNDS["message of an error's reply, and each text in its details, characters"]
MAX_DETAILS: Final = BOUNDS["details of an error, bytes"]


def test_bounds_table_has_the_defaults_of_the_code() -> None:
    """A row's number is its setting's default, and its reason is the reason of an error class.

    The numbers of bounds without a setting are tested below.
    """
    reasons = {cls.reason for cls in vars(lro.errors).values() if hasattr(cls, "reason")}
    for what, (_, setting, _, reason) in ROWS.items():
        assert BOUNDS[what] == SETTINGS.get(setting, BOUNDS[what])
        assert (setting in SETTINGS) == (setting != "none"), what
        assert reason in reasons | {""}, what


def test_bounds_table_has_a_row_for_each_limit() -> None:
    """Each field of ``Limits`` has a row in limits.md, and each row has a test."""
    settings = {setting for _, setting, _, _ in ROWS.values()}
    assert {f"`Limits.{field.name}`" for field in attrs.fields(lro.Limits)} <= settings
    assert {*PROBES, *ELSEWHERE} == {*ROWS}
    assert BOUNDS["page of a list over gRPC, bytes"] == MAX_PAGE
    assert BOUNDS["message of an error over gRPC, bytes"] == MAX_GRPC_MESSAGE
    assert BOUNDS["code, message and details of an error over gRPC, bytes"] == MAX_GRPC_DETAILS


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "9", None])
def test_limits_are_whole_numbers_from_1(wrong: Any) -> None:
    """A limit that is not a whole number of at least 1 is refused; only ``backlog`` may be 0."""
    for field in attrs.fields(lro.Limits):
        least = 0 if field.name == "backlog" else 1
        if (wrong, least) == (0, 0):
            continue
        wanted = f"^{field.name}: must be a whole number from {least}, got"
        with pytest.raises(lro.DeclarationError, match=wanted):
            lro.Limits(**{field.name: wrong})


def test_all_replies_have_room_for_one_page() -> None:
    """``replies_bytes`` below ``page_bytes`` is refused, as no full page could be sent."""
    lro.Limits(page_bytes=5, replies_bytes=5)
    with pytest.raises(lro.DeclarationError, match=r"^replies_bytes: must be at least page_bytes"):
        lro.Limits(page_bytes=6, replies_bytes=5)
    with pytest.raises(lro.DeclarationError, match=r"^limits: must be Limits\(...\), got"):
        build(limits={"waits": 5})


# -- at each bound, and one above it ----------------------------------------------------------


def service_of(store: Any = None, **limits: int) -> lro.Service:
    """Make a service without maintenance, with one declared method and these limits."""
    service = lro.Service(
        store or MemoryStore(), InlineExecutor(), maintenance=False, limits=lro.Limits(**limits)
    )
    service.declare(METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata)
    return service


def asked(request: HttpRequest, **options: Any) -> HttpReply:
    """Return the reply of an edge with a method that accepts any JSON object as its message."""
    service = service_of()
    method = service.declare("acme.v1.Works.Any", request=lro.Struct, response=WorkResponse)
    return OperationsEdge(service, starts={"/v1/any": method}, **options).handle(request)


def body(size: int) -> HttpReply:
    return asked(ask("POST", "/v1/operations/x:cancel", b"{}".ljust(size)), max_body=LEAST)


def path(size: int) -> HttpReply:
    return asked(ask("GET", "/".ljust(size, "x")))


def query(size: int) -> HttpReply:
    return asked(ask("GET", "/v1/operations?" + "filter=".ljust(size, "x")))


def parameters(count: int) -> HttpReply:
    return asked(ask("GET", "/v1/operations?" + "&".join(["key=1"] * count)))


def headers(count: int) -> HttpReply:
    scope = scope_of("POST", "/v1/operations/x:cancel", headers=[(b"a", b"b")] * count)
    line = serve(OperationsApp(service_of()), scope)
    return HttpReply(line.reply[0], (), line.sent[1]["body"])


def content_type(size: int) -> HttpReply:
    header = "application/json".ljust(size, ";")
    return asked(ask("POST", "/v1/any", b"{}", content_type=header))


def nested(levels: int) -> HttpReply:
    levels -= 1
    return asked(ask("POST", "/v1/any", b'{"a":' * levels + b"{}" + b"}" * levels))


def lists(count: int) -> HttpReply:
    return asked(ask("POST", "/v1/any", b'{"a":[%s]}' % b",".join([b"[]"] * (count - 1))))


def text_of(cls: type, size: int) -> Any:
    """Make a message of ``size`` bytes of JSON, mostly non-ASCII characters."""
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
    packed = lro.AnyMessage("type.googleapis.com/acme.v1.WorkResponse", {"text": ""})
    added = len(packed.type_url) + len('["",{"text":""}]')
    text = "x" * (1000 + size - LEAST - bare - added)
    service.reporter(names[0]).complete(WorkResponse(text))
    service.batch_get(names)


def budget_of(limit: int, clock: Callable[[], float] | None = None) -> Any:
    """Return the byte budget that all replies of a service share."""
    budget = service_of(page_bytes=limit, replies_bytes=limit).edges.replies
    if clock is not None:
        budget.clock = clock
    return budget


def replies(size: int) -> None:
    budget = budget_of(LEAST, iter(range(0, 100, 9)).__next__)
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
        del again  # streams that are never iterated are also freed

    run_virtual(main())


def listed(**fields: Any) -> None:
    service_of().list(lro.wire.ListOperationsRequest(**fields))


def name(size: int) -> None:
    with pytest.raises(lro.errors.OperationNotFound):
        service_of().get("operations/" + "x" * (size - len("operations/")))


def page_token(size: int) -> None:
    with pytest.raises(InvalidPageToken) as caught:
        listed(page_token="x" * size)
    if "at most" in str(caught.value):
        raise caught.value


def names(count: int) -> None:
    service_of().batch_get([f"operations/{k}" for k in range(count)])


def request_id(size: int) -> None:
    service_of().start(METHOD, WorkRequest(), request_id=str(uuid.uuid4()).ljust(size, "0"))


Probe = Callable[[int], HttpReply | None]
PROBES: Final[dict[str, tuple[Probe, int | None]]] = {
    "body of a request, bytes": (body, LEAST),
    "path of a request, characters": (path, None),
    "query of a request, characters": (query, None),
    "parameters of a query": (parameters, None),
    "headers of a request under ASGI": (headers, None),
    "Content-Type, characters": (content_type, None),
    "metadata of an operation, bytes": (metadata, LEAST),
    "response or error of an operation, bytes": (response, LEAST),
    "operations of a BatchGet, bytes": (batch, LEAST),
    "large replies and events of all callers, bytes": (replies, LEAST),
    "calls of Wait held": (lambda n: waits(n, waits=3), 3),
    "calls of Wait held for one caller": (lambda n: waits(n, "ann", waits_per_caller=3), 3),
    "streams of Watch": (lambda n: streams(n, streams=3), 3),
    "streams of Watch for one caller": (lambda n: streams(n, "ann", streams_per_caller=3), 3),
    "operations in all streams": (lambda n: streams(1, each=n, watched=3), 3),
    "name of an operation, characters": (name, None),
    "parent, characters": (lambda n: listed(name="p/" + "x" * (n - 2)), None),
    "names of a BatchGet or Watch": (names, None),
    "page token, characters": (page_token, None),
    "filter, characters": (lambda n: listed(filter="done".ljust(n)), None),
    "parentheses in a filter, levels": (
        lambda n: listed(filter="(" * n + "done = true" + ")" * n),
        None,
    ),
    "tests and groups of a filter": (
        lambda n: listed(filter=" OR ".join(["done = true"] * n)),
        None,
    ),
    "request id, characters": (request_id, None),
    "objects and lists in a body, levels": (nested, None),
    "lists in a body": (lists, None),
}
"""For each bound, a function that sends a request of a given size, and the bound to set or None."""

ELSEWHERE: Final = {
    "checkpoint or result of a step, bytes",  # tests/engine/test_checkpoints.py
    "all checkpoints of an operation, bytes",
    "key of a checkpoint or step, characters",
    "request over gRPC, bytes",
    "page of a list, bytes",
    "page of a list over gRPC, bytes",
    "operations of a page",
    "steps of evaluating a filter on one operation",  # tests/filters/test_hostile.py
    "operations that wait in the store; 0 allows none",  # tests/engine/test_starting.py
    "message of an error's reply, and each text in its details, characters",
    "details of an error, bytes",
    "message of an error over gRPC, bytes",  # tests/grpc/test_server.py
    "code, message and details of an error over gRPC, bytes",  # tests/grpc/test_server.py
    "challenge of an `Unauthenticated`, characters",  # tests/http/test_operations_edge.py
    "request ids kept in memory, each for 24 hours",
    "a Wait, or a start with `Prefer: wait`, seconds",  # tests/http/test_wsgi.py
    "the same under WSGI, seconds",
}
"""Bounds without a probe; each is tested below or in the file that its comment names."""


UNRELATED: Final = {
    "",
    "ROUTE_NOT_FOUND",
    "OPERATION_NOT_FOUND",
    "INVALID_FILTER",
    "INVALID_ARGUMENT",
}
"""Reasons, unrelated to its bound, for which a probe's request may be refused."""


def refusal(probe: Probe, number: int) -> tuple[int, str, str, str]:
    """Return status, code and reason of a probe's reply, and the text of the error it raised."""
    text = ""
    try:
        reply = probe(number)
    except lro.LroError as exc:
        reply, text = error_reply(exc, lro.TypeRegistry(), ""), str(exc)
    if reply is None or reply.status == 200:
        return 200, "OK", "", text
    error = json.loads(reply.body)["error"]
    return reply.status, error["status"], error["details"][0]["reason"], text


@pytest.mark.parametrize("what", list(PROBES))
def test_request_at_its_bound_is_accepted_and_one_over_it_refused(what: str) -> None:
    """A request one above its bound gets the table's code and reason; a request at it does not."""
    probe, at = PROBES[what]
    at = BOUNDS[what] if at is None else at
    _, setting, refused, reason = ROWS[what]
    assert refusal(probe, at)[2] in UNRELATED - {reason}
    status, code, found, text = refusal(probe, at + 1)
    assert ([code], found) == (re.findall("[A-Z]+_[A-Z_]+|INTERNAL", refused), reason)
    if setting.startswith("`Limits."):
        assert setting.strip("`") in text
    wanted = re.search(r"\b[45]\d\d\b", refused)
    assert wanted is None or status == int(wanted[0])


def on_grpc(address: str, verb: str, request: Any) -> bytes:
    """Return the reply to a gRPC call."""
    with grpc.insecure_channel(address) as channel:
        path = verb if "/" in verb else f"/google.longrunning.Operations/{verb}"
        call: Any = channel.unary_unary(path)
        reply: bytes = call(request.SerializeToString(), timeout=PATIENCE)
        return reply


def test_request_over_grpc_is_refused_one_over_its_bound() -> None:
    """A request one byte above its bound gets the table's code; a request at it is processed."""
    _, _, code, reason = ROWS["request over gRPC, bytes"]
    with serving("threads", service_of(), max_request=LEAST) as address:
        for size, found in ((LEAST, "OPERATION_NOT_FOUND"), (LEAST + 1, reason)):
            request = pb.GetOperationRequest(name="operations/".ljust(size - 2, "x"))
            assert request.ByteSize() == size
            with pytest.raises(grpc.RpcError) as caught:
                on_grpc(address, "GetOperation", request)
            refused: Any = caught.value
            assert found in str(refused.trailing_metadata())
        assert refused.code().name == code


def error_body(error: lro.LroError) -> Any:
    """Return the JSON of the reply for an error."""
    return json.loads(error_reply(error, lro.TypeRegistry(), "acme.test").body)["error"]


def test_texts_of_an_error_are_cut() -> None:
    """Each text in an error reply is cut to the bound, as a reply may repeat a text."""
    for letter in ("x", "\U0001f600", "\x00"):
        whole = error_body(lro.InvalidArgument("", letter * MAX_TEXT))
        assert whole["message"] == letter * MAX_TEXT
        assert whole["details"][1]["fieldViolations"][0]["description"] == letter * MAX_TEXT
        cut = error_body(lro.InvalidArgument(letter * 100_000, letter * (MAX_TEXT + 1)))
        short = letter * (MAX_TEXT - 3) + "..."
        info, wrong = cut["details"]
        assert (cut["code"], cut["message"], info["metadata"]) == (400, short, {"field": short})
        assert wrong["fieldViolations"] == [{"field": short, "description": short}]
        reason = lro.StatusError(lro.Code.INTERNAL, "", why=letter * 100_000)
        assert error_body(reason)["details"][0]["reason"] == short
    odd = lro.AnyMessage("type.googleapis.com/google.rpc.Odd", {"number": 5})
    assert error_body(lro.StatusError(lro.Code.ABORTED, "", (odd,)))["details"][1]["number"] == 5


def test_details_of_an_error_are_bounded() -> None:
    """Details that do not fit are left out; the ErrorInfo stays, if need be without metadata."""
    info = lro.types.ErrorInfo(reason="ABORTED", domain="acme.test")
    packed = lro.TypeRegistry().pack(info).payload
    room = MAX_DETAILS - len(json.dumps(packed, separators=(",", ":")))
    fits = lro.AnyMessage("type.googleapis.com/a.b.C", {"x": "y" * (room - len('{"x":""}'))})
    over = lro.AnyMessage(fits.type_url, {"x": f"{fits.payload['x']}y"})
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


def test_page_size_is_cut_to_a_thousand_operations() -> None:
    """A page has at most 1,000 operations, even if the caller asks for more."""
    service = service_of()
    size = BOUNDS["operations of a page"]
    for _ in range(size + 1):
        service.start(METHOD, WorkRequest())
    page = service.list(lro.wire.ListOperationsRequest(page_size=size + 1))
    assert len(page.operations) == size
    assert page.next_page_token


def test_memory_store_drops_the_oldest_request_id() -> None:
    """If the store has dropped a request ID, a repeated start makes a second operation."""
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


def test_a_page_ends_before_the_operation_that_would_pass_the_bound() -> None:
    """A page has at least one operation; each operation is on one page (spec §3.4(7), (9))."""
    service = service_of(page_bytes=20_000)
    names = [service.start(METHOD, WorkRequest()).name for _ in range(12)]
    for number, name in enumerate(names):
        size = 50_000 if number == 6 else 6_000
        service.reporter(name).complete(WorkResponse("x" * size))
    edge, token, seen, counts = OperationsEdge(service), "", [], []
    assert edge.handle(ask("GET", "/v1/operations?filter=(")).status == 400  # reserves no bytes
    while not counts or token:
        reply = edge.handle(ask("GET", f"/v1/operations?pageSize=1000&pageToken={token}"))
        page = lro.wire.page_from_json(lro.wire.loads(reply.body), service.types)
        counts.append(len(page.operations))
        assert len(reply.body) < 21_000 or counts[-1] == 1
        seen += [one.name for one in page.operations]
        token = page.next_page_token
    assert (seen, counts) == (names[::-1], [3, 2, 1, 3, 3])


def test_a_page_over_grpc_can_be_read_by_default_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lro.grpc._rpcs.MAX_PAGE", 40_000)
    service = service_of()
    service.declare(
        "acme.v1.Works.Numbers", request=WorkRequest, response=lro.Struct, metadata=WorkMetadata
    )
    packed = lro.AnyMessage("type.googleapis.com/google.protobuf.Struct", {"n": [1] * 4_000})
    for _ in range(3):
        name = service.start("acme.v1.Works.Numbers", WorkRequest()).name
        service.reporter(name).complete(packed)
    request = pb.ListOperationsRequest(name="operations", page_size=9)
    counts = []
    with serving("threads", service) as address:
        while not counts or request.page_token:
            answer = on_grpc(address, "ListOperations", request)
            page = pb.ListOperationsResponse.FromString(answer)
            assert len(answer) <= 40_000 or len(page.operations) == 1
            counts.append(len(page.operations))
            request.page_token = page.next_page_token
    assert counts == [1, 1, 1]
    assert len(answer) < 5.5 * len(lro.wire.dumps(packed.payload)) + 300  # as limits.md says
    assert service.edges.replies.held == 0


@pytest.mark.parametrize("how", ["list", "batch", "list over gRPC"])
def test_reply_keeps_one_large_operation_in_memory_at_a_time(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A parsed message may be 12 times as large as its JSON, so only one is in memory at a time."""
    monkeypatch.setattr("lro.stores._rows.MAX_BYTES", 0)
    read: list[weakref.ref[Record]] = []

    def reading(row: Any, weight: int) -> Record:
        assert [known() for known in read if known() is not None] == []
        record = from_row(row, weight)
        read.append(weakref.ref(record))
        return record

    with service_of(SQLiteStore(tmp_path / "operations.db")) as service:
        names = [service.start(METHOD, WorkRequest()).name for _ in range(4)]
        for name in names:
            service.reporter(name).complete(WorkResponse("x" * (READ_BYTES // 2)))
        monkeypatch.setattr("lro.stores.sqlite._file.from_row", reading)
        if how == "list over gRPC":
            with serving("threads", service) as address:
                request = pb.ListOperationsRequest(name="operations")
                answer = on_grpc(address, "ListOperations", request)
            page = pb.ListOperationsResponse.FromString(answer)
            found = [one.name for one in page.operations]
        else:
            # The names are not in the store's order, and one operation is missing.
            asked = [names[2], "operations/none", names[0], names[3], names[1]]
            request = ask("GET", "/v1/operations")
            if how == "batch":
                request = ask("POST", "/v1/operations:batchGet", {"names": asked})
            shown = json.loads(OperationsEdge(service).handle(request).body)
            found = [one["name"] for one in shown["operations"]]
            assert how == "list" or found == [name for name in asked if name in names]
    assert sorted(found) == sorted(names)
    assert len(read) == len(names)  # each operation was read only once


def test_a_stream_reads_a_few_large_operations_at_a_time() -> None:
    """A stream sends each operation once, in several batches, and frees all bytes at its end."""
    service = service_of(page_bytes=1000, replies_bytes=1600)
    names = [service.start(METHOD, WorkRequest()).name for _ in range(5)]
    for one in names:
        service.reporter(one).complete(WorkResponse("x" * 40))

    async def main() -> list[int]:
        stream, sizes, received = await service.watch(names), [], []
        async for some in stream.batches(60):
            sizes.append(len(some))
            received += [one.name for one in some]
            assert 0 < service.edges.replies.held <= 1600
        assert received == names
        return sizes

    assert max(run_virtual(main())) == 1
    assert service.edges.replies.held == 0


# -- messages of workers ----------------------------------------------------------------------


def ended(function: Callable[..., Any], **options: Any) -> lro.Operation:
    """Run this function as a method and return the ended operation."""
    limits = lro.Limits(metadata_bytes=200, response_bytes=300)
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, limits=limits)
    method = service.method(METHOD, metadata=WorkMetadata, **options)(function)
    return method.start(WorkRequest()).operation


Job = lro.Job[WorkMetadata]


def responds(request: WorkRequest) -> WorkResponse:
    return text_of(WorkResponse, 301)


def reports(request: WorkRequest, job: Job) -> WorkResponse:
    job.report(text_of(WorkMetadata, 400))
    return WorkResponse()


def raises(request: WorkRequest) -> WorkResponse:
    raise lro.StatusError(lro.Code.ABORTED, "x" * 300, (WorkResponse(),))


def ends(request: WorkRequest, job: Job) -> WorkResponse:
    job.report(WorkMetadata(percent=1))
    return WorkResponse()


@pytest.mark.parametrize(
    ("function", "options", "setting"),
    [
        (responds, {}, "response_bytes"),
        (raises, {}, "response_bytes"),
        (reports, {}, "metadata_bytes"),
        (ends, {"final_metadata": lambda *_: text_of(WorkMetadata, 400)}, "metadata_bytes"),
    ],
)
def test_message_of_a_worker_that_is_too_large_ends_its_operation(
    function: Callable[..., Any], options: Any, setting: str
) -> None:
    """A result or metadata over its limit ends the operation; the error names the setting."""
    operation = ended(function, **options)
    assert operation.error is not None
    assert operation.error.code == lro.Code.INTERNAL
    assert f"(the setting is Limits.{setting})" in operation.error.message
    (info,) = operation.error.details
    assert info.payload["reason"] == "MESSAGE_TOO_LARGE"  # type: ignore[index, call-overload]


def test_report_that_is_too_large_raises_in_the_function() -> None:
    """A method can catch the error of a report over the limit and still succeed."""

    def goes_on(request: WorkRequest, job: Job) -> WorkResponse:
        job.report(text_of(WorkMetadata, 60))
        with pytest.raises(
            lro.errors.MessageTooLarge, match=r"at most 200 .*Limits.metadata_bytes"
        ):
            job.report(text_of(WorkMetadata, 400))
        return WorkResponse("fine")

    assert ended(goes_on).response is not None


def test_size_of_every_kind_of_message_is_measured() -> None:
    """Numbers, lists and bytes are measured, but not a value without JSON, as stores refuse it."""
    service = service_of(metadata_bytes=LEAST)
    service.start(METHOD, WorkRequest(), metadata=text_of(WorkMetadata, 40))
    # The first metadata usually comes from the request, hence InvalidArgument.
    with pytest.raises(lro.InvalidArgument, match=r"^metadata: has .* Limits.metadata_bytes"):
        service.start(METHOD, WorkRequest(), metadata=text_of(WorkMetadata, LEAST + 1))
    limits = lro.Limits(metadata_bytes=40)
    large: tuple[Any, ...] = (
        {"n": 10**70},
        {"n": [1, 2] * 20},
        b"x" * 41,
        {"n": 1.5, "s": "x" * 50},
    )
    for payload in large:
        with pytest.raises(lro.errors.MessageTooLarge):
            limits.check_metadata(lro.AnyMessage("a/b", payload))
    small: tuple[Any, ...] = ({"n": True, "m": None}, b"x" * 40, [1], {"n": [object()]})
    for payload in small:
        limits.check_metadata(lro.AnyMessage("a/b", payload))
    limits.check_result(None)


# -- replies in progress ----------------------------------------------------------------------


def test_waiting_replies_get_their_bytes_in_order() -> None:
    """Threads and coroutines that wait for bytes get them in order; cancelled ones are skipped."""
    budget = budget_of(100)
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


def test_a_collected_call_may_interrupt_one_that_takes_bytes() -> None:
    """A call gets its bytes although garbage collection closes a waiting call meanwhile."""
    budget = budget_of(100)
    first = budget.take(90)
    waiting: list[Any] = []
    got: list[int] = []

    class Size(int):
        def __le__(self, other: int) -> bool:
            while waiting:
                waiting.pop().close()
            return int(self) <= other

    async def main() -> None:
        taken = asyncio.create_task(budget.atake(20, Size(30)))
        await asyncio.sleep(0)
        later = budget.atake(50)
        later.send(None)  # it waits behind the task
        waiting.append(later)
        first.release()
        got.append((await taken).bytes)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    joined(thread)
    assert (got, waiting) == ([30], [])
    assert budget.held == 0


def test_large_replies_share_a_bounded_byte_budget() -> None:
    """Beside a large reply, another reply gets its minimum; one that needs more is refused."""
    budget = budget_of(100, iter(range(0, 1000, 9)).__next__)
    large = [budget.take(5, 20)]
    assert large[0].bytes == 20
    assert budget.take(5, 20).bytes == 5
    with pytest.raises(
        lro.errors.TooManyHeld, match="bytes of replies are held: at most 100 at once"
    ):
        budget.take(20, 20)
    large[0].resize(7)
    assert budget.held == 7
    assert budget.take(20, 20).bytes == 20
    del large
    assert budget.held == 0


def test_slow_reader_is_cut_off_if_others_wait() -> None:
    """If a reply waits for bytes, the reply that was begun first is cut off after 5 seconds."""
    times = iter(range(100))
    budget = budget_of(100, lambda: float(next(times)))
    one, other = budget.take(50), budget.take(50)
    cut: list[str] = []

    def break_off(label: str, turn: Any) -> None:
        cut.append(label)
        turn.release()

    with one.sending(lambda: break_off("one", one)), other.sending(lambda: cut.append("other")):
        assert budget.take(10).bytes == 10
    assert cut == ["one"]


class Slow:
    """An ASGI caller that reads only the head of a reply; ``now`` is the budget's clock."""

    def __init__(self, service: lro.Service) -> None:
        self.now = 0.0
        self.stuck = asyncio.Event()
        self._body = [part(b"")]
        self._app = OperationsApp(service)
        service.edges.replies.clock = lambda: self.now

    async def call(self, path: str, method: str = "GET") -> asyncio.Task[None]:
        """Start a call and return its task once it is stuck sending the body."""
        self.stuck.clear()
        task = asyncio.create_task(self._app(scope_of(method, path), self._receive, self._send))
        await self.stuck.wait()
        return task

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.stuck.set()
            await asyncio.get_running_loop().create_future()

    async def _receive(self) -> Any:
        if self._body:
            return self._body.pop()
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("call", ["GET /v1/operations", "GET /v1/{}", "POST /v1/{}:wait"])
def test_slow_asgi_reader_is_cut_off_without_a_server_error(call: str) -> None:
    """A slow reply is cut off if another caller needs its bytes; the server's task ends cleanly."""
    service = service_of(page_bytes=300_000, replies_bytes=300_000, response_bytes=300_000)
    name = service.start(METHOD, WorkRequest()).name
    service.reporter(name).complete(WorkResponse("x" * 290_000))

    async def main() -> None:
        slow, quick = Slow(service), Line([])
        method, _, path = call.format(name).partition(" ")
        first = await slow.call(path, method)
        slow.now = 6.0
        await OperationsApp(service)(scope_of("GET", "/v1/operations"), quick.receive, quick.send)
        assert (first.done(), quick.sent[0]["status"]) == (True, 200)
        assert [len(one["body"]) for one in quick.sent[1:-1]] == [256 * 1024]
        stopped = await slow.call(f"/v1/{name}")
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped

    run_virtual(main())
    assert service.edges.replies.held == 0


@pytest.mark.parametrize("kind", ["asgi", "azure", "grpc"])
def test_large_operation_is_encoded_in_a_thread_when_bytes_are_free(kind: str) -> None:
    """A thread encodes a large reply; while no bytes are free, a start's reply has no result."""
    threads: list[str] = []
    store = Wrapped(lambda: threads.append(threading.current_thread().name), "get")
    service = service_of(store, page_bytes=300_000, replies_bytes=300_000)
    large = service.method("acme.v1.Works.Large", path="/v1/large")(large_response)
    name, start = large.start(WorkRequest()).name, "/acme.v1.Works/Large"
    edge = AzureEdge if kind == "azure" else OperationsEdge
    app = EdgeApp(edge(service, starts=True))
    headers = [(b"host", b"a.test"), (b"content-type", b"application/json")]

    def call(verb: str) -> bytes:
        if kind == "grpc":
            return on_grpc(
                address, verb, pb.GetOperationRequest(name="" if verb == start else name)
            )
        asked = ("POST", "/v1/large") if verb == start else ("GET", f"/v1/{name}")
        line = serve(app, scope_of(*asked, headers=headers), part(b"{}"))
        return b"".join(one.get("body", b"") for one in line.sent)

    with serving("asyncio", service) as address:
        for verb in ("GetOperation", start):
            assert b"x" * 100_000 in call(verb)
            assert threads[-1].startswith("lro-replies")
        assert service.edges.replies.held == 0
        service.edges.replies.clock = itertools.count(0.0, 9.0).__next__
        all_bytes = service.edges.replies.take(300_000)
        answer = call(start)
        assert (b'"error"' in answer, b"xxx" in answer) == (False, False)
        all_bytes.release()


@pytest.mark.parametrize(
    ("result", "large"),
    [
        ({"n": [1] * 5_000, "b": [True, None, {"x": "y"}]}, False),
        ({"n": [1] * 6_000}, True),
        ({"n": [0] * 70_000}, True),
        ({str(n): n for n in range(7_000)}, True),
        (lro.Status(code=10, message="x" * 60_000), False),
        (lro.Status(code=10, details=(lro.AnyMessage("a/b.C", {"x": "y" * 70_000}),)), True),
    ],
)
def test_reply_reserves_bytes_from_64_kib_on(result: Any, large: bool) -> None:
    service = service_of()
    name = service.start(METHOD, WorkRequest()).name
    reporter = service.reporter(name)
    if isinstance(result, lro.Status):
        reporter.fail(result)
    else:
        reporter.complete(lro.AnyMessage("type.googleapis.com/google.protobuf.Struct", result))
    reply = OperationsEdge(service).handle(ask("GET", f"/v1/{name}"))
    assert (reply.status, reply.reserved is not None) == (200, large)


def large_response(request: WorkRequest) -> WorkResponse:
    return WorkResponse("x" * 100_000)


def test_reply_whose_last_byte_is_sent_is_not_cut_off() -> None:
    """If another thread cuts off a reply just as its last byte is sent, nothing happens."""
    budget = budget_of(100)

    async def main() -> None:
        turn = budget.take(10)
        with _broken_off_if_slow(turn):
            ((_, cut),) = budget.sending.values()
            cut()
        await asyncio.sleep(0)  # the loop runs the callback here
        await asyncio.sleep(0)

    run_virtual(main())


@pytest.mark.parametrize("size", [800, 280_000])
def test_slow_stream_is_cut_off_if_others_wait(size: int) -> None:
    """A slow stream is ended and its bytes are freed if another reply needs them."""
    service = service_of(page_bytes=300_000, replies_bytes=300_000)
    name = service.start(METHOD, WorkRequest()).name
    service.reporter(name).complete(WorkResponse("x" * size))

    async def main() -> None:
        slow = Slow(service)
        first = await slow.call(f"/v1/{name}:watch")
        slow.now = 6.0
        turn = await service.edges.replies.atake(300_000)
        turn.release()
        await first

    run_virtual(main())
    assert service.edges.replies.held == 0


def test_bytes_of_a_garbage_collected_reply_serve_the_next_waiter() -> None:
    """A waiter polls for bytes, because a garbage-collected reply does not wake the next waiter."""
    budget = budget_of(100)
    turns = [budget.take(100)]

    async def main() -> Any:
        waiting = asyncio.create_task(budget.atake(100))
        await asyncio.sleep(0)
        turns.clear()
        gc.collect()
        return await waiting

    assert run_virtual(main()).bytes == 100


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_bytes_of_a_reply_are_free_when_it_is_sent(method: str) -> None:
    """A sent reply holds no bytes, even if the WSGI server keeps it; a HEAD reply is empty."""
    service = service_of()
    service.start(METHOD, WorkRequest())
    app = lro.wsgi.OperationsApp(service)
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/v1/operations", "wsgi.input": io.BytesIO()}
    kept = app(environ, lambda *_: None)
    assert (service.edges.replies.held, len(list(kept))) == (0, method == "GET")
    reply = OperationsEdge(service).handle(ask(method, "/v1/operations"))
    assert (reply.body == b"", service.edges.replies.held > 0) == (method == "HEAD", True)
    assert reply.reserved is not None
    reply.reserved.release()
    assert service.edges.replies.held == 0
