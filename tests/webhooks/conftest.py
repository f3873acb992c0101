"""Fixtures of the webhook tests."""

from __future__ import annotations

import pytest

from lro.testing import ManualClock
from tests.service_fixtures import MakeService
from tests.webhooks.hooked import Here


@pytest.fixture
def here(clock: ManualClock, make_service: MakeService) -> Here:
    """Return a factory of services with webhooks, which use the test's clock."""
    return Here(clock, make_service)
