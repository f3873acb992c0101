"""Spans and metrics that OpenTelemetry's SDK has collected, in memory or in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SPANS_FILE = "LRO_TEST_SPANS"
"""The environment variable that holds the path of the file for a process's spans."""


class Spans:
    """The spans of a tracer provider."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def all(self) -> Sequence[Any]:
        return self._exporter.get_finished_spans()

    def ours(self, kind: str = "") -> list[Any]:
        """Return this library's spans, oldest first, optionally of one kind."""
        found = [span for span in self.all() if span.instrumentation_scope.name == "lro"]
        found.sort(key=lambda span: span.start_time or 0)
        return [span for span in found if span.kind.name == kind or not kind]

    def only(self, kind: str) -> Any:
        """Return this library's span of this kind, after checking that there is only one."""
        (found,) = self.ours(kind)
        return found


def ids(span: Any) -> tuple[int, int]:
    """Return the trace ID and span ID of a span or a span context."""
    context = getattr(span, "context", span)
    return context.trace_id, context.span_id


def hex_ids(span: Any) -> str:
    """Return the trace ID and span ID as they appear in a W3C traceparent header."""
    trace_id, span_id = ids(span)
    return f"{trace_id:032x}-{span_id:016x}"


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [ids(link) for link in span.links]


class Numbers:
    """The metrics of a meter provider."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def metrics(self) -> dict[str, Any]:
        """Return this library's metrics by name."""
        data = self._reader.get_metrics_data()
        scopes = [
            scope
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
        ]
        return {
            metric.name: metric
            for scope in scopes
            if scope.scope.name == "lro"
            for metric in scope.metrics
        }

    def points(self, name: str) -> dict[tuple[str, ...], Any]:
        """Return a metric's values by attribute values; a histogram has a count and a sum."""
        metric = self.metrics().get(name)
        return dict(self._points(metric)) if metric else {}

    def _points(self, metric: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        for point in metric.data.data_points:
            value = (point.count, point.sum) if hasattr(point, "count") else point.value
            yield tuple(point.attributes.values()), value


class FileExporter(SpanExporter):
    """An exporter that writes spans to a file as lines of JSON, which outlive the process."""

    def __init__(self, path: str) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans to the file at once."""
        with open(self._path, "a", encoding="utf-8") as file:
            for span in spans:
                file.write(json.dumps(_as_json(span)) + "\n")
        return SpanExportResult.SUCCESS


def _as_json(span: Any) -> Mapping[str, object]:
    return {
        "name": span.name,
        "scope": span.instrumentation_scope.name,
        "kind": span.kind.name,
        "ids": ids(span),
        "parent": span.parent and ids(span.parent),
        "links": linked(span),
        "attributes": dict(span.attributes or {}),
        "pid": os.getpid(),
    }


def provider_to_file(path: str) -> TracerProvider:
    """Return a tracer provider that writes its spans to a file."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(path)))
    return provider


def read_spans(path: Path) -> list[dict[str, Any]]:
    """Return this library's spans that were written to a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [span for span in found if span["scope"] == "lro"]
