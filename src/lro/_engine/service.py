"""The service: methods that return operations, and the verbs over them (spec §2-§4)."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final, ParamSpec, TypeVar

from lro._base.arguments import (
    check,
    check_flag,
    check_function,
    check_instance,
    check_span,
    check_text,
    check_texts,
)
from lro._base.errors import InvalidArgument, OperationNotFound
from lro._engine.access import VERBS, Access, Authorize
from lro._engine.background import Background
from lro._engine.batch import ManyOperations
from lro._engine.budget import ByteBudget, CallCount
from lro._engine.executor_port import Executor
from lro._engine.exits import close_at_exit, no_longer_open
from lro._engine.forks import after_fork
from lro._engine.hooks import Flow, flow_of, on_loop, run, verb
from lro._engine.hosting import MethodHost
from lro._engine.limits import DEFAULT_LIMITS, Limits
from lro._engine.listing import Listing, Query
from lro._engine.maintenance import LEAST_LEASE
from lro._engine.notifier import Notifier
from lro._engine.process_role import is_worker_process
from lro._engine.record_updater import RecordUpdater
from lro._engine.starting import Starter
from lro._engine.stop_signals import STOP_SIGNALS
from lro._engine.store_port import Store
from lro._engine.waiting import Waiters, wait_limit
from lro._messages.registry import TypeRegistry
from lro._messages.times import Duration
from lro._model.names import parse_name
from lro._model.operation import (
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    Show,
    as_they_are,
)
from lro._model.transitions import delete, request_cancel

log = logging.getLogger("lro")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_LEASE: Final = timedelta(seconds=15)
_DRAIN: Final = timedelta(seconds=10)


class Service(MethodHost, ManyOperations):
    """Long-running methods over a store and an executor, and the verbs of their operations.

    ``domain`` names the service in error details. ``verbs`` are the RPCs offered (Get always is).
    ``max_wait`` bounds a Wait, ``expiry`` is how long finished records are kept, ``lease`` how
    long a worker may be silent before its work counts as lost, from 0.2 s; give it seconds, so that
    a disk that is slow for a moment costs no work. ``authorize`` is asked after the arguments are
    known to be well-formed and before existence is revealed (spec §3.1(5)).
    ``owner_only`` hides operations from everybody but the caller who started them.
    ``limits`` bounds what is held for callers, and the size of messages: see :class:`lro.Limits`.
    ``clock`` gives the seconds that upkeep, time limits and pages go by. ``drain`` is how long
    running work may go on when the service is closed. The service closes its store, and itself
    when the interpreter ends.

    A thread renews leases, takes over lost work and removes what has expired. It begins in each
    process in which the service is used, and when that is first so: with ``with service``, with a
    call of a verb or of a method's ``start``, where an edge is called or its server starts, where a
    worker of Celery starts, or with :meth:`start_maintenance`. A process that only imports the
    application, such as the master of ``gunicorn --preload``, so takes no work. ``upkeep=False``
    starts no thread: call :meth:`run_maintenance` instead. The service survives a fork: in the
    child it is another process's service, with threads and connections of its own.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        types: TypeRegistry | None = None,
        domain: str = "lro.local",
        verbs: Iterable[str] = VERBS,
        max_wait: timedelta = timedelta(seconds=60),
        expiry: timedelta = timedelta(days=30),
        lease: timedelta = _LEASE,
        authorize: Authorize | None = None,
        owner_only: bool = False,
        upkeep: bool = True,
        drain: timedelta = _DRAIN,
        limits: Limits = DEFAULT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_port("store", store, "a store", "insert")
        _check_port("executor", executor, "an executor", "reserve")
        if types is not None:
            check_instance("types", types, TypeRegistry, "a TypeRegistry")
        check_text("domain", domain, empty=False)
        check_texts("verbs", verbs)
        wanted = f"some of {', '.join(VERBS)}"
        check("verbs", verbs, wanted, fine=set(verbs) <= set(VERBS))
        check_flag("owner_only", owner_only)
        check_flag("upkeep", upkeep)
        check_instance("limits", limits, Limits, "Limits(...)")
        check_function("clock", clock)
        check_span("lease", lease, least=LEAST_LEASE)
        check_span("expiry", expiry, zero=True)
        check_span("max_wait", max_wait, zero=True)  # zero: every Wait answers at once
        check_span("drain", drain, zero=True)  # zero: running work is handed back at once
        updater = RecordUpdater(store, Notifier())
        access = Access(store, verbs=verbs, authorize=authorize, owner_only=owner_only)
        self._background = Background(
            updater,
            executor,
            lambda: self._specs,
            lease=lease,
            domain=domain,
            clock=clock,
            upkeep=upkeep and not is_worker_process(),
        )
        super().__init__(
            updater=updater,
            executor=executor,
            starter=Starter(
                updater=updater,
                executor=executor,
                running=self._background.running,
                lease=lease,
                permit=access.permit,
                serving=self._background.start,
            ),
            types=types if types is not None else TypeRegistry(),
            expiry=expiry,
            declared=self._background.upkeep.declared,
            limits=limits,
        )
        self.replies = ByteBudget(limits.replies_bytes, clock)
        ManyOperations.__init__(
            self,
            access,
            updater,
            listening=self._background.change_listener.ensure_running,
            serving=self._background.start,
            limits=limits,
            replies=self.replies,
        )
        if owner_only:
            self.indexes.declare_caller()
            self._make_indexes()
        self.access = access
        self.store = store
        self.domain = domain
        self._max_wait = max_wait
        self._owner_only = owner_only
        self._clock = clock
        self._waits = CallCount(
            "calls of Wait are held",
            limits.waits,
            "waits",
            limits.waits_per_caller,
            "waits_per_caller",
        )
        self._room = Waiters(
            updater.notifier,
            self._look,
            look_blocks=store.reads_block,
            listening=self._background.change_listener.ensure_running,
        )
        self.drain = drain
        self._closing_by: int | None = None
        self._closing = threading.Lock()
        self._closed = threading.Event()
        executor.attach(self.run_operation, self.close, self.start_maintenance)
        after_fork(self, Service._forked)
        if not is_worker_process():
            close_at_exit(self)

    # -- verbs --------------------------------------------------------------------------------

    @verb
    def get(self, name: str, *, caller: str = "") -> Flow[Operation]:
        """The latest state of an operation (spec §3.2).

        Raises:
            InvalidOperationName: The name is malformed.
            OperationNotFound: There is no such operation.
            PermissionDenied: The ``authorize`` hook refuses it.
            HookFailed: The ``authorize`` hook does not answer as it must.
        """
        self._serving()
        parse_name(name)
        yield from self._access.permit(caller, "GetOperation", name)
        return self._access.visible(name, caller).operation

    @verb
    def list(
        self, request: ListOperationsRequest, *, caller: str = ""
    ) -> Flow[ListOperationsResponse]:
        """A page of the operations of a parent that match a filter (spec §3.3, §3.4).

        It has at most ``Limits.page_bytes``, or one operation.

        Raises:
            TypeError: It is no request, but a filter for instance.
            InvalidArgument: The parent, page size, token or filter is wrong.
            PermissionDenied, HookFailed: As for :meth:`get`.
            MethodNotSupported: List is switched off.
        """
        listing = yield from flow_of(self.begin_list)(request, caller=caller)
        page = self.read_page(listing, self.limits.page_bytes, as_they_are)
        return ListOperationsResponse(tuple(page[0]), page[1])

    @verb
    def begin_list(self, request: ListOperationsRequest, *, caller: str = "") -> Flow[Listing]:
        """What :meth:`read_page` takes: the checked request of a caller who may list.

        Raises:
            TypeError, InvalidArgument, PermissionDenied, HookFailed, MethodNotSupported: As for
                :meth:`list`.
        """
        self._serving()
        if not isinstance(request, ListOperationsRequest):
            raise TypeError(f"list takes a ListOperationsRequest(filter=...), got {request!r:.200}")
        self.require("ListOperations")
        query = Query.of(request, self.store, self._specs.values(), self.types, self.indexes)
        yield from self._access.permit(caller, "ListOperations", query.parent)
        return Listing(query, caller if self._owner_only else None)

    def read_page(self, listing: Listing, max_bytes: int, show: Show[T]) -> tuple[Sequence[T], str]:
        """What ``show`` makes of the page's operations, a few at a time; and the next token.

        The page has at most so many bytes, or one operation. Asks no hook.
        """
        return listing.query.page(
            self.store,
            only_caller=listing.only_caller,
            clock=self._clock,
            max_bytes=max_bytes,
            show=show,
        )

    @verb
    def delete(self, name: str, *, caller: str = "") -> Flow[None]:
        """Remove the record; the work goes on unseen (spec §2.7).

        Raises:
            InvalidOperationName, OperationNotFound, PermissionDenied, HookFailed: As for
                :meth:`get`.
            MethodNotSupported: Delete is switched off.
        """
        self._serving()
        self.require("DeleteOperation")
        parse_name(name)
        yield from self._access.permit(caller, "DeleteOperation", name)
        self._access.visible(name, caller)
        self._updater.apply(name, delete(self.store.now()))

    @verb
    def cancel(self, name: str, *, caller: str = "") -> Flow[None]:
        """Ask for the work to stop; whether it does, the operation will tell (spec §2.6).

        Raises:
            InvalidOperationName, OperationNotFound, PermissionDenied, HookFailed: As for
                :meth:`get`.
            MethodNotSupported: Cancel is switched off.
        """
        self._serving()
        self.require("CancelOperation")
        parse_name(name)
        yield from self._access.permit(caller, "CancelOperation", name)
        spec = self._specs.get(self._access.visible(name, caller).method)
        change = request_cancel(self.store.now())
        after = self._updater.apply(name, change, spec.stamp if spec else None)
        self._background.running.cancel(name)
        if spec is not None and after is not None and after.cancel_pending and after.unclaimed:
            self._background.running.cancel_unclaimed(spec, name)

    def wait(
        self,
        name: str,
        timeout: Duration | timedelta | float | None = None,
        *,
        deadline_seconds: float | None = None,
        caller: str = "",
    ) -> Operation:
        """Block until done, or until the limit is over; the state then, so look at ``done``.

        The limit is the least of ``timeout`` (a float is seconds), the deadline, and the service's
        ``max_wait``, a minute unless it says otherwise (spec §4.1).

        Raises:
            InvalidOperationName, OperationNotFound, PermissionDenied, HookFailed: As for
                :meth:`get`.
            InvalidTimeout: The timeout is negative or no valid duration.
            DeadlineExceeded: The deadline was over when the call came.
            MethodNotSupported: Wait is switched off.
            ResourceExhausted: Too many wait already (``Limits.waits``).
        """
        limit = run(self._limit(name, timeout, deadline_seconds, caller))
        with self._waits.take(caller):
            return self._room.wait(name, limit)

    async def wait_async(
        self,
        name: str,
        timeout: Duration | timedelta | float | None = None,
        *,
        deadline_seconds: float | None = None,
        caller: str = "",
    ) -> Operation:
        """:meth:`wait` for coroutines: no thread is held, however many wait."""
        reads = self._owner_only and self.store.reads_block
        limit = await on_loop(
            self._limit(name, timeout, deadline_seconds, caller),
            blocks=reads or self._access.hook_blocks,
        )
        with self._waits.take(caller):
            return await self._room.wait_async(name, limit)

    async def on_loop(self, verb: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """A verb for coroutines: ``await service.on_loop(service.get, name, caller=caller)``.

        ``verb`` is ``get``, ``list``, ``delete``, ``cancel``, ``batch_get`` or ``start`` of this
        service, or ``start`` of one of its methods; for the others there are :meth:`wait_async` and
        :meth:`watch`. Its work is done in threads, and an ``authorize`` that is a coroutine
        function is awaited by the running event loop. It raises what the verb raises.

        Raises:
            TypeError: It is no such verb.
        """
        return await on_loop(flow_of(verb)(*args, **kwargs), blocks=True)

    def require(self, verb: str) -> None:
        """Do nothing for a verb that is offered.

        Raises:
            MethodNotSupported: It is switched off (spec §3.9).
        """
        self._access.require(verb)

    # -- life ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many coroutines wait for operations."""
        return len(self._room)

    @property
    def late_writes(self) -> int:
        """How many writes of workers of this process were refused, others having their work."""
        return self._updater.late_writes

    def run_operation(self, name: str) -> None:
        """Do the work of a stored operation in this thread, unless it is over or somebody has it.

        For workers that are sent names, as Celery's are; other executors need no such call.

        Raises:
            InvalidOperationName: The name is malformed.
            Unavailable: The store cannot be reached, or the service is stopping.
        """
        parse_name(name)
        try:
            method = self.store.get(name).method
        except OperationNotFound:
            return
        spec = self._specs.get(method)
        if spec is None or spec.function is None:
            log.error("%s: of the unknown method %s, left to others", name, method)
            return
        self._background.running.work(spec, name)

    def start_maintenance(self) -> None:
        """Begin to renew leases, take over lost work and remove what has expired, in a thread.

        The service does so by itself when it is first used in a process (see above). Call this
        where a process is to do so before: a worker that waits for lost work, or a server whose
        framework does not tell the service that it starts, once it is declared what the methods
        are. Never in a process that only prepares others, such as the master of a preforking
        server. Idempotent; without effect after :meth:`close`, or with ``upkeep=False``.
        """
        self._background.start()

    def run_maintenance(self) -> float:
        """Do the upkeep that is due; the seconds until more will be. For ``upkeep=False``."""
        return self._background.upkeep.turn()

    def close(self, drain: timedelta | float | None = None) -> None:
        """Stop: start nothing more, let work end within ``drain``, hand the rest back at once.

        ``drain`` is a timedelta, or seconds; by default that of the service. Those who wait are
        then told that the service is stopping.

        What is handed back is stored as in progress and unheld: another process on the store, or
        the next one, does it again. The first call closes; others, from whatever thread, return
        when it is closed. Not for signal handlers, which may have interrupted what it would wait
        for: let them raise, or set an event. What is open when the interpreter ends is closed then.

        Raises:
            InvalidArgument: The drain is no span of time.
        """
        span = self.drain if drain is None else _span(drain)
        caller = threading.get_ident()
        # Each step is taken, whatever becomes of the others: a second signal may raise anywhere.
        with contextlib.ExitStack() as steps, self._closing:
            if self._closing_by is None:
                steps.callback(no_longer_open, self)
                steps.callback(self._closed.set)
                steps.callback(self.store.close)
                steps.callback(self._background.stop)
                steps.callback(self.replies.close)
                steps.callback(self.end_waits)
                steps.callback(self._background.running.stop, span)
                self._closing_by = caller
                return
        if self._closing_by != caller:  # else it is called in the midst of it
            self._closed.wait()

    def end_waits(self) -> None:
        """Tell all who wait or watch that the service is stopping: UNAVAILABLE, to be tried again.

        From now on every Wait is told so at once, unless its operation is done. For servers that
        let calls in flight end before they tell the application to stop: a Wait may be held for
        ``max_wait``. :meth:`close` does it too, when running work has had its time. Call it from
        any thread or event loop, but not in a signal handler; :meth:`end_waits_at_signals` is for
        those.
        """
        self._room.close()
        self._end_watching()

    def end_waits_at_signals(self) -> None:
        """Have :meth:`end_waits` called as soon as this process is told to stop.

        That is by SIGTERM or SIGINT, if something in this process handles SIGTERM already; its
        handler is called too. Only in the main thread; elsewhere this does nothing. The edges do it
        by themselves, as long as their calls or their making happen in the main thread after the
        server's start. That leaves servers with threads that load the application before they
        fork, such as gunicorn with ``--preload --threads``: call it where a worker begins.
        """
        STOP_SIGNALS.end_waits_of(self)

    def __enter__(self) -> Service:
        self.start_maintenance()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------

    def _look(self, name: str) -> Operation:
        record = self.store.get(name)
        if not record.visible(self.store.now()):
            raise OperationNotFound(name)
        return record.operation

    def _limit(
        self,
        name: str,
        timeout: Duration | timedelta | float | None,
        deadline_seconds: float | None,
        caller: str,
    ) -> Flow[float]:
        self._serving()
        self.require("WaitOperation")
        parse_name(name)
        limit = wait_limit(timeout, deadline_seconds, self._max_wait)
        yield from self._access.permit(caller, "WaitOperation", name)
        if self._owner_only:
            self._access.visible(name, caller)
        if deadline_seconds is not None and limit == deadline_seconds:
            limit -= min(0.05, limit / 10)  # so that the reply arrives in time (spec §4.4)
        return limit

    def _forked(self) -> None:
        self._closing = threading.Lock()
        if not self._closed.is_set():  # maybe a thread of the parent was closing it
            self._closing_by, self._closed = None, threading.Event()
        self._updater.forked()
        self._room.forked()
        self._forget_watchers()
        self._background.forked()


def _check_port(port: str, given: object, wanted: str, verb: str) -> None:
    fine = hasattr(given, verb) and not isinstance(given, type)
    check(port, given, f"{wanted}, made already", fine=fine)


def _span(drain: timedelta | float) -> timedelta:
    try:
        return drain if isinstance(drain, timedelta) else timedelta(seconds=drain)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument("drain", f"must be seconds or a timedelta, got {drain!r}") from None
