"""Providers for each test, because the API accepts only one global provider in a process."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("opentelemetry.sdk")

from lro.telemetry import Telemetry
from tests.telemetry.collected import Numbers, Spans


@pytest.fixture
def spans():
    """Collect spans in memory."""
    found = Spans()
    yield found
    found.provider.shutdown()


@pytest.fixture
def numbers():
    """Collect metrics in memory."""
    found = Numbers()
    yield found
    found.provider.shutdown()


@pytest.fixture
def traced(spans):
    """Return a function that makes telemetry options with the tracer provider."""
    return functools.partial(Telemetry, tracer_provider=spans.provider)


@pytest.fixture
def measured(numbers):
    """Return a function that makes telemetry options with the meter provider."""
    return functools.partial(Telemetry, meter_provider=numbers.provider)
