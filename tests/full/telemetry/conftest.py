"""The fixtures of the tests of telemetry."""

from tests.telemetry.conftest import measured, numbers, spans, traced

__all__ = ["measured", "numbers", "spans", "traced"]
