"""What an application hands in is checked where it is handed in (spec §3.1(5) and its like)."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta

import pytest

import lro
from lro import cli, testing
from lro._base.arguments import needs
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


async def awaited(*_):
    """A coroutine function, which no test awaits."""


class Awaited:
    """An object whose call gives a coroutine."""

    async def __call__(self, *_):
        """Nothing."""


WRONG_OPTIONS = [
    ("concurrency", 0, "a whole number from 1"),
    ("concurrency", True, "a whole number from 1"),
    ("attempts", 1.0, "a whole number from 1"),
    ("max_lost", "3", "a whole number from 1"),
    ("time_limit", 5, "a timedelta above zero, at most 36500 days"),
    ("keep_for", timedelta(), "a timedelta above zero, at most 36500 days"),
    ("retry_on", ValueError, "a tuple of exception classes"),
    ("retry_on", (ValueError, "OSError"), "a tuple of exception classes"),
    ("retry_on", (BaseException,), "a tuple of exception classes"),
    ("worker_lost", "retry", "WorkerLost.FAIL or WorkerLost.RETRY"),
    ("exclusive_target", "name", "a function"),
    ("validate", awaited, "a plain function, which no event loop awaits"),
    (
        "final_metadata",
        functools.partial(awaited, 1),
        "a plain function, which no event loop awaits",
    ),
    ("exclusive_target", Awaited(), "a plain function, which no event loop awaits"),
    ("indexed_paths", ("dataset", 5), "a tuple of paths"),
    ("path", None, "a text"),
    ("path", "v1/x", "a path such as /v1/images:resize"),
]

WRONG_SERVICE = [
    ("types", {}, "a TypeRegistry"),
    ("domain", "", "a text that is not empty"),
    ("domain", None, "a text that is not empty"),
    ("verbs", "GetOperation", "several texts, in a tuple or list"),
    ("verbs", [1], "several texts, in a tuple or list"),
    ("verbs", ["GetOperatoin"], "some of GetOperation, ListOperations"),
    ("max_wait", 60, "a timedelta from zero, at most 36500 days"),
    ("keep_for", "30d", "a timedelta from zero, at most 36500 days"),
    ("lease", timedelta(), "a timedelta of 0.2 s or more, at most 36500 days"),
    ("lease", timedelta(milliseconds=199), "a timedelta of 0.2 s or more, at most 36500 days"),
    ("authorize", "no function", "a function"),
    ("owner_only", 1, "True or False"),
    ("maintenance", "no", "True or False"),
    ("clock", 3.0, "a function"),
]


def sentence(name, value, wanted):
    """The beginning of the sentence that every wrong argument gets."""
    return f"{name}: must be {wanted}"


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG_OPTIONS)
def test_an_option_of_a_method_of_the_wrong_type_is_refused(name, value, wanted):
    """``worker_lost="retry"`` was taken once, and meant FAIL."""
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:
        with pytest.raises(lro.DeclarationError) as refused:
            service.method("acme.v1.Works.Work", **{name: value})
        assert str(refused.value).startswith(sentence(name, value, wanted))
        assert ", got " in str(refused.value)
        with pytest.raises(ValueError, match=name):
            lro.Options(**{name: value})


def test_function_in_c_needs_no_more_than_one_argument_as_far_as_python_knows():
    """Python knows no parameters of it."""
    assert not needs(max, 2)
    assert needs(lambda one, other: None, 2)


def test_attempts_need_the_exceptions_after_which_they_are_made():
    """Else no second one is ever made; one attempt may have exceptions, which change nothing."""
    with pytest.raises(lro.DeclarationError, match=r"^attempts: 3 need retry_on, which says after"):
        lro.Options(attempts=3)
    assert lro.Options(attempts=1, retry_on=(OSError,)).retry_on == (OSError,)


def test_retry_on_without_attempts_is_refused():
    """The function would be called once. A number that is given may be 1."""
    with pytest.raises(lro.DeclarationError) as refused:
        lro.Options(retry_on=(OSError,))
    assert str(refused.value) == (
        "retry_on: needs attempts, which says how often the function is called in all: "
        "attempts=3, for instance"
    )
    assert [lro.Options(attempts=given, retry_on=()).calls for given in (None, 1)] == [1, 1]


def test_the_shortest_lease_is_taken():
    """It is renewed five times in its period of grace, as any other."""
    shortest = timedelta(milliseconds=200)
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, lease=shortest) as service:
        assert service._background.maintenance.retry_seconds == pytest.approx(0.01)


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG_SERVICE)
def test_an_option_of_the_service_of_the_wrong_type_is_refused(name, value, wanted):
    """Before a thread is started or the store is asked anything."""
    with pytest.raises(lro.DeclarationError) as refused:
        lro.Service(MemoryStore(), InlineExecutor(), **{name: value})
    assert str(refused.value).startswith(sentence(name, value, wanted))


def refused(make, name, wanted):
    """A call refuses its argument of this name, in the sentence that all of them have."""
    with pytest.raises(lro.DeclarationError) as caught:
        make()
    assert str(caught.value).startswith(sentence(name, None, wanted))
    assert ", got " in str(caught.value)


COUNT, SIZE = "a whole number from 1", "a whole number from 0"
WRONG_STORES = [
    (MemoryStore, "clock", "now", "a function"),
    (SQLiteStore, "clock", 5, "a function"),
    (SQLiteStore, "path", 5, "the path of a file"),
    (SQLiteStore, "path", None, "the path of a file"),
    (SQLiteStore, "path", "a\x00b", "the path of a file"),
    (SQLiteStore, "busy_seconds", "5", "seconds from 0, at most 86400"),
    (SQLiteStore, "busy_seconds", -1, "seconds from 0, at most 86400"),
    (SQLiteStore, "busy_seconds", float("nan"), "seconds from 0, at most 86400"),
    (SQLiteStore, "busy_seconds", True, "seconds from 0, at most 86400"),
    (SQLiteStore, "busy_seconds", timedelta(seconds=1), "seconds from 0, at most 86400"),
]
WRONG_EXECUTORS = [
    (ThreadExecutor, "workers", 0, COUNT),
    (ThreadExecutor, "workers", 1.5, COUNT),
    (ThreadExecutor, "workers", True, COUNT),
    (ThreadExecutor, "queue", -1, SIZE),
    (ThreadExecutor, "queue", None, SIZE),
    (AsyncioExecutor, "concurrency", "9", COUNT),
    (AsyncioExecutor, "queue", -1, SIZE),
    (ProcessExecutor, "workers", 0, COUNT),
    (ProcessExecutor, "queue", "9", SIZE),
    (ProcessExecutor, "grace", 5, "a timedelta from zero"),
    (ProcessExecutor, "grace", timedelta(seconds=-1), "a timedelta from zero"),
    (ProcessExecutor, "recycle", 0, COUNT),
    (ProcessExecutor, "recycle", 10.0, COUNT),
]


@pytest.mark.parametrize(("make", "name", "value", "wanted"), WRONG_STORES + WRONG_EXECUTORS)
def test_an_argument_of_a_store_or_executor_of_the_wrong_type_is_refused(
    make, name, value, wanted, tmp_path, monkeypatch
):
    """Before a file is made or a thread is started."""
    monkeypatch.chdir(tmp_path)
    options = {"path": "operations.db"} if make is SQLiteStore else {}
    refused(lambda: make(**{**options, name: value}), name, wanted)
    assert list(tmp_path.iterdir()) == []


DAY = "seconds above 0, at most 86400"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("url", None, "a text"),
        ("schema", 5, "a text of 1 to 60 bytes"),
        ("schema", "pg_x", "a text of 1 to 60 bytes"),
        ("connections", 0, COUNT),
        ("connections", "10", COUNT),
        ("connect_seconds", 0, DAY),
        ("connect_seconds", timedelta(seconds=5), DAY),
        ("statement_seconds", float("inf"), DAY),
        ("statement_seconds", "5", DAY),
        ("clock", 5, "a function"),
    ],
)
def test_an_argument_of_the_postgres_store_of_the_wrong_type_is_refused(name, value, wanted):
    """Before any server is asked."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore

    options = {"url": "postgresql://nowhere.invalid/", name: value}
    refused(lambda: PostgresStore(**options), name, wanted)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("app", "redis://localhost", "a Celery app"),
        ("queue", "", "a text that is not empty"),
        ("queue", 5, "a text that is not empty"),
        ("redelivery", 60, "a timedelta above zero"),
        ("task_name", None, "a text that is not empty"),
        ("broker_timeout", 1.0, "a timedelta above zero"),
        ("connections", 0, COUNT),
        ("connections", None, COUNT),
    ],
)
def test_an_argument_of_the_celery_executor_of_the_wrong_type_is_refused(name, value, wanted):
    """Before any broker is asked."""
    celery = pytest.importorskip("celery")
    from lro.executors.celery import CeleryExecutor

    app = celery.Celery("arguments", broker="memory://", set_as_current=False)
    refused(lambda: CeleryExecutor(**{"app": app, name: value}), name, wanted)


PACKED = lro.TypeRegistry().pack(lro.Empty())
WRONG_TYPES = [
    (lambda types: types.register("acme.v1.A"), "cls", "a class"),
    (lambda types: types.register(WorkRequest, 5), "full_name", "a text"),
    (lambda types: types.knows(WorkRequest()), "cls", "a class"),
    (lambda types: types.codec({}), "full_name", "a text"),
    (lambda types: types.name_of(WorkRequest()), "cls", "a class"),
    (lambda types: types.unpack({}, lro.Empty), "packed", "an lro.Any"),
    (lambda types: types.unpack(PACKED, "google.protobuf.Empty"), "cls", "a class"),
    (lambda types: types.unpack_any(b""), "packed", "an lro.Any"),
    (lambda types: types.checked(None), "packed", "an lro.Any"),
    (lambda types: types.load({}, WorkRequest()), "cls", "a class"),
    (lambda types: types.binary_payload({}), "packed", "an lro.Any"),
    (lambda types: types.json_payload({}), "packed", "an lro.Any"),
    (lambda types: types.status_of(ValueError(), ""), "error", "an LroError"),
    (lambda types: types.status_of(lro.Cancelled(), None), "domain", "a text"),
    (lambda types: types.readable({}), "packed", "an lro.Any"),
    (lambda types: lro.TypeRegistry("acme.v1.A"), "cls", "a class"),
    (lambda types: lro.TypeRegistry(factories=5), "factories", "several functions"),
    (lambda types: lro.TypeRegistry(factories=["a"]), "factories", "a function"),
]


@pytest.mark.parametrize(("call", "name", "wanted"), WRONG_TYPES)
def test_an_argument_of_the_type_registry_of_the_wrong_type_is_refused(call, name, wanted):
    """In its constructor and in every method."""
    refused(lambda: call(lro.TypeRegistry(WorkRequest)), name, wanted)


@pytest.fixture
def service():
    """A service with a method whose work is done outside."""
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as made:
        made.declare(
            "acme.v1.Works.Do", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
        )
        yield made


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"], {"a": 1}])
@pytest.mark.parametrize("name", ["request_id", "parent", "target", "caller"])
def test_an_argument_of_a_start_that_is_no_text_is_an_invalid_argument(service, name, value):
    """A caller's value goes there; the sentence must say which field is wrong."""
    with pytest.raises(lro.InvalidArgument, match=f"{name}: must be a text, got ") as caught:
        service.start("acme.v1.Works.Do", WorkRequest(), **{name: value})
    assert caught.value.field == name
    assert service.list(lro.ListOperationsRequest()).operations == ()


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_a_validate_only_that_is_no_bool_is_an_invalid_argument(service, value):
    """``validate_only="no"`` is no wish to start."""
    with pytest.raises(lro.InvalidArgument, match="validate_only: must be True or False, got "):
        service.start("acme.v1.Works.Do", WorkRequest(), validate_only=value)


def reporting(role, value):
    """Calls of a reporter with a wrong message for this role."""
    calls = {
        "metadata": [
            lambda reporter: reporter.report(value),
            lambda reporter: reporter.complete(WorkResponse(), metadata=value),
            lambda reporter: reporter.fail(lro.Cancelled(), metadata=value),
            lambda reporter: reporter.finish(metadata=value),
            lambda reporter: reporter.acknowledge_cancel(metadata=value),
        ],
        "response": [lambda reporter: reporter.complete(value)],
        "error": [lambda reporter: reporter.fail(value)],
        "domain": [lambda reporter: reporter.fail(lro.Cancelled(), domain=value)],
    }
    return calls[role]


@pytest.mark.parametrize(
    ("role", "value", "wanted"),
    [
        ("metadata", WorkResponse(), "a WorkMetadata, or one packed"),
        ("metadata", {"percent": 5}, "a WorkMetadata, or one packed"),
        ("response", WorkMetadata(), "a WorkResponse, or one packed"),
        ("response", "done", "a WorkResponse, or one packed"),
        ("error", "it failed", "a Status or an LroError"),
        ("error", ValueError("it failed"), "a Status or an LroError"),
        ("domain", None, "a text"),
    ],
)
def test_an_argument_of_a_reporter_of_the_wrong_type_is_refused(service, role, value, wanted):
    """A message of another registered class was stored, and said what the method does not."""
    name = service.start("acme.v1.Works.Do", WorkRequest()).name
    service.cancel(name)
    before = service.get(name)
    for call in reporting(role, value):
        refused(lambda call=call: call(service.reporter(name)), role, wanted)
    assert service.get(name) == before


@pytest.mark.parametrize(
    ("call", "name", "wanted"),
    [
        (lambda service: service.start({}, WorkRequest()), "full_name", "a text"),
        (
            lambda service: service.declare(
                "acme.v1.Works.Other",
                request=WorkRequest,
                response=WorkResponse,
                metadata="acme.v1.M",
            ),
            "metadata",
            "a message class",
        ),
        (
            lambda service: service.declare(
                "acme.v1.Works.Other",
                request=WorkRequest(),
                response=WorkResponse,
                metadata=WorkMetadata,
            ),
            "request",
            "a message class",
        ),
        (
            lambda service: service.declare(
                "acme.v1.Works.Other",
                request=WorkRequest,
                response=WorkResponse,
                metadata=WorkMetadata,
                options={"attempts": 3},
            ),
            "options",
            "lro.Options",
        ),
    ],
)
def test_an_argument_of_a_method_of_the_service_is_refused(service, call, name, wanted):
    """The sentence names what the application named."""
    refused(lambda: call(service), name, wanted)


@pytest.mark.parametrize("call", [lambda s, n: s.get(n), lambda s, n: s.reporter(n)])
def test_a_name_that_is_no_text_is_an_invalid_name(service, call):
    """It is a caller's value, so that its error is one of the caller's."""
    with pytest.raises(lro.errors.InvalidOperationName, match="must be a text, got 5"):
        call(service, 5)


def nothing(*_):
    """Any function."""


@pytest.mark.parametrize(
    ("call", "name", "wanted"),
    [
        (lambda: testing.check_store(None), "make_store", "a function"),
        (lambda: testing.run_store_check("a", nothing), "check", "a function"),
        (lambda: testing.run_store_check(nothing, MemoryStore()), "make_store", "a function"),
        (lambda: testing.check_executor(InlineExecutor()), "make_executor", "a function"),
        (lambda: testing.check_executor(nothing, background=1), "background", "True or False"),
        (lambda: testing.run_executor_check(None, nothing), "check", "a function"),
        (lambda: testing.run_executor_check(nothing, None), "make_executor", "a function"),
        (lambda: testing.check_remote_executor(None), "make_executor", "a function"),
        (lambda: testing.run_remote_check(None, nothing), "check", "a function"),
        (lambda: testing.run_remote_check(nothing, None), "make_executor", "a function"),
        (lambda: testing.ManualClock(datetime(2030, 1, 1)), "now", "a datetime with a time zone"),
        (lambda: testing.ManualClock(0.0), "now", "a datetime with a time zone"),
        (lambda: cli.main("get operations/a"), "arguments", "several texts, in a tuple or list"),
        (lambda: cli.main([1]), "arguments", "several texts, in a tuple or list"),
    ],
)
def test_an_argument_of_the_contract_checks_and_the_command_is_refused(call, name, wanted):
    """It gets the same sentence as every other argument, before anything is checked."""
    refused(call, name, wanted)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("server", "127.0.0.1:50051", "a grpc.Server or grpc.aio.Server"),
        ("service", None, "an lro.Service"),
        ("authenticate", "Bearer", "a function"),
        ("methods", None, "True, False, or several lro.grpc.StartMethod"),
        ("methods", ["acme.v1.Works.Do"], "True, False, or several lro.grpc.StartMethod"),
        ("max_request", 0, COUNT),
        ("max_request", "4 MiB", COUNT),
        ("max_waiting", -1, SIZE),
        ("max_waiting", 2.0, SIZE),
    ],
)
def test_an_argument_of_the_grpc_edge_of_the_wrong_type_is_refused(service, name, value, wanted):
    """``max_waiting=-1`` was a ValueError of a semaphore."""
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    from concurrent.futures import ThreadPoolExecutor

    import lro.grpc

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        options = {"server": server, "service": service, name: value}
        refused(lambda: lro.grpc.add_to(**options), name, wanted)
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("method", "acme.v1.Works.Do", "a method of a service"),
        ("parent", "projects/p", "a function"),
        ("metadata", WorkMetadata(), "a function"),
        ("metadata", awaited, "a plain function, which no event loop awaits"),
    ],
)
def test_an_argument_of_a_grpc_start_method_of_the_wrong_type_is_refused(name, value, wanted):
    """Where the method is named, not at the first call."""
    pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    import lro.grpc

    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:
        method = service.declare(
            "acme.v1.Works.Do", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
        )
        refused(lambda: lro.grpc.StartMethod(**{"method": method, name: value}), name, wanted)


def none_metadata(request: WorkRequest, job: lro.Job[None]) -> WorkResponse:
    """A function whose metadata are annotated None."""


def none_request(request: None, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """A function whose request is annotated None."""


@pytest.mark.parametrize(
    ("function", "role"),
    [(none_metadata, "metadata"), (none_request, "request")],
)
def test_annotation_none_is_refused_with_what_to_write(service, function, role):
    """It is an annotation, so that "annotate it" was no help."""
    with pytest.raises(lro.DeclarationError) as caught:
        service.method("acme.v1.Works.Nothing")(function)
    assert str(caught.value).startswith(
        f"acme.v1.Works.Nothing: has None annotated as its {role} class: annotate lro.Empty"
    )
    options = {role: lro.Empty}
    service.method("acme.v1.Works.Nothing", **options)(function)
