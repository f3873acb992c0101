"""Providers of each test's own: the API takes a global one only once per process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from lro.telemetry import Telemetry
from tests.telemetry.collected import Numbers, Spans


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Spans in memory."""
    found = Spans()
    yield found
    found.provider.shutdown()


@pytest.fixture
def numbers() -> Iterator[Numbers]:
    """Metrics in memory."""
    found = Numbers()
    yield found
    found.provider.shutdown()


@pytest.fixture
def traced(spans: Spans) -> Callable[..., Telemetry]:
    """Makes options with the provider of the spans."""

    def make(**options: Any) -> Telemetry:
        return Telemetry(tracer_provider=spans.provider, **options)

    return make


@pytest.fixture
def measured(numbers: Numbers) -> Callable[..., Telemetry]:
    """Makes options with the provider of the metrics."""

    def make(**options: Any) -> Telemetry:
        return Telemetry(meter_provider=numbers.provider, **options)

    return make
