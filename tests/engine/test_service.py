"""The service: order of its checks, permissions, and disabled verbs."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import attrs
import pytest

from lro import (
    Code,
    DeclarationError,
    Empty,
    InvalidArgument,
    Limits,
    LroError,
    Options,
    Service,
    Status,
    TypeRegistry,
)
from lro.errors import (
    InvalidOperationName,
    InvalidParent,
    InvalidTimeout,
    MessageTooLarge,
    MethodNotSupported,
    OperationNotFound,
    PermissionDenied,
)
from lro.executors.inline import InlineExecutor
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import NAME, declared, method_of, raising
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

MISSING = "operations/missing"
NOTHING = timedelta(0)

CALLS = {
    "GetOperation": lambda service, name: service.get(name, caller="me"),
    "DeleteOperation": lambda service, name: service.delete(name, caller="me"),
    "CancelOperation": lambda service, name: service.cancel(name, caller="me"),
    "FullGet": lambda service, name: service.get(name, view="FULL", caller="me"),
    "WaitOperation": lambda service, name: service.wait(name, NOTHING, caller="me"),
    "AwaitOperation": lambda service, name: asyncio.run(
        service.wait_async(name, NOTHING, caller="me")
    ),
    "ListOperations": lambda service, name: service.list(
        ListOperationsRequest(name=name), caller="me"
    ),
}
ASKED_FOR = {"AwaitOperation": "WaitOperation", "FullGet": "GetOperation"}
"""The RPC name that hooks get, if it differs from the key."""
EACH = pytest.mark.parametrize("verb", CALLS)
EACH_NAMED = pytest.mark.parametrize("verb", [verb for verb in CALLS if verb != "ListOperations"])


refuse = raising(PermissionDenied("go away"))


@pytest.fixture
def build(make_service):
    """A function that makes a service and declares a method without a function."""

    def make(**options):
        service = make_service(**options)
        declared(service)
        return service

    return make


@EACH
def test_authorize_gets_caller_rpc_and_name(build, verb):
    """The ``authorize`` hook gets the caller, the RPC and the name, or the parent for List."""
    asked = []
    service = build(authorize=lambda *question: asked.append(question))
    name = service.start(NAME, WorkRequest(), caller="me", parent="projects/p").name
    assert asked.pop() == ("me", NAME, "projects/p")
    if verb == "ListOperations":
        name = ""
    CALLS[verb](service, name)
    assert asked == [("me", ASKED_FOR.get(verb, verb), name)]


@EACH
def test_permission_is_checked_before_existence(build, verb):
    """Callers without permission do not learn whether an operation exists (spec §3.1(5))."""
    service = build(authorize=refuse)
    with pytest.raises(PermissionDenied, match="go away"):
        CALLS[verb](service, "projects/p" if verb == "ListOperations" else MISSING)


@EACH
def test_arguments_are_checked_before_permission(build, verb):
    """A malformed call is refused before any hook is called."""
    service = build(authorize=raising(AssertionError()))
    with pytest.raises((InvalidOperationName, InvalidParent)):
        CALLS[verb](service, "nonsense")


@EACH
def test_disabled_verb_is_refused_before_arguments(build, verb):
    """A disabled verb is refused whatever its arguments are (spec §3.9)."""
    service = build(verbs=())
    if verb in ("GetOperation", "FullGet"):
        with pytest.raises(InvalidOperationName):  # Get cannot be disabled
            CALLS[verb](service, "nonsense")
        return
    with pytest.raises(MethodNotSupported) as caught:
        CALLS[verb](service, "nonsense")
    assert caught.value.method == ("WaitOperation" if verb == "AwaitOperation" else verb)
    assert caught.value.code is Code.UNIMPLEMENTED


def test_all_arguments_are_checked_before_permission(build):
    """Timeout, filter and page are checked before permission, and the deadline before existence."""
    service = build(authorize=refuse)
    with pytest.raises(InvalidTimeout):
        service.wait(MISSING, timedelta(seconds=-1), deadline_seconds=0)
    for wrong in ({"filter": "("}, {"page_size": -1}, {"page_token": "x"}):
        with pytest.raises(InvalidArgument):
            service.list(ListOperationsRequest(**wrong))
    with pytest.raises(LroError) as caught:
        build().wait(MISSING, deadline_seconds=0)
    assert caught.value.code is Code.DEADLINE_EXCEEDED


@EACH_NAMED
def test_operations_belong_to_their_caller(build, verb):
    """With ``owner_only``, other callers' operations are not found."""
    service = build(owner_only=True)
    mine = service.start(NAME, WorkRequest(), caller="me").name
    theirs = service.start(NAME, WorkRequest(), caller="them").name
    with pytest.raises(OperationNotFound):
        CALLS[verb](service, theirs)
    CALLS[verb](service, mine)
    assert service.get(theirs, caller="them").name == theirs


def test_lists_show_only_operations_of_the_caller(build, clock):
    """A caller's pages are full, even if operations of other callers lie between the results."""
    service = build(owner_only=True)
    mine = []
    for number in range(12):
        clock.advance(1)
        caller = "me" if number % 3 == 0 else "them"
        name = service.start(NAME, WorkRequest(), caller=caller).name
        mine += [name] if caller == "me" else []
    first = service.list(ListOperationsRequest(page_size=3), caller="me")
    request = ListOperationsRequest(page_size=3, page_token=first.next_page_token)
    second = service.list(request, caller="me")
    found = [one.name for one in (*first.operations, *second.operations)]
    assert (found, second.next_page_token) == (mine[::-1], "")
    assert service.list(ListOperationsRequest(), caller="nobody").operations == ()


def test_reporter_refuses_operations_of_other_methods(build):
    """A reporter refuses operations of a method that its service does not declare."""
    service = build()
    name = service.start(NAME, WorkRequest()).name
    stranger = Service(service.store, InlineExecutor(), maintenance=False)
    with pytest.raises(DeclarationError, match=f"{NAME}: is not declared"):
        stranger.reporter(name)
    with pytest.raises(DeclarationError):
        stranger.reporter(MISSING)
    with pytest.raises(InvalidOperationName):
        service.reporter("nonsense")
    missing = service.reporter(MISSING)
    assert missing.complete(WorkResponse()) is False
    assert missing.report(WorkMetadata()) is False
    assert missing.cancel_requested is False


def test_reporter_of_an_operation_that_is_gone_takes_messages_of_any_method(build):
    """A reporter of a deleted operation accepts messages of any class, and then drops them."""
    service = build()
    other = declared(service, "acme.v1.Works.Other", response=WorkMetadata, metadata=WorkResponse)
    name = other.start(WorkRequest()).name
    service.reporter(name).finish()
    service.delete(name)
    gone = service.reporter(name)
    assert gone.report(WorkResponse()) is False
    assert gone.complete(WorkMetadata(), metadata=WorkResponse()) is False
    assert gone.fail(Status(Code.ABORTED, "no"), metadata=WorkResponse()) is False


def test_response_that_is_too_large_comes_too_late_after_the_end(build):
    """A response that is too large fails the operation, or is dropped after the operation's end."""
    service = build(limits=Limits(response_bytes=1000))
    name, late = (service.start(NAME, WorkRequest()).name for _ in range(2))
    with pytest.raises(MessageTooLarge):
        service.reporter(name).complete(WorkResponse("x" * 1000))
    assert service.get(name).error.code == Code.INTERNAL
    service.reporter(late).finish()
    assert service.reporter(late).complete(WorkResponse("x" * 1000)) is False
    assert service.get(late).error is None


def test_method_may_have_its_own_expiry(build, clock):
    """A method's ``keep_for`` may be longer or shorter than the service's (spec §9.4)."""
    service = build()
    options = Options(keep_for=timedelta(hours=1))
    method = declared(service, "acme.v1.Works.Brief", options=options)
    name = method.start(WorkRequest()).name
    service.reporter(name).finish()
    clock.advance(hours=1, microseconds=-1)
    assert service.get(name).state == "SUCCEEDED"
    clock.advance(microseconds=1)
    with pytest.raises(OperationNotFound):
        service.get(name)


def test_maintenance_removes_what_has_expired(build, clock, monkeypatch):
    """Maintenance removes expired operations in batches within a minute. Reads delete nothing."""
    monkeypatch.setattr("lro._engine.maintenance._EXPIRY_BATCH", 100)
    service = build(keep_for=timedelta(hours=1))
    names = [service.start(NAME, WorkRequest()).name for _ in range(150)]
    for name in names:
        service.reporter(name).finish()
    service.run_maintenance()
    clock.advance(hours=1)
    with pytest.raises(OperationNotFound):
        service.get(names[0])
    assert service.store.get(names[0])
    assert service.run_maintenance() == 0.01  # another batch remains
    service.run_maintenance()
    for name in names:
        with pytest.raises(OperationNotFound):
            service.store.get(name)


def test_unconventional_type_names_are_logged(make_service, caplog):
    """Type names that do not follow AIP-151's convention are logged, but accepted."""
    service = make_service()
    with caplog.at_level(logging.INFO, "lro"):
        declared(service, response=Empty)
    assert "response-type-empty" in caplog.text
    info = service.edges.methods.infos[NAME]
    assert (info.response_type, info.metadata_type) == (
        "google.protobuf.Empty",
        "acme.v1.WorkMetadata",
    )


def test_a_class_without_a_name_gets_the_methods_package(make_service):
    """A class gets the package of its method (spec §8.3) unless it is registered with a name."""
    DoRequest, DoMetadata = (attrs.make_class(f"Do{what}", {}) for what in ("Request", "Metadata"))
    types = TypeRegistry()
    types.register(DoMetadata, "other.v1.Progress")
    service = make_service(types=types)
    declared(service, "acme.v1.Works.Do", request=DoRequest, metadata=DoMetadata)
    assert types.name_of(DoRequest) == "acme.v1.DoRequest"
    assert service.edges.methods.infos["acme.v1.Works.Do"].metadata_type == "other.v1.Progress"


@pytest.mark.parametrize("role", ["request", "response"])
def test_a_method_names_its_classes(make_service, role):
    """Message classes that no annotation names must be passed as options."""
    classes = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
    del classes[role]

    def work(request, job):
        raise AssertionError

    with pytest.raises(DeclarationError, match=f"has no {role} class"):
        make_service().method(NAME, **classes)(work)


def test_a_method_is_declared_once(make_service):
    """A method is declared once, with its full name. A decorator without a name is refused."""
    service = make_service()
    method_of(service)
    with pytest.raises(DeclarationError, match="declared twice"):
        declared(service)
    with pytest.raises(DeclarationError, match=r'write @service\.method\("'):
        service.method(lambda request: None)
