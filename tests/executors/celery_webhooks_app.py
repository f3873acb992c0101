"""The application of :mod:`tests.executors.celery_app`, whose ends are notified to a URL."""

from __future__ import annotations

import os

from lro.webhooks import Endpoint, Webhooks
from tests.executors.celery_app import SETTINGS, build

URL = "LRO_TEST_WEBHOOK"
"""The environment variable that a worker finds the URL of the receiver in."""


def webhooks(url: str) -> Webhooks:
    """What notifies this URL."""
    endpoint = Endpoint(url=url, secrets=("whsec_" + "c2VjcmV0" * 4,))
    return Webhooks([endpoint], allow_private=True, allow_http=True, ports=None)


if SETTINGS in os.environ:
    app, service = build(*os.environ[SETTINGS].split("|"), webhooks=webhooks(os.environ[URL]))
