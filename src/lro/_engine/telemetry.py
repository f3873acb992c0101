"""Spans of starts and attempts, and metrics, made with OpenTelemetry's API if it is installed.

The API package is imported at the first start of an operation. The library never sets a provider;
without one, no spans or metrics are made. OpenTelemetry has no conventions for long-running
operations yet, so we use our own names, ``lro.*``, and add its attributes for messaging (semantic
conventions 1.44.0).
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
from lro._base.by_fields import ByFields
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
"""Maximum characters of a stored trace context: a traceparent and 512 characters of tracestate."""

Propagation: TypeAlias = Literal["link", "child", "none"]

_OPERATION: Final = "lro.operation.name"
_ERROR: Final = "error.type"
_NO_PROVIDER: Final = ("opentelemetry.trace", "opentelemetry.metrics")
"""Modules of the API package's own providers, which do nothing."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Telemetry(ByFields):
    """Options of a service for OpenTelemetry.

    ``tracer_provider`` and ``meter_provider`` are used in place of the global ones.
    ``propagation`` says how the span of an attempt relates to the span of the start. ``"link"`` is
    for work that may take hours, ``"child"`` is for short work, and with ``"none"`` the spans are
    not related. ``baggage`` lists baggage keys: their entries are stored with an operation, and its
    function can read them. Baggage with keys that are not listed is dropped. If ``store_calls`` is
    true, the calls of the store are measured.

    Raises:
        DeclarationError: An option has a wrong type.
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


@attrs.frozen(eq=False, repr=False)
class _Api(ByFields):
    """The parts of OpenTelemetry's API package that this module uses."""

    trace: Any
    metrics: Any
    context: Any
    baggage: Any
    propagator: Any
    baggage_propagator: Any

    def extracted(self, text: str) -> Any:
        """Parse a text of :meth:`text` into its context; an empty text gives an empty context."""
        trace, _, baggage = text.partition("\t")
        parent, _, state = trace.partition(" ")
        headers = {"traceparent": parent, "tracestate": state, "baggage": baggage}
        given = {name: value for name, value in headers.items() if value}
        context = self.propagator.extract(given, self.context.Context())
        return self.baggage_propagator.extract(given, context)

    def text(self, context: Any, keys: Collection[str]) -> str:
        """Write a context as text for :meth:`extracted`: its span, and these keys of its baggage.

        The text is ``traceparent``, then a space and ``tracestate``, then a tab and the baggage;
        each part may be missing. If the text is too long, its last parts are left out.
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
        """Return ``base`` with the baggage entries that a context has under these keys."""
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
    """Make a function log exceptions of providers and processors, and then return ``instead``.

    Span processors run when a span begins or ends, and may belong to any library.
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


# -- objects that the parts of the engine hold ----------------------------------------------------


class ServiceTelemetry(MetricObserver, Tracer):
    """The spans and metrics of one service.

    ``executor`` is the class name of the executor. ``remote`` is true if the executor sends the
    names of operations to workers in other processes, as with Celery. In such a worker, a span of
    Celery may be current. ``gauges`` is set when the parts of the service are made.
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
        """Import the API package, and return the functions that return the providers.

        The result is empty if the package is not installed.
        """
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
        """Use these providers, except the providers of the API package, which do nothing."""
        api = _api()
        assert api is not None  # else :meth:`sources` returned none
        tracers, meters = providers
        made = _provides(tracers)
        self._tracer = tracers.get_tracer(SCOPE, installed_version(), SCHEMA_URL) if made else None
        self.instruments = _INSTRUMENTS.of(api, meters, self) if _provides(meters) else None
        self.on = self._tracer is not None or self.instruments is not None

    # -- spans --------------------------------------------------------------------------------

    @_harmless(NO_START_TRACE)
    def begin_start(self, method: str, headers: Headers | None) -> StartTrace:
        """Begin the span of a start: a child of the current span, else of the caller's span."""
        api, tracer = _api(), self._tracer
        if api is None or tracer is None:
            return NO_START_TRACE
        context = api.context.get_current()
        if headers is not None and not _of(api, context).is_valid:
            context = api.propagator.extract(headers, context)
            if self._keys:
                context = api.baggage_propagator.extract(headers, context)
        span = tracer.start_span(
            f"start {method}",
            context=context,
            kind=api.trace.SpanKind.PRODUCER,
            attributes=_facts(method, "send"),
        )
        return _TracedStart(api, span, context, self._keys)

    @_harmless(NO_ATTEMPT_TRACE)
    def begin_attempt(self, record: Record) -> AttemptTrace:
        """Begin the span of an attempt."""
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
        """Return the parent and links for a span of an operation, and the context of its start."""
        began = api.extracted(text)
        start = _of(api, began)
        if not start.is_valid or self.options.propagation == "none":
            return base, [], began
        if self.options.propagation == "child":
            return began, [], began
        return base, [api.trace.Link(start)], began

    def lost(self, event: WorkLost) -> None:
        """Make a span of zero length for work whose worker was lost, and count it."""
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
        """Record a finished call of the store."""
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
        """Record the name of the operation and the outcome."""
        facts = {_OPERATION: name, "messaging.message.id": name, "lro.start.outcome": outcome}
        self._span.set_attributes(facts)

    @_harmless(None)
    def failed(self, error: BaseException) -> None:
        """Record the kind of the error, but not its text, which maybe only the caller may read."""
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
        """Return the span's context as text; few executors need this."""
        return self._api.text(self._context, self._keys)

    def attach(self) -> Callable[[], object]:
        """Make the span current; return a function that undoes this."""
        return functools.partial(self._api.context.detach, self._api.context.attach(self._context))

    @_harmless(None)
    def end(self, outcome: AttemptOutcome, error_type: str) -> None:
        """End the span."""
        self._span.set_attributes({"lro.outcome": outcome, **_failed(error_type, outcome)})
        if outcome == "failed":
            self._span.set_status(self._api.trace.StatusCode.ERROR)
        self._span.end()


class ParentTrace(AttemptTrace):
    """The trace of an attempt whose span is in another process, which sent the span's context."""

    def __init__(self, context: str) -> None:
        self.context = context

    def attach(self) -> Callable[[], object] | None:
        """Make the attempt's span the parent of the spans made in this process."""
        api = _api()
        if api is None:
            return super().attach()
        return functools.partial(
            api.context.detach, api.context.attach(api.extracted(self.context))
        )


# -- instruments ----------------------------------------------------------------------------------


class Instruments:
    """The instruments of one meter provider, which all services of the process share.

    A provider takes only one callback for an observed metric, so the callback reads all services.
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
        """Read the gauges of this service from now on, as long as the service exists."""
        living = [one for one in self._services if one() not in (None, service)]
        self._services = (*living, weakref.ref(service))

    def record(self, metric: Metric, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a counter, or record it in a histogram."""
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
