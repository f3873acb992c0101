"""Providers of each test's own: the API takes a global one only once per process."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("opentelemetry.sdk")

from lro.telemetry import Telemetry
from tests.telemetry.collected import Numbers, Spans


@pytest.fixture
def spans():
    """Spans in memory."""
    found = Spans()
    yield found
    found.provider.shutdown()


@pytest.fixture
def numbers():
    """Metrics in memory."""
    found = Numbers()
    yield found
    found.provider.shutdown()


@pytest.fixture
def traced(spans):
    """Makes options with the provider of the spans."""
    return functools.partial(Telemetry, tracer_provider=spans.provider)


@pytest.fixture
def measured(numbers):
    """Makes options with the provider of the metrics."""
    return functools.partial(Telemetry, meter_provider=numbers.provider)
