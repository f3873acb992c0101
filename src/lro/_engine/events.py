"""Events of operations in this process, for the log, metrics, traces and your observers."""

from __future__ import annotations

import logging
import math
import operator
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

import attrs

from lro._base.arguments import check_instance
from lro._base.by_fields import ByFields
from lro._base.errors import LroError, interrupts, one_line
from lro._base.plain_text import plain
from lro._base.status import Code, Status
from lro._engine import metrics
from lro._engine.job import NO_ATTEMPT_TRACE, AttemptOutcome, AttemptTrace
from lro._model.operation import Record, State

log = logging.getLogger("lro")


def _escape(record: logging.LogRecord) -> bool:
    """Escape the texts in a log record, so that no text can begin a new line; return True."""
    if isinstance(record.args, tuple):
        record.args = tuple(plain(one) if isinstance(one, str) else one for one in record.args)
    return True


log.addFilter(_escape)  # on the logger, because most of its lines contain names

StartOutcome: TypeAlias = Literal["started", "repeated", "refused"]
"""Outcome of a start: ``repeated`` if its request id was known already."""

LOOK_SECONDS: Final = 0.01
"""Seconds between two checks for new OpenTelemetry providers; a check takes microseconds."""

Headers: TypeAlias = Mapping[str, str]
"""The headers or gRPC metadata of a call, by lower-case name."""

Sent: TypeAlias = Callable[[], bytes]
"""Returns a request as its caller has sent it: the same bytes for the same request."""


@attrs.define(repr=False)
class OperationStarted(ByFields):
    """A start was answered: its operation was stored now or earlier, or the start was refused.

    If the start was refused, ``name`` is empty and ``error_type`` is the name of the status code.
    """

    kind: ClassVar[str] = "started"
    method: str
    outcome: StartOutcome
    name: str = ""
    caller: str = ""
    error_type: str = ""


@attrs.define(repr=False)
class AttemptBegan(ByFields):
    """A worker of this process has begun an attempt, which may end before the function is called.

    ``queue_seconds`` is how long the operation waited for its first attempt; None for later
    attempts. ``trace_context`` is the context of the start (``Record.trace_context``).
    """

    kind: ClassVar[str] = "attempt_began"
    name: str
    method: str
    attempt: int
    queue_seconds: float | None
    trace_context: str = ""


@attrs.define(kw_only=True, repr=False)
class MetadataReported(ByFields):
    """A worker or a :class:`lro.Reporter` has replaced the metadata.

    ``attempt`` is 0 if a reporter has replaced the metadata.
    """

    kind: ClassVar[str] = "reported"
    name: str
    method: str
    attempt: int


@attrs.define(repr=False)
class AttemptOver(ByFields):
    """An attempt of this process ended ``seconds`` after its beginning.

    ``error_type`` is the name of the status code if the attempt failed.
    """

    kind: ClassVar[str] = "attempt_over"
    name: str
    method: str
    attempt: int
    outcome: AttemptOutcome
    seconds: float
    error_type: str = ""


@attrs.define(repr=False)
class OperationEnded(ByFields):
    """An operation has ended, and this process has stored its result.

    ``seconds`` is the time since its creation. ``cancel_seconds`` is the time since the first
    request to cancel the operation, if any. ``cancel_reach`` says how such a request could stop the
    work: ``withdrawn`` if the work had not begun, else ``cooperative``, ``at_await`` or ``forced``.
    ``error_type`` is the name of the status code, or empty if the operation succeeded. ``expired``
    is true if the work had not begun in time (see the option ``expires``).
    """

    kind: ClassVar[str] = "ended"
    name: str
    method: str
    attempt: int
    state: State
    seconds: float
    cancel_seconds: float | None = None
    cancel_reach: str = ""
    error_type: str = ""
    expired: bool = False


@attrs.define(kw_only=True, repr=False)
class CancelRequested(ByFields):
    """A caller has made the first request to cancel an operation."""

    kind: ClassVar[str] = "cancel_requested"
    name: str
    method: str
    caller: str = ""


@attrs.define(kw_only=True, repr=False)
class WorkLost(ByFields):
    """This process has found work whose worker was lost: the work is retried, or has failed.

    ``lost_attempts`` is the number of lost attempts of the operation, including this attempt.
    """

    kind: ClassVar[str] = "lost"
    name: str
    method: str
    attempt: int
    decision: Literal["retried", "failed"]
    lost_attempts: int
    trace_context: str = ""


@attrs.define(kw_only=True, repr=False)
class WriteRefused(ByFields):
    """A write of a worker of this process was refused: the worker no longer has the operation."""

    kind: ClassVar[str] = "write_refused"
    name: str
    method: str
    attempt: int


@attrs.define(kw_only=True, repr=False)
class LeaseRenewed(ByFields):
    """This process has renewed its lease, which holds for ``count`` operations.

    ``margin_seconds`` is the time that was left of the old lease.
    """

    kind: ClassVar[str] = "renewed"
    count: int
    margin_seconds: float


@attrs.define(kw_only=True, repr=False)
class OperationsExpired(ByFields):
    """This process has removed expired operations; ``methods`` counts them by method."""

    kind: ClassVar[str] = "expired"
    methods: Mapping[str, int]


ServiceEvent: TypeAlias = (
    OperationStarted
    | AttemptBegan
    | MetadataReported
    | AttemptOver
    | OperationEnded
    | CancelRequested
    | WorkLost
    | WriteRefused
    | LeaseRenewed
    | OperationsExpired
)


class Observer:
    """Receives the events of operations in this process; override the methods that you need.

    The methods are called after the reported change is stored. The threads that do the work call
    them, maybe several threads at once, and maybe the thread of an event loop. So a method must be
    quick: it should only count the event, or hand it on. An exception from a method, even
    ``SystemExit``, is logged and changes nothing. Only a ``KeyboardInterrupt``, as from Control-C,
    propagates. Events hold names and numbers, never messages. See :class:`lro.Service`.
    """

    def started(self, event: OperationStarted) -> None:
        """A start was answered."""

    def attempt_began(self, event: AttemptBegan) -> None:
        """A worker of this process has begun an attempt."""

    def reported(self, event: MetadataReported) -> None:
        """A worker or a :class:`lro.Reporter` has replaced the metadata of an operation."""

    def attempt_over(self, event: AttemptOver) -> None:
        """An attempt of this process has ended."""

    def ended(self, event: OperationEnded) -> None:
        """This process has stored the end of an operation."""

    def cancel_requested(self, event: CancelRequested) -> None:
        """A caller has made the first request to cancel an operation."""

    def lost(self, event: WorkLost) -> None:
        """Work whose worker was lost is retried or has failed."""

    def write_refused(self, event: WriteRefused) -> None:
        """A write of a worker of this process was refused."""

    def renewed(self, event: LeaseRenewed) -> None:
        """This process has renewed its lease, while it held operations."""

    def expired(self, event: OperationsExpired) -> None:
        """This process has removed operations that have expired."""


class MetricObserver(Observer):
    """Observer that turns events into values of metrics; a subclass overrides :meth:`record`."""

    def record(self, metric: metrics.Metric, value: float, *attributes: str) -> None:
        """Take a value of a metric.

        ``attributes`` are in the metric's order. A missing attribute is an empty text.
        """

    def started(self, event: OperationStarted) -> None:
        """Count the start."""
        self.record(metrics.STARTS, 1, event.method, event.outcome, event.error_type)

    def attempt_began(self, event: AttemptBegan) -> None:
        """Measure how long the operation has waited for its first attempt."""
        if event.queue_seconds is not None:
            self.record(metrics.QUEUE_DURATION, event.queue_seconds, event.method)

    def attempt_over(self, event: AttemptOver) -> None:
        """Measure how long the attempt took."""
        _count_attempt(self.record, event.method, event.outcome, event.seconds, event.error_type)

    def ended(self, event: OperationEnded) -> None:
        """Measure the duration of the operation and, if it was cancelled, of the cancellation."""
        _count_end(
            self.record,
            event.method,
            event.state,
            event.seconds,
            event.error_type,
            (event.cancel_seconds, event.cancel_reach),
            expired=event.expired,
        )

    def lost(self, event: WorkLost) -> None:
        """Count the lost attempt."""
        self.record(metrics.LOST_ATTEMPTS, 1, event.method, event.decision)

    def write_refused(self, event: WriteRefused) -> None:
        """Count the refused write."""
        self.record(metrics.REFUSED_WRITES, 1, event.method)

    def renewed(self, event: LeaseRenewed) -> None:
        """Measure how much time was left of the lease."""
        self.record(metrics.LEASE_MARGIN, event.margin_seconds)

    def expired(self, event: OperationsExpired) -> None:
        """Count the removed operations."""
        for method, number in event.methods.items():
            self.record(metrics.EXPIRED, number, method)


_Record: TypeAlias = Callable[..., None]
"""Takes a value of a metric: ``MetricObserver.record``."""


def _count_attempt(
    record: _Record, method: str, outcome: AttemptOutcome, seconds: float, why: str
) -> None:
    record(metrics.ATTEMPT_DURATION, seconds, method, outcome, why if outcome == "failed" else "")


def _count_end(
    record: _Record,
    method: str,
    state: State,
    seconds: float,
    why: str,
    cancel: tuple[float | None, str],
    *,
    expired: bool,
) -> None:
    if state is State.SUCCEEDED:
        record(metrics.OPERATION_DURATION, seconds, method, "succeeded", "")
    elif state is State.FAILED:
        record(metrics.OPERATION_DURATION, seconds, method, "failed", why)
    else:
        record(metrics.OPERATION_DURATION, seconds, method, "cancelled", "")
        if cancel[0] is not None:
            record(metrics.CANCEL_DURATION, cancel[0], method, cancel[1])
    if expired:
        record(metrics.QUEUE_EXPIRIES, 1, method)


def _no_count(*_: object) -> None:
    """Count nothing: the service keeps no statistics."""


class _LifeLog(Observer):
    """Logs the life of operations at INFO; problems are logged where they are found."""

    def started(self, event: OperationStarted) -> None:
        if event.outcome == "refused":
            facts = {"lro.method": event.method}
            log.info("a start of %s was refused: %s", event.method, event.error_type, extra=facts)
        else:
            again = "" if event.outcome == "started" else " before, and repeated"
            self._log(event, "started%s by %s", again, event.method)

    def attempt_began(self, event: AttemptBegan) -> None:
        if event.queue_seconds is None:
            self._log(event, "attempt %d began", event.attempt)
        else:
            self._log(event, "began after %.3f s", event.queue_seconds)

    def attempt_over(self, event: AttemptOver) -> None:
        if event.outcome == "released":
            self._log(event, "released after %.3f s", event.seconds)

    def ended(self, event: OperationEnded) -> None:
        why = f" with {event.error_type}" if event.state is State.FAILED else ""
        self._log(event, "%s%s after %.3f s", event.state.value, why, event.seconds)

    def cancel_requested(self, event: CancelRequested) -> None:
        self._log(event, "asked to stop%s", f" by {one_line(event.caller)}" if event.caller else "")

    def expired(self, event: OperationsExpired) -> None:
        log.info("removed %d expired operations", sum(event.methods.values()))

    @staticmethod
    def _log(
        event: OperationStarted | AttemptBegan | AttemptOver | OperationEnded | CancelRequested,
        text: str,
        *facts: object,
    ) -> None:
        extra = about(event.name, event.method, getattr(event, "attempt", 0))
        log.info(f"%s: {text}", event.name, *facts, extra=extra)


_LOGS: Final = _LifeLog()

_HANDLERS: Final = {
    event.kind: getattr(Observer, event.kind) for event in typing.get_args(ServiceEvent)
}
"""The methods of :class:`Observer` itself, which do nothing, by kind of event."""

_OFTEN: Final = (OperationStarted.kind, AttemptBegan.kind, AttemptOver.kind, OperationEnded.kind)
"""The kinds of the events of every operation. Statistics count these without an event object."""


class StartTrace:
    """The trace of a start; this base class traces nothing."""

    context = ""
    """The text that is stored with the operation: see ``Record.trace_context``."""

    def stored(self, name: str, outcome: StartOutcome) -> None:
        """Take note that the operation of this name is stored."""

    def failed(self, error: BaseException) -> None:
        """Take note that the start has failed."""

    def end(self) -> None:
        """Take note that the start has ended."""


NO_START_TRACE: Final = StartTrace()


class Tracer(Observer):
    """Traces starts and attempts, and takes events, while it is ``on``; the base class is never on.

    A subclass is on while the application has set an OpenTelemetry provider. The application may
    set a provider at any time.
    """

    on = False
    """True while the tracer takes starts, attempts and events."""
    _sources: Sequence[Callable[[], object]] | None = None
    _providers: Sequence[object] = ()
    _look_at = -math.inf

    def refresh(self) -> bool:
        """Check for new providers, if the next check is due; return ``on``."""
        now = time.monotonic()
        if now >= self._look_at:
            if self._sources is None:
                self._sources = self.sources()
            found = tuple(map(operator.call, self._sources))
            if found != self._providers:
                self.use_providers(found)
                self._providers = found
            # Set last: until the providers are in use, other threads must check, too.
            self._look_at = now + LOOK_SECONDS
        return self.on

    def sources(self) -> Sequence[Callable[[], object]]:
        """Return the functions that return the providers; called once."""
        return ()

    def use_providers(self, providers: Sequence[object]) -> None:
        """Use these providers from now on."""

    def begin_start(self, method: str, headers: Headers | None) -> StartTrace:  # noqa: ARG002
        """Trace a start of this method, which has come with these headers."""
        return NO_START_TRACE

    def begin_attempt(self, record: Record) -> AttemptTrace:  # noqa: ARG002
        """Trace the attempt that has just claimed this record."""
        return NO_ATTEMPT_TRACE


class EventDispatch:
    """Passes events to the log at INFO, to the observers in their order, and to the tracer.

    ``reach`` is the ``cancel_reach`` of :class:`OperationEnded` for work that had begun.
    ``statistics``, if given, counts all events.
    """

    def __init__(
        self,
        observers: Iterable[Observer] = (),
        tracer: Tracer | None = None,
        reach: str = "",
        statistics: MetricObserver | None = None,
    ) -> None:
        self.renamed: dict[str, str] = {}
        """The present names of methods, by their aliases."""
        self.reach = reach
        self.tracer: Tracer = Tracer() if tracer is None else tracer
        self._handlers: dict[str, tuple[Callable[[Any], object], ...]]
        self._handlers = dict.fromkeys(_HANDLERS, ())
        for observer in observers:
            self.add(observer)
        self._count: _Record = _no_count
        if statistics is not None:
            self._count = statistics.record
            often = {kind: self._handlers[kind] for kind in _OFTEN}
            self.add(statistics)
            self._handlers |= often

    def add(self, observer: Observer) -> None:
        """Pass all later events to one more observer.

        Raises:
            DeclarationError: The object is not an observer.
        """
        check_instance("observers", observer, Observer, "objects of lro.adapters.Observer")
        for kind, nothing in _HANDLERS.items():
            handler = getattr(observer, kind)
            if getattr(handler, "__func__", handler) is not nothing:
                self._handlers[kind] += (handler,)

    def _hears(self, kind: str) -> bool:
        """Return True if anything takes events of this kind; else none need be made."""
        return self._handlers[kind] != () or self.tracer.on or log.isEnabledFor(logging.INFO)

    def emit_start(
        self, method: str, outcome: StartOutcome, name: str = "", caller: str = "", why: str = ""
    ) -> None:
        """Report and count a start that was answered: see :class:`OperationStarted`."""
        self._count(metrics.STARTS, 1, method, outcome, why)
        if self._hears(OperationStarted.kind):
            self.emit(OperationStarted(method, outcome, name, caller, why))

    def emit_begin(self, record: Record, queue_seconds: float | None) -> None:
        """Report and count the begin of the attempt that has claimed this record."""
        method = record.method
        if queue_seconds is not None:
            self._count(metrics.QUEUE_DURATION, queue_seconds, method)
        if self._hears(AttemptBegan.kind):
            began = record.name, method, record.attempt, queue_seconds, record.trace_context
            self.emit(AttemptBegan(*began))

    def emit_over(self, record: Record, outcome: AttemptOutcome, seconds: float, why: str) -> None:
        """Report and count the end of the attempt that had claimed this record."""
        method = record.method
        _count_attempt(self._count, method, outcome, seconds, why)
        if self._hears(AttemptOver.kind):
            over = record.name, method, record.attempt, outcome, seconds, why
            self.emit(AttemptOver(*over))

    def emit_end(self, after: Record, *, expired: bool = False) -> None:
        """Report and count an operation's end that this process has stored.

        ``expired`` is true if the work had not begun in time.
        """
        assert after.end_time is not None  # the operation has ended
        cancel_seconds: float | None = None
        reach = ""
        if after.cancel_time is not None:
            reach = self.reach if after.attempt else "withdrawn"
            cancel_seconds = (after.end_time - after.cancel_time).total_seconds()
        seconds = (after.end_time - after.create_time).total_seconds()
        method, state = self.renamed.get(after.method, after.method), after.state
        why = "" if state is State.SUCCEEDED else error_type(after.result)
        cancel = cancel_seconds, reach
        _count_end(self._count, method, state, seconds, why, cancel, expired=expired)
        if self._hears(OperationEnded.kind):
            facts = after.name, method, after.attempt, state, seconds, *cancel, why, expired
            self.emit(OperationEnded(*facts))

    def emit(self, event: ServiceEvent) -> None:
        """Pass an event to all observers, even if one of them fails."""
        if log.isEnabledFor(logging.INFO):
            getattr(_LOGS, event.kind)(event)
        handlers = self._handlers[event.kind]
        if self.tracer.on:
            handlers = (*handlers, getattr(self.tracer, event.kind))
        for handler in handlers:
            try:
                handler(event)
            except BaseException as exc:  # also SystemExit, which must not end work
                log.exception("an observer has failed at %r", event.kind)
                if interrupts(exc):
                    raise


def error_type(result: object) -> str:
    """Return the name of the status code of an error; empty for any other result."""
    return Code.of(result.code).name if isinstance(result, Status) else ""


def code_name(error: LroError) -> str:
    """Return the name of the status code that callers get; INTERNAL if the error has none."""
    try:
        return Code(error.status_code).name
    except BaseException as exc:  # a faulty error class: edges answer INTERNAL
        if interrupts(exc):
            raise
        return Code.INTERNAL.name


def about(name: str, method: str = "", attempt: int = 0) -> Mapping[str, object]:
    """Return the ``extra`` of a log line about an operation: its name, and the given facts."""
    facts: dict[str, object] = {"lro.operation": name}
    if method:
        facts["lro.method"] = method
    if attempt:
        facts["lro.attempt"] = attempt
    return facts
