"""The handler of A2A's verbs (A2A 3.1)."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeAlias

import attrs
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf.message import Message as ProtoMessage

from lro import Method, Operation, Service
from lro._bridge import OperationIds, request_id_of
from lro._webhooks.service_webhooks import Webhooks
from lro.a2a._messages import (
    check_media_types,
    check_required,
    chosen,
    data_of,
    json_of,
    not_supported,
)
from lro.a2a._push import PushConfigs
from lro.a2a._refusals import CALL, A2ACall, refuse, task_not_found
from lro.a2a._tasks import FILTERS, TaskWriter, moment_of, state_of, status_time
from lro.asgi import waited
from lro.errors import (
    HookFailed,
    InvalidArgument,
    InvalidOperationName,
    NotApplied,
    OperationNotFound,
    PermissionDenied,
    RequestIdConflict,
    Unauthenticated,
    Unavailable,
    check,
    check_instance,
    check_span,
    got,
)
from lro.http import (
    Authenticate,
    Flow,
    Hook,
    Listing,
    StartSettings,
    ask_caller,
    caller_hook,
    make_large,
    on_loop,
    start_of_size,
)
from lro.wire import ListOperationsRequest

log = logging.getLogger("lro")

Event: TypeAlias = Task | TaskArtifactUpdateEvent | TaskStatusUpdateEvent

Read: TypeAlias = Callable[
    [Message],
    tuple[Method[Any, Any, Any], object] | Awaitable[tuple[Method[Any, Any, Any], object]],
]
"""A hook that takes a message without a data part, such as a text.

The hook returns a method and a request. It may raise :class:`lro.errors.InvalidArgument` or
:class:`lro.errors.UnsupportedMediaType`.
"""

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 100
"""Maximum number of tasks on a page (A2A 3.1.4)."""

MAX_COUNTED: Final = 10_000
"""The number of tasks at which counting for ``totalSize`` stops."""
_NO_LIMIT: Final = 2**62


class Handler(RequestHandler):
    """Answer the verbs of A2A for a service; pass it to the servers of ``a2a-sdk``.

    Messages can start ``methods``. A message names its method in its metadata, as
    ``"<domain>/method"``, unless there is only one method. The first data part of the message is
    the request. ``read`` reads messages without a data part. All operations that the caller may see
    are tasks, even if they were started over other protocols. The id of a task is the last part of
    the name of the operation. ``parent`` returns the parent of a caller's operations.

    ``authenticate`` returns the caller, as for :class:`lro.http.OperationsEdge`. Over gRPC, the
    headers are the metadata of the call, and the optional second argument is the SDK's
    ``ServerCallContext``. The hook is called once per call, before the request is read. Without
    ``authenticate``, the caller is the user in the SDK's context, as a middleware of Starlette sets
    it; if there is no user, a service with ``owner_only`` refuses the call. ``card`` says which
    features are offered. SendMessage waits for at most ``wait``, and at most the ``max_wait`` of
    the service, though A2A has no such limit (3.2.2). After that time, SendMessage returns the
    unfinished task, which can be polled.

    Each task is a context of its own, whose ``contextId`` is the id of the task; a message with
    another ``contextId`` is refused (A2A 3.4.1). Tasks take no further messages, and have no
    history.

    ``webhooks`` are those of the service, with a :class:`PushFormat` under the name ``PUSH``. These
    webhooks notify the URLs of clients when tasks end. The card must offer push notifications.

    Raises:
        DeclarationError: An argument is wrong, a method is of another service, or a method has its
            own ``parent=`` though the handler has none. A task id contains no parent.
    """

    def __init__(
        self,
        service: Service,
        methods: Sequence[Method[Any, Any, Any]],
        card: AgentCard,
        *,
        authenticate: Authenticate | None = None,
        parent: Callable[[str], str] | None = None,
        read: Read | None = None,
        wait: timedelta | None = None,
        webhooks: Webhooks | None = None,
    ) -> None:
        check_instance("service", service, Service, "a Service")
        fine = isinstance(methods, Sequence) and bool(methods)
        check("methods", methods, "a list of methods, at least one", fine=fine)
        for method in methods:
            check_instance("methods", method, Method, "methods of the service")
            service.edges.check_own(method)
            own = method.spec.options.parent is not None
            wanted = "a method without parent=, which is not in the id of a task"
            check("methods", method, wanted, fine=parent is not None or not own)
        check_instance("card", card, AgentCard, "an AgentCard")
        if wait is not None:
            check_span("wait", wait, zero=True)
        if webhooks is not None:
            check_instance("webhooks", webhooks, Webhooks, "the Webhooks of the service")
        pushes = card.capabilities.push_notifications
        wanted = "given if the card promises push notifications, and only then"
        check("webhooks", webhooks, wanted, fine=pushes == (webhooks is not None))
        self.service = service
        self.card = card
        self._methods = {method.full_name: method for method in methods}
        self._ids = OperationIds(parent)
        self._hook = None if authenticate is None else caller_hook("authenticate", authenticate)
        self._read = None if read is None else Hook("read", read)
        self._wait = wait
        self._push = None if webhooks is None else PushConfigs(service, webhooks)
        self._writer = TaskWriter(service.types, service.domain)
        self._key = f"{service.domain}/method"
        modes = {*card.default_input_modes, *(m for s in card.skills for m in s.input_modes)}
        self._modes = frozenset(modes or {"application/json"})
        if authenticate is None and not service.edges.access.owner_only:
            log.warning("A2A has no authenticate: a caller who knows the id of a task can read it")

    # -- verbs --------------------------------------------------------------------------------

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Start an operation, and wait for its end unless told not to (A2A 3.1.1)."""
        async with self._call("SendMessage", params, context) as caller:
            name = await self._start(params, caller, context)
            if not params.configuration.return_immediately:
                await self._wait_for(name, caller, context)
            return self._writer.task(await self._operation(name, caller))

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Start an operation, and stream its changes (A2A 3.1.2)."""
        async with self._call("SendStreamingMessage", params, context) as caller:
            self._require_streams()
            name = await self._start(params, caller, context)
            async with contextlib.aclosing(self._events(name, caller)) as events:
                async for event in events:
                    yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Stream the changes of a task that has not ended (A2A 3.1.6)."""
        async with self._call("SubscribeToTask", params, context) as caller:
            self._require_streams()
            operation = await self._task(params.id, caller)
            if operation.done:
                raise UnsupportedOperationError(message=f"the task {params.id} has ended")
            async with contextlib.aclosing(self._events(operation.name, caller)) as events:
                async for event in events:
                    yield event

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task (A2A 3.1.3)."""
        async with self._call("GetTask", params, context) as caller:
            return self._writer.task(await self._task(params.id, caller))

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Request the cancellation of a task, which may continue for a while (A2A 3.1.5)."""
        async with self._call("CancelTask", params, context) as caller:
            operation = await self._task(params.id, caller)
            if operation.done:
                raise TaskNotCancelableError(message=f"the task {params.id} has ended")
            with _hidden(params.id):
                await self.service.cancel_async(operation.name, caller=caller)
            return self._writer.task(await self._task(params.id, caller))

    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """Return a page of tasks, the newest first (A2A 3.1.4)."""
        async with self._call("ListTasks", params, context) as caller:
            if params.context_id:
                return await self._list_context(params, caller)
            wanted = _Wanted(params, self._writer)
            if not wanted.possible:
                return wanted.page([], "", 0)
            request = ListOperationsRequest(
                name=await on_loop(self._ids.parent_of(caller)),
                filter=wanted.filter,
                page_size=wanted.size,
                page_token=params.page_token,
            )
            listing = await on_loop(
                self.service.edges.begin_list(request, view="FULL", caller=caller)
            )
            return await on_loop(
                make_large(
                    self.service,
                    lambda reserved: self._page(wanted, listing, reserved.bytes),
                    self.service.edges.limits.least_bytes,
                )
            )

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Refuse, since the agent has no extended card (A2A 3.1.11, 3.3.4)."""
        async with self._call("GetExtendedAgentCard", params, context):
            if self.card.capabilities.extended_agent_card:
                raise ExtendedAgentCardNotConfiguredError
            raise UnsupportedOperationError(message="this agent has no extended card")

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Add a push notification config to a task (A2A 3.1.7)."""
        async with self._call("CreateTaskPushNotificationConfig", params, context) as caller:
            push, task_id = self._pushes(), params.task_id
            operation = await self._task(task_id, caller)
            await self._permit_push(operation, task_id, caller)
            endpoint = push.endpoint(params, caller)
            try:
                await on_loop(push.add(operation.name, endpoint))
            except NotApplied:
                raise UnsupportedOperationError(message=f"the task {task_id} has ended") from None
            return push.shown(task_id, endpoint, caller)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return a push notification config without its secrets (A2A 3.1.8)."""
        async with self._call("GetTaskPushNotificationConfig", params, context) as caller:
            for config in await self._configs(params.task_id, caller):
                if config.id == params.id:
                    return config
            raise TaskNotFoundError(
                message=f"there is no push notification config {got(params.id)}"
            )

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return all push notification configs of a task, at most 10 (A2A 3.1.9)."""
        async with self._call("ListTaskPushNotificationConfigs", params, context) as caller:
            configs = await self._configs(params.task_id, caller)
            return ListTaskPushNotificationConfigsResponse(configs=configs)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Remove a push notification config, if it exists (A2A 3.1.10)."""
        async with self._call("DeleteTaskPushNotificationConfig", params, context) as caller:
            push = self._pushes()
            operation = await self._task(params.task_id, caller)
            await self._permit_push(operation, params.task_id, caller)
            await on_loop(push.remove(operation.name, params.id, caller))

    async def _configs(self, task_id: str, caller: str) -> list[TaskPushNotificationConfig]:
        push = self._pushes()
        operation = await self._task(task_id, caller)
        found = await on_loop(push.of(operation.name, caller))
        return [push.shown(task_id, one, caller) for one in found]

    async def _permit_push(self, task: Operation, task_id: str, caller: str) -> None:

        def asking() -> Flow[None]:
            yield from self.service.edges.access.permit(caller, "CancelOperation", task.name)

        with _hidden(task_id):
            await on_loop(asking())

    def _pushes(self) -> PushConfigs:
        if self._push is None:
            raise PushNotificationNotSupportedError
        return self._push

    # -- inside -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _call(
        self, verb: str, params: ProtoMessage, context: ServerCallContext
    ) -> AsyncIterator[str]:
        """Check a call, yield its caller, and convert errors to errors of the protocol."""
        try:
            self.service.edges.start_maintenance()
            call: A2ACall | None = context.state.get(CALL)
            if call is not None:
                call.reached = True
            _check_version(context)
            caller = await self.identify(context) if call is None else call.caller
            check_required(params)
            yield caller
        except Exception as exc:
            await refuse(exc, context, self.service, f"A2A {verb}")

    async def identify(self, context: ServerCallContext) -> str:
        """Return the caller of a call; the servers call this once, before they read the request.

        Raises:
            Unauthenticated: The call has no caller, and the service is ``owner_only``.
            Exception: ``authenticate`` has raised an exception.
        """
        if self._hook is not None:
            return await on_loop(ask_caller(self._hook, _headers(context), context))
        user = context.user
        if user.is_authenticated:
            return user.user_name
        if self.service.edges.access.owner_only:
            raise Unauthenticated
        return ""

    async def _start(
        self, params: SendMessageRequest, caller: str, context: ServerCallContext
    ) -> str:
        message = params.message
        if message.task_id:
            await self._refuse_follow_up(message, caller)
        if message.context_id:
            kept = "is not kept: each task is a context of its own, so leave it out"
            raise InvalidArgument("message.context_id", kept)
        notify = []
        if params.configuration.HasField("task_push_notification_config"):
            config = params.configuration.task_push_notification_config
            notify.append(self._pushes().endpoint(config, caller))
        method, request = await self._request(params)
        headers = _headers(context)
        options = StartSettings(
            request_id=request_id_of("a2a", message.message_id),
            parent=await on_loop(self._ids.parent_of(caller)),
            caller=caller,
            headers=headers,
            sent=functools.partial(params.message.SerializeToString, deterministic=True),
            notify=notify,
        )
        flow = self.service.edges.start_flow(method.full_name)(request, options)
        try:
            operation = await on_loop(start_of_size(self.service, flow, params.ByteSize()))
        except RequestIdConflict as exc:  # A2A has another name for the field
            raise RequestIdConflict("message.message_id", exc.description) from None
        return operation.name

    async def _refuse_follow_up(self, message: Message, caller: str) -> NoReturn:
        operation = await self._task(message.task_id, caller)
        if message.context_id not in ("", message.task_id):
            wanted = f"must be that of the task, {message.task_id}, or left out"
            raise InvalidArgument("message.context_id", wanted)
        why = "has ended" if operation.done else "takes no further messages"
        raise UnsupportedOperationError(message=f"the task {message.task_id} {why}")

    async def _request(self, params: SendMessageRequest) -> tuple[Method[Any, Any, Any], object]:
        message = params.message
        check_media_types(message.parts, self._modes)
        data = data_of(message)
        if data is None:
            return await self._read_by_hook(message)
        method = chosen(self._methods, self._key, message.metadata, params.metadata)

        def load() -> Flow[object]:
            yield from ()  # no step, because no hook is called
            return self.service.types.load(json_of(data), method.spec.request)

        try:
            return method, await on_loop(start_of_size(self.service, load(), params.ByteSize()))
        except InvalidArgument as exc:
            self.service.edges.starter.observe_refusal(method.full_name, exc)
            raise

    async def _read_by_hook(self, message: Message) -> tuple[Method[Any, Any, Any], object]:
        if self._read is None:
            raise not_supported("a message needs a data part, which is the request", self._modes)
        found = await on_loop(self._read.ask(message))
        match found:
            case (Method() as method, request) if self._methods.get(method.full_name) is method:
                return method, request
        wanted = "must return one of the methods and its request"
        raise HookFailed("read", f"{wanted}, got {got(found)}")

    async def _wait_for(self, name: str, caller: str, context: ServerCallContext) -> None:
        call: A2ACall | None = context.state.get(CALL)
        receive = None if call is None else call.receive
        await waited(
            self.service, name, self._wait, caller, receive
        )  # the wait may end before the task does

    async def _task(self, task_id: str, caller: str) -> Operation:
        with _hidden(task_id):
            name = await on_loop(self._ids.name_of(task_id, caller))
            return await self.service.get_async(name, view="FULL", caller=caller)

    async def _operation(self, name: str, caller: str) -> Operation:
        with _hidden(self._ids.id_of(name)):
            return await self.service.get_async(name, view="FULL", caller=caller)

    def _require_streams(self) -> None:
        self.service.edges.access.require("WatchOperations")
        if not self.card.capabilities.streaming:
            raise UnsupportedOperationError(message="this agent does not stream")

    async def _events(self, name: str, caller: str) -> AsyncGenerator[Event, None]:
        self.service.edges.end_waits_at_signals()
        with _hidden(self._ids.id_of(name)):
            watching = await self.service.watch([name], caller=caller)
        first = True
        with contextlib.suppress(Unavailable):  # the service is stopping, so the stream ends
            async with contextlib.aclosing(aiter(watching)) as operations:
                async for _ in operations:
                    operation = await self._operation(name, caller)
                    if first:
                        yield self._writer.task(operation)
                    else:
                        for event in self._writer.events(operation):
                            yield event
                    if operation.done:
                        return
                    first = False

    def _page(self, wanted: _Wanted, listing: Listing, max_bytes: int) -> ListTasksResponse:
        tasks, token = listing.page(max_bytes, wanted.shown)
        total = len(tasks)
        if token or listing.query.after is not None:
            # Counted operations are not kept; counting stops after 0.5 s.
            whole = attrs.evolve(listing.query, page_size=MAX_COUNTED, after=None)
            counted = attrs.evolve(listing, query=whole)
            total = len(counted.page(_NO_LIMIT, wanted.counted)[0])
        return wanted.page(tasks, token, total)

    async def _list_context(self, params: ListTasksRequest, caller: str) -> ListTasksResponse:
        wanted = _Wanted(params, self._writer)
        found: Sequence[Task] = []
        with contextlib.suppress(TaskNotFoundError):
            found = wanted.shown([await self._task(params.context_id, caller)])
        return wanted.page(found, "", len(found))


class _Wanted:
    """The checked request of ListTasks, with the functions that write the page of the reply.

    Raises:
        InvalidArgument: A field is wrong.
    """

    def __init__(self, params: ListTasksRequest, writer: TaskWriter) -> None:
        self.size = params.page_size if params.HasField("page_size") else DEFAULT_PAGE
        if not 1 <= self.size <= MAX_PAGE:
            raise InvalidArgument("page_size", f"must be from 1 to {MAX_PAGE}, got {self.size}")
        if params.history_length < 0:
            raise InvalidArgument("history_length", "must not be negative")
        self._artifacts = params.include_artifacts
        self._state = params.status
        self._writer = writer
        self._since = None
        if params.HasField("status_timestamp_after"):
            try:
                self._since = moment_of(params.status_timestamp_after)
            except (ValueError, OverflowError):
                wanted = "must be a time of the years 1 to 9999"
                raise InvalidArgument("status_timestamp_after", wanted) from None
        self.possible = not self._state or self._state in FILTERS

    @property
    def filter(self) -> str:
        """A store's filter for operations that may belong to the list; :meth:`matches` decides."""
        tests = [FILTERS[self._state]] if self._state else []
        if self._since is not None:  # unfinished tasks have no end time
            since = self._since.isoformat().replace("+00:00", "Z")
            tests.append(f'(state() = IN_PROGRESS OR end_time() >= "{since}")')
        return " AND ".join(tests)

    def matches(self, operation: Operation) -> bool:
        """Return True if a task belongs to the list."""
        if self._state and state_of(operation) != self._state:
            return False
        return self._since is None or status_time(operation) >= self._since

    def shown(self, some: Sequence[Operation]) -> list[Task]:
        """Return the operations that belong to the list, as tasks."""
        write = functools.partial(self._writer.task, artifacts=self._artifacts, alone=False)
        return [write(one) for one in some if self.matches(one)]

    def counted(self, some: Sequence[Operation]) -> list[None]:
        """Return one None for each operation that belongs to the list."""
        return [None for one in some if self.matches(one)]

    def page(self, tasks: Sequence[Task], token: str, total: int) -> ListTasksResponse:
        """Return the reply to ListTasks with these tasks."""
        return ListTasksResponse(
            tasks=tasks, next_page_token=token, page_size=self.size, total_size=total
        )


@contextlib.contextmanager
def _hidden(task_id: str) -> Iterator[None]:
    """Raise the same error for a hidden task as for a missing task (A2A 3.3.2, 13.1)."""
    try:
        yield
    except (OperationNotFound, InvalidOperationName, PermissionDenied):
        raise task_not_found(task_id) from None


def _headers(context: ServerCallContext) -> Mapping[str, str]:
    rpc = context.state.get("grpc_context")
    if rpc is None:
        headers: Mapping[str, str] = context.state.get("headers", {})
        return headers
    found: dict[str, str] = {}
    for key, value in rpc.invocation_metadata() or ():
        if isinstance(value, str):
            name = key.lower()
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _check_version(context: ServerCallContext) -> None:
    """Refuse versions of A2A that are not served, as the SDK does over HTTP only (A2A 3.6.2)."""
    version = _headers(context).get("a2a-version", "")
    major, minor, *_ = [*version.split("."), ""]  # the patch number is ignored
    if version and major != "1" and (major, minor) != ("0", "3"):
        wanted = "1.0 and 0.3 are served"
        raise VersionNotSupportedError(message=f"A2A version {got(version)}: {wanted}")
