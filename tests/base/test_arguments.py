"""Arguments are checked when the application passes them (spec §3.1(5) and similar rules)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import lro
from lro import cli, testing
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

WORK = "acme.v1.Works.Do"
MESSAGES: dict[str, Any] = {
    "request": WorkRequest,
    "response": WorkResponse,
    "metadata": WorkMetadata,
}
COUNT, SIZE = "a whole number from 1", "a whole number from 0"
SPAN = "a timedelta above zero, at most 36500 days"
FROM_ZERO = "a timedelta from zero, at most 36500 days"
LEASE = "a timedelta of 0.2 s or more, at most 36500 days"
SECONDS, DAY = "seconds from 0, at most 86400", "seconds above 0, at most 86400"
PLAIN = "a plain function, which no event loop awaits"
TEXTS = "several texts, in a tuple or list"
METHODS = "True, False, or several lro.grpc.StartMethod"


async def awaited(*_: object) -> None:
    """A coroutine function, which no test awaits."""


class Awaited:
    """An object that returns a coroutine when called."""

    async def __call__(self, *_: object) -> None:
        """Do nothing."""


def new_service(**options: Any) -> lro.Service:
    """Make a service without threads."""
    parts = {"store": MemoryStore(), "executor": InlineExecutor(), "maintenance": False}
    return lro.Service(**{**parts, **options})


def declare(**options: Any) -> None:
    """Declare a method whose work is done outside the library."""
    new_service().declare(WORK, **{**MESSAGES, **options})


def sqlite_store(**options: Any) -> SQLiteStore:
    """Make a store in the current directory."""
    return SQLiteStore(**{"path": "operations.db", **options})


def postgres_store(**options: Any) -> object:
    """Make a store whose server does not exist."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore

    return PostgresStore(**{"url": "postgresql://nowhere.invalid/", **options})


def celery_executor(**options: Any) -> object:
    """Make an executor without a broker."""
    celery = pytest.importorskip("celery")
    from lro.executors.celery import CeleryExecutor

    app = celery.Celery("arguments", broker="memory://", set_as_current=False)
    return CeleryExecutor(**{"app": app, **options})


def grpc_edge(**options: Any) -> None:
    """Add a gRPC edge to a server that is never started."""
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    from concurrent.futures import ThreadPoolExecutor

    import lro.grpc

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        try:
            lro.grpc.add_to(**{"server": server, "service": new_service(), **options})
        finally:
            server.stop(None).wait()


def grpc_method(**options: Any) -> object:
    """Make a start method for a gRPC edge."""
    pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    import lro.grpc

    return lro.grpc.StartMethod(**{"method": new_service().declare(WORK, **MESSAGES), **options})


ARGUMENTS: dict[Callable[..., object], list[tuple[str, object, str]]] = {
    lro.Options: [
        *(("concurrency", value, COUNT) for value in (0, True)),
        ("retry", 3, "an lro.Retry"),
        ("priority", 1.0, "a whole number from -100 to 100"),
        ("priority", True, "a whole number from -100 to 100"),
        ("priority", -101, "a whole number from -100 to 100"),
        ("expires", 60, "a timedelta above zero, at most 36500 days"),
        ("rate", 3, "a tuple of a number and a timedelta"),
        ("rate", (3,), "a tuple of a number and a timedelta"),
        ("rate", (0, timedelta(1)), COUNT),
        ("rate", (3, 60), "a timedelta above zero, at most 36500 days"),
        ("concurrency_key", "customer", "a function"),
        ("max_lost", "3", COUNT),
        *(("time_limit", value, SPAN) for value in (5, timedelta(), timedelta(-1))),
        *(("keep_for", value, SPAN) for value in (timedelta(), timedelta(days=99_999_999))),
        ("at_most_once", "yes", "True or False"),
        ("exclusive_target", "name", "a function"),
        ("validate", awaited, PLAIN),
        ("final_metadata", functools.partial(awaited, 1), PLAIN),
        ("exclusive_target", Awaited(), PLAIN),
        *(("indexed_paths", value, "a tuple of paths") for value in ("dataset", ("dataset", 5))),
        ("path", None, "a text"),
        ("path", "v1/x", "a path such as /v1/images:resize"),
    ],
    new_service: [
        *(("store", value, "a store, made already") for value in (MemoryStore, InlineExecutor())),
        *(("executor", value, "an executor, made already") for value in (InlineExecutor, 5)),
        ("types", {}, "a TypeRegistry"),
        *(("domain", value, "a text that is not empty") for value in ("", None)),
        *(("verbs", value, TEXTS) for value in ("GetOperation", [1])),
        ("verbs", ["GetOperatoin"], "some of GetOperation, ListOperations"),
        *(("max_wait", value, FROM_ZERO) for value in (60, timedelta(-1))),
        *(("keep_for", value, FROM_ZERO) for value in ("30d", timedelta(days=99_999_999))),
        *(("drain", value, FROM_ZERO) for value in (timedelta(-1), 5, "10s", None)),
        *(("lease", timedelta(milliseconds=value), LEASE) for value in (0, 199)),
        ("authorize", "no function", "a function"),
        ("staff", "no function", "a function"),
        ("staff", str.isupper, "None without owner_only=True"),
        *((flag, "no", "True or False") for flag in ("owner_only", "maintenance", "statistics")),
        ("observers", [print], "objects of lro.adapters.Observer"),
        ("around", 5, "a function of a job that gives a context manager"),
        ("clock", 3.0, "a function"),
    ],
    MemoryStore: [("clock", "now", "a function")],
    sqlite_store: [
        ("clock", 5, "a function"),
        *(("path", value, "the path of a file") for value in (5, None, "a\x00b")),
        *(("busy_seconds", value, SECONDS) for value in ("5", -1, float("nan"), True)),
        ("busy_seconds", timedelta(seconds=1), SECONDS),
    ],
    postgres_store: [
        ("url", None, "a text"),
        *(("schema", value, "a text of 1 to 60 bytes") for value in (5, "pg_x")),
        *(("connections", value, COUNT) for value in (0, "10")),
        *(("connect_seconds", value, DAY) for value in (0, timedelta(seconds=5))),
        ("statement_seconds", float("inf"), DAY),
        ("clock", 5, "a function"),
    ],
    ThreadExecutor: [("workers", 1.5, COUNT)],
    AsyncioExecutor: [
        *(("concurrency", value, COUNT) for value in ("9", 0)),
        *(("loop", value, '"own" or "running"') for value in ("other", None, True)),
    ],
    ProcessExecutor: [
        ("workers", 0, COUNT),
        *(("grace", value, "a timedelta from zero") for value in (5, timedelta(seconds=-1))),
        *(("recycle", value, COUNT) for value in (0, 10.0)),
    ],
    celery_executor: [
        ("app", "redis://localhost", "a Celery app"),
        *(("queue", value, "a text that is not empty") for value in ("", 5)),
        *(("redelivery", value, "a timedelta above zero") for value in (60, timedelta())),
        ("task_name", None, "a text that is not empty"),
        ("broker_timeout", 1.0, "a timedelta above zero"),
        ("connections", 0, COUNT),
    ],
    grpc_edge: [
        ("server", "127.0.0.1:50051", "a grpc.Server or grpc.aio.Server"),
        ("service", None, "an lro.Service"),
        ("authenticate", "Bearer", "a function"),
        *(("methods", value, METHODS) for value in (None, ["acme.v1.Works.Do"])),
        ("max_request", 0, COUNT),
        ("max_waiting", -1, SIZE),
    ],
    grpc_method: [
        ("method", "acme.v1.Works.Do", "a method of a service"),
        ("parent", "projects/p", "a function"),
        ("metadata", WorkMetadata(), "a function"),
        ("metadata", awaited, PLAIN),
    ],
    declare: [
        ("metadata", "acme.v1.M", "a message class"),
        ("request", WorkRequest(), "a message class"),
        ("options", {"attempts": 3}, "lro.Options"),
    ],
}


def refused(call: Callable[[], object], name: str, wanted: str) -> None:
    """Check that a call refuses this argument with the usual message."""
    with pytest.raises(lro.DeclarationError) as caught:
        call()
    assert str(caught.value).startswith(f"{name}: must be {wanted}")
    assert ", got " in str(caught.value)


@pytest.mark.parametrize(
    ("make", "name", "value", "wanted"),
    [(make, *row) for make, rows in ARGUMENTS.items() for row in rows],
)
def test_argument_of_wrong_type_is_refused_by_its_name(
    make, name, value, wanted, tmp_path, monkeypatch
):
    """A wrong argument is an error before a file is made, a thread started or a server called."""
    monkeypatch.chdir(tmp_path)
    refused(lambda: make(**{name: value}), name, wanted)
    assert list(tmp_path.iterdir()) == []


NOW = datetime(2030, 1, 1)
CALLS: list[tuple[Callable[[lro.TypeRegistry], object], str, str]] = [
    (lambda types: types.register("acme.v1.A"), "cls", "a class"),
    (lambda types: types.register(WorkRequest, 5), "full_name", "a text"),
    (lambda types: lro.TypeRegistry("acme.v1.A"), "cls", "a class"),
    (lambda types: lro.TypeRegistry(factories=5), "factories", "several functions"),
    (lambda types: lro.TypeRegistry(factories=["a"]), "factories", "a function"),
    (lambda types: new_service().method(WORK, at_most_once=1), "at_most_once", "True or False"),
    (lambda types: testing.ManualClock(NOW), "now", "a datetime with a time zone"),
    (lambda types: testing.ManualClock(0.0), "now", "a datetime with a time zone"),
    (lambda types: cli.main("get operations/a"), "arguments", TEXTS),
    (lambda types: cli.main([1]), "arguments", TEXTS),
]


@pytest.mark.parametrize(("call", "name", "wanted"), CALLS)
def test_argument_of_a_call_of_wrong_type_is_refused_by_its_name(call, name, wanted):
    """A wrong argument is refused by the registry, declarations, clocks for tests and the CLI."""
    refused(lambda: call(lro.TypeRegistry(WorkRequest)), name, wanted)


def test_at_most_once_with_retries_is_refused():
    """``at_most_once`` with ``retry`` is refused, because the options contradict each other."""
    text = r"^at_most_once: means that .* begun: leave out retry, or at_most_once$"
    with pytest.raises(lro.DeclarationError, match=text):
        lro.Options(at_most_once=True, retry=lro.Retry())
    with pytest.raises(lro.DeclarationError, match=text):
        new_service().method(WORK, at_most_once=True, retry=lro.Retry(attempts=1))


def test_retry_with_more_attempts_than_the_operation_is_refused():
    """A retry with more attempts than ``max_attempts`` is refused: it could not make them all."""
    text = r"^retry: allows 21 attempts, and max_attempts 20: raise max_attempts$"
    with pytest.raises(lro.DeclarationError, match=text):
        lro.Options(retry=lro.Retry(attempts=21))
    lro.Options(retry=lro.Retry(attempts=21), max_attempts=21)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 2),
        ("time_limit", timedelta(minutes=1)),
        ("retry", lro.Retry()),
        ("at_most_once", True),
        ("max_lost", 1),
        ("max_attempts", 1),
        ("final_metadata", lambda metadata, state: metadata),
        ("priority", 1),
        ("expires", timedelta(minutes=1)),
        ("concurrency_key", str),
        ("rate", (1, timedelta(minutes=1))),
    ],
)
def test_function_options_are_refused_for_work_done_outside(name, value):
    text = f"^{name}: has no effect on work that is done outside: leave it out$"
    with pytest.raises(lro.DeclarationError, match=text):
        declare(options=lro.Options(**{name: value}))
    declare(options=lro.Options(keep_for=timedelta(days=1), exclusive_target=str))


@pytest.mark.parametrize("authorize", [max, lambda verb, caller: True])
def test_hook_without_a_readable_signature_is_accepted(authorize):
    with new_service(authorize=authorize) as service:
        assert service.edges.methods is not None


def test_shortest_lease_is_accepted():
    """A lease of 0.2 s, the shortest one, is accepted."""
    with new_service(lease=timedelta(milliseconds=200)) as service:
        assert service.list(lro.wire.ListOperationsRequest()).operations == ()


@pytest.fixture
def service():
    """A service with a method whose work is done outside the library."""
    with new_service() as made:
        made.declare(WORK, **MESSAGES)
        yield made


@pytest.mark.parametrize("value", [None, 5.0, b"a", ["a"], {"a": 1}])
@pytest.mark.parametrize("name", ["request_id", "parent", "target", "caller", "validate_only"])
def test_argument_of_a_start_of_wrong_type_is_an_invalid_argument(service, name, value):
    """A start's wrong argument, which may come from a caller, is an error that names the field."""
    others = {"validate_only": "True or False", "caller": "a text or a whole number"}
    wanted = others.get(name, "a text")
    with pytest.raises(lro.InvalidArgument, match=f"{name}: must be {wanted}, got ") as caught:
        service.start(WORK, WorkRequest(), **{name: value})
    assert caught.value.field == name
    assert service.list(lro.wire.ListOperationsRequest()).operations == ()


@pytest.mark.parametrize("call", [lambda s, n: s.get(n), lambda s, n: s.reporter(n)])
def test_operation_name_that_is_not_a_string_is_an_invalid_argument(service, call):
    """A wrong operation name, which may come from a caller, is an error that callers can get."""
    with pytest.raises(lro.errors.InvalidOperationName, match="must be a text, got 5"):
        call(service, 5)


A_METADATA, A_RESPONSE = "a WorkMetadata, or one packed", "a WorkResponse, or one packed"


@pytest.mark.parametrize(
    ("call", "name", "wanted"),
    [
        (lambda to: to.report(WorkResponse()), "metadata", A_METADATA),
        (lambda to: to.report({"percent": 5}), "metadata", A_METADATA),
        (lambda to: to.complete(WorkResponse(), metadata=5), "metadata", A_METADATA),
        (lambda to: to.fail(lro.Cancelled(), metadata=5), "metadata", A_METADATA),
        (lambda to: to.finish(metadata=5), "metadata", A_METADATA),
        (lambda to: to.acknowledge_cancel(metadata=5), "metadata", A_METADATA),
        (lambda to: to.complete(WorkMetadata()), "response", A_RESPONSE),
        (lambda to: to.complete("done"), "response", A_RESPONSE),
        (lambda to: to.fail("it failed"), "error", "a Status or an LroError"),
        (lambda to: to.fail(ValueError("it failed")), "error", "a Status or an LroError"),
        (lambda to: to.fail(lro.Cancelled(), domain=None), "domain", "a text"),
    ],
)
def test_argument_of_a_reporter_of_wrong_type_changes_nothing(service, call, name, wanted):
    """Reporters check the classes of messages, so that no other registered class is stored."""
    operation = service.start(WORK, WorkRequest()).name
    service.cancel(operation)
    before = service.get(operation)
    refused(lambda: call(service.reporter(operation)), name, wanted)
    assert service.get(operation) == before


def none_metadata(request: WorkRequest, job: lro.Job[None]) -> WorkResponse:
    """A function whose metadata is annotated None."""


def none_request(request: None, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """A function whose request is annotated None."""


@pytest.mark.parametrize(
    ("function", "role"), [(none_metadata, "metadata"), (none_request, "request")]
)
def test_annotation_none_is_refused_with_what_to_write(service, function, role):
    """The error about an annotation None says which class to annotate."""
    with pytest.raises(lro.DeclarationError) as caught:
        service.method("acme.v1.Works.Nothing")(function)
    assert str(caught.value).startswith(
        f"acme.v1.Works.Nothing: has None annotated as its {role} class: annotate lro.Empty"
    )
    service.method("acme.v1.Works.Nothing", **{role: lro.Empty})(function)


@pytest.mark.parametrize(
    ("value", "hint"),
    [(3, ", such as timedelta(seconds=3)"), (1.5, ", such as timedelta(seconds=1.5)"),
     (0, ""), (-1, ""), (1e300, ""), (True, ""), ("3", "")],
)  # fmt: skip
def test_number_for_a_timedelta_is_refused_with_the_timedelta(value: Any, hint: str) -> None:
    """The error for a number of seconds shows how to write it as a timedelta."""
    with pytest.raises(lro.DeclarationError) as caught:
        new_service(max_wait=value)
    assert str(caught.value) == f"max_wait: must be {FROM_ZERO}{hint}, got {value!r}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retries": 3}, "method takes no argument 'retries': did you mean retry=lro.Retry(...)?"),
        ({"timeout": 3}, "method takes no argument 'timeout': did you mean 'time_limit'?"),
        ({"concurency": 3}, "method takes no argument 'concurency': did you mean 'concurrency'?"),
        ({"colour": 3}, "method takes no argument 'colour'"),
    ],
)
def test_unknown_option_is_refused_with_the_one_that_was_meant(
    options: dict[str, Any], text: str
) -> None:
    """The error names an option with a similar name, or the one for a word of other libraries."""
    with pytest.raises(TypeError) as caught:
        new_service().method(WORK, **options)
    assert str(caught.value) == text
