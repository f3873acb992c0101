"""authenticate: was exactly this picture signed by one of these Ed25519 keys (RFC 8032)?"""

from __future__ import annotations

import hashlib
from typing import Final

import PIL.Image
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from examples.analysis.messages import AuthenticateRequest, AuthenticateResponse, Scope
from examples.analysis.pictures import MAX_PIXELS, check_header, decode
from examples.analysis.progress import DECODING, Progress
from lro import InvalidArgument

HASHING: Final = "HASHING"
VERIFYING: Final = "VERIFYING"
STAGES: Final[tuple[str, ...]] = (HASHING, VERIFYING)

MIN_SIDE: Final = 1
LONGEST: Final = MAX_PIXELS
"""Longest side of the working copy; no picture has a longer side, so the original is used."""

SIGNATURE_BYTES: Final = 64
KEY_BYTES: Final = 32
MAX_KEYS: Final = 16
SMALL_ORDER: Final = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""Points of order 1, 2, 4 and 8, with the sign of x cleared. OpenSSL accepts them as keys, although
anyone can sign any picture for such a key."""


def check(request: AuthenticateRequest) -> None:
    check_header(request.image, "image", min_side=MIN_SIDE, longest=LONGEST)
    if len(request.signature) != SIGNATURE_BYTES:
        raise InvalidArgument(
            "signature", f"must have {SIGNATURE_BYTES} bytes, got {len(request.signature)}"
        )
    if not 1 <= len(request.public_keys) <= MAX_KEYS:
        raise InvalidArgument(
            "public_keys",
            f"must have from 1 to {MAX_KEYS} elements, got {len(request.public_keys)}",
        )
    for index, key in enumerate(request.public_keys):
        if len(key) != KEY_BYTES:
            raise InvalidArgument(
                f"public_keys[{index}]", f"must have {KEY_BYTES} bytes, got {len(key)}"
            )
        if key[:-1] + bytes([key[-1] & 0x7F]) in SMALL_ORDER:
            raise InvalidArgument(
                f"public_keys[{index}]",
                f"is a point of small order, for which anyone can sign: {key.hex()}",
            )


def authenticate(request: AuthenticateRequest, progress: Progress) -> AuthenticateResponse:
    """Find the first key for which the signature of the picture is valid.

    With CONTENT no pixel is decoded, because the bytes of the file were signed."""
    progress.stage(DECODING, 1)
    header = check_header(request.image, "image", min_side=MIN_SIDE, longest=LONGEST)
    content = request.image.content if request.image is not None else b""
    if request.scope is Scope.PIXELS:
        content = pixel_payload(decode(request.image, "image"))
    progress.step()
    progress.stage(HASHING, 1)
    digest = hashlib.sha256(content).hexdigest()
    progress.step()
    index = _first_signer(request, content, progress)
    key = None if index is None else request.public_keys[index]
    return AuthenticateResponse(
        authentic=key is not None,
        key_index=index,
        key_fingerprint=None if key is None else hashlib.sha256(key).hexdigest(),
        payload_sha256=digest,
        image_width=header.width,
        image_height=header.height,
    )


def pixel_payload(picture: PIL.Image.Image) -> bytes:
    """Return the signed bytes for PIXELS: ``<w>x<h> RGB8``, a newline, then RGB row by row.

    These bytes survive lossless re-encoding. For a JPEG they depend on the decoder.
    """
    return b"%dx%d RGB8\n" % picture.size + picture.convert("RGB").tobytes()


def _first_signer(request: AuthenticateRequest, payload: bytes, progress: Progress) -> int | None:
    keys = request.public_keys
    progress.stage(VERIFYING, len(keys))
    for index, key in enumerate(keys):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(request.signature, payload)
        except InvalidSignature:
            progress.step()
        else:
            progress.step(len(keys) - index)
            return index
    return None
