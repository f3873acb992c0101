"""Starts whose request is in the path, the query and the body (google.api.http, AIP-127)."""

from __future__ import annotations

import enum
import json
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest

import lro
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.http import HttpReply, OperationsEdge, Start
from lro.stores.memory import MemoryStore
from lro.types import BoolValue, FieldMask, StringValue
from tests.http.counting_service import DOMAIN, ask, details_of
from tests.http.test_asgi import other, part, scope_of, serve

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


class Tier(enum.IntEnum):
    TIER_UNSPECIFIED = 0
    BASIC = 1


@attrs.frozen
class Window:
    day: str = ""
    hour: lro.Int32 = 0


@attrs.frozen
class Shelf:
    name: str = ""
    size: lro.Int32 = 0
    tier: Tier = Tier.TIER_UNSPECIFIED
    window: Window | None = None


@attrs.frozen
class ShelfRequest:
    parent: str = ""
    shelf_id: str = ""
    shelf: Shelf | None = None
    mask: FieldMask | None = None
    tier: Tier = Tier.TIER_UNSPECIFIED
    force: bool = False
    loud: BoolValue | None = None
    note: StringValue | None = None
    weight: float = 0.0
    when: datetime | None = None
    span: timedelta | None = None
    windows: Window | None = None
    tags: tuple[str, ...] = ()
    numbers: list[int] = attrs.field(factory=list)
    labels: dict[str, str] = attrs.field(factory=dict)
    extra: dict[str, object] = attrs.field(factory=dict)
    many: tuple[Window, ...] = ()
    data: bytes = b""


@attrs.frozen
class ShelfResponse:
    request: ShelfRequest | None = None


def make(request: ShelfRequest) -> ShelfResponse:
    return ShelfResponse(request)


NESTED = "/v1/{shelf.name=rooms/*/shelves/*}"


def service_of(path: str, **options: Any) -> lro.Service:
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, domain=DOMAIN)
    service.method("acme.v1.Rooms.MakeShelf", path=path, **options)(make)
    return service


def method_of(service: lro.Service) -> Any:
    return lro.Method(
        service.edges.specs["acme.v1.Rooms.MakeShelf"], service.edges.starter, service.edges.calls
    )


def call(
    target: str, sent: Any = None, *, path: str = "/v1/{parent=rooms/*}/shelves", **options: Any
) -> HttpReply:
    """Call a method that is declared with this path and options; return the reply."""
    method = options.get("http_method", "POST")
    with service_of(path, **{"body": "shelf", **options}) as service:
        edge = OperationsEdge(service, starts=True)
        raw, _, query = target.partition("?")
        content = b"" if sent is None else sent
        return edge.handle(attrs.evolve(ask(method, raw, content), query=query))


def request_of(reply: HttpReply) -> Any:
    """Return the request that the function received, as JSON."""
    assert reply.status == 200, reply.body
    return json.loads(reply.body)["response"].get("request", {})


def refused_field(reply: HttpReply) -> str:
    """Return the only field that an error reply names."""
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["status"]) == (400, "INVALID_ARGUMENT")
    (violation,) = details_of({"error": error})["BadRequest"]["fieldViolations"]
    return str(violation["field"])


def test_a_request_has_its_fields_from_path_body_and_query() -> None:
    found = call("/v1/rooms/a%20b/shelves?shelfId=films", {"size": 3})
    assert request_of(found) == {"parent": "rooms/a b", "shelfId": "films", "shelf": {"size": 3}}


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("shelf_id=x", {"shelfId": "x"}),
        ("shelfId=%C3%BC+1", {"shelfId": "ü 1"}),
        ("mask=name,windowDay", {"mask": "name,windowDay"}),
        ("tier=BASIC", {"tier": "BASIC"}),
        ("tier=1", {"tier": "BASIC"}),
        ("force=true&loud=false", {"force": True, "loud": False}),
        ("note=1", {"note": "1"}),
        ("weight=2.5", {"weight": 2.5}),
        ("when=2030-01-02T03:04:05Z", {"when": "2030-01-02T03:04:05Z"}),
        ("span=1.5s", {"span": "1.500s"}),
        ("windows.day=MONDAY&windows.hour=7", {"windows": {"day": "MONDAY", "hour": 7}}),
        ("tags=a&tags=b", {"tags": ["a", "b"]}),
        ("numbers=1&numbers=2", {"numbers": [1, 2]}),
        ("data=AQI", {"data": "AQI="}),
        ("key=k&$alt=json&&prettyPrint=true", {}),
        (f"requestId={UUID}", {}),
    ],
)
def test_field_outside_path_and_body_is_a_query_parameter(query: str, fields: Any) -> None:
    """A query parameter may be in snake_case or camelCase, and of any type with a text form."""
    assert request_of(call(f"/v1/rooms/r/shelves?{query}")) == {"parent": "rooms/r", **fields}


def test_enums_of_a_reply_are_numbers_on_request() -> None:
    """A reply has enum numbers if the query asks for them, as Google's generated clients do."""
    found = call("/v1/rooms/r/shelves?tier=BASIC&$alt=json;enum-encoding%3Dint")
    assert request_of(found)["tier"] == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("parent=rooms/r", "parent"),
        ("shelf.size=1", "shelf.size"),
        ("shelfId=a&shelf_id=b", "shelf_id"),
        ("windows.hour=1&windows.hour=1", "windows.hour"),
        ("force=yes", "force"),
        ("windows.hour=many", "windows.hour"),
        ("tier=9", None),
        ("tier=LUXURY", "tier"),
        ("numbers=1&numbers=x", "numbers"),
        *[(f"{name}=1", "query") for name in ("unknown", "windows.unknown", "labels.a", "extra.a")],
        *[(query, "query") for query in ("shelfId.x=1", "a" + ".a" * 60_000 + "=1", "x=1&" * 101)],
        ("requestId=%20", "request_id"),
        ("validateOnly=1", "validate_only"),
    ],
)
def test_query_parameter_that_is_not_a_field_is_refused(query: str, field: str | None) -> None:
    """An invalid query parameter is named; an enum allows only the numbers of its members."""
    found = refused_field(call(f"/v1/rooms/r/shelves?{query}"))
    assert field in (None, found.partition("[")[0])


def test_any_text_is_a_request_id_as_a_parameter() -> None:
    with service_of("/v1/{parent=rooms/*}/shelves", body="shelf") as service:
        edge = OperationsEdge(service, starts=True)
        asked = ask("POST", "/v1/rooms/r/shelves", b"")
        first, same, other = (
            json.loads(edge.handle(attrs.evolve(asked, query=f"requestId={text}")).body)["name"]
            for text in ("order-17", "order%2D17", "order-18")
        )
    assert first == same != other


def test_validate_only_as_a_parameter_starts_nothing() -> None:
    reply = json.loads(call("/v1/rooms/r/shelves?validateOnly=true").body)
    assert reply["response"]["@type"].endswith("google.protobuf.Empty")


@pytest.mark.parametrize(
    ("body", "shelf"),
    [
        (None, {"name": "rooms/r/shelves/s"}),
        ({"size": 1}, {"name": "rooms/r/shelves/s", "size": 1}),
        ({"name": ""}, {"name": "rooms/r/shelves/s"}),
        ({"name": "rooms/r/shelves/s"}, {"name": "rooms/r/shelves/s"}),
    ],
)
def test_path_variable_may_be_a_field_of_the_body(body: Any, shelf: Any) -> None:
    """The body may repeat the value of the path variable, as updates by Google's clients do."""
    target = "/v1/rooms/r/shelves/s?mask=size"
    found = request_of(call(target, body, path=NESTED, http_method="PATCH"))
    assert found == {"mask": "size", "shelf": shelf}


@pytest.mark.parametrize(
    ("target", "path", "body", "content", "field"),
    [
        ("/v1/rooms/r/shelves/s", NESTED, "shelf", {"name": "other"}, "shelf.name"),
        ("/v1/rooms/r/shelves/s", NESTED, "*", {"shelf": 1}, "shelf.name"),
        ("/v1/rooms/r/shelves/s", NESTED, "shelf", [], "body"),
        ("/v1/x:force", "/v1/{force}:force", "*", {}, "force"),
        ("/v1/x:weigh", "/v1/{weight}:weigh", "*", {}, "weight"),
        ("/v1/rooms/r/shelves", "/v1/{parent=rooms/*}/shelves", "*", {"parent": 1}, "parent"),
        ("/v1/r:x?shelfId=1", "/v1/{parent}:x", "*", {}, "query"),
    ],
)
def test_path_and_body_that_contradict_each_other_are_refused(
    target: str, path: str, body: str, content: Any, field: str
) -> None:
    """If path and body contradict each other, the error names the field, and nothing is started."""
    assert refused_field(call(target, content, path=path, body=body)) == field


@attrs.frozen
class TwoRequest:
    big_shelf: Shelf | None = None


def keep(request: TwoRequest) -> None: ...


def test_both_spellings_of_one_object_are_refused() -> None:
    """A body with both spellings of an object is refused, because either could be meant."""
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:
        service.method("acme.v1.Rooms.Keep", path="/v1/{big_shelf.name}:keep")(keep)
        edge = OperationsEdge(service, starts=True)
        both = {"bigShelf": {}, "big_shelf": {}}
        assert edge.handle(ask("POST", "/v1/a:keep", both)).status == 400
        assert edge.handle(ask("POST", "/v1/a:keep", {"big_shelf": {}})).status == 200


def test_body_star_has_all_fields_that_are_not_in_the_path() -> None:
    """With the body ``*``, the body has all fields that are not in the path, and the request id."""
    path = "/v1/{parent=rooms/*}:fill"
    found = call("/v1/rooms/r:fill", {"tags": ["a"], "requestId": UUID}, path=path, body="*")
    assert request_of(found) == {"parent": "rooms/r", "tags": ["a"]}


def test_delete_reads_no_body() -> None:
    options: Any = {"path": "/v1/{parent=rooms/*/shelves/*}", "body": None, "http_method": "DELETE"}
    found = call("/v1/rooms/r/shelves/s?force=true", b"not json", **options)
    assert request_of(found) == {"parent": "rooms/r/shelves/s", "force": True}


def test_start_may_replace_the_http_rule_of_its_method() -> None:
    """A start may replace the HTTP rule of its method, and a method may have several starts."""
    with service_of("/v1/shelves:make", body="shelf") as service:
        method = method_of(service)
        starts = {
            "/v1/{parent=rooms/*}/shelves": method,
            "/v1/{parent=rooms/*}": Start(method, http_method="DELETE"),
            "/v1/{parent=rooms/*}:all": Start(method, body="*"),
            NESTED: Start(method, http_method="PATCH", body="shelf"),
        }
        edge = OperationsEdge(service, starts=starts)
        for verb, path, body in (
            ("POST", "/v1/rooms/r/shelves", {"size": 1}),
            ("DELETE", "/v1/rooms/r", b""),
            ("POST", "/v1/rooms/r:all", {"shelf": {"size": 1}}),
            ("PATCH", "/v1/rooms/r/shelves/s", {"size": 1}),
        ):
            assert edge.handle(ask(verb, path, body)).status == 200
        assert edge.handle(ask("PUT", "/v1/rooms/r", b"")).status == 405


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"path": "/v1/{room=rooms/*}"},
            "/v1/{room=rooms/*}: the variable 'room' is not a field of",
        ),
        ({"path": "/v1/{tags}"}, "/v1/{tags}: the variable 'tags' is a repeated field"),
        ({"path": "/v1/{shelf}"}, "/v1/{shelf}: the variable 'shelf' is not a field of"),
        ({"path": "/v1/{labels.a}"}, "/v1/{labels.a}: the variable 'labels.a' is not a field of"),
        ({"path": "/v1/*"}, "path: a wildcard must be in a variable"),
        *[
            ({"path": "/v1/x", "body": body}, f"body: '{body}' is not a message that")
            for body in ("rack", "tags", "when")
        ],
        ({"path": "/v1/x", "http_method": "GET"}, "http_method: must be one of POST, PUT"),
        ({"path": "/v1/x", "http_method": "DELETE", "body": "*"}, "body: must be empty: DELETE"),
        ({"path": "/v1/x", "parent": "rooms/r"}, "parent: must be a function"),
    ],
)
def test_impossible_http_rule_is_refused_at_declaration(options: Any, sentence: str) -> None:
    """The message about an impossible HTTP rule names the variable, field or option."""
    with pytest.raises(lro.DeclarationError) as refused:
        service_of(**options)
    assert str(refused.value).startswith(sentence)


def test_http_rule_for_an_unknown_request_type_or_raw_is_refused() -> None:
    """A rule needs a request type with known fields, and ``raw`` returns the whole request."""
    unknown: Any = {"request": lro.Struct, "options": lro.Options(path="/v1/{parent}")}
    with service_of("/v1/{parent=rooms/*}/shelves") as service:
        with pytest.raises(lro.DeclarationError, match="are not known"):
            service.declare("acme.v1.Rooms.Any", response=lro.Struct, **unknown)
        start = Start(method_of(service), raw=lambda kind, body: None)
        with pytest.raises(lro.DeclarationError, match=r"^raw: reads the whole request"):
            OperationsEdge(service, starts={"/v1/{parent}": start})


def test_two_starts_may_share_a_path_with_different_methods() -> None:
    """A repeated pair of method and path is refused, and so is a path of the operations."""
    with service_of("/v1/{parent=rooms/*}") as service:
        other = "/v1/{shelf_id=rooms/*}"
        service.method("acme.v1.Rooms.Drop", path=other, http_method="DELETE")(make)
        OperationsEdge(service, starts=True)
        service.method("acme.v1.Rooms.Other", path=other)(make)
        with pytest.raises(lro.DeclarationError, match=r"it is served as acme\.v1\."):
            OperationsEdge(service, starts=True)
    with (
        service_of("/v1/{parent=operations/*}:cancel", body="*") as service,
        pytest.raises(lro.DeclarationError, match="it is served as CancelOperation"),
    ):
        OperationsEdge(service, starts=True)


@pytest.mark.parametrize("given", ["", "rooms/mine"])
def test_operation_has_the_parent_of_its_method(given: str) -> None:
    """The parent of the declaration is used, unless the start passes another parent."""
    options: Any = {"body": "shelf", "parent": lambda request: request.parent}
    with service_of("/v1/{parent=rooms/*}/shelves", **options) as service:
        request = ShelfRequest(parent="rooms/r")
        started = service.start("acme.v1.Rooms.MakeShelf", request, parent=given)
        assert started.name.startswith(f"{given or 'rooms/r'}/operations/")
        reply = OperationsEdge(service, starts=True).handle(ask("POST", "/v1/rooms/x/shelves", {}))
        assert json.loads(reply.body)["name"].startswith("rooms/x/operations/")


def test_other_methods_of_the_path_of_a_start_reach_the_fallback() -> None:
    """The application may serve other methods of a start's path, but not of operations' paths."""
    with service_of("/v1/{parent=rooms/*}/shelves", body="shelf") as service:
        for fallback, status in ((other, 299), (None, 405)):
            app = OperationsApp(service, starts=True, fallback=fallback)
            for method, path, wanted in (
                ("POST", "/v1/rooms/r/shelves", 200),
                ("GET", "/v1/rooms/r/shelves", status),
                ("PUT", "/v1/operations/x", 405),
            ):
                assert serve(app, scope_of(method, path), part(b"{}")).sent[0]["status"] == wanted
