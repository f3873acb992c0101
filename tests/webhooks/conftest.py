"""What the tests of webhooks have in common."""

from __future__ import annotations

import pytest

from lro.testing import ManualClock
from tests.service_fixtures import MakeService
from tests.webhooks.hooked import Here


@pytest.fixture
def here(clock: ManualClock, make_service: MakeService) -> Here:
    """Makes services with webhooks, over the clock of the test."""
    return Here(clock, make_service)
