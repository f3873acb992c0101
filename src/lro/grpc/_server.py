"""The gRPC edge on a server, of threads or of asyncio (spec §12.1, §12.3)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from lro._base.arguments import check, check_count, check_instance
from lro._engine.access import Hook
from lro._engine.flow import on_loop, run
from lro._engine.service import Service
from lro.grpc._messages import Answer, OperationWriter
from lro.grpc._rpcs import (
    DEFAULT_MAX_REQUEST,
    Authenticate,
    Exchange,
    Rpc,
    StartMethod,
    StartRpc,
    operations_rpcs,
)

_NO_TIME: Final = 1e-6
"""Seconds: not yet over, and not worth waiting for."""

Methods = bool | Sequence[StartMethod[Any]]


def add_to(
    server: grpc.Server | grpc.aio.Server,
    service: Service,
    *,
    authenticate: Authenticate | None = None,
    methods: Methods = True,
    max_request: int = DEFAULT_MAX_REQUEST,
    max_waiting: int = 4,
) -> None:
    """Serve ``google.longrunning.Operations``, and the methods of a service, on a gRPC server.

    ``methods``: all of the service's, also those declared later (True), none (False), or these,
    each with what gives its operations a parent and first metadata. They are called at
    ``/package.Service/Method``, take their request message and return an Operation.
    ``authenticate`` gives the caller of a call by its metadata. ``max_request`` bounds requests, in
    bytes; the server has a bound of its own (``grpc.max_receive_message_length``, 4 MiB).

    On a ``grpc.Server`` a waiting call holds a thread of its pool, so at most ``max_waiting`` of
    them wait at once, and others get the present state (spec §4.7, §4.8): choose it below the
    number of threads. On a ``grpc.aio.Server`` they hold no thread, and it has no effect. The
    service's maintenance begins here, in the process of the server, which cannot be forked. Closing
    the service is the application's part.

    Raises:
        DeclarationError: A registered message class says what proto cannot say, a method is not the
            service's, an argument is of a wrong type or out of its bounds, a hook is a coroutine
            function and the server a ``grpc.Server``, or the service has ``owner_only`` and there
            is no ``authenticate``.
    """
    served = (grpc.Server, grpc.aio.Server)
    check_instance("server", server, served, "a grpc.Server or grpc.aio.Server, made already")
    check_instance("service", service, Service, "an lro.Service")
    service.access.check_named("lro.grpc.add_to", authenticate)
    hook = None if authenticate is None else Hook("authenticate", authenticate)
    several = isinstance(methods, Sequence) and all(isinstance(m, StartMethod) for m in methods)
    wanted = "True, False, or several lro.grpc.StartMethod"
    check("methods", methods, wanted, fine=several or isinstance(methods, bool))
    check_count("max_request", max_request)
    check_count("max_waiting", max_waiting, least=0)
    _ = service.types.binary  # refuse now what could only fail at each call
    serving: Callable[[Rpc], Callable[..., Any]] = _on_asyncio
    if not isinstance(server, grpc.aio.Server):
        serving = _Threaded(max_waiting)
        service.access.check_plain("a gRPC server of threads")
        if hook is not None:
            hook.check_plain("a gRPC server of threads")
    handlers = _Handlers(
        service, serving, methods, {"authenticate": hook, "max_request": max_request}
    )
    server.add_generic_rpc_handlers((handlers,))
    service.start_maintenance()


class _Handlers(grpc.GenericRpcHandler):
    """Finds what serves a path."""

    def __init__(
        self,
        service: Service,
        serving: Callable[[Rpc], Callable[..., Any]],
        methods: Methods,
        options: dict[str, Any],
    ) -> None:
        self._service = service
        self._serving = serving
        self._options = {**options, "writer": OperationWriter(service.types, service.domain)}
        self._declared = methods is True
        self._found: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for path, rpc in operations_rpcs(service, **self._options).items():
            self._add(path, rpc)
        for start in () if isinstance(methods, bool) else methods:
            service.check_own(start.method)
            self._start(start.method.full_name, start)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """The handler of a path, or None."""
        path = handler_call_details.method
        found = self._found.get(path)
        if found is None and self._declared:
            name = path.removeprefix("/").replace("/", ".")
            if name in self._service.specs and path == path_of(name):
                found = self._start(name, None)
        return found

    def _start(
        self, name: str, start: StartMethod[Any] | None
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        rpc = StartRpc(self._service, name, start=start, **self._options)
        return self._add(path_of(name), rpc)

    def _add(self, path: str, rpc: Rpc) -> grpc.RpcMethodHandler[bytes, bytes]:
        # Without (de)serialisers: bytes that are not a message must be distinguished from a defect.
        made: grpc.RpcMethodHandler[bytes, bytes]
        made = grpc.unary_unary_rpc_method_handler(self._serving(rpc))
        self._found[path] = made
        return made


def path_of(full_name: str) -> str:
    """The path of a method: ``/package.Service/Method``."""
    service, _, method = full_name.rpartition(".")
    return f"/{service}/{method}"


class _Threaded:
    """Serves RPCs in the threads of a ``grpc.Server``, of which at most ``max_waiting`` wait."""

    def __init__(self, max_waiting: int) -> None:
        self._room = threading.Semaphore(max_waiting)

    def __call__(self, rpc: Rpc) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def serve(payload: bytes, context: grpc.ServicerContext) -> bytes:
            answer = self._answer(rpc, payload, context)
            if isinstance(answer, bytes):
                return answer
            context.set_trailing_metadata(answer.trailers)
            context.abort(answer.code, answer.message)

        return serve

    def _answer(self, rpc: Rpc, payload: bytes, context: grpc.ServicerContext) -> Answer:
        if not rpc.holds:
            return run(rpc.exchange(payload, context))
        if not self._room.acquire(blocking=False):
            return run(rpc.exchange(payload, context, _NO_TIME))
        try:
            return _held(rpc.exchange(payload, context), context)
        finally:
            self._room.release()


def _held(exchange: Exchange, context: grpc.ServicerContext) -> Answer:
    # An event loop of its own, since only that can be woken when the caller goes away (spec §4.8).
    async def serve() -> Answer:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def ended() -> None:  # in a thread of gRPC's, also after a call that ended well
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)

        if not context.add_callback(ended):
            return b""
        return await on_loop(exchange)

    try:
        return asyncio.run(serve())
    except asyncio.CancelledError:
        return b""  # the caller has gone


def _on_asyncio(rpc: Rpc) -> Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Any]:
    async def serve(payload: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        answer = await on_loop(rpc.exchange(payload, context))
        if isinstance(answer, bytes):
            return answer
        await context.abort(answer.code, answer.message, answer.trailers)

    return serve
