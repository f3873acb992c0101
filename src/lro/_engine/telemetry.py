"""OpenTelemetry: spans of starts and attempts, and metrics, by its API package if that is there.

Nothing of it is imported before the first start. No provider is ever set; without one nothing is
made. There are no conventions for long-running operations yet: the names are our own, ``lro.*``,
with those of messaging beside them (semantic conventions 1.44.0).
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar

import attrs

from lro._base.arguments import check, check_flag, check_texts
from lro._base.errors import LroError
from lro._engine import metrics
from lro._engine.events import (
    NO_START_TRACE,
    Headers,
    MetricObserver,
    StartOutcome,
    StartTrace,
    Tracer,
    WorkLost,
    code_name,
)
from lro._engine.gauges import Gauges
from lro._engine.job import NO_ATTEMPT_TRACE, AttemptOutcome, AttemptTrace
from lro._engine.metrics import METHOD, METRICS, Metric
from lro._engine.process import PerProcess, installed_version
from lro._model.operation import Record

log = logging.getLogger("lro")

P = ParamSpec("P")
T = TypeVar("T")

SCOPE: Final = "lro"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

MAX_CONTEXT: Final = 600
"""The most characters of a stored trace context: a traceparent and 512 of a tracestate fit."""

Propagation: TypeAlias = Literal["link", "child", "none"]

_OPERATION: Final = "lro.operation.name"
_ERROR: Final = "error.type"
_NO_PROVIDER: Final = ("opentelemetry.trace", "opentelemetry.metrics")
"""Modules of the API's own providers, which do nothing."""


@attrs.frozen(kw_only=True)
class Telemetry:
    """Options of a service for OpenTelemetry.

    ``tracer_provider`` and ``meter_provider`` are used in place of the global ones.
    ``propagation`` says how the span of an attempt belongs to the span of the start: by a link, as
    is right for work that may take hours; as its child, for short work; or not at all. ``baggage``
    names the keys of the baggage that is kept with an operation and is there for its function;
    what else is in the baggage is not. ``store_calls`` measures the calls of the store.

    Raises:
        DeclarationError: An option is not of its type.
    """

    tracer_provider: Any = None
    meter_provider: Any = None
    propagation: Propagation = "link"
    baggage: Collection[str] = ()
    store_calls: bool = False

    def __attrs_post_init__(self) -> None:
        for name, verb in (("tracer_provider", "get_tracer"), ("meter_provider", "get_meter")):
            given = getattr(self, name)
            fine = given is None or hasattr(given, verb)
            check(name, given, f"None, or a provider with {verb}", fine=fine)
        fine = self.propagation in ("link", "child", "none")
        check("propagation", self.propagation, '"link", "child" or "none"', fine=fine)
        check_texts("baggage", self.baggage)
        check_flag("store_calls", self.store_calls)


@attrs.frozen
class _Api:
    """The parts of OpenTelemetry's API package that are needed."""

    trace: Any
    metrics: Any
    context: Any
    baggage: Any
    propagator: Any
    baggage_propagator: Any

    def extracted(self, text: str) -> Any:
        """The context that a text of :func:`_text` says; an empty one if it says none."""
        trace, _, baggage = text.partition("\t")
        parent, _, state = trace.partition(" ")
        headers = {"traceparent": parent, "tracestate": state, "baggage": baggage}
        given = {name: value for name, value in headers.items() if value}
        context = self.propagator.extract(given, self.context.Context())
        return self.baggage_propagator.extract(given, context)

    def text(self, context: Any, keys: Collection[str]) -> str:
        """The span of a context, and these keys of its baggage, for :meth:`extracted`.

        It is ``traceparent``, then ``tracestate`` after a space, then the baggage after a tab, each
        if it is there. What makes it too long is left out, from the end.
        """
        headers: dict[str, str] = {}
        self.propagator.inject(headers, context)
        text = headers.get("traceparent", "")
        states = headers.get("tracestate", "").split(",")
        while states != [""] and len(text) + 1 + len(",".join(states)) > MAX_CONTEXT:
            states = states[:-1] or [""]
        if states != [""]:
            text += " " + ",".join(states)
        if keys:
            self.baggage_propagator.inject(headers, self.kept(context, keys))
            baggage = headers.get("baggage", "")
            if baggage and len(text) + 1 + len(baggage) <= MAX_CONTEXT:
                text += "\t" + baggage
        return text

    def kept(self, context: Any, keys: Collection[str], base: Any = None) -> Any:
        """The ``base`` with what these keys have in the baggage of a context."""
        base = self.context.Context() if base is None else base
        for key in keys:
            value = self.baggage.get_baggage(key, context)
            if value is not None:
                base = self.baggage.set_baggage(key, value, base)
        return base


@functools.cache
def _api() -> _Api | None:
    def module(name: str) -> Any:
        return importlib.import_module(f"opentelemetry.{name}")

    try:
        return _Api(
            module("trace"),
            module("metrics"),
            module("context"),
            module("baggage"),
            module("trace.propagation.tracecontext").TraceContextTextMapPropagator(),
            module("baggage.propagation").W3CBaggagePropagator(),
        )
    except ImportError:  # the extra "otel" is not installed
        return None


def _harmless(instead: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have what a provider or its processors raise logged, and ``instead`` returned.

    Processors of spans are called in the calls that begin and end these, and may be of any library.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **more: P.kwargs) -> T:
            try:
                return function(*args, **more)
            except Exception:
                log.exception("OpenTelemetry has failed in %s", function.__qualname__)
                return instead

        return call

    return decorated


# -- what the parts of the engine hold ------------------------------------------------------------


class ServiceTelemetry(MetricObserver, Tracer):
    """The spans and metrics of one service.

    ``executor`` is the name of its kind; ``remote`` says that names of operations are sent to its
    workers, in which a span of that transport may be current. ``gauges`` is set once the service
    has its parts.
    """

    gauges: Gauges | None = None
    instruments: Instruments | None = None

    def __init__(self, options: Telemetry, *, executor: str, remote: bool) -> None:
        self.options = options
        self._executor = executor
        self._remote = remote
        self._keys = tuple(options.baggage)
        self._tracer: Any = None

    def sources(self) -> Sequence[Callable[[], object]]:
        """Import the API package; none if it is not installed."""
        api, given = _api(), self.options
        if api is None:
            return ()
        return (
            functools.partial(_itself, given.tracer_provider)
            if given.tracer_provider is not None
            else api.trace.get_tracer_provider,
            functools.partial(_itself, given.meter_provider)
            if given.meter_provider is not None
            else api.metrics.get_meter_provider,
        )

    @_harmless(None)
    def use_providers(self, providers: Sequence[Any]) -> None:
        """Make spans and metrics by these providers, where they are not those of the API."""
        api = _api()
        assert api is not None  # else there are no sources
        tracers, meters = providers
        made = _provides(tracers)
        self._tracer = tracers.get_tracer(SCOPE, installed_version(), SCHEMA_URL) if made else None
        self.instruments = _INSTRUMENTS.of(api, meters, self) if _provides(meters) else None
        self.on = self._tracer is not None or self.instruments is not None

    # -- spans --------------------------------------------------------------------------------

    @_harmless(NO_START_TRACE)
    def begin_start(self, method: str, headers: Headers | None) -> StartTrace:
        """The span of a start: a child of what is current, else of what its caller has sent."""
        api, tracer = _api(), self._tracer
        if api is None or tracer is None:
            return NO_START_TRACE
        context = api.context.get_current()
        if headers is not None and not _of(api, context).is_valid:
            sent = headers()
            context = api.propagator.extract(sent, context)
            if self._keys:
                context = api.baggage_propagator.extract(sent, context)
        span = tracer.start_span(
            f"start {method}",
            context=context,
            kind=api.trace.SpanKind.PRODUCER,
            attributes=_facts(method, "send"),
        )
        return _TracedStart(api, span, context, self._keys)

    @_harmless(NO_ATTEMPT_TRACE)
    def begin_attempt(self, record: Record) -> AttemptTrace:
        """The span of an attempt, which begins now."""
        api, tracer = _api(), self._tracer
        if api is None or tracer is None:
            return NO_ATTEMPT_TRACE
        base = api.context.get_current() if self._remote else api.context.Context()
        parent, links, baggage = self._relation(api, record.trace_context, base)
        facts: dict[str, object] = {
            **_facts(record.method, "process", record.name),
            "lro.attempt": record.attempt,
            "lro.executor": self._executor,
        }
        span = tracer.start_span(
            f"process {record.method}",
            context=parent,
            kind=api.trace.SpanKind.CONSUMER,
            attributes=facts,
            links=links,
        )
        context = api.trace.set_span_in_context(span, api.kept(baggage, self._keys, base))
        return _TracedAttempt(api, span, context, self._keys)

    def _relation(self, api: _Api, text: str, base: Any) -> tuple[Any, list[Any], Any]:
        """Return the parent and links of a span for the work of a start, and its context."""
        began = api.extracted(text)
        start = _of(api, began)
        if not start.is_valid or self.options.propagation == "none":
            return base, [], began
        if self.options.propagation == "child":
            return began, [], began
        return base, [api.trace.Link(start)], began

    def lost(self, event: WorkLost) -> None:
        """A span of no length for work whose worker was lost, and a count."""
        api, tracer = _api(), self._tracer
        if api is not None and tracer is not None:
            parent, links, _ = self._relation(api, event.trace_context, api.context.Context())
            tracer.start_span(
                f"take over {event.method}",
                context=parent,
                attributes={
                    METHOD: event.method,
                    _OPERATION: event.name,
                    "lro.attempt": event.attempt,
                    "lro.lost_attempts": event.lost_attempts,
                    "lro.decision": event.decision,
                },
                links=links,
            ).end()
        super().lost(event)

    # -- metrics ------------------------------------------------------------------------------

    def record(self, metric: Metric, value: float, *attributes: str) -> None:
        """Record a value with those attributes that are not empty."""
        instruments = self.instruments
        if instruments is not None:
            given = zip(metric.attributes, attributes, strict=True)
            instruments.record(metric, value, {name: text for name, text in given if text})

    def store_called(self, verb: str, seconds: float, error_type: str) -> None:
        """Record a call of the store that is over."""
        self.record(metrics.STORE_CALLS, seconds, verb, error_type)


def _itself(provider: object) -> object:
    return provider


def _provides(provider: object) -> bool:
    return not type(provider).__module__.startswith(_NO_PROVIDER)


def _of(api: _Api, context: Any) -> Any:
    return api.trace.get_current_span(context).get_span_context()


def _facts(method: str, kind: str, name: str = "") -> dict[str, object]:
    named = {_OPERATION: name, "messaging.message.id": name} if name else {}
    return {
        METHOD: method,
        "messaging.system": SCOPE,
        "messaging.operation.type": kind,
        "messaging.destination.name": method,
        **named,
    }


def _failed(error_type: str, outcome: str = "failed") -> dict[str, str]:
    return {_ERROR: error_type} if error_type and outcome == "failed" else {}


class _TracedStart(StartTrace):
    """The span of a start."""

    def __init__(self, api: _Api, span: Any, context: Any, keys: Collection[str]) -> None:
        self._api = api
        self._span = span
        self.context = api.text(api.trace.set_span_in_context(span, context), keys)

    @_harmless(None)
    def stored(self, name: str, outcome: StartOutcome) -> None:
        """Name the operation."""
        facts = {_OPERATION: name, "messaging.message.id": name, "lro.start.outcome": outcome}
        self._span.set_attributes(facts)

    @_harmless(None)
    def failed(self, error: BaseException) -> None:
        """Say which kind of error it was; its text may hold what is for its caller alone."""
        if isinstance(error, LroError):
            self._span.set_attribute("lro.start.outcome", "refused")
            self._span.set_attribute(_ERROR, code_name(error))
        else:
            self._span.set_attribute(_ERROR, type(error).__qualname__)
        self._span.set_status(self._api.trace.StatusCode.ERROR)

    @_harmless(None)
    def end(self) -> None:
        """End the span."""
        self._span.end()


class _TracedAttempt(AttemptTrace):
    """The span of an attempt."""

    def __init__(self, api: _Api, span: Any, context: Any, keys: Collection[str]) -> None:
        self._api = api
        self._span = span
        self._context = context
        self._keys = keys

    @property
    def context(self) -> str:  # type: ignore[override]
        """As a text, which few executors need."""
        return self._api.text(self._context, self._keys)

    def attach(self) -> Callable[[], object]:
        """Make the span the current one."""
        return functools.partial(self._api.context.detach, self._api.context.attach(self._context))

    @_harmless(None)
    def end(self, outcome: AttemptOutcome, error_type: str) -> None:
        """End the span."""
        self._span.set_attributes({"lro.outcome": outcome, **_failed(error_type, outcome)})
        if outcome == "failed":
            self._span.set_status(self._api.trace.StatusCode.ERROR)
        self._span.end()


class ParentTrace(AttemptTrace):
    """An attempt whose span is made by another process, which has sent its context."""

    def __init__(self, context: str) -> None:
        self.context = context

    def attach(self) -> Callable[[], object]:
        """Make its span the parent of those that are made here."""
        api = _api()
        if api is None:
            return super().attach()
        return functools.partial(
            api.context.detach, api.context.attach(api.extracted(self.context))
        )


# -- instruments ----------------------------------------------------------------------------------


class Instruments:
    """The instruments of one meter provider, which all services of the process share.

    A provider takes the callbacks of an observed metric once, so that these ask all services.
    """

    def __init__(self, api: _Api, meter: Any) -> None:
        self._observation = api.metrics.Observation
        self._services: tuple[weakref.ref[ServiceTelemetry], ...] = ()
        self._record: dict[str, Callable[..., object]] = {}
        for metric in METRICS:
            if metric.observed:
                make = getattr(meter, f"create_observable_{metric.kind}")
                call = functools.partial(self._observed, metric)
                make(metric.name, [call], metric.unit, metric.description)
            elif metric.kind == "histogram":
                self._record[metric.name] = meter.create_histogram(
                    metric.name,
                    metric.unit,
                    metric.description,
                    explicit_bucket_boundaries_advisory=metric.buckets,
                ).record
            else:
                made = meter.create_counter(metric.name, metric.unit, metric.description)
                self._record[metric.name] = made.add

    def add(self, service: ServiceTelemetry) -> None:
        """Have the gauges of a service read, for as long as it lives."""
        living = [one for one in self._services if one() not in (None, service)]
        self._services = (*living, weakref.ref(service))

    def record(self, metric: Metric, value: float, attributes: Mapping[str, str]) -> None:
        """Count, or measure."""
        self._record[metric.name](value, attributes)

    def _observed(self, metric: Metric, _: object) -> Iterable[Any]:
        found: dict[tuple[tuple[str, str], ...], float] = {}
        join = max if metric.kind == "gauge" else _sum
        for known in self._services:
            service = known()
            if service is None or service.instruments is not self or service.gauges is None:
                continue
            for attributes, value in service.gauges.read(metric):
                key = tuple(attributes.items())
                found[key] = join(value, found.get(key, 0))
        return [self._observation(value, dict(key)) for key, value in found.items()]


def _sum(one: float, other: float) -> float:
    return one + other


class _AllInstruments(PerProcess):
    """The instruments of each meter provider that a service has used."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, Instruments] = weakref.WeakKeyDictionary()
        self._after_fork()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def of(self, api: _Api, provider: Any, service: ServiceTelemetry) -> Instruments:
        """Return the instruments of a provider, and let them read the gauges of this service."""
        with self._lock:
            made = self._made.get(provider)
            if made is None:
                meter = provider.get_meter(SCOPE, installed_version(), SCHEMA_URL)
                made = self._made[provider] = Instruments(api, meter)
            made.add(service)
            return made


_INSTRUMENTS: Final = _AllInstruments()
