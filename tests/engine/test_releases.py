"""Releases of an application whose request or metadata classes differ share one store."""

import enum
import threading
import uuid
from datetime import timedelta
from typing import Any

import attrs
import httpx
import msgspec
import pydantic
import pytest

import lro
import lro.wsgi
from lro.errors import RequestIdConflict
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.waiting import until

NAME = "acme.prints.v1.Prints.Print"
KEY = str(uuid.UUID(int=7))


def release(store, make_service, request, function=lambda request: lro.Struct({}), **options):
    """Return a service whose only method has the given request class, and the method."""
    service = make_service(store, ThreadExecutor(1), maintenance=False)
    classes = {"request": request, "response": lro.Struct, **options}
    method = service.method(NAME, path="/v1/prints:print", **classes)(function)
    return service, method


def named(cls: Any) -> Any:
    return lro.message("acme.prints.v1.PrintRequest")(cls)


def attrs_class(**given):
    """Create an attrs class. A value is a field's default, and a type makes the field required."""
    fields = {
        name: attrs.field(type=one)
        if isinstance(one, type)
        else attrs.field(default=one, type=type(one))
        for name, one in given.items()
    }
    return named(attrs.make_class("PrintRequest", fields, frozen=True, kw_only=True))


def pydantic_class(**given):
    fields = {
        name: (one, ...) if isinstance(one, type) else (type(one), one)
        for name, one in given.items()
    }
    return named(pydantic.create_model("PrintRequest", **fields))


def struct_class(**given):
    fields = [
        (name, one) if isinstance(one, type) else (name, type(one), one)
        for name, one in given.items()
    ]
    return named(msgspec.defstruct("PrintRequest", fields, kw_only=True))


# -- a start that is repeated ---------------------------------------------------------------------


@pytest.mark.parametrize("make", [attrs_class, pydantic_class, struct_class])
@pytest.mark.parametrize(
    "after",
    [
        {"title": "", "copies": 1},
        {"copies": 1, "title": ""},
        {"title": "", "copies": 1, "printer": "first floor"},
        {"title": "", "copies": 2},
    ],
    ids=["the same", "another order", "a new field", "another default"],
)
def test_repeated_start_is_the_same_in_every_release(make, after, make_service, clock):
    """A repeated start finds the first one after an upgrade and a rollback, also over HTTP."""
    store = MemoryStore(clock)
    before = make(author=str, title="", copies=1)
    for more in ({}, {"copies": "1"}):
        body = {"author": "a", "title": "x", **more}
        key, names = str(uuid.uuid4()), set()
        for cls in (before, make(author=str, **after), before):
            service, method = release(store, make_service, cls)
            if "copies" not in body:
                names.add(method.start(cls(author="a", title="x"), request_id=key).name)
            with httpx.Client(transport=wsgi(service), base_url="http://test") as http:
                reply = http.post("/v1/prints:print", json={**body, "requestId": key})
            names.add(reply.json()["name"])
        assert len(names) == 1


def wsgi(service):
    return httpx.WSGITransport(lro.wsgi.OperationsApp(service, starts=True))


def test_repeated_start_is_compared_as_sent(make_service, clock):
    """Requests are compared as sent, whatever random defaults or a changed converter would add."""

    @named
    @attrs.frozen
    class Before:
        title: str = attrs.field(default="", converter=str.strip)
        token: str = attrs.field(factory=lambda: uuid.uuid4().hex)

    @named
    @attrs.frozen
    class After:
        title: str = attrs.field(default="", converter=str.upper)
        token: str = attrs.field(factory=lambda: uuid.uuid4().hex)

    store, names = MemoryStore(clock), set()
    for cls in (Before, After, After):
        service, _ = release(store, make_service, cls)
        with httpx.Client(transport=wsgi(service), base_url="http://test") as http:
            reply = http.post("/v1/prints:print", json={"title": " x", "requestId": KEY})
        names.add(reply.json()["name"])
    assert len(names) == 1


@attrs.frozen
class Page:
    size: lro.Int32 = 4
    colour: str = "black"


@attrs.frozen
class SmallPage:
    size: lro.Int32 = 4


@pytest.mark.parametrize("many", [False, True])
def test_defaults_in_nested_messages_are_not_compared(many, make_service, clock):
    """Defaults in nested messages, also in lists and maps, are not compared."""
    store, found = MemoryStore(clock), []
    for page in (SmallPage, Page):

        @named
        @attrs.frozen
        class Request:
            first: page | None = None
            pages: tuple[page, ...] = ()
            by_name: dict[str, page] = attrs.field(factory=dict)

        _, method = release(store, make_service, Request)
        some = (page(5), page()) if many else ()
        request = Request(page(3), some, {"a": page(7)})
        found.append(method.start(request, request_id=KEY).name)
        with pytest.raises(RequestIdConflict):
            method.start(attrs.evolve(request, first=page(2)), request_id=KEY)
    assert len({*found}) == 1


@pytest.mark.parametrize("said", [{"copies": 1}, {"copies": 2}, {"copies": 3}, {}])
def test_default_may_change_between_a_start_and_its_repetition(said, make_service, clock):
    """If a default changes, a repeated start is no conflict, whatever value was sent."""

    @named
    @attrs.frozen
    class Before:
        copies: lro.Int32 = 1

    @named
    @attrs.frozen
    class After:
        copies: lro.Int32 = 2

    store, names = MemoryStore(clock), set()
    for cls in (Before, After, Before):
        _, method = release(store, make_service, cls)
        names.add(method.start(cls(**said), request_id=KEY).name)
    assert len(names) == 1


def test_explicit_zero_differs_from_an_unset_default(make_service, clock):
    @named
    @attrs.frozen
    class Request:
        copies: lro.Int32 = 1
        extra: lro.Struct = attrs.field(factory=lambda: lro.Struct({"exact": 1}))

    _, method = release(MemoryStore(clock), make_service, Request)
    method.start(Request(), request_id=KEY)
    for other in (Request(0), Request(extra=lro.Struct({"exact": True}))):
        with pytest.raises(RequestIdConflict):
            method.start(other, request_id=KEY)


# -- work that another release has begun or left behind --------------------------------------------


def handed_back(store, make_service, cls, request, **options):
    """Start work in one release and close its service, which releases the work."""
    begun = threading.Event()

    def work(request, job):
        begun.set()
        job.sleep(100)
        return lro.Struct({})

    service, method = release(store, make_service, cls, work, **options)
    method.start(request)
    assert begun.wait(100)
    service.close(drain=timedelta(0))


class NewMode(enum.Enum):
    DELETE = 0
    ARCHIVE = 1
    KEEP = 2


class OldMode(enum.Enum):
    DELETE = 0
    ARCHIVE = 1


@pytest.mark.parametrize("make", [attrs_class, pydantic_class, struct_class])
@pytest.mark.parametrize("many", [False, True])
def test_request_with_an_unknown_enum_value_fails_the_operation(
    make, many, make_service, clock, caplog
):
    """A stored request with an unknown enum value fails the operation, and the log says why."""
    store = MemoryStore(clock)
    if many:
        classes = [
            named(attrs.make_class("R", {"mode": attrs.field(type=list[kind])}, frozen=True))
            for kind in (NewMode, OldMode)
        ]
        handed_back(store, make_service, classes[0], classes[0]([NewMode.KEEP]))
    else:
        classes = [make(mode=kind.DELETE) for kind in (NewMode, OldMode)]
        handed_back(store, make_service, classes[0], classes[0](mode=NewMode.KEEP))
    called = []
    service, _ = release(store, make_service, classes[1], lambda request: called.append(request))
    service.run_maintenance()
    ended = until(
        lambda: service.list(lro.wire.ListOperationsRequest()).operations[0], lambda o: o.done
    )
    assert called == []
    assert f"{ended.name}: its stored request cannot be read" in caplog.text
    assert ended.error.details[0].payload["reason"] == "REQUEST_UNREADABLE"


@pytest.mark.parametrize("library", ["pydantic", "msgspec"])
def test_request_without_a_newly_required_field_fails_the_operation(library, make_service, clock):
    """A stored request without a newly required field fails the operation.

    The field is not read as zero, which nobody has sent.
    """
    store = MemoryStore(clock)
    if library == "pydantic":
        before = pydantic_class(title="")
        after = named(pydantic.create_model("PrintRequest", title=(str, ""), copies=(int, ...)))
    else:
        before = struct_class(title="")
        after = named(msgspec.defstruct("PrintRequest", [("copies", int), ("title", str, "")]))
    handed_back(store, make_service, before, before(title="x"))
    service, _ = release(store, make_service, after)
    service.run_maintenance()
    ended = until(
        lambda: service.list(lro.wire.ListOperationsRequest()).operations[0], lambda o: o.done
    )
    assert ended.error.details[0].payload["reason"] == "REQUEST_UNREADABLE"


def requests_acted_upon(make_service, clock, first, second, request):
    """Store a request of class `first`, and return the requests that `second`'s function gets."""
    store, seen = MemoryStore(clock), []
    handed_back(store, make_service, first, request)
    service, _ = release(
        store, make_service, second, lambda request: seen.append(request) or lro.Struct({})
    )
    service.run_maintenance()
    until(lambda: service.list(lro.wire.ListOperationsRequest()).operations[0], lambda o: o.done)
    return seen


def test_request_with_a_field_of_a_newer_release_is_run(make_service, clock):
    """The old release runs work whose request has a field that only the new release knows."""
    after, before = attrs_class(title="", copies=1), attrs_class(title="")
    seen = requests_acted_upon(make_service, clock, after, before, after(title="x", copies=3))
    assert seen == [before(title="x")]


def test_request_in_binary_form_is_read_again(make_service, clock):
    """A protobuf request is read again when another process takes the work over."""
    cls = pytest.importorskip("google.protobuf.source_context_pb2").SourceContext
    seen = requests_acted_upon(make_service, clock, cls, cls, cls(file_name="x"))
    assert seen == [cls(file_name="x")]


@lro.message("acme.prints.v1.PrintJobRequest")
@attrs.frozen
class Renamed:
    title: str = ""


def test_work_whose_request_has_another_name_waits_for_its_release(make_service, clock, caplog):
    """Work whose message name is unknown is released once, for a process that knows the name."""
    store, before = MemoryStore(clock), attrs_class(title="")
    handed_back(store, make_service, before, before(title="x"))
    service, _ = release(store, make_service, Renamed)
    for _ in range(3):
        service.run_maintenance()
        clock.advance(5)
        until(lambda: "left to others" in caplog.text)
    (operation,) = service.list(lro.wire.ListOperationsRequest()).operations
    assert not operation.done
    assert caplog.text.count("cannot read its request, a acme.prints.v1.PrintRequest") == 1
    service.close()
    service, _ = release(store, make_service, before)
    service.run_maintenance()
    ended = until(lambda: service.get(operation.name), lambda found: found.done)
    assert ended.state == "SUCCEEDED"


def test_work_left_to_another_release_does_not_block_other_work(make_service, clock, caplog):
    """Work that this release cannot read does not block other work, even beyond a scan's limit."""
    store, before = MemoryStore(clock), attrs_class(title="")
    service, method = release(store, make_service, Renamed, lambda request, job: job.sleep(100))
    for _ in range(150):
        method.start(Renamed())
    service.close(drain=timedelta(0))
    service, _ = release(store, make_service, before)

    def maintained():
        service.run_maintenance()
        clock.advance(5)
        return caplog.text.count("PrintJobRequest: left to others")

    until(maintained, lambda count: count == 150)
    handed_back(store, make_service, before, before(title="x"))
    newest = lro.wire.ListOperationsRequest(page_size=1)
    until(lambda: maintained() and service.list(newest).operations[0].done)


@attrs.frozen
class Progress:
    percent: lro.Int32 = 0


@pytest.mark.parametrize("cancelled", [False, True])
def test_unreadable_metadata_of_another_release_does_not_fail_the_end(
    cancelled, make_service, clock
):
    """Unreadable metadata stay unchanged, and the operation ends with its result or the cancel."""
    store = MemoryStore(clock)
    request = attrs_class(title="")
    handed_back(store, make_service, request, request(title="x"), metadata=lro.OperationMetadata)

    def work(request, job):
        begun.set()
        if cancelled:
            job.sleep(100)
        return lro.Struct({"fine": True})

    begun = threading.Event()
    service, _ = release(
        store,
        make_service,
        request,
        work,
        metadata=Progress,
        final_metadata=lambda metadata, state: attrs.evolve(metadata, percent=100),
    )
    service.run_maintenance()
    assert begun.wait(100)
    (operation,) = service.list(lro.wire.ListOperationsRequest()).operations
    if cancelled:
        service.cancel(operation.name)
    ended = until(lambda: service.get(operation.name), lambda found: found.done)
    assert ended.state == ("CANCELLED" if cancelled else "SUCCEEDED")
    assert ended.metadata.type_name == "lro.v1.OperationMetadata"
