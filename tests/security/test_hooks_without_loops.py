"""Hooks without an event loop: a coroutine function is refused, or denies every call."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import grpc
import grpc.aio

import lro
import lro.asgi
import lro.grpc
import lro.wsgi
from lro import Code
from lro_client.transports import LocalTransport
from tests.http.counting_service import CountRequest, Wrapped, ask, build
from tests.security.guarded import ASYNC, KINDS, PLAIN, START, edge_of

each_async = pytest.mark.parametrize("kind", ASYNC)


def allow(*_: Any) -> None:
    """Return None: everything is allowed, and the caller has no name."""


def refuse_hooks(build_edge: Callable[[], object], hook: str, where: str) -> None:
    """Check that making the edge raises a DeclarationError that names the hook."""
    with pytest.raises(lro.DeclarationError) as caught:
        build_edge()
    wanted = f"must be a plain function, since {where} has no event loop that could await it, got "
    assert caught.value.subject == hook
    assert caught.value.description.startswith(wanted)


def add_to_grpc(server: grpc.Server, service: lro.Service, **options: Any) -> object:
    """Add a service to a server that is never started."""
    try:
        return lro.grpc.add_to(server, service, **options)
    finally:
        server.stop(None)


@each_async
def test_edge_without_event_loop_refuses_async_hooks(kind: str) -> None:
    """WSGI, gRPC threads and LocalTransport refuse async hooks; gRPC on asyncio accepts them."""
    hook = ASYNC[kind](allow)
    guarded = build(authorize=hook).service
    with ThreadPoolExecutor(1) as pool:
        on_threads = partial(add_to_grpc, grpc.server(pool))
        for make, where in (
            (lro.wsgi.OperationsApp, "a WSGI application"),
            (on_threads, "a gRPC server of threads"),
        ):
            refuse_hooks(partial(make, build().service, authenticate=hook), "authenticate", where)
            refuse_hooks(partial(make, guarded), "authorize", where)
            refuse_hooks(partial(make, guarded, authenticate=allow), "authorize", where)
    refuse_hooks(partial(LocalTransport, guarded), "authorize", "LocalTransport")

    async def on_asyncio() -> None:
        lro.grpc.add_to(grpc.aio.server(), guarded, authenticate=hook)

    asyncio.run(on_asyncio())


@each_async
def test_plain_calls_of_service_with_async_authorize_fail(kind: str) -> None:
    """Each verb, called without an event loop, raises HookFailed and changes nothing."""
    store: Any = build().service.store
    before = build(store)
    name = before.start()
    record = store.get(name)
    counting = build(store, authorize=ASYNC[kind](allow))
    service = counting.service
    calls: list[Callable[[], object]] = [
        lambda: service.get(name),
        lambda: service.list(lro.wire.ListOperationsRequest()),
        lambda: service.delete(name),
        lambda: service.cancel(name),
        lambda: service.wait(name, 0.0),
        lambda: service.batch_get([name]),
        lambda: service.get(name, view="FULL"),
        lambda: service.start(START, CountRequest()),
        lambda: counting.count.start(CountRequest()),
    ]
    for call in calls:
        with pytest.raises(lro.errors.HookFailed) as caught:
            call()
        assert caught.value.status_code is Code.INTERNAL
        assert str(caught.value) == (
            "authorize is a coroutine function, which only an event loop can await:"
            " call the async verbs"
        )
    assert store.get(name) == record
    assert before.service.list(lro.wire.ListOperationsRequest()).operations == (record.operation,)


@each_async
def test_edge_handled_in_thread_with_async_hooks_answers_internal(kind: str) -> None:
    """If an application calls an edge with async hooks in a thread, every call gets a 500."""
    hook = ASYNC[kind](allow)
    for counting, options in [(build(), {"authenticate": hook}), (build(authorize=hook), {})]:
        edge = edge_of(counting, **options)
        for request in (ask("POST", "/v1/count"), ask("GET", "/v1/operations/x")):
            assert edge.handle(request).status == 500


def test_coroutine_functions_are_recognised() -> None:
    """An AsyncMock and a partial of an async object count as async; plain callables do not."""
    for make in PLAIN.values():
        LocalTransport(build(authorize=make(allow)).service)
    for hook in (AsyncMock(), partial(partial(ASYNC["async object"](allow), 1), 2)):
        with pytest.raises(lro.DeclarationError, match="must be a plain function"):
            LocalTransport(build(authorize=hook).service)


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
def test_interrupt_in_main_thread_passes_hook(kind: str) -> None:
    """In the main thread, a hook's KeyboardInterrupt is raised; in other threads, HookFailed is."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    service = build(authorize=KINDS[kind](interrupted)).service

    def call() -> object:
        if kind == "function":
            return service.get("operations/a")
        return asyncio.run(service.get_async("operations/a"))

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        call()
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(lro.errors.HookFailed, match="authorize raised KeyboardInterrupt"),
    ):
        pool.submit(call).result()


def test_signal_handler_that_exits_ends_a_verb() -> None:
    """SystemExit from a signal handler ends a verb; only a SystemExit from a hook is caught."""
    with pytest.raises(SystemExit):  # raised while the store reads
        build(Wrapped(leave, "get")).service.get("operations/a")


def leave(*_: object) -> None:
    """Raise SystemExit, as a signal handler may."""
    raise SystemExit(7)


class Leaving:
    """Signal handlers that are a callable object or a method."""

    def __call__(self, number: int, frame: object) -> None:
        raise SystemExit(7)

    method = __call__


@pytest.mark.parametrize("handler", [Leaving(), Leaving().method, partial(leave, "a"), leave])
def test_signal_handler_that_exits_ends_a_hook(handler: Callable[[int, object], None]) -> None:
    """SystemExit from a signal handler ends a verb even while a hook runs."""
    service = build(authorize=lambda *_: signal.raise_signal(signal.SIGUSR2)).service
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(SystemExit):
            service.get("operations/a")
    finally:
        signal.signal(signal.SIGUSR2, before)


class Lying:
    """An object that claims to be a str."""

    __class__ = str  # type: ignore[assignment]


def test_caller_whose_class_only_claims_to_be_str_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If ``authenticate`` returns an object that only claims to be a str, the reply is a 500."""
    assert isinstance(Lying(), str)
    edge = edge_of(build(), authenticate=lambda headers: Lying())
    assert edge.handle(ask("GET", "/v1/operations")).status == 500
    assert "authenticate must return a text" in caplog.text


def test_async_hook_of_closed_coroutine_ends_quietly() -> None:
    """If a coroutine is closed while it awaits a hook, the hook is closed too."""
    left = []

    async def wait(*_: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            left.append(True)

    async def asked() -> None:
        call = build(authorize=wait).service.get_async("operations/a")
        assert call.send(None) is not None  # the coroutine is awaiting the hook
        call.close()

    asyncio.run(asked())
    assert left == [True]
