"""Symmetric signatures of webhooks (``v1`` of Standard Webhooks 1.0.0).

The signature covers the id, the time of the attempt and the raw body. A body that was parsed and
serialized again may not fit the signature. The key is the base64 text after the prefix of the
secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError, WebhookError

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
WEBHOOK_HEADERS: Final = (ID, TIMESTAMP, SIGNATURE)

TOLERANCE_SECONDS: Final = 300.0
"""Maximum difference between the clocks of sender and receiver, in seconds."""

_PREFIX: Final = "whsec_"
_VERSION: Final = "v1"
_MAX_SIGNATURES: Final = 100


@attrs.frozen(eq=False, repr=False)
class SignedWebhook(ByFields):
    """A webhook with a valid signature: its id, and when it was sent, in Unix seconds."""

    id: str
    timestamp: int


def webhook_key(secret: str) -> bytes:
    """Return the key of a secret, which is base64 after ``whsec_``, with or without padding.

    White space around the secret is ignored, because files end with a newline.

    Raises:
        DeclarationError: The secret is empty or not base64. The error does not show the secret.
    """
    if not isinstance(secret, str):
        raise DeclarationError("secret", f"must be a text, got {type(secret)}")
    text = secret.strip().removeprefix(_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        raise DeclarationError("secret", "must be base64, after whsec_") from None
    if not key:
        raise DeclarationError("secret", "must not be empty")
    return key


def sign_webhook(body: bytes, *, id: str, timestamp: int, secrets: Sequence[str]) -> str:
    """Return the value of ``webhook-signature``: one signature per secret, separated by spaces.

    ``id`` is the value of the header ``webhook-id``. ``timestamp`` is the value of
    ``webhook-timestamp``, which is the time of this attempt in Unix seconds.

    Raises:
        DeclarationError: A secret is not valid.
        WebhookError: The id has a full stop, which separates the signed parts.
    """
    if "." in id:
        raise WebhookError(f"the id {id!r} must not have a full stop")
    signed = f"{id}.{timestamp}.".encode() + body
    return " ".join(f"{_VERSION},{_signature(webhook_key(one), signed)}" for one in secrets)


def _signature(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode("ascii")


def verify_webhook(
    body: bytes,
    headers: Mapping[str, str],
    secrets: Sequence[str],
    *,
    now: float,
    tolerance: float = TOLERANCE_SECONDS,
) -> SignedWebhook:
    """Check that a webhook was recently signed with one of these secrets.

    ``body`` is the raw body. Signatures of unknown versions are ignored. ``now`` is in Unix
    seconds, ``tolerance`` in seconds.

    Raises:
        DeclarationError: A secret is not valid, none is given, or a header is not a text.
        WebhookError: A header is missing, no signature is valid, or the time of the attempt differs
            from ``now`` by more than the tolerance, as in a replay.
    """
    keys = [webhook_key(one) for one in secrets]
    if not keys:
        raise DeclarationError("secret", "must be given, or every webhook is refused")
    given = {str(name).lower(): value for name, value in headers.items()}
    found = [given.get(name, "") for name in WEBHOOK_HEADERS]
    if not all(isinstance(text, str) for text in (*headers, *found)):
        raise DeclarationError("headers", "must be a mapping of texts")
    for name, value in zip(WEBHOOK_HEADERS, found, strict=True):
        if not value:
            raise WebhookError(f"it has no header {name}")
    webhook_id, sent, signatures = found
    if not (sent.isascii() and sent.isdigit() and len(sent) <= 15):
        raise WebhookError(f"{TIMESTAMP} must be Unix seconds")
    signed = f"{webhook_id}.{sent}.".encode("utf-8", "surrogateescape") + body
    wanted = [_signature(key, signed).encode() for key in keys]
    fine = False
    for each in signatures.split(" ")[:_MAX_SIGNATURES]:
        version, _, signature = each.partition(",")
        if version == _VERSION:
            given_one = signature.encode("utf-8", "surrogateescape")
            for one in wanted:  # the loop has no early exit, so its time does not reveal a match
                fine |= hmac.compare_digest(one, given_one)
    if not fine:
        raise WebhookError("no signature in it is right")
    timestamp = int(sent)
    if abs(now - timestamp) > tolerance:
        text = f"it was sent {now - timestamp:+.0f} s ago, at most {tolerance:g} s are allowed"
        raise WebhookError(text)
    return SignedWebhook(webhook_id, timestamp)
