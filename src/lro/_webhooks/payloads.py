"""Events of webhooks, their ids, and their bodies in each format."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import attrs

from lro import Operation, OperationDescription
from lro._bridge import rfc3339
from lro.adapters import Endpoint
from lro.errors import EncodingError
from lro.types import TypeRegistry
from lro.wire import dumps, operation_to_json

MAX_BODY: Final = 20_000
"""The largest payload, in bytes (Standard Webhooks 1.0.0, "Payload size").

An event whose full payload is larger is sent without the operation.
"""

PING: Final = "ping"
"""The type of a ping, an event that only shows that an endpoint can be reached."""


@attrs.frozen
class WebhookEvent:
    """An event: its id (``webhook-id``), its type such as ``operation.failed``, and its time.

    The id is the same in every attempt to deliver the event, whichever process makes the attempt.
    """

    id: str
    type: str
    time: datetime


Format: TypeAlias = Callable[[Operation, Endpoint, WebhookEvent], tuple[str, bytes]]
"""A function of ``Webhooks(formats=...)`` that returns the content type and body of an event."""


def webhook_id(name: str, event: str, endpoint_id: str) -> str:
    """Return the id of an event; it is the same for the same operation, event and endpoint."""
    text = "\n".join((name, event, endpoint_id))  # no name has a line feed (spec §3.1(2))
    return f"op_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def ping(time: datetime) -> tuple[str, bytes]:
    """Return the content type and body of a ping."""
    return _JSON, dumps({"type": PING, "timestamp": rfc3339(time), "data": {}})


_JSON: Final = "application/json"


class Formats:
    """The built-in payload formats, for the operations of a service."""

    def __init__(self, types: TypeRegistry, domain: str) -> None:
        self._types = types
        self._domain = domain

    def standard(
        self, operation: Operation, endpoint: Endpoint, event: WebhookEvent
    ) -> tuple[str, bytes]:
        """Make a payload of Standard Webhooks 1.0.0: type, timestamp, data."""
        about = {"type": event.type, "timestamp": rfc3339(event.time)}
        return _JSON, self._with_data(about, operation, endpoint)

    def cloudevents(
        self, operation: Operation, endpoint: Endpoint, event: WebhookEvent
    ) -> tuple[str, bytes]:
        """Make a structured event of CloudEvents 1.0.2 in the JSON format."""
        about = {
            "specversion": "1.0",
            "id": event.id,
            "source": f"//{quote(self._domain, safe='')}/{quote(operation.name)}",
            "type": ".".join([*reversed(self._domain.split(".")), event.type]),
            "time": rfc3339(event.time),
            "datacontenttype": _JSON,
        }
        return "application/cloudevents+json", self._with_data(about, operation, endpoint)

    def _with_data(self, about: dict[str, Any], operation: Operation, endpoint: Endpoint) -> bytes:
        method = operation.description.method
        data: dict[str, Any] = {"name": operation.name, "method": method, "done": True}
        if endpoint.payload == "full":
            with contextlib.suppress(EncodingError):  # the message classes may be unknown here
                basic = attrs.evolve(operation, description=OperationDescription())
                shown = operation_to_json(basic, self._types)
                full = dumps({**about, "data": {**data, "operation": shown}})
                if len(full) <= MAX_BODY:
                    return full
        return dumps({**about, "data": data})
