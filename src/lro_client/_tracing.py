"""A client's log of its operations and, if OpenTelemetry is installed, their spans.

OpenTelemetry is imported when the first operation begins.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import time
from typing import Any, Final

import attrs

from lro import Code, Operation
from lro_client._addresses import public_address

log: Final = logging.getLogger("lro_client")
"""The client's logger. It logs starts and ends of operations at INFO, and failures at WARNING.

Each line begins with the operation's name.
"""
log.addHandler(logging.NullHandler())  # no output unless logging is set up

_TRACEPARENT: Final = "traceparent"


@attrs.frozen(eq=False, repr=False)
class _Api:
    """The parts of OpenTelemetry's API that this module uses."""

    trace: Any
    propagator: Any
    context: Any


@functools.cache
def _api() -> _Api | None:
    try:
        trace = importlib.import_module("opentelemetry.trace")
        w3c = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        context = importlib.import_module("opentelemetry.context")
    except ImportError:  # the extra "otel" is not installed
        return None
    return _Api(trace, w3c.TraceContextTextMapPropagator(), context.Context)


class Trace:
    """The span of one operation, recorded when the client first sees the operation's end.

    The span begins when the operation was started, or when :meth:`of_token` was called. It has no
    parent, only a link to the span that was current at the start, which may have ended long ago.
    """

    def __init__(self, api: _Api, target: str, headers: dict[str, str]) -> None:
        self._api = api
        self._target = public_address(target)
        self._headers = headers
        self._began = time.time_ns()
        self._lock = threading.Lock()
        self._over = False

    @classmethod
    def begin(cls, target: str) -> Trace | None:
        """Return the trace of an operation that is being started, or None without OpenTelemetry."""
        api = _api()
        if api is None:
            return None
        headers: dict[str, str] = {}
        api.propagator.inject(headers)
        return cls(api, target, headers)

    @classmethod
    def of_token(cls, text: str) -> Trace | None:
        """Return the trace of an operation that was started elsewhere.

        ``text`` is the traceparent in the operation's token. Without OpenTelemetry, return None.
        """
        api = _api()
        return None if api is None else cls(api, "", {_TRACEPARENT: text} if text else {})

    @property
    def text(self) -> str:
        """The span of the start as a W3C traceparent, or empty if there was no current span."""
        return self._headers.get(_TRACEPARENT, "")

    def headers(self) -> dict[str, str]:
        """Return headers, or gRPC metadata, for the call that starts the operation."""
        return dict(self._headers)

    def ended(self, operation: Operation, polls: int) -> None:
        """Record the span of an ended operation, with its number of polls. Ignore later calls."""
        with self._lock:
            if self._over:
                return
            self._over = True
        api = self._api.trace
        method = {"lro.method": _method_of(self._target)} if self._target else {}
        span = api.get_tracer("lro_client").start_span(
            self._target or "operation",
            context=self._api.context(),  # a root span: the start's span is only linked
            kind=api.SpanKind.CLIENT,
            links=self._links(),
            start_time=self._began,
            attributes={
                "lro.operation.name": operation.name,
                "lro.polls": polls,
                "lro.state": operation.state,
                **method,
            },
        )
        error = operation.error
        if error is not None:
            span.set_attribute("error.type", _code_of(operation).name)
            span.set_status(api.StatusCode.ERROR, error.message)
        span.end()

    def _links(self) -> list[Any]:
        context = self._api.propagator.extract(self._headers, context=self._api.context())
        found = self._api.trace.get_current_span(context).get_span_context()
        return [self._api.trace.Link(found)] if found.is_valid else []


def _method_of(target: str) -> str:
    """Return a method's name for spans: its full name, or its HTTP path."""
    service, _, method = target.removeprefix("/").rpartition("/")
    return f"{service}.{method}" if "." in service and "/" not in service else target


def _code_of(operation: Operation) -> Code:
    error = operation.error
    return Code.of((error and error.code) or Code.UNKNOWN)


def log_started(operation: Operation, target: str) -> None:
    """Log that a server has answered a start."""
    log.info("%s: started by %s", operation.name, public_address(target))


def log_ended(operation: Operation, polls: int) -> None:
    """Log that the end of an operation was seen, and the number of polls."""
    if not log.isEnabledFor(logging.INFO):
        return
    counted = "1 poll" if polls == 1 else f"{polls} polls"
    if operation.error is None:
        log.info("%s: %s after %s", operation.name, operation.state, counted)
    else:
        code, text = _code_of(operation).name, operation.error.message
        line = "%s: %s after %s: %s: %s"
        log.info(line, operation.name, operation.state, counted, code, text)


def log_failed_poll(name: str, error: Exception, pause: float) -> None:
    """Log that a poll failed and is retried in ``pause`` seconds."""
    log.warning("%s: polled again in %.3g s: %s", name, pause, error)


def log_gave_up(name: str, error: Exception) -> None:
    """Log that a wait ended before its operation, because the timeout expired or a poll failed."""
    log.warning("%s: no longer waited for: %s", name, error)


def log_verb(name: str, verb: str) -> None:
    """Log that a Cancel or Delete succeeded."""
    log.info("%s: %s was accepted", name, verb)
