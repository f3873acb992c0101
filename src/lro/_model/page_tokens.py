"""Page tokens: an encrypted place in the order of a list (spec §3.4).

A token is encrypted and authenticated with AES-SIV, which needs no nonce: this package uses no
randomness. Equal places have equal tokens, which reveals nothing that the pages do not show.
"""

from __future__ import annotations

import base64
import binascii
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import InvalidPageSize, InvalidPageToken, PageTokenExpired

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

DEFAULT_PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 1000
MAX_TOKEN: Final = 8192
"""Maximum length of a token, in characters; the token of the longest name is shorter."""

TOKEN_LIFE: Final = timedelta(days=3)
KEY_BYTES: Final = 64

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HEADER: Final = struct.Struct(">Bqq")
_VERSION: Final = 1
_MICROSECOND: Final = timedelta(microseconds=1)


@attrs.frozen(eq=False, repr=False)
class Cursor(ByFields):
    """A place in the order of lists: newest creation first, then by name (spec §3.4(2))."""

    create_time: datetime
    name: str


def effective_page_size(page_size: int) -> int:
    """Return the maximum number of operations in a page (spec §3.4(1)).

    Raises:
        InvalidPageSize: The size is negative.
    """
    if page_size < 0:
        raise InvalidPageSize("page_size", f"must not be negative, got {page_size}")
    return min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def encode_page_token(
    place: Cursor, *, key: bytes, parent: str, filter_text: str, now: datetime
) -> str:
    """Return the token of the place after which a list continues, bound to parent and filter."""
    header = _HEADER.pack(_VERSION, _micros(now), _micros(place.create_time))
    sealed = _cipher(key).encrypt(header + place.name.encode(), [_binding(parent, filter_text)])
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")


def decode_page_token(
    token: str, *, key: bytes, parent: str, filter_text: str, now: datetime
) -> Cursor:
    """Return the place in a token that :func:`encode_page_token` made.

    Raises:
        InvalidPageToken: The token was altered, or belongs to another list or service.
        PageTokenExpired: The token is older than three days.
    """
    from cryptography.exceptions import InvalidTag  # imported only when a token is read

    foreign = InvalidPageToken("page_token", "is not a token of this list")
    if len(token) > MAX_TOKEN:
        wanted = f"must have at most {MAX_TOKEN} characters, got {len(token)}"
        raise InvalidPageToken("page_token", wanted)
    try:
        if token != token.rstrip("=") or not token.isascii():
            raise foreign
        raw = token.encode("ascii").translate(bytes.maketrans(b"-_", b"+/"))
        sealed = binascii.a2b_base64(raw + b"=" * (-len(raw) % 4), strict_mode=True)
        if base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii") != token:
            raise foreign  # a different base64 text for the same bytes
        plain = _cipher(key).decrypt(sealed, [_binding(parent, filter_text)])
    except (ValueError, InvalidTag):
        raise foreign from None
    version, issued, created = _HEADER.unpack_from(plain)
    if version != _VERSION:
        raise foreign
    if now - _moment(issued) > TOKEN_LIFE:
        raise PageTokenExpired("page_token", f"is older than {TOKEN_LIFE.days} days")
    return Cursor(_moment(created), plain[_HEADER.size :].decode())


def _cipher(key: bytes) -> AESSIV:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    return AESSIV(key)


def _binding(parent: str, filter_text: str) -> bytes:
    import hashlib

    return hashlib.sha256(f"{len(parent)}:{parent}{filter_text}".encode()).digest()


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
