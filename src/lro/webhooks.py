"""Webhooks notify receivers when operations end (Standard Webhooks 1.0.0).

Pass a :class:`Webhooks` to a service: it sends events to each :class:`Endpoint`. Receivers check
events with :mod:`lro_client.webhooks`, or with any library for Standard Webhooks. :func:`sign`
makes signatures, and :func:`verify` checks them, without sending anything.
"""

from __future__ import annotations

import base64
import secrets
from typing import Final

from lro._webhooks.options import EndpointDisabled
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
    """Return a new secret for an endpoint: ``whsec_``, and 32 random bytes in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode("ascii")
