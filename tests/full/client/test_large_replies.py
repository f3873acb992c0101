"""A wait ends at its deadline even if replies are large (spec §11.4)."""

from __future__ import annotations

import pytest

from tests.client.test_deadlines import LARGE, check_deadline


@pytest.mark.parametrize("scenario", LARGE)
def test_deadline_holds_despite_large_replies(scenario: str) -> None:
    """A wait for an operation or a group keeps its deadline, in the blocking and async client."""
    check_deadline("http", scenario)
