"""The gRPC edge on a server with threads or with asyncio (spec §12.1, §12.3)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from lro._base.arguments import check, check_count, check_instance
from lro._engine.access import caller_hook
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
"""Timeout, in seconds, of a call beyond ``max_waiting``: above 0, but too short for a wait."""

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

    ``methods``: True for all methods of the service, including those declared later; False for
    none; or a list of :class:`StartMethod`. Callers start these methods at
    ``/package.Service/Method`` with the request message, and get an Operation. ``authenticate``
    returns the caller for a call's metadata. ``max_request`` bounds requests, in bytes; the server
    has its own bound (``grpc.max_receive_message_length``, 4 MiB).

    On a ``grpc.Server``, a waiting call holds a thread of the pool. So at most ``max_waiting``
    calls wait; further calls get the present state at once (spec §4.7, §4.8). Choose a number below
    the number of threads. On a ``grpc.aio.Server``, waiting calls hold no thread, and
    ``max_waiting`` has no effect. The service's maintenance begins here: call this in the server's
    process, and do not fork the process afterwards. The application must close the service.

    Raises:
        DeclarationError: Proto cannot express a registered message class, a method belongs to
            another service, an argument is of a wrong type or out of bounds, a hook is a coroutine
            function and the server is a ``grpc.Server``, or the service has ``owner_only`` and
            there is no ``authenticate``.
    """
    served = (grpc.Server, grpc.aio.Server)
    check_instance("server", server, served, "a grpc.Server or grpc.aio.Server, made already")
    check_instance("service", service, Service, "an lro.Service")
    service.edges.access.check_named("lro.grpc.add_to", authenticate)
    hook = None if authenticate is None else caller_hook("authenticate", authenticate)
    several = isinstance(methods, Sequence) and all(isinstance(m, StartMethod) for m in methods)
    wanted = "True, False, or several lro.grpc.StartMethod"
    check("methods", methods, wanted, fine=several or isinstance(methods, bool))
    check_count("max_request", max_request)
    check_count("max_waiting", max_waiting, least=0)
    _ = service.types.binary  # raise errors now, not at each call
    serving: Callable[[Rpc], Callable[..., Any]] = _on_asyncio
    if not isinstance(server, grpc.aio.Server):
        serving = _Threaded(max_waiting)
        service.edges.access.check_plain("a gRPC server of threads")
        if hook is not None:
            hook.check_plain("a gRPC server of threads")
    handlers = _Handlers(
        service, serving, methods, {"authenticate": hook, "max_request": max_request}
    )
    server.add_generic_rpc_handlers((handlers,))
    service.edges.start_maintenance()


class _Handlers(grpc.GenericRpcHandler):
    """The handlers of the RPCs, found by path."""

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
            service.edges.check_own(start.method)
            self._start(start.method.full_name, start)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Return the handler of a path, or None."""
        path = handler_call_details.method
        found = self._found.get(path)
        if found is None and self._declared:
            name = path.removeprefix("/").replace("/", ".")
            if name in self._service.edges.specs and path == path_of(name):
                found = self._start(name, None)
        return found

    def _start(
        self, name: str, start: StartMethod[Any] | None
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        rpc = StartRpc(self._service, name, start=start, **self._options)
        return self._add(path_of(name), rpc)

    def _add(self, path: str, rpc: Rpc) -> grpc.RpcMethodHandler[bytes, bytes]:
        # No deserialiser: if the bytes are not a message, the error must name the caller's fault.
        made: grpc.RpcMethodHandler[bytes, bytes]
        made = grpc.unary_unary_rpc_method_handler(self._serving(rpc))
        self._found[path] = made
        return made


def path_of(full_name: str) -> str:
    """Return the path of a method: ``/package.Service/Method``."""
    service, _, method = full_name.rpartition(".")
    return f"/{service}/{method}"


class _Threaded:
    """Serve RPCs in the threads of a ``grpc.Server``, of which at most ``max_waiting`` wait."""

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
    # The call gets an event loop, which can be woken when the caller disconnects (spec §4.8).
    async def serve() -> Answer:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def ended() -> None:  # gRPC calls this in a thread, even after a successful call
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)

        if not context.add_callback(ended):
            return b""
        return await on_loop(exchange)

    try:
        return asyncio.run(serve())
    except asyncio.CancelledError:
        return b""  # the caller has disconnected


def _on_asyncio(rpc: Rpc) -> Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Any]:
    async def serve(payload: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        answer = await on_loop(rpc.exchange(payload, context))
        if isinstance(answer, bytes):
            return answer
        await context.abort(answer.code, answer.message, answer.trailers)

    return serve
