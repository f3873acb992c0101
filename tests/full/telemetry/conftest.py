"""Fixtures of the telemetry tests."""

from tests.telemetry.conftest import measured, numbers, spans, traced

__all__ = ["measured", "numbers", "spans", "traced"]
