"""Signatures of webhooks, as Standard Webhooks 1.0.0 has them, symmetric (``v1``).

What is signed is the id, the moment of the attempt and the raw body; of a body that was read and
written again the signature is another. The key is what the secret has in base64 after its prefix.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from lro._base.errors import DeclarationError, WebhookError

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
WEBHOOK_HEADERS: Final = (ID, TIMESTAMP, SIGNATURE)

TOLERANCE_SECONDS: Final = 300.0
"""By how much the clocks of sender and receiver may differ."""

_PREFIX: Final = "whsec_"
_VERSION: Final = "v1"
_MAX_SIGNATURES: Final = 100


@attrs.frozen
class SignedWebhook:
    """A webhook whose signature is right: its id, and when it was sent, in Unix seconds."""

    id: str
    timestamp: int


def webhook_key(secret: str) -> bytes:
    """The key of a secret, which is base64 after ``whsec_``; padding may be missing.

    White space around it does not count: files end with a newline.

    Raises:
        DeclarationError: It is not base64, or empty. The sentence does not show it.
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
    """The value of ``webhook-signature``: one signature by each secret, separated by spaces.

    ``timestamp`` is the moment of this attempt in Unix seconds, and goes into
    ``webhook-timestamp``; ``id`` into ``webhook-id``.

    Raises:
        DeclarationError: A secret is not one.
        WebhookError: The id has a full stop, which stands between the parts that are signed.
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
    """Check that a webhook was signed with one of these secrets, not long ago.

    ``body`` is what came, before it is read as JSON. Signatures of unknown versions are passed
    over. ``now`` is in Unix seconds, ``tolerance`` in seconds.

    Raises:
        DeclarationError: A secret is not one, none is given, or a header is not a text.
        WebhookError: A header is missing, no signature is right, or the moment of the attempt is
            further from ``now`` than the tolerance: it may be an old one that is sent again.
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
            for one in wanted:  # all are compared, whichever fits
                fine |= hmac.compare_digest(one, given_one)
    if not fine:
        raise WebhookError("no signature in it is right")
    timestamp = int(sent)
    if abs(now - timestamp) > tolerance:
        text = f"it was sent {now - timestamp:+.0f} s ago, at most {tolerance:g} s are allowed"
        raise WebhookError(text)
    return SignedWebhook(webhook_id, timestamp)
