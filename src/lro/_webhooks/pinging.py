"""Pings: events without content, which show if an endpoint can be reached."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from lro._webhooks.delivery import signed_headers
from lro._webhooks.endpoints import EndpointRules
from lro._webhooks.payloads import ping
from lro._webhooks.transport import WebhookReply, WebhookTransport
from lro.adapters import Endpoint

_HINT = "--private allows it"


def send_ping(url: str, given: tuple[str, ...], *, private: bool, timeout: float) -> WebhookReply:
    """Send a ping signed with these secrets, as a service would, and return the reply.

    ``private`` allows any address and port, and http.

    Raises:
        InvalidArgument: The URL or a secret cannot be used.
    """
    ports = None if private else frozenset({443})
    rules = EndpointRules(
        allow_private=private, allow_http=private, ports=ports, hints=(_HINT, _HINT, _HINT)
    )
    endpoint = rules.checked("ping", Endpoint(url=url, secrets=given))
    now = datetime.now(UTC)
    content_type, body = ping(now)
    id = f"ping_{secrets.token_hex(16)}"
    transport = WebhookTransport(timeout=timeout, allow_private=private)
    try:
        return transport.send(
            url, signed_headers(id, now, content_type, body, endpoint.secrets), body
        )
    finally:
        transport.close()
