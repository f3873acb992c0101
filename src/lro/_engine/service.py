"""The service: methods that return operations, and the verbs over them (spec §2-§4)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack, overload

from lro._base.arguments import check, check_instance, check_keywords, check_text
from lro._base.errors import (
    DeclarationError,
    InvalidArgument,
    InvalidParent,
    LroError,
    OperationNotFound,
    Retryable,
)
from lro._engine.access import OPERATOR, Access, Caller, caller_given, starter_given
from lro._engine.backlog import Backlog
from lro._engine.events import EventDispatch, Observer
from lro._engine.executor_port import REACHES, Executor, NoWorkers
from lro._engine.flow import (
    Flow,
    MayBlock,
    blocking,
    flow_of,
    in_thread,
    in_threads,
    on_loop,
    run,
    run_all,
)
from lro._engine.gauges import Gauges
from lro._engine.handle import HandleCalls
from lro._engine.limits import ByteBudget, Limits
from lro._engine.listing import BASIC, BasicView, Batch, CheckedList, FullView, Listing
from lro._engine.live_workers import live, served_methods, stranded
from lro._engine.maintenance import Background
from lro._engine.method_spec import MethodDefaults, MethodKeywords, MethodSpec, Options
from lro._engine.methods import Method, MethodDecorator, Methods
from lro._engine.process import (
    STOP_SIGNALS,
    PerProcess,
    close_at_exit,
    is_worker_process,
    no_longer_open,
)
from lro._engine.reporter import Reporter
from lro._engine.runtime import FirstUse, RecordUpdater, Runtime, stopping
from lro._engine.service_options import ServiceKeywords, ServiceOptions
from lro._engine.starting import Starter, StartKeywords, StartSettings
from lro._engine.statistics import Statistics
from lro._engine.store_port import PAUSES_CHANGED, Store, WaitingWork, Worker, keeps_statistics
from lro._engine.telemetry import ServiceTelemetry, Telemetry
from lro._engine.timed_store import timed
from lro._engine.waiting import Waiters, wait_limit
from lro._engine.webhook_sender import WebhookSender
from lro._messages.registry import TypeRegistry
from lro._messages.times import Duration
from lro._messages.wellknown import OperationMetadata
from lro._model.description import View, check_view
from lro._model.method_names import MethodName
from lro._model.operation import (
    BatchGetOperationsResponse,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    Record,
    check_name,
    normalise_parent,
    parse_names,
)
from lro._schedules.runner import request_maker
from lro._schedules.schedule import Schedule

if TYPE_CHECKING:
    from lro._engine.local_work import LocalWork
    from lro._engine.watching import WatchStream

A = TypeVar("A")
S = TypeVar("S")
T = TypeVar("T")
Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")

_ReadWorkers: TypeAlias = Callable[[], tuple[Sequence[Worker], datetime]]

log = logging.getLogger("lro")

_PAGE: Final = 200
"""Number of operations that are cancelled or deleted together."""
_REPLY_SECONDS: Final = 0.25
"""Maximum time that a request and its reply take together on a network around the world."""

_VERB_METHODS: Final = "start get list delete cancel wait watch batch_get rerun"


class ServiceParts:
    """The parts of a service that edges use: :attr:`Service.edges`.

    An edge checks its methods by :meth:`check_own`, starts them by :meth:`start_flow`, and asks
    ``access`` which verbs are offered and what callers may do. :meth:`begin_list` and
    :meth:`begin_batch` check the arguments, call the hooks, and return an object, which then reads
    the operations in a thread. ``replies`` bounds the bytes of replies, and ``waiters`` bounds the
    waits. Servers call :meth:`start_maintenance` when they start, and :meth:`end_waits` before they
    stop.
    """

    def __init__(self, service: Service, executor: Executor, given: ServiceOptions) -> None:
        self._service = service
        self.store: Store = service.store
        self.domain: str = given.domain
        self.limits: Limits = given.limits
        self.maintained: bool = given.maintenance
        self.max_wait: timedelta = given.max_wait
        """The longest time that a wait may last."""
        self.webhooks: WebhookSender | None = given.webhooks
        """Sends webhooks about ended operations; None if the service sends no webhooks."""
        traces = None if given.telemetry is False else _telemetry_of(given.telemetry, executor)
        self.runtime: Runtime = _runtime_of(service, executor, given, traces)
        store = self.runtime.store
        self.types: TypeRegistry = self.runtime.types
        self.access: Access = Access(
            store,
            verbs=given.verbs,
            authorize=given.authorize,
            owner_only=given.owner_only,
            staff=given.staff,
        )
        defaults = MethodDefaults(
            types=self.types, keep_for=given.keep_for, limits=given.limits, around=given.around
        )
        self.methods: Methods = Methods(self.runtime, defaults)
        if given.owner_only:
            self.methods.index_callers()
        self.background: Background = Background(
            self.runtime,
            self.methods.by_stored_name,
            maintained=given.maintenance and not is_worker_process(),
            service=service,
        )
        self.work: LocalWork = self.background.work
        backlog = Backlog(store, given.limits.backlog, given.clock)
        self.starter: Starter = Starter(self.runtime, self.background, self.access, backlog)
        self.replies: ByteBudget = ByteBudget(given.limits.replies_bytes, given.clock)
        self.waiters: Waiters = Waiters(
            self.runtime.updater,
            self.background.change_listener,
            given.limits,
            self.replies,
            self.work,
        )
        self.calls: HandleCalls = HandleCalls(store, self.work, self.waiters, self.access)
        self.gauges: Gauges = Gauges(self.runtime, self.specs, self.work, self.waiters)
        if traces is not None:
            traces.gauges = self.gauges

    @property
    def specs(self) -> Mapping[str, MethodSpec]:
        """The declarations of the methods, by full name."""
        return self.methods.specs

    @property
    def renamed(self) -> Mapping[str, str]:
        """The present names of methods, by their aliases."""
        return self.runtime.events.renamed

    def start_maintenance(self) -> None:
        """Start the threads that claim work, renew the lease, recover lost work and expire records.

        The service starts them when it is first used in a process (see :class:`lro.Service`). Call
        this to start them earlier: in a worker that only waits for work, or in a server whose
        framework does not report its start. Declare the methods first. Do not call it in a process
        that only prepares its children, such as the master of a preforking server. Idempotent. It
        has no effect after the service is closed, or with ``maintenance=False``.
        """
        if self.background.pending:
            self.background.start()

    def begin_here(self) -> None:
        """Start the maintenance, and show the executor the thread or event loop of this use."""
        self.start_maintenance()
        self.runtime.executor.begin_here()

    def observe(self, observer: Observer) -> None:
        """Add an observer, which is called with each event from now on.

        Raises:
            DeclarationError: The object is not an observer.
        """
        self.runtime.events.add(observer)

    def surround(
        self, surrounding: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> None:
        """Call plain functions in this context manager from now on, outside of ``around``.

        ``surrounding`` makes a context manager for each attempt, which is entered in the thread of
        the function. It applies to all methods of the service, but not to async functions, not in
        child processes, and not if a method is called directly. It is for frameworks; applications
        use ``around``.
        """
        self.runtime.surroundings.append(surrounding)

    def end_waits(self) -> None:
        """End all waits and watches with UNAVAILABLE: the service is stopping.

        From now on every Wait ends at once, unless its operation is done. This method is for
        servers that let calls in flight end before they stop the application: a Wait may last
        ``max_wait``. :meth:`lro.Service.close` ends waits, too, after the drain. Call this method
        in any thread or event loop, but not in a signal handler; use :meth:`end_waits_at_signals`
        for signals.
        """
        self.waiters.close()

    def open(self) -> None:
        """Open a closed service again, as ``with service`` does."""
        self._service._open()

    async def start_up(self) -> None:
        """Open the service for an application that starts, and start the maintenance.

        Edges whose server reports its start call this, and :meth:`shut_down` at the server's stop.

        Raises:
            DeclarationError, Unavailable: The service is closed and cannot be opened again.
        """
        import asyncio

        if self.closed:  # the application has ended before, and starts again
            await asyncio.to_thread(self._service._enter)
        else:
            self._service._enter()
        self.start_maintenance()

    async def shut_down(self) -> None:
        """Close the service, in a thread, unless another application that uses it still runs."""
        import asyncio

        await asyncio.to_thread(self._service._leave)

    @property
    def closed(self) -> bool:
        """True from the call of :meth:`Service.close` until the service is opened again."""
        return self._service._closing_by is not None

    def reopen(self) -> None:
        """Set these parts up again, after the service was closed and its store opened again."""
        self.runtime.first_use.reset()
        self.waiters.reopen()
        self.background.reopen()

    def end_waits_at_signals(self) -> None:
        """Call :meth:`end_waits` when a signal asks this process to stop.

        The signals are SIGTERM and SIGINT; their present handlers are called, too. This does
        nothing outside the main thread, or if the process does not handle SIGTERM yet. Edges call
        this method if they are made or called in the main thread after the start of the server. If
        a server with threads loads the application before it forks, as gunicorn does with
        ``--preload --threads``, no edge calls it. Then call this method where a worker begins.
        """
        STOP_SIGNALS.end_waits_of(self)

    def check_own(self, method: Method[Any, Any, Any]) -> None:
        """Check that a method belongs to this service.

        Raises:
            DeclarationError: Another service declares it, maybe under the same name: calls would
                reach that service without its checks of callers.
        """
        self.methods.check_own(method.spec)

    def start_flow(self, full_name: str) -> Callable[[object, StartSettings], Flow[Operation]]:
        """Return the flow of ``Method.start`` for the method of this name.

        Raises:
            DeclarationError: No such method is declared.
        """
        return functools.partial(self.starter.start, self.methods.spec(full_name))

    def begin_list(
        self, request: ListOperationsRequest, *, view: View = "BASIC", caller: Caller = ""
    ) -> Flow[Listing]:
        """Check a request, and return the list that this caller may read.

        Raises:
            TypeError, InvalidArgument, PermissionDenied, HookFailed, MethodNotSupported: As for
                :meth:`Service.list`.
        """
        self.start_maintenance()
        if not isinstance(request, ListOperationsRequest):
            raise TypeError(f"list takes a ListOperationsRequest(filter=...), got {request!r:.200}")
        self.access.require("ListOperations")
        if self.runtime.first_use.pending:
            yield from self.runtime.first_use.connect()
        query = CheckedList.of(request, self.store, self.specs.values(), self.methods.indexes)
        check_view(view)
        name = caller_given(caller)
        yield from self.access.permit(name, "ListOperations", query.parent)
        shown = yield from self.shown_by(view, name, ())
        viewer = yield from self.access.viewer(name)
        return Listing(query, viewer, self.runtime, shown)

    def begin_batch(
        self, names: Sequence[str], *, view: View = "BASIC", caller: Caller = ""
    ) -> Flow[Batch]:
        """Check the arguments of a BatchGet, and return the batch that this caller may read.

        Raises:
            MalformedRequest, InvalidOperationName, InvalidArgument, PermissionDenied, HookFailed,
                MethodNotSupported: As for :meth:`Service.batch_get`.
        """
        self.start_maintenance()
        self.access.require("BatchGetOperations")
        wanted = parse_names(names)
        check_view(view)
        name = caller_given(caller)
        yield from self.access.permit_each(name, "GetOperation", wanted)
        shown = yield from self.shown_by(view, name, wanted)
        viewer = yield from self.access.viewer(name)
        return Batch(self.access, self.limits, wanted, viewer, shown)

    def shown_by(self, view: View, caller: str | None, names: Sequence[str]) -> Flow[BasicView]:
        """Return how a view shows these operations to a caller; FULL checks InspectOperation."""
        if view == "BASIC":
            return BASIC
        inspectable = yield from self.access.inspectable(caller, names)
        return FullView(access=self.access, renamed=self.renamed, inspectable=inspectable)


def _runtime_of(
    service: Service, executor: Executor, given: ServiceOptions, traces: ServiceTelemetry | None
) -> Runtime:
    store = service.store
    if traces is not None and traces.options.store_calls:
        store = timed(store, traces.store_called)
    reach = REACHES[executor.cancel_support]
    events = EventDispatch(given.observers, traces, reach, service.statistics)
    return Runtime(
        store=store,
        first_use=FirstUse(store),
        updater=RecordUpdater(store, events, given.webhooks),
        executor=executor,
        lease=given.lease,
        domain=given.domain,
        clock=given.clock,
        types=TypeRegistry() if given.types is None else given.types,
        keep_for=given.keep_for,
        statistics=service.statistics,
    )


class Service(PerProcess):
    """Long-running methods over a store and an executor, and the verbs of their operations.

    With the executor None, the service starts operations and answers calls, and other processes on
    the store do the work. These are the options, with their defaults:

    - ``types`` (a new :class:`lro.TypeRegistry`): the registered message classes.
    - ``domain`` (``"lro.local"``): names the service in error details.
    - ``verbs`` (``lro.http.VERBS``): the RPCs that are offered; Get is always offered.
    - ``max_wait`` (60 s): the longest time that a Wait may last.
    - ``keep_for`` (30 days): how long finished operations are kept.
    - ``lease`` (15 s): how long a worker may be silent before its work counts as lost; at least
      0.2 s. Choose several seconds, so that no work is lost when a disk is slow for a moment.
    - ``drain`` (10 s): how long running work may continue when the service is closed.
    - ``authorize`` (None): a hook, called after the arguments of a call are checked and before the
      store is read (spec §3.1(5)).
    - ``owner_only`` (False): hide each operation from all callers but the one that started it.
    - ``staff`` (None): with ``owner_only``, a hook that takes the name of a caller, and returns
      True if this caller may see all operations (spec §3.1(5)).
    - ``limits`` (``Limits()``): bounds the memory used for callers and the size of messages.
    - ``maintenance`` (True): start the background threads. With False, call
      :meth:`run_maintenance`, which also begins waiting work.
    - ``observers`` (none): called with each event, see :class:`lro.adapters.Observer`.
    - ``statistics`` (True): add counts to the store every 15 seconds, if it is a
      :class:`lro.adapters.StatisticsStore`.
    - ``around`` (None): a function that takes a :class:`lro.Job` and returns a context manager, for
      example one made with ``@contextlib.contextmanager``. The method's function is called within
      that context, also in the child of a ProcessExecutor. The context must let errors pass.
    - ``telemetry`` (None): how OpenTelemetry is used (:class:`lro.telemetry.Telemetry`). None uses
      the global providers; False switches it off.
    - ``webhooks`` (None): sends notifications of ended operations (:class:`lro.webhooks.Webhooks`),
      if the store is a :class:`lro.adapters.OutboxStore`.
    - ``clock`` (``time.monotonic``): the clock of maintenance, time limits and pages, in seconds.

    Background threads claim waiting work, renew the lease, recover lost work and remove expired
    operations. They start in each process at its first use of the service: ``with service``, a call
    of a verb or of a method's ``start``, a request to an edge, the start of its server or of a
    Celery worker, or ``service.edges.start_maintenance()``. A process that only imports the
    application, such as the master of ``gunicorn --preload``, takes no work. The service survives a
    fork: the child has its own threads and connections. The service is closed when the interpreter
    exits, and closes its store.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a subclass that overrides verbs.

        Raises:
            DeclarationError: The subclass overrides a verb: edges would skip its checks.
        """
        super().__init_subclass__(**options)
        for name in _VERB_METHODS.split():
            for own in (name, f"{name}_async"):
                if getattr(cls, own, None) is not getattr(Service, own, None):
                    wanted = "use authorize=, observers=, or a store of your own"
                    text = f"overrides {own}, which edges do not call: {wanted}"
                    raise DeclarationError(cls.__qualname__, text)

    def __init__(
        self, store: Store, executor: Executor | None, **options: Unpack[ServiceKeywords]
    ) -> None:
        working: Executor = NoWorkers() if executor is None else executor
        _check_port("store", store, "a store", "insert")
        _check_port("executor", working, "an executor", "reserve")
        check_keywords("Service", options, ServiceKeywords)
        given = ServiceOptions(**options)
        self.store = store
        self.domain: str = given.domain
        self.drain: timedelta = given.drain
        self.statistics: Statistics | None = None
        """Counts the events of each minute; None if the store keeps no statistics."""
        if given.statistics and keeps_statistics(store):
            self.statistics = Statistics(store, given.clock)
        self.edges: ServiceParts = ServiceParts(self, working, given)
        """The parts of the service that edges use, such as the edges of :mod:`lro.http`."""
        self.types: TypeRegistry = self.edges.types
        self._closing_by: int | None = None
        self._users = 0
        """Number of lifespans and ``with`` statements that have begun and not ended."""
        self._closing = threading.Lock()
        self._closed = threading.Event()
        if given.webhooks is not None:
            given.webhooks.attach(self.edges)
        working.attach(
            self.edges.work.run_operation,
            self.close,
            self.edges.start_maintenance,
            self.edges.background.freed,
        )
        if not is_worker_process():
            close_at_exit(self)

    # -- methods ------------------------------------------------------------------------------

    def method(
        self,
        full_name: str,
        *,
        request: type | None = None,
        response: type | None = None,
        metadata: type | None = None,
        **options: Unpack[MethodKeywords],
    ) -> MethodDecorator:
        """Return a decorator that makes a function a long-running method.

        The message classes come from the annotations ``def f(request: R, job: Job[M]) -> S``
        unless given. The options are those of :class:`lro.Options`. If a :class:`lro.Method` is
        decorated, maybe of another service, only its function and its classes are used.

        Raises:
            TypeError: There is no such option.
            DeclarationError: The declaration of the method or a message class is not valid.
            Unavailable: ``indexed_paths`` need an index, which the store cannot make now. (A store
                that connects at its first use makes the index then.)
        """
        MethodName.parse(full_name)
        check_keywords("method", options, MethodKeywords)
        chosen = Options(**options)

        def decorate(function: Callable[..., object]) -> Method[Any, Any, Any]:
            spec = self.edges.methods.register(
                full_name, function, chosen, request=request, response=response, metadata=metadata
            )
            self.edges.background.method_declared()
            return Method(spec, self.edges.starter, self.edges.calls)

        return decorate

    @overload
    def declare(
        self,
        full_name: str,
        *,
        request: type[Req],
        response: type[Resp],
        metadata: type[Meta],
        options: Options | None = None,
    ) -> Method[Req, Resp, Meta]: ...
    @overload
    def declare(
        self,
        full_name: str,
        *,
        request: type[Req],
        response: type[Resp],
        options: Options | None = None,
    ) -> Method[Req, Resp, OperationMetadata]: ...
    def declare(
        self,
        full_name: str,
        *,
        request: type[Req],
        response: type[Resp],
        metadata: type[Any] = OperationMetadata,
        options: Options | None = None,
    ) -> Method[Req, Resp, Any]:
        """Declare a method whose work is done elsewhere, and reported through :meth:`reporter`.

        Raises:
            DeclarationError: The declaration of the method or a message class is not valid, or an
                option applies only to methods with a function.
            Unavailable: ``indexed_paths`` need an index, which the store cannot make now. (A store
                that connects at its first use makes the index then.)
        """
        if options is not None:
            check_instance("options", options, Options, "lro.Options")
            options.check_outside()
        spec = self.edges.methods.register(
            full_name,
            None,
            options or Options(),
            request=request,
            response=response,
            metadata=metadata,
        )
        return Method(spec, self.edges.starter, self.edges.calls)

    def schedule(
        self,
        name: str,
        when: str | timedelta,
        method: Method[Req, Any, Any] | str,
        request: Req | Callable[[datetime], Req],
        *,
        timezone: str = "UTC",
        catch_up: int = 1,
        caller: str | int = "",
        parent: str = "",
    ) -> None:
        """Start one operation of a method at each tick, however many processes have this schedule.

        ``when`` is a cron expression, evaluated in ``timezone``, or an interval, which ticks at its
        whole multiples since 1970 UTC. ``name`` is unique on the store. ``request`` is the message
        for each start, or a function that makes it from the time of the tick. Of the ticks that
        passed while no process ran, the latest are started late, at most ``catch_up`` of them.
        ``caller`` and ``parent`` are as for ``Method.start``, and hooks are called as for a start.
        A process in which the service is not used starts nothing.

        Raises:
            DeclarationError: An argument is refused, the method belongs to another service, the
                expression has no ticks, or the store keeps no schedules.
            MissingExtra: A cron expression needs the extra ``schedules``.
        """
        spec = method.spec if isinstance(method, Method) else self.edges.methods.spec(method)
        self.edges.methods.check_own(spec)
        try:
            owner, parent = starter_given(caller), normalise_parent(parent)
        except InvalidParent as exc:
            raise DeclarationError("parent", exc.description) from None
        except InvalidArgument as exc:
            raise DeclarationError("caller", exc.description) from None

        def start(message: object, request_id: str) -> Operation:
            options = StartSettings(
                request_id=request_id, caller=owner, parent=parent, origin=f"schedule {name}"
            )
            return run(self.edges.starter.start(spec, message, options))

        self.edges.background.maintenance.schedules.add(
            name,
            when,
            timezone,
            method=spec.full_name,
            catch_up=catch_up,
            make=request_maker(request, spec.request.__name__, spec.instances[spec.request]),
            start=start,
        )

    @blocking
    def schedules(self) -> Flow[Sequence[Schedule]]:
        """Return the schedules of all processes on the store, by name. No hook is called.

        Raises:
            Unavailable: The store cannot be reached now.
        """
        read = self.edges.background.maintenance.schedules.read
        found: Sequence[Schedule] = yield MayBlock(read, blocks=self.store.writes_block)
        return found

    async def schedules_async(self) -> Sequence[Schedule]:
        """:meth:`schedules` for coroutines: a thread reads, if the store may block."""
        return await on_loop(flow_of(self.schedules)())

    @blocking
    def start(
        self, full_name: str, request: object, **options: Unpack[StartKeywords[Any]]
    ) -> Flow[Operation]:
        """Start an operation of the method of this name, and return it as callers see it.

        The arguments are those of ``Method.start``, which returns a handle instead.

        Raises:
            DeclarationError: No such method is declared.
            TypeError: There is no such argument.
        """
        return (yield from self.edges.start_flow(full_name)(request, StartSettings.of(options)))

    async def start_async(
        self, full_name: str, request: object, **options: Unpack[StartKeywords[Any]]
    ) -> Operation:
        """:meth:`start` for coroutines; see ``Method.start_async``."""
        return await on_loop(flow_of(self.start)(full_name, request, **options))

    @blocking
    def rerun(
        self, name: str, *, request_id: str = "", caller: Caller = OPERATOR
    ) -> Flow[Operation]:
        """Start again the work of an operation that has ended; return the new operation.

        This is a normal start, under the method's present name, with the stored request, parent and
        caller of the ended operation; the target and the first metadata are determined anew. The
        request of an operation that failed or was cancelled is kept with its record.

        An operation is rerun once: a repeated call returns the same new operation, even if that one
        has failed (rerun it by its own name), unless it was deleted. With a ``request_id``, a text
        as for a start, the call starts one more rerun for each id.

        By default, the call is made for an operator, who can rerun every operation. Other callers
        need the verb RerunOperation, which a service offers only if its ``verbs`` name it,
        and for which ``authorize`` is called.

        Raises:
            InvalidOperationName, OperationNotFound, PermissionDenied, HookFailed: As for
                :meth:`get`.
            NotRerunnable: The operation is in progress; its request is gone or cannot be read; the
                service does not declare its method; or the method has ``at_most_once`` and the
                work had begun.
            MethodNotSupported: The caller is not an operator, and RerunOperation is switched off.
            LroError: As for ``Method.start``.
        """
        self.edges.start_maintenance()
        check_name(name)
        by = caller_given(caller)
        yield from self.edges.access.permit_verb(by, "RerunOperation", name)
        record = yield from self.edges.access.visible_record(name, by)
        spec = self.edges.methods.by_stored_name.get(record.method)
        return (yield from self.edges.starter.rerun(spec, record, request_id))

    async def rerun_async(
        self, name: str, *, request_id: str = "", caller: Caller = OPERATOR
    ) -> Operation:
        """:meth:`rerun` for coroutines."""
        return await on_loop(flow_of(self.rerun)(name, request_id=request_id, caller=caller))

    @blocking
    def rerun_all(self, filter: str, *, parent: str = "", dry_run: bool = False) -> Flow[int]:
        """Rerun the matching operations that failed or were cancelled; return their number.

        Operations that were rerun before are left out. Operations that cannot be rerun are left out
        too, and their reasons and number are logged; but ``dry_run`` counts them. Otherwise this
        method works like :meth:`delete_all`.

        Raises:
            InvalidArgument, Unavailable: As for :meth:`delete_all`.
            ResourceExhausted: The queue is full (``Limits.backlog``).
        """
        count = left_out = 0
        for record in itertools.chain.from_iterable(self._matching(filter, parent)):
            if record.error is None or record.rerun:
                continue
            spec = self.edges.methods.by_stored_name.get(record.method)
            try:
                if not dry_run:
                    yield from self.edges.starter.rerun(spec, record, "")
                count += 1
            except Retryable:  # the next rerun would fail likewise
                raise
            except LroError as exc:
                left_out += 1
                log.warning("%s is not rerun: %s", record.name, exc)
        if left_out:
            log.warning("rerun_all: %d operations are rerun, %d are left out", count, left_out)
        return count

    async def rerun_all_async(self, filter: str, *, parent: str = "", dry_run: bool = False) -> int:
        """:meth:`rerun_all` for coroutines: threads do the work."""
        return await in_threads(flow_of(self.rerun_all)(filter, parent=parent, dry_run=dry_run))

    def reporter(self, name: str) -> Reporter:
        """Return the reporter with which outside work reports on an operation of a declared method.

        Raises:
            InvalidOperationName: The name is malformed.
            DeclarationError: The operation belongs to a method that this service does not know.
        """
        check_name(name)
        return self.edges.methods.reporter(name)

    # -- verbs --------------------------------------------------------------------------------

    @blocking
    def get(self, name: str, *, view: View = "BASIC", caller: Caller = "") -> Flow[Operation]:
        """Return the latest state of an operation (spec §3.2).

        With the ``view`` FULL, the operation has a ``description``: its method, times and attempts
        (spec §3.11). Some fields of the description are only for operators. They are shown to the
        ``caller`` :data:`lro.OPERATOR`, for whom no hook is called, and to callers to whom
        ``verbs`` and ``authorize`` allow InspectOperation.

        ``caller`` is the name of the caller, as for all verbs: a text or a whole number. The empty
        text is a caller without a name. Pass ``request.user.pk or ""`` for a visitor who may not be
        signed in: None is refused.

        Raises:
            InvalidOperationName: The name is malformed.
            InvalidArgument: The view is neither BASIC nor FULL, or the caller is None.
            OperationNotFound: There is no such operation.
            PermissionDenied: The ``authorize`` hook refuses the call.
            HookFailed: The ``authorize`` hook gives no valid answer.
        """
        self.edges.begin_here()
        check_name(name)
        check_view(view)
        by = caller_given(caller)
        yield from self.edges.access.permit(by, "GetOperation", name)
        if view == "BASIC":
            return (yield from self.edges.access.visible_record(name, by)).operation
        shown = yield from self.edges.shown_by(view, by, (name,))
        record = yield from self.edges.access.visible_record(name, by)
        full = functools.partial(shown.operations, (record,))
        blocks = self.store.writes_block and bool(shown.inspectable)  # reads the worker's place
        found: Sequence[Operation] = yield MayBlock(full, blocks=blocks)
        return found[0]

    async def get_async(self, name: str, *, view: View = "BASIC", caller: Caller = "") -> Operation:
        """:meth:`get` for coroutines."""
        return await on_loop(flow_of(self.get)(name, view=view, caller=caller))

    @blocking
    def list(
        self, request: ListOperationsRequest, *, view: View = "BASIC", caller: Caller = ""
    ) -> Flow[ListOperationsResponse]:
        """Return a page of the operations of a parent that match a filter (spec §3.3, §3.4).

        The page has at most ``Limits.page_bytes`` bytes, or one operation. With the ``view`` FULL,
        each operation has a ``description``, but without the fields for operators, which only
        :meth:`get` and :meth:`batch_get` return.

        Raises:
            TypeError: The request is of another class, for instance only a filter.
            InvalidArgument: The parent, page size, token, filter or view is wrong.
            PermissionDenied, HookFailed: As for :meth:`get`.
            MethodNotSupported: List is switched off.
        """
        listing = yield from self.edges.begin_list(request, view=view, caller=caller)
        found, token = listing.page(self.edges.limits.page_bytes, tuple)
        return ListOperationsResponse(tuple(found), token)

    async def list_async(
        self, request: ListOperationsRequest, *, view: View = "BASIC", caller: Caller = ""
    ) -> ListOperationsResponse:
        """:meth:`list` for coroutines: a thread reads the page."""
        return await in_threads(flow_of(self.list)(request, view=view, caller=caller))

    @blocking
    def delete(self, name: str, *, caller: Caller = "") -> Flow[None]:
        """Delete an operation: its work goes on, but callers no longer see it (spec §2.7).

        If no live worker declares the method, waiting work and work of a lost worker are dropped.

        Raises:
            InvalidOperationName, OperationNotFound, PermissionDenied, HookFailed: As for
                :meth:`get`.
            MethodNotSupported: Delete is switched off.
        """
        self.edges.start_maintenance()
        self.edges.access.require("DeleteOperation")
        check_name(name)
        by = caller_given(caller)
        yield from self.edges.access.permit(by, "DeleteOperation", name)
        record = yield from self.edges.access.visible_record(name, by)
        yield from self._deleted(record, by or "")

    async def delete_async(self, name: str, *, caller: Caller = "") -> None:
        """:meth:`delete` for coroutines: no thread waits for the store."""
        await on_loop(flow_of(self.delete)(name, caller=caller))

    def delete_all(self, filter: str, *, parent: str = "", dry_run: bool = False) -> int:
        """Delete all operations of a parent that match a filter; return their number.

        Each operation is deleted as by :meth:`delete`, a page at a time, the newest first.
        Operations created meanwhile are not deleted, and operations removed meanwhile are not
        counted. ``dry_run`` only counts. For operators: no hook is called. An error may leave some
        operations deleted.

        Raises:
            InvalidArgument: The parent or the filter is wrong, or the filter is empty: ``name:*``
                matches all operations.
            Unavailable: The store cannot be reached now.
        """
        records = self._matching(filter, parent)
        return self._count_done(records, None if dry_run else self._deleted)

    async def delete_all_async(
        self, filter: str, *, parent: str = "", dry_run: bool = False
    ) -> int:
        """:meth:`delete_all` for coroutines: a thread does the work."""
        delete = functools.partial(self.delete_all, filter, parent=parent, dry_run=dry_run)
        return await in_thread(delete)

    @blocking
    def cancel(self, name: str, *, caller: Caller = "") -> Flow[None]:
        """Request that the work stops; the operation shows whether it stopped (spec §2.6).

        Waiting work ends at once, and so does lost work of a method that no live worker declares.

        Raises:
            InvalidOperationName, OperationNotFound, PermissionDenied, HookFailed: As for
                :meth:`get`.
            MethodNotSupported: Cancel is switched off.
        """
        self.edges.start_maintenance()
        self.edges.access.require("CancelOperation")
        check_name(name)
        by = caller_given(caller)
        yield from self.edges.access.permit(by, "CancelOperation", name)
        record = yield from self.edges.access.visible_record(name, by)
        yield from self._cancelled(record, by or "")

    async def cancel_async(self, name: str, *, caller: Caller = "") -> None:
        """:meth:`cancel` for coroutines: no thread waits for the store."""
        await on_loop(flow_of(self.cancel)(name, caller=caller))

    def cancel_all(self, filter: str, *, parent: str = "", dry_run: bool = False) -> int:
        """Request that the work of all matching operations in progress stops; return their number.

        Each operation is cancelled as by :meth:`cancel`. Otherwise this method works like
        :meth:`delete_all`.

        Raises:
            InvalidArgument, Unavailable: As for :meth:`delete_all`.
        """
        batches = self._matching(filter, parent)
        open_ones = ([record for record in some if not record.done] for some in batches)
        return self._count_done(open_ones, None if dry_run else self._cancelled)

    async def cancel_all_async(
        self, filter: str, *, parent: str = "", dry_run: bool = False
    ) -> int:
        """:meth:`cancel_all` for coroutines: a thread does the work."""
        cancel = functools.partial(self.cancel_all, filter, parent=parent, dry_run=dry_run)
        return await in_thread(cancel)

    @blocking
    def batch_get(
        self, names: Sequence[str], *, view: View = "BASIC", caller: Caller = ""
    ) -> Flow[BatchGetOperationsResponse]:
        """Return the states of 1 to 1000 operations, in the order of their names (spec §3.11).

        Names of operations that do not exist, or that this caller cannot see, are in ``missing``.
        A name given twice is answered once. ``view`` and ``caller`` are those of :meth:`get`.

        Raises:
            MalformedRequest: There are no names, or too many.
            InvalidOperationName: A name is malformed; ``field`` says which.
            InvalidArgument: The view is neither BASIC nor FULL.
            PermissionDenied: The ``authorize`` hook refuses one of the operations.
            HookFailed: The ``authorize`` hook gives no valid answer.
            MethodNotSupported: BatchGet is switched off.
            BatchTooLarge: The operations have more bytes in total than ``Limits.page_bytes``.
        """
        batch = yield from self.edges.begin_batch(names, view=view, caller=caller)
        found, missing = batch.read(tuple)
        return BatchGetOperationsResponse(tuple(found), tuple(missing))

    async def batch_get_async(
        self, names: Sequence[str], *, view: View = "BASIC", caller: Caller = ""
    ) -> BatchGetOperationsResponse:
        """:meth:`batch_get` for coroutines: a thread reads the operations."""
        return await in_threads(flow_of(self.batch_get)(names, view=view, caller=caller))

    async def watch(self, names: Sequence[str], *, caller: Caller = "") -> WatchStream:
        """Watch 1 to 1000 operations until all are done or gone (spec §3.11).

        Iterate over the returned stream once, with ``async for``. It yields the state of each
        operation, then each changed state. No thread waits, however many callers watch.

        Raises:
            MalformedRequest, InvalidOperationName, PermissionDenied, HookFailed: As for
                :meth:`batch_get`.
            MethodNotSupported: Watch is switched off.
            Unavailable: The store cannot be reached now, or the service is stopping.
            ResourceExhausted: There are too many streams or watched operations (``Limits``).
        """
        self.edges.begin_here()
        self.edges.access.require("WatchOperations")
        wanted, by = parse_names(names), caller_given(caller)

        def begin() -> Flow[str | None]:
            yield from self.edges.access.permit_each(by, "GetOperation", wanted)
            viewer = yield from self.edges.access.viewer(by)
            # An unavailable store is reported at once.
            look = functools.partial(
                self.edges.access.visible_records, wanted[:1], viewer, self.edges.limits.least_bytes
            )
            yield MayBlock(look, blocks=self.store.writes_block)
            return viewer

        viewer = await on_loop(begin())
        see = self.edges.access.visible_records
        return self.edges.waiters.watch(
            wanted, lambda some, most: see(some, viewer, most), by or ""
        )

    def wait(
        self,
        name: str,
        timeout: Duration | timedelta | float | None = None,
        *,
        deadline_seconds: float | None = None,
        caller: Caller = "",
    ) -> Operation:
        """Block until the operation is done, or the limit expires; return its state then.

        The limit is the least of ``timeout`` (a float is seconds), the deadline, and the service's
        ``max_wait``, by default a minute (spec §4.1).

        Raises:
            InvalidOperationName, OperationNotFound, PermissionDenied, HookFailed: As for
                :meth:`get`.
            InvalidTimeout: The timeout is negative or not a valid duration.
            DeadlineExceeded: The deadline had passed when the call arrived.
            MethodNotSupported: Wait is switched off.
            ResourceExhausted: There are too many waits (``Limits.waits``).
        """
        by = caller_given(caller)
        limit = run(self._limit(name, timeout, deadline_seconds, by))
        return self.edges.waiters.wait(name, limit, by or "")

    async def wait_async(
        self,
        name: str,
        timeout: Duration | timedelta | float | None = None,
        *,
        deadline_seconds: float | None = None,
        caller: Caller = "",
    ) -> Operation:
        """:meth:`wait` for coroutines: no thread waits, however many callers do."""
        by = caller_given(caller)
        limit = await on_loop(self._limit(name, timeout, deadline_seconds, by))
        return await self.edges.waiters.wait_async(name, limit, by or "")

    @blocking
    def workers(self, *, all: bool = False) -> Flow[Sequence[Worker]]:
        """Return the live processes that run work of this store, the oldest first.

        A live process is not lost, and was seen within the last minute plus two of its leases: an
        idle process renews its entry once a minute. With ``all``, return every process that the
        store knows, also those that run no work (``capacity`` is 0), are silent or are lost. The
        store forgets a process when its service is closed, or a day after it was seen last.

        The call only reads the store, and starts no maintenance. For operators: no hook is called.

        Raises:
            Unavailable: The store cannot be reached now.
        """
        found: tuple[Sequence[Worker], datetime]
        found = yield MayBlock(self._read_workers, blocks=self.store.writes_block)
        return found[0] if all else live(*found)

    async def workers_async(self, *, all: bool = False) -> Sequence[Worker]:
        """:meth:`workers` for coroutines: a thread reads, if the store may block."""
        return await on_loop(flow_of(self.workers)(all=all))

    @blocking
    def stranded(self) -> Flow[Sequence[WaitingWork]]:
        """Return the due work of methods that no live worker declares, by method.

        This work waits for a process that declares the method, by this name or by an alias. Until
        then a cancel ends the work, and a delete drops it. For operators: no hook is called.

        Raises:
            Unavailable: The store cannot be reached now.
        """
        found: Sequence[WaitingWork]
        found = yield MayBlock(self._read_stranded, blocks=self.store.writes_block)
        return found

    async def stranded_async(self) -> Sequence[WaitingWork]:
        """:meth:`stranded` for coroutines: a thread reads, if the store may block."""
        return await on_loop(flow_of(self.stranded)())

    @blocking
    def pause(self, method: str) -> Flow[None]:
        """Pause a method: no process begins work of it until :meth:`resume`. Idempotent.

        Starts are accepted, and their work waits in the store. The store also keeps the pause, so
        the pause survives restarts. Running work continues. Work under an alias of the method is
        paused, too. From now on, no process claims work of the method. But a process may still
        begin the work of a start that it is storing, until it is notified of the pause: in
        milliseconds, or within a minute if the notification is lost. For operators: no hook is
        called.

        Raises:
            InvalidArgument: The service does not declare this method, and no work of it waits.
            Unavailable: The store cannot be reached now.
        """
        change = functools.partial(self._set_paused, method, pause=True)
        yield MayBlock(change, blocks=self.store.writes_block)

    async def pause_async(self, method: str) -> None:
        """:meth:`pause` for coroutines: a thread writes, if the store may block."""
        await on_loop(flow_of(self.pause)(method))

    @blocking
    def resume(self, method: str) -> Flow[None]:
        """Resume a paused method: processes begin its work again, at once. Idempotent.

        Raises:
            InvalidArgument: The method is neither paused nor declared by this service, and no work
                of it waits.
            Unavailable: The store cannot be reached now.
        """
        change = functools.partial(self._set_paused, method, pause=False)
        yield MayBlock(change, blocks=self.store.writes_block)

    async def resume_async(self, method: str) -> None:
        """:meth:`resume` for coroutines: a thread writes, if the store may block."""
        await on_loop(flow_of(self.resume)(method))

    @blocking
    def paused(self) -> Flow[Mapping[str, datetime]]:
        """Return the paused methods by their present names, with the times of the pauses.

        Raises:
            Unavailable: The store cannot be reached now.
        """
        stored: Mapping[str, datetime]
        stored = yield MayBlock(self.edges.runtime.store.paused, blocks=self.store.writes_block)
        found: dict[str, datetime] = {}
        for name, since in sorted(stored.items(), key=lambda one: one[1], reverse=True):
            found[self.edges.renamed.get(name, name)] = since
        return dict(sorted(found.items()))

    async def paused_async(self) -> Mapping[str, datetime]:
        """:meth:`paused` for coroutines: a thread reads, if the store may block."""
        return await on_loop(flow_of(self.paused)())

    def run_maintenance(self) -> float:
        """Do the maintenance that is due, and return the seconds until more is due.

        Call this only for a service that was made with ``maintenance=False``.
        """
        return self.edges.background.run_due()

    def close(self, drain: timedelta | float | None = None) -> None:
        """Shut down: begin no more work, and release work that does not end within ``drain``.

        ``drain`` is a timedelta, or seconds; by default, it is the drain of the service. After the
        drain, waits end with the error that the service is stopping.

        Released work is stored as waiting: a process that uses the store, now or later, does it
        again. The first call closes the service. Further calls, from any thread, return when the
        service is closed, and a further call with a drain of 0 ends the drain of the first call. Do
        not call ``close`` in a signal handler, which may have interrupted code that ``close`` would
        wait for. Raise an exception in the handler instead, or set an event. A service that is open
        at the exit of the interpreter is closed then. ``with service`` opens it again.

        Raises:
            InvalidArgument: The drain is not a timedelta or a number of seconds.
        """
        span = self.drain if drain is None else _span(drain)
        caller = threading.get_ident()
        # The callbacks run from the last to the first. Each of them runs even if an earlier one
        # fails, because a second signal may raise an error anywhere.
        with contextlib.ExitStack() as steps, self._closing:
            if self._closing_by is None:
                steps.callback(no_longer_open, self)
                steps.callback(self.edges.work.note_closed)
                steps.callback(self._closed.set)
                steps.callback(self.store.close)
                steps.callback(self.edges.background.stop)
                steps.callback(self.edges.replies.close)
                steps.callback(self.edges.end_waits)
                steps.callback(self.edges.work.stop, span)
                self._closing_by = caller
                return
        if self._closing_by != caller:  # else this thread is closing the service
            if not span:
                self.edges.work.end_drain()
            self._closed.wait()

    def _open(self) -> None:
        """Open a closed service again, with its store and its executor; an open one stays open.

        The lifespan of an application and ``with service`` open the service, too. So an application
        can start again after it has ended: in tests with ``TestClient(app)``, for instance. The
        service has the methods, hooks and webhooks as before. The store reads its file or database
        again; a store in memory still has its records. If another thread is closing the service,
        this waits until it is closed.

        Raises:
            DeclarationError: The store or the executor has no method ``reopen``.
            Unavailable: The store cannot be opened, or this thread is closing the service.
        """
        while True:
            with self._closing:
                if self._closing_by is None:
                    return
                if self._closed.is_set():
                    self._reopen()
                    self._closing_by, self._closed = None, threading.Event()
                    if not is_worker_process():
                        close_at_exit(self)
                    return
                if self._closing_by == threading.get_ident():
                    raise stopping()
                closed = self._closed
            closed.wait()

    def __enter__(self) -> Service:
        self._enter()
        self.edges.start_maintenance()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:  # noqa: ARG002
        """Use the service for as long as an application runs: ``Starlette(lifespan=...)``.

        Maintenance begins with the application, and the service is closed when the application
        ends, in a thread, so that work on the event loop can end meanwhile. If the application
        starts again, the service is opened again. If applications use the service at the same time,
        it is closed when the last one ends. ``app`` is the argument that frameworks pass.

        If the application has its own lifespan, enter this lifespan inside it, so that the
        application's resources are closed after the service: running work may use these resources
        until it ends.
        """
        await self.edges.start_up()
        try:
            yield
        finally:
            await self.edges.shut_down()

    # -- inside -------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Open the service for one more user."""
        with self._closing:
            self._users += 1
        try:
            self._open()
        except BaseException:
            with self._closing:
                self._users -= 1
            raise

    def _leave(self) -> None:
        """Close the service after its last user has left."""
        with self._closing:
            self._users = max(0, self._users - 1)
            if self._users:
                return
        self.close()

    def _reopen(self) -> None:
        ways: list[Callable[[], object]] = []
        for part in (self.store, self.edges.runtime.executor):
            way: Callable[[], object] | None = getattr(part, "reopen", None)
            if way is None:
                wanted = "has no method reopen: make a new service for each start"
                raise DeclarationError(type(part).__name__, wanted)
            ways.append(way)
        for way in ways:
            way()
        self.edges.reopen()

    def _read_workers(self) -> tuple[Sequence[Worker], datetime]:
        store = self.edges.runtime.store
        return store.workers(), store.now()

    def _cancelled(
        self, record: Record, caller: str = "", read: _ReadWorkers | None = None
    ) -> Flow[None]:
        lost_owners = yield from self._lost_owners(record, read or self._read_workers)
        yield from self.edges.work.cancel(record, caller, lost_owners)

    def _deleted(
        self, record: Record, caller: str = "", read: _ReadWorkers | None = None
    ) -> Flow[None]:
        lost_owners = yield from self._lost_owners(record, read or self._read_workers)
        yield from self.edges.runtime.updater.deleted(record.name, caller, lost_owners)

    def _count_done(
        self,
        batches: Iterable[Sequence[Record]],
        act: Callable[[Record, str, _ReadWorkers], Flow[None]] | None,
    ) -> int:
        """Call ``act`` for all records that still exist, and return the number of these records.

        The workers are read at most once for each batch.
        """
        count = 0
        for some in batches:
            read = functools.cache(self._read_workers)
            count += len(some)
            for one in run_all([act(record, "", read) for record in some] if act else []):
                if isinstance(one, OperationNotFound):
                    count -= 1
                elif isinstance(one, BaseException):
                    raise one
        return count

    def _matching(self, filter: str, parent: str) -> Iterator[Sequence[Record]]:
        check_text("filter", filter)
        if not filter.strip():
            text = "must not be empty; name:* matches all operations"
            raise InvalidArgument("filter", text)
        self.edges.start_maintenance()
        request = ListOperationsRequest(name=parent, filter=filter, page_size=_PAGE)
        query = CheckedList.of(
            request, self.store, self.edges.specs.values(), self.edges.methods.indexes
        )
        return query.batches(self.edges.runtime)

    def _lost_owners(self, record: Record, read: _ReadWorkers) -> Flow[Collection[str]]:
        """Return the owners whose work of the record's method no process continues.

        The result is empty if this service or a live worker declares the method. The owner ""
        stands for waiting work.
        """
        if record.done or record.method in self.edges.methods.by_stored_name:
            return ()
        workers, now = yield MayBlock(read, blocks=self.store.writes_block)
        if record.method in served_methods(workers, now):
            return ()
        return {"", *(worker.owner for worker in workers if worker.lost)}

    def _set_paused(self, method: str, *, pause: bool) -> None:
        check_text("method", method)
        store, spec = self.edges.runtime.store, self.edges.methods.by_stored_name.get(method)
        names = [method] if spec is None else [spec.full_name, *spec.options.aliases]
        known = spec is not None or method in store.paused()
        if not known and method not in [work.method for work in store.waiting()]:
            from difflib import get_close_matches

            near = get_close_matches(method[:200], self.edges.methods.by_stored_name, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            text = f"{method!r:.200} is not declared by this service, and no work of it waits{hint}"
            raise InvalidArgument("method", text)
        for name in names:
            (store.pause if pause else store.resume)(name)
        self.edges.work.read_paused()
        store.notify_others(PAUSES_CHANGED)
        if not pause:
            self.edges.work.announce_work()

    def _read_stranded(self) -> Sequence[WaitingWork]:
        store = self.edges.runtime.store
        return stranded(store.waiting(), store.workers(), store.now())

    def _limit(
        self,
        name: str,
        timeout: Duration | timedelta | float | None,
        deadline_seconds: float | None,
        caller: str | None,
    ) -> Flow[float]:
        self.edges.begin_here()
        self.edges.access.require("WaitOperation")
        check_name(name)
        limit = wait_limit(timeout, deadline_seconds, self.edges.max_wait)
        if self.edges.access.asks:
            yield from self.edges.access.permit(caller, "WaitOperation", name)
        if self.edges.access.owner_only:
            yield from self.edges.access.visible_record(name, caller)
        if deadline_seconds is not None and limit == deadline_seconds:
            limit -= min(_REPLY_SECONDS, limit / 10)  # so that the reply arrives (spec §4.4)
        return limit

    def _after_fork(self) -> None:
        self._closing = threading.Lock()
        self._users = 0
        if not self._closed.is_set():  # even if a thread of the parent was closing the service
            self._closing_by, self._closed = None, threading.Event()


def _telemetry_of(options: Telemetry | None, executor: Executor) -> ServiceTelemetry:
    return ServiceTelemetry(
        options or Telemetry(),
        executor=type(executor).__name__,
        remote=executor.redelivery is not None,
    )


def _check_port(port: str, given: object, wanted: str, verb: str) -> None:
    fine = hasattr(given, verb) and not isinstance(given, type)
    check(port, given, f"{wanted}, made already", fine=fine)


def _span(drain: timedelta | float) -> timedelta:
    try:
        return drain if isinstance(drain, timedelta) else timedelta(seconds=drain)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument("drain", f"must be seconds or a timedelta, got {drain!r}") from None
