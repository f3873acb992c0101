"""Webhooks: others are notified when operations end, by Standard Webhooks 1.0.0.

:class:`Webhooks` is given to the service, an :class:`Endpoint` is where it sends to. Receivers
check what comes with ``verify`` of any library of Standard Webhooks, or of
:mod:`lro_client.webhooks`; :func:`sign` and :func:`verify` are the signatures alone.
"""

from __future__ import annotations

import base64
import secrets
from typing import Final

from lro._webhooks.delivery import EndpointDisabled
from lro._webhooks.payloads import Format, WebhookEvent
from lro._webhooks.schedule import SCHEDULE
from lro._webhooks.service_webhooks import Webhooks
from lro.adapters import EVENTS, Endpoint
from lro.errors import WebhookError
from lro.wire import SignedWebhook
from lro.wire import sign_webhook as sign
from lro.wire import verify_webhook as verify

__all__ = [
    "EVENTS",
    "SCHEDULE",
    "Endpoint",
    "EndpointDisabled",
    "Format",
    "SignedWebhook",
    "WebhookError",
    "WebhookEvent",
    "Webhooks",
    "generate_secret",
    "sign",
    "verify",
]

_SECRET_BYTES: Final = 32


def generate_secret() -> str:
    """A new secret for an endpoint: ``whsec_``, and 32 random bytes in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode("ascii")
