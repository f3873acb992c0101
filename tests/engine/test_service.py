"""The service: who may ask what in which order, and what is switched off."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from lro import (
    Code,
    DeclarationError,
    Empty,
    InvalidArgument,
    Job,
    ListOperationsRequest,
    LroError,
    Options,
    Service,
    Status,
    TypeRegistry,
)
from lro._engine.service import VERBS
from lro.errors import (
    InvalidOperationName,
    InvalidParent,
    InvalidTimeout,
    MethodNotSupported,
    OperationNotFound,
    PermissionDenied,
)
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"
MISSING = "operations/missing"
NOTHING = timedelta(0)

CALLS = {
    "GetOperation": lambda service, name: service.get(name, caller="me"),
    "DeleteOperation": lambda service, name: service.delete(name, caller="me"),
    "CancelOperation": lambda service, name: service.cancel(name, caller="me"),
    "WaitOperation": lambda service, name: service.wait(name, NOTHING, caller="me"),
    "AwaitOperation": lambda service, name: asyncio.run(
        service.wait_async(name, NOTHING, caller="me")
    ),
    "ListOperations": lambda service, name: service.list(
        ListOperationsRequest(name=name), caller="me"
    ),
}
DRAINS = (timedelta(-1), 5, "10s", None)
EACH = pytest.mark.parametrize("verb", CALLS)
EACH_NAMED = pytest.mark.parametrize("verb", [verb for verb in CALLS if verb != "ListOperations"])


def declare(service, **options):
    return service.declare(
        NAME, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata, **options
    )


@pytest.fixture
def build(store, make_service):
    """Makes a service over the store, with a method whose work is done elsewhere."""

    def make(**options):
        service = make_service(store, InlineExecutor(), **options)
        declare(service)
        return service

    return make


# -- permission -----------------------------------------------------------------------------------


@EACH
def test_permission_is_asked(build, verb):
    """With the caller, the RPC's name and the operation's, or the parent's for List."""
    asked = []
    service = build(authorize=lambda *question: asked.append(question))
    name = "" if verb == "ListOperations" else service.start(NAME, WorkRequest()).name
    asked.clear()
    CALLS[verb](service, name)
    rpc = "WaitOperation" if verb == "AwaitOperation" else verb
    assert asked == [("me", rpc, name)]


def test_permission_is_asked_for_a_start(build):
    """With the method's full name, and the parent of the new operation."""
    asked = []
    service = build(authorize=lambda *question: asked.append(question))
    service.start(NAME, WorkRequest(), caller="me", parent="projects/p")
    assert asked == [("me", NAME, "projects/p")]


@EACH
def test_permission_precedes_existence(build, verb):
    """Who may not ask does not learn whether there is one (spec §3.1(5))."""

    def refuse(caller, verb, name):
        raise PermissionDenied("go away")

    service = build(authorize=refuse)
    with pytest.raises(PermissionDenied, match="go away"):
        CALLS[verb](service, "projects/p" if verb == "ListOperations" else MISSING)


@EACH
def test_arguments_precede_permission(build, verb):
    """A malformed call is refused before any hook is asked."""

    def ask(caller, verb, name):
        raise AssertionError

    service = build(authorize=ask)
    with pytest.raises((InvalidOperationName, InvalidParent)):
        CALLS[verb](service, "nonsense")


@EACH
def test_support_precedes_arguments(build, verb):
    """A verb that is switched off answers so, whatever the arguments (spec §3.9)."""
    service = build(verbs=())
    if verb == "GetOperation":
        with pytest.raises(InvalidOperationName):  # it is always offered
            CALLS[verb](service, "nonsense")
        return
    with pytest.raises(MethodNotSupported) as caught:
        CALLS[verb](service, "nonsense")
    assert caught.value.method == ("WaitOperation" if verb == "AwaitOperation" else verb)
    assert caught.value.code is Code.UNIMPLEMENTED


@pytest.mark.parametrize("off", [verb for verb in VERBS if verb != "GetOperation"])
def test_one_verb_is_switched_off(build, off):
    """The others are not touched by it."""
    service = build(verbs=[verb for verb in VERBS if verb != off])
    for verb in VERBS:
        if verb == off:
            with pytest.raises(MethodNotSupported):
                service.require(verb)
        else:
            service.require(verb)


def test_wait_checks_its_arguments_before_permission(build):
    """Also the timeout; the deadline after them, before existence (spec §4.4)."""

    def refuse(caller, verb, name):
        raise PermissionDenied

    with pytest.raises(InvalidTimeout):
        build(authorize=refuse).wait(MISSING, timedelta(seconds=-1), deadline_seconds=0)
    with pytest.raises(LroError) as caught:
        build().wait(MISSING, deadline_seconds=0)
    assert caught.value.code is Code.DEADLINE_EXCEEDED


def test_a_filter_is_checked_before_permission(build):
    """So are the other arguments of a list."""

    def refuse(caller, verb, name):
        raise PermissionDenied

    service = build(authorize=refuse)
    for wrong in ({"filter": "("}, {"page_size": -1}, {"page_token": "x"}):
        with pytest.raises(InvalidArgument):
            service.list(ListOperationsRequest(**wrong))


@EACH_NAMED
def test_what_is_not_there_is_not_found(build, verb):
    """For every caller who may ask."""
    with pytest.raises(OperationNotFound):
        CALLS[verb](build(), MISSING)


# -- owners ---------------------------------------------------------------------------------------


@EACH_NAMED
def test_operations_belong_to_their_caller(build, verb):
    """Where the service says so, to others they do not exist."""
    service = build(owner_only=True)
    mine = service.start(NAME, WorkRequest(), caller="me").name
    theirs = service.start(NAME, WorkRequest(), caller="them").name
    with pytest.raises(OperationNotFound):
        CALLS[verb](service, theirs)
    CALLS[verb](service, mine)
    assert service.get(theirs, caller="them").name == theirs


def test_lists_show_what_is_the_callers(build, clock):
    """Whole pages of it, however much of others lies between."""
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


# -- reporters and methods ------------------------------------------------------------------------


def test_a_reporter_speaks_for_its_method_only(build):
    """Of a method that the service does not know, nothing can be said."""
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


def test_an_error_without_a_code_changes_nothing(build):
    """INVALID_ARGUMENT, even for an operation that is over (spec §2.3)."""
    service = build()
    name = service.start(NAME, WorkRequest()).name
    with pytest.raises(InvalidArgument):
        service.reporter(name).fail(Status())
    assert not service.get(name).done


def test_an_expiry_of_its_own(build, clock):
    """A method may keep its records longer or shorter than the service does (spec §9.4)."""
    service = build()
    method = service.declare(
        "acme.v1.Works.Brief",
        request=WorkRequest,
        response=WorkResponse,
        metadata=WorkMetadata,
        options=Options(keep_for=timedelta(hours=1)),
    )
    name = method.start(WorkRequest()).name
    service.reporter(name).finish()
    clock.advance(hours=1, microseconds=-1)
    assert service.get(name).state == "SUCCEEDED"
    clock.advance(microseconds=1)
    with pytest.raises(OperationNotFound):
        service.get(name)


def test_maintenance_removes_what_has_expired(build, clock, monkeypatch):
    """A minute later at the latest, in batches; reads never delete."""
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
    assert service.run_maintenance() == 0.01  # more of the same is left
    service.run_maintenance()
    for name in names:
        with pytest.raises(OperationNotFound):
            service.store.get(name)


def test_conventions_are_warned_of(make_service, caplog):
    """AIP-151 wants other names for these types; it works all the same."""
    service = make_service()
    with caplog.at_level(logging.INFO, "lro"):
        service.declare(
            "acme.v1.Works.Work", request=WorkRequest, response=Empty, metadata=WorkMetadata
        )
    assert "response-type-empty" in caplog.text
    info = service.methods.infos[NAME]
    assert (info.response_type, info.metadata_type) == (
        "google.protobuf.Empty",
        "acme.v1.WorkMetadata",
    )


def test_a_class_without_a_name_gets_the_methods_package(make_service):
    """As a proto file would have it (spec §8.3); a registered one keeps its name."""
    import attrs

    @attrs.frozen
    class DoRequest:
        text: str = ""

    @attrs.frozen
    class DoMetadata:
        text: str = ""

    types = TypeRegistry()
    types.register(DoMetadata, "other.v1.Progress")
    service = make_service(types=types)
    service.declare(
        "acme.v1.Works.Do", request=DoRequest, response=WorkResponse, metadata=DoMetadata
    )
    assert types.name_of(DoRequest) == "acme.v1.DoRequest"
    assert service.methods.infos["acme.v1.Works.Do"].metadata_type == "other.v1.Progress"


@pytest.mark.parametrize("role", ["request", "response"])
def test_a_method_names_its_classes(make_service, role):
    """What the annotations do not say has to be given."""
    classes = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
    del classes[role]

    def work(request, job):
        raise AssertionError

    with pytest.raises(DeclarationError, match=f"has no {role} class"):
        make_service().method(NAME, **classes)(work)


def test_a_method_is_declared_once(make_service):
    """Under its whole name."""
    service = make_service()

    @service.method(NAME)
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        raise AssertionError

    with pytest.raises(DeclarationError, match="declared twice"):
        declare(service)


def test_a_service_closes_itself_and_its_store(clock):
    """As a context, with the default clock, and with its maintenance thread."""
    closed = []

    class Closing(MemoryStore):
        def close(self):
            closed.append(1)

    with Service(Closing(), InlineExecutor()) as service:
        declare(service)
        assert not service.start(NAME, WorkRequest()).done
        assert service._background.maintenance._thread.is_alive()
    assert closed == [1]
    assert not service._background.maintenance._thread.is_alive()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("concurrency", value) for value in (0, -1, 1.5, "2", True)),
        ("attempts", 0),
        *(("max_lost", value) for value in (0, True)),
        *(("time_limit", value) for value in (timedelta(0), timedelta(-1), 5)),
        *(("keep_for", value) for value in (timedelta(0), 3600, timedelta(days=99_999_999))),
        *((hook, "text") for hook in ("exclusive_target", "validate", "final_metadata")),
    ],
)
def test_an_option_that_makes_no_sense(make_service, name, value):
    """It is refused with the declaration, by its name, and not by the first operation."""
    for declared in (make_service().method, Options):
        with pytest.raises(DeclarationError, match=f"{name}: must be") as caught:
            declared(
                **{"full_name": NAME, name: value} if declared is not Options else {name: value}
            )
        assert caught.value.subject == name


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"store": MemoryStore}, "store: must be a store, made already, got "),
        ({"store": InlineExecutor()}, "store: must be a store, made already, got "),
        ({"executor": InlineExecutor}, "executor: must be an executor, made already, got "),
        ({"executor": None}, "executor: must be an executor, made already, got "),
        *(({"drain": wrong}, "drain: must be a timedelta from zero") for wrong in DRAINS),
        ({"lease": timedelta()}, "lease: must be"),
        ({"max_wait": timedelta(-1)}, "max_wait: must be"),
        ({"keep_for": timedelta(days=99_999_999)}, "keep_for: must be"),
        ({"statistics": "all"}, "statistics: must be True or False"),
        ({"observers": [print]}, r"observers.*lro\.adapters\.Observer"),
        ({"around": 5}, "around"),
        ({"verbs": ["Get"]}, "verbs: must be some of GetOperation"),
    ],
)
def test_a_setting_that_makes_no_sense(wrong, sentence):
    """It is refused when the service is made, and not when the first operation meets it."""
    with pytest.raises(DeclarationError, match=sentence):
        Service(**{"store": MemoryStore(), "executor": InlineExecutor(), **wrong})


def test_a_decorator_without_a_name(make_service):
    """The text shows how it is written."""
    with pytest.raises(DeclarationError, match=r'write @service\.method\("'):
        make_service().method(lambda request: None)
