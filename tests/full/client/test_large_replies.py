"""Deadlines are hard also where replies are large (spec §11.4)."""

from __future__ import annotations

import pytest

from tests.client.test_deadlines import LARGE, check_deadline


@pytest.mark.parametrize("scenario", LARGE)
def test_no_large_reply_outlasts_the_deadline(scenario: str) -> None:
    """For one operation and for many, by both faces."""
    check_deadline("http", scenario)
