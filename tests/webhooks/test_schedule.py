"""The times at which failed deliveries are retried."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lro._webhooks.schedule import pause_before, retry_after
from lro.webhooks import SCHEDULE

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


def test_retry_schedule_is_that_of_standard_webhooks() -> None:
    hours = [5 / 3600, 5 / 60, 0.5, 2, 5, 10, 14, 20, 24]
    assert [pause_before(n, SCHEDULE, 0.0) for n in range(1, 11)] == [
        *(pytest.approx(3600 * one) for one in hours),
        None,
    ]
    assert sum(SCHEDULE) == pytest.approx(75 * 3600 + 35 * 60 + 5)


def test_jitter_lengthens_pauses_by_up_to_a_fifth() -> None:
    assert [pause_before(1, (10.0,), random) for random in (0.0, 0.5, 1.0)] == [10.0, 11.0, 12.0]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("9999999999", 86_400.0),
        ("Sun, 22 Nov 2026 09:02:00 GMT", 120.0),
        ("Sun, 22 Nov 2026 09:02:00 -0000", 120.0),
        ("Sun, 22 Nov 2026 08:00:00 GMT", 0.0),
        ("Sun, 22 Nov 2099 09:02:00 GMT", 86_400.0),
        ("", 0.0),
        ("soon", 0.0),
        ("99999999999999999999", 0.0),
        ("Sun, 99 Nov 2026 09:02:00 GMT", 0.0),
        ("Sun, 22 Nov 99999999999999999999 09:02:00 GMT", 0.0),
        ("\u0663", 0.0),
    ],
)
def test_retry_after_is_read_and_bounded(header: str, seconds: float) -> None:
    for status in (429, 502, 503, 504):
        assert retry_after(status, header, NOW) == seconds
    for status in (200, 301, 400, 404, 500, 0):  # with these codes Retry-After is ignored
        assert retry_after(status, header, NOW) == 0.0
