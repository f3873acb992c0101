"""Check and read the webhooks that a service of ``lro`` sends when operations end.

:func:`verify` returns a webhook's content if the webhook is genuine::

    event = verify(body, headers, secret)
    operation = client.operation(event.name)

The same event may arrive more than once, always with the same ``id``. You need not use the event's
data: you can read the operation instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

from lro import Operation, TypeRegistry
from lro.errors import InvalidArgument, WebhookError
from lro.wire import loads, operation_from_json, parse_name, verify_webhook
from lro_client._errors import check

__all__ = ["TOLERANCE", "ReceivedWebhook", "WebhookError", "verify"]

TOLERANCE: Final = timedelta(minutes=5)
"""Maximum difference between the time when a webhook was sent and the current time."""

_PING: Final = "ping"
_OPERATION: Final = "operation"


@attrs.frozen(kw_only=True)
class ReceivedWebhook:
    """A genuine webhook.

    ``id`` is the same each time that the event is sent. ``type`` is ``operation.succeeded``,
    ``operation.failed``, ``operation.cancelled``, or ``ping``, which only tests the delivery and
    has no ``name``. ``timestamp`` is the time of the event. ``name`` is the operation's name, and
    ``method`` is its method. ``operation`` is the operation itself, if the sender adds it
    (``payload="full"``). ``data`` is the payload's member ``data``.
    """

    id: str
    type: str
    timestamp: datetime
    name: str = ""
    method: str = ""
    operation: Operation | None = None
    data: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance: timedelta = TOLERANCE,
    types: TypeRegistry | None = None,
    clock: Callable[[], float] = time.time,
) -> ReceivedWebhook:
    """Check a webhook, in the format of Standard Webhooks or CloudEvents, and read it.

    ``body`` is the exact bytes that were received: parsing and writing the JSON again changes them.
    ``headers`` is a mapping of strings, with names in any letter case. ``secret`` is the endpoint's
    secret. While you replace the secret, pass several secrets, one of which must match. ``types``
    are the operation's message classes. ``clock`` returns the time in Unix seconds.

    Raises:
        DeclarationError: The secret is not valid, or the body or the headers have a wrong type.
            This is a mistake in the receiver's code.
        WebhookError: The webhook was not signed with this secret, was sent too long ago or in the
            future, or cannot be read. Answer 401 or 400.
    """
    check("body", type(body), "bytes", fine=isinstance(body, bytes | bytearray | memoryview))
    check("headers", type(headers), "a mapping of texts", fine=isinstance(headers, Mapping))
    body = bytes(body)
    many = isinstance(secret, Iterable) and not isinstance(secret, bytes)
    check("secret", type(secret), "a text or several", fine=many)
    secrets = (secret,) if isinstance(secret, str) else tuple(secret)
    signed = verify_webhook(
        body, headers, secrets, now=clock(), tolerance=tolerance.total_seconds()
    )
    try:
        payload = loads(body)
        if not isinstance(payload, dict):
            raise ValueError("it is not an object")
        return _read(signed.id, payload, types or TypeRegistry())
    except (ValueError, OverflowError, InvalidArgument) as exc:  # OverflowError: UTC out of range
        raise WebhookError(f"its body cannot be read: {exc}") from exc


def _read(id: str, payload: Mapping[str, Any], types: TypeRegistry) -> ReceivedWebhook:
    kind, when = _text(payload, "type"), payload.get("timestamp")
    if "specversion" in payload:  # CloudEvents: the type begins with a reversed domain
        kind, when = ".".join(kind.split(".")[-2:]), payload.get("time")
    data = payload.get("data")
    if not isinstance(data, dict):
        raise ValueError("its data is not an object")
    if not isinstance(when, str):
        raise ValueError("it does not say when")
    moment = datetime.fromisoformat(when)
    if moment.tzinfo is None:
        raise ValueError("its time has no zone")
    name = "" if kind == _PING else str(parse_name(_text(data, "name")))
    shown = data.get(_OPERATION)
    return ReceivedWebhook(
        id=id,
        type=kind,
        timestamp=moment.astimezone(UTC),
        name=name,
        method=_text(data, "method") if "method" in data else "",
        operation=None if shown is None else operation_from_json(shown, types),
        data=data,
    )


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise ValueError(f"its {key} is not a text")
    return found
