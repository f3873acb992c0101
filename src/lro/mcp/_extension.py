"""The extension for servers of the MCP SDK: its tools and requests.

The SDK checks the headers and the envelope of each request. This module checks the header
``Mcp-Name`` of ``tasks/*``, and that the client declares the extension.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack

import attrs
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp_types import CallToolRequestParams

from lro import Method, Operation, Service
from lro._bridge import OperationIds, hidden, request_id_of
from lro.asgi import request_of, waited
from lro.errors import (
    DeclarationError,
    HookFailed,
    InvalidRequestId,
    LroError,
    MalformedRequest,
    check,
    check_count,
    check_instance,
    check_keywords,
    check_seconds,
    got,
)
from lro.http import (
    Authenticate,
    Flow,
    MethodSpec,
    StartSettings,
    ask_caller,
    caller_hook,
    flow_of,
    on_loop,
    start_of_size,
)
from lro.mcp import _wire as wire
from lro.mcp._tools import ToolName, cancel_binding, method_binding, named_tools, read_binding
from lro.mcp._translation import Translation, request_id_key
from lro.wire import canonical, dumps, loads_strict

log = logging.getLogger("lro")

WAIT_SECONDS: Final = 20.0
"""Default seconds that a call waits for a result if the client does not support tasks."""

_Context = ServerRequestContext[Any, Any]
_WITHOUT: Final = ("handle", "refuse")


class TaskKeywords(TypedDict, total=False):
    """Options of tools and tasks: see :class:`TasksExtension`."""

    wait: float
    without_tasks: Literal["handle", "refuse"]
    tool_name: ToolName | None
    read_tool: str
    cancel_tool: str
    poll_seconds: int


@attrs.frozen(kw_only=True, eq=False)
class _TaskOptions:
    wait: float = WAIT_SECONDS
    without_tasks: Literal["handle", "refuse"] = "handle"
    tool_name: ToolName | None = None
    read_tool: str = wire.READ_TOOL
    cancel_tool: str = wire.CANCEL_TOOL
    poll_seconds: int = 1

    def __attrs_post_init__(self) -> None:
        check_seconds("wait", self.wait, zero=True)
        fine = self.without_tasks in _WITHOUT
        check("without_tasks", self.without_tasks, "'handle' or 'refuse'", fine=fine)
        check_count("poll_seconds", self.poll_seconds)


class TasksExtension(Extension):
    """Offer methods as tools of an ``mcp.server.MCPServer``, and operations as its tasks.

    Pass it to the server: ``MCPServer("name", extensions=[TasksExtension(service)])``. The server
    may also have other tools. ``methods`` become tools; the default is all methods that the service
    has declared so far. ``tool_name`` makes the name of a tool from the full name of its method. By
    default it is ``Service_Method``, cut to 64 characters, since the APIs of models allow neither
    dots nor more characters.

    A call of one of these tools starts an operation. A client that declares the tasks extension
    gets a task with the id of the operation, or the result if the work has ended already. For other
    clients the call waits for the result for up to ``wait`` seconds, at most the service's
    ``max_wait``. If the work takes longer, ``without_tasks="handle"`` returns a text that has the
    progress, and tells the model to call the tool ``read_tool`` for the result, or the tool
    ``cancel_tool`` to stop the work. With ``"refuse"``, clients without the extension can start
    nothing.

    ``authenticate`` returns the caller of a request, as for :class:`lro.http.OperationsEdge`. It
    takes the HTTP headers, and optionally the ASGI scope, where the SDK's own authentication puts
    ``user``. Over stdio and in process there are no headers, and the scope is None. ``parent``
    returns the parent of a caller's operations; the id of a task does not contain the parent.
    ``poll_seconds`` is the recommended polling interval.

    Raises:
        DeclarationError: An option is not of its type or out of its bounds, a method cannot be a
            tool, or the service has ``owner_only`` and there is no ``authenticate``.

    Source: MCP 2026-07-28, SEP-2663 (``io.modelcontextprotocol/tasks``), SEP-2243 (headers).
    """

    identifier = wire.TASKS

    def __init__(
        self,
        service: Service,
        methods: Sequence[Method[Any, Any, Any]] | None = None,
        *,
        authenticate: Authenticate | None = None,
        parent: Callable[[str], str] | None = None,
        **options: Unpack[TaskKeywords],
    ) -> None:
        check_instance("service", service, Service, "a Service")
        check_keywords("TasksExtension", options, TaskKeywords)
        given = _TaskOptions(**options)
        service.edges.access.check_named(type(self).__name__, authenticate)
        if authenticate is None and not service.edges.access.owner_only:
            line = "%s has no authenticate: any caller who knows the id of a task can read it"
            log.warning(line, type(self).__name__)
        self._service = service
        self._hook = None if authenticate is None else caller_hook("authenticate", authenticate)
        self._ids = OperationIds(parent)
        self._wait = given.wait
        self._handles = given.without_tasks == "handle"
        others = (given.read_tool, given.cancel_tool)
        self._read_tool, self._cancel_tool = others
        self._translation = Translation(
            service.types, service.domain, given.poll_seconds, given.read_tool, given.cancel_tool
        )
        self._specs = named_tools(service, methods, given.tool_name, others)
        for spec in self._specs.values():
            if spec.options.parent is not None and parent is None:
                text = f"is needed, since {spec.full_name} has one: the ids of tasks do not hold it"
                raise DeclarationError("parent", text)
        self._tools = [
            method_binding(name, spec, service.types, handles=self._handles)
            for name, spec in self._specs.items()
        ]
        if self._handles:
            self._tools.append(read_binding(given.read_tool))
            self._tools.append(cancel_binding(given.cancel_tool))

    def tools(self) -> Sequence[ToolBinding]:
        """Return the tools of the methods, and those that read and cancel operations."""
        return self._tools

    def methods(self) -> Sequence[MethodBinding]:
        """Return the handlers of ``tasks/get``, ``tasks/update`` and ``tasks/cancel``."""
        return [
            MethodBinding(wire.GET, wire.TaskParams, self._get, wire.VERSIONS),
            MethodBinding(wire.UPDATE, wire.UpdateParams, self._update, wire.VERSIONS),
            MethodBinding(wire.CANCEL, wire.TaskParams, self._cancel, wire.VERSIONS),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: _Context, call_next: CallNext
    ) -> HandlerResult:
        """Start or read an operation; pass calls of other tools to the server."""
        spec = self._specs.get(params.name)
        arguments = params.arguments or {}
        if spec is not None:
            answer = self._call(spec, arguments, ctx)
        elif self._handles and params.name == self._read_tool:
            answer = self._read(arguments, ctx)
        elif self._handles and params.name == self._cancel_tool:
            answer = self._stop(arguments, ctx)
        else:
            return await call_next(ctx)
        return wire.as_of(ctx.protocol_version, await self._answered(answer, ctx))

    # -- tools --------------------------------------------------------------------------------

    async def _call(
        self, spec: MethodSpec, arguments: Mapping[str, Any], ctx: _Context
    ) -> wire.Result:
        declared = wire.declares_tasks(ctx.params, ctx.protocol_version)
        if not (declared or self._handles):
            raise wire.missing_capability()
        caller = await self._caller(ctx)
        try:
            operation = await self._started(spec, arguments, ctx, caller)
        except Exception as exc:
            return self._translation.tool_error(exc, _asked(ctx))
        if not declared:
            return self._shown(await self._waited(operation, caller, ctx))
        if not operation.done:
            found = await on_loop(self._look(operation.name, caller))
            if not found.done:
                return self._translation.created(found)
            operation = found
        return self._translation.result(operation)

    async def _started(
        self, spec: MethodSpec, arguments: Mapping[str, Any], ctx: _Context, caller: str
    ) -> Operation:
        try:
            text = dumps(dict(arguments))
        except ValueError as exc:
            raise self._refused(spec, _malformed(exc)) from None
        flow = self._start(spec, text, ctx, caller)
        return await on_loop(start_of_size(self._service, flow, len(text)))

    def _start(self, spec: MethodSpec, text: bytes, ctx: _Context, caller: str) -> Flow[Operation]:
        service = self._service
        message: object
        try:
            sent = loads_strict(text)
            message = service.types.load(sent, spec.request)
            request_id = self._request_id(ctx)
        except LroError as exc:
            raise self._refused(spec, exc) from None
        except ValueError as exc:
            raise self._refused(spec, _malformed(exc)) from None
        parent = yield from self._ids.parent_of(caller)
        if not parent and spec.options.parent is not None:
            raise HookFailed("parent", f"must give a parent for operations of {spec.full_name}")
        headers = _headers(ctx)
        options = StartSettings(
            request_id=request_id,
            parent=parent,
            caller=caller,
            headers=headers,
            sent=functools.partial(canonical, sent),
        )
        return (yield from service.edges.start_flow(spec.full_name)(message, options))

    def _refused(self, spec: MethodSpec, error: LroError) -> LroError:
        self._service.edges.starter.observe_refusal(spec.full_name, error)
        return error

    def _request_id(self, ctx: _Context) -> str:
        given = wire.meta_of(ctx.params, request_id_key(self._service.domain))
        if given is None:
            return ""
        if not isinstance(given, str):
            raise InvalidRequestId("request_id", f"must be a text, got {got(given)}")
        try:
            return request_id_of("mcp", given)
        except UnicodeEncodeError:
            raise InvalidRequestId("request_id", "has half a character") from None

    async def _read(self, arguments: Mapping[str, Any], ctx: _Context) -> wire.Result:
        caller = await self._caller(ctx)
        try:
            found = await on_loop(self._find(arguments.get("id"), caller))
        except Exception as exc:
            return self._translation.tool_error(exc, _asked(ctx))
        return self._shown(await self._waited(found, caller, ctx))

    async def _stop(self, arguments: Mapping[str, Any], ctx: _Context) -> wire.Result:
        caller = await self._caller(ctx)
        try:
            name = await on_loop(self._ids.name_of(arguments.get("id", ""), caller))
            with hidden(name):
                await self._service.cancel_async(name, caller=caller)
            found = await on_loop(self._look(name, caller))
        except Exception as exc:
            return self._translation.tool_error(exc, _asked(ctx))
        return self._translation.stopped(found)

    async def _waited(self, operation: Operation, caller: str, ctx: _Context) -> Operation:
        if operation.done or not self._wait:
            return operation
        # With JSON replies the SDK does not notice that a client has disconnected.
        receive = None if ctx.request is None else ctx.request.receive
        ended = await waited(self._service, operation.name, self._wait, caller, receive)
        return ended or operation  # a caller who may not wait may still read

    def _shown(self, operation: Operation) -> wire.Result:
        if operation.done:
            return self._translation.result(operation)
        return self._translation.pending(operation)

    # -- tasks --------------------------------------------------------------------------------

    async def _get(self, ctx: _Context, params: wire.TaskParams) -> wire.Result:
        async def get() -> wire.Result:
            caller = await self._admitted(ctx, params)
            found = await on_loop(self._find(params.task_id, caller))
            return self._translation.detailed(found)

        return await self._answered(get(), ctx)

    async def _update(self, ctx: _Context, params: wire.UpdateParams) -> wire.Result:
        async def update() -> wire.Result:
            caller = await self._admitted(ctx, params)
            await on_loop(self._find(params.task_id, caller))
            return wire.acknowledged()  # no operation asks for input

        return await self._answered(update(), ctx)

    async def _cancel(self, ctx: _Context, params: wire.TaskParams) -> wire.Result:
        async def cancel() -> wire.Result:
            caller = await self._admitted(ctx, params)
            name = await on_loop(self._ids.name_of(params.task_id, caller))
            with hidden(name):
                await self._service.cancel_async(name, caller=caller)
            return wire.acknowledged()

        return await self._answered(cancel(), ctx)

    async def _admitted(self, ctx: _Context, params: wire.TaskParams) -> str:
        """Check a request about a task, and return its caller."""
        if ctx.request is not None:  # over HTTP
            wire.check_name_header(_headers(ctx), params.task_id)
        if not wire.declares_tasks(ctx.params, ctx.protocol_version):
            raise wire.missing_capability()
        return await self._caller(ctx)

    # -- both ---------------------------------------------------------------------------------

    async def _caller(self, ctx: _Context) -> str:
        if self._hook is None:
            return ""
        scope = None if ctx.request is None else ctx.request.scope
        return await on_loop(ask_caller(self._hook, _headers(ctx), scope))

    def _find(self, operation_id: Any, caller: str) -> Flow[Operation]:
        name = yield from self._ids.name_of(operation_id, caller)
        return (yield from self._look(name, caller))

    def _look(self, name: str, caller: str) -> Flow[Operation]:
        with hidden(name):
            return (yield from flow_of(self._service.get)(name, view="FULL", caller=caller))

    async def _answered(self, answer: Awaitable[wire.Result], ctx: _Context) -> wire.Result:
        # Convert every exception: the SDK would send its text to clients of earlier revisions.
        try:
            return await answer
        except wire.ToolsRefusal:
            raise
        except Exception as exc:
            raise self._translation.refusal(exc, _asked(ctx)) from exc


def _asked(ctx: _Context) -> str:
    return f"the MCP request {ctx.method}"


def _headers(ctx: _Context) -> Mapping[str, str]:
    """Return the HTTP headers, with names in lower case; empty over stdio or in process."""
    return {} if ctx.request is None else request_of(ctx.request.scope, "").headers


def _malformed(error: ValueError) -> MalformedRequest:
    return MalformedRequest("arguments", f"are not JSON: {error}")
