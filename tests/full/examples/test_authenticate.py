"""authenticate: RFC 8032 signatures of the file and of its pixels, and the keys that anyone
can sign for."""

from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import PIL.Image
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from examples.analysis.messages import AuthenticateRequest, AuthenticateResponse, Image, Scope
from examples.analysis.verbs.authenticate import SMALL_ORDER, STAGES, authenticate, check
from lro import InvalidArgument
from tests.full.examples.conftest import (
    Recorder,
    encoded,
    levels,
    opened,
    saved,
    through_json,
)

CAMERA = encoded("camera.png").content
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY = bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
SIGNATURE = bytes.fromhex(
    "ff2add349a06eac7efee47d2a8104a59de882a9b905ceaf4d88613c8e5bcdf6a"
    "93f96d6d26f016b1a20df5bd7738895ecd323bdfb55820a59aca81099c81f306"
)
PIXELS_SHA256 = "a44a6314cf8a57d7e7d6102f37c96b25263843bb4cb6812994445fa472c5af56"
PIXELS_SIGNATURE = SIGNER.sign(b"512x512 RGB8\n" + opened("camera.png").convert("RGB").tobytes())


def request(
    content: bytes = CAMERA,
    signature: bytes = SIGNATURE,
    public_keys: tuple[bytes, ...] = (KEY,),
    scope: Scope = Scope.CONTENT,
) -> AuthenticateRequest:
    return AuthenticateRequest(
        image=Image(content=content), signature=signature, public_keys=public_keys, scope=scope
    )


def run(asked: AuthenticateRequest, progress: Recorder | None = None) -> AuthenticateResponse:
    check(asked)
    found = authenticate(asked, progress or Recorder())
    assert through_json(found) == found  # and no number in it is NaN or infinite
    return found


def test_the_known_signature_of_the_file() -> None:
    """The published seed, key and signature of camera.png, which OpenSSL accepts too."""
    assert KEY == SIGNER.public_key().public_bytes_raw()
    assert SIGNATURE == SIGNER.sign(CAMERA)
    assert len(CAMERA) == 139_512
    found = run(request())
    assert found.authentic
    assert found.key_index == 0
    assert found.key_fingerprint == hashlib.sha256(KEY).hexdigest()
    assert found.key_fingerprint.startswith("56475aa7")
    assert found.payload_sha256.startswith("b0793d2a")
    assert (found.image_width, found.image_height, found.scale) == (512, 512, 1.0)


def test_the_second_key_signed() -> None:
    """The index is that of the key for which the signature holds."""
    found = run(request(public_keys=(OTHER, KEY, OTHER)))
    assert (found.authentic, found.key_index) == (True, 1)


def test_signature_of_no_listed_key_is_not_authentic() -> None:
    """No key holds: a normal response, without index and fingerprint, but with the digest."""
    found = run(request(public_keys=(OTHER,)))
    assert found == AuthenticateResponse(
        payload_sha256=hashlib.sha256(CAMERA).hexdigest(), image_width=512, image_height=512
    )
    assert (found.key_index, found.key_fingerprint) == (None, None)


@pytest.mark.parametrize("place", [0, 31, 32, 63])
def test_one_bit_of_the_signature(place: int) -> None:
    """A signature with one bit flipped is not authentic."""
    flipped = bytearray(SIGNATURE)
    flipped[place] ^= 1
    assert not run(request(signature=bytes(flipped))).authentic


def test_one_bit_of_the_file() -> None:
    """A file with one bit flipped is not authentic, and CONTENT does not even decode it."""
    flipped = bytearray(CAMERA)
    flipped[100_000] ^= 1
    assert not run(request(content=bytes(flipped))).authentic


@given(seed=st.binary(min_size=32, max_size=32), bit=st.integers(0, 255))
def test_signature_of_any_key_holds_for_it_alone(seed: bytes, bit: int) -> None:
    """Any key's own signature holds; the same key with one bit flipped does not."""
    signer = Ed25519PrivateKey.from_private_bytes(seed)
    key = signer.public_key().public_bytes_raw()
    changed = bytearray(key)
    changed[bit // 8] ^= 1 << bit % 8
    found = run(request(signature=signer.sign(CAMERA), public_keys=(bytes(changed), key)))
    assert (found.authentic, found.key_index) == (True, 1)


def test_the_known_payload_of_the_pixels() -> None:
    """PIXELS signs the size and the RGB bytes."""
    found = run(request(signature=PIXELS_SIGNATURE, scope=Scope.PIXELS))
    assert (found.authentic, found.payload_sha256) == (True, PIXELS_SHA256)


@pytest.mark.parametrize(
    ("form", "options"), [("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})]
)
def test_lossless_re_encoding(form: str, options: dict[str, object]) -> None:
    """The pixels stay authentic in another lossless file, the content does not."""
    content = saved(opened("camera.png"), form, **options).content
    found = run(request(content, PIXELS_SIGNATURE, scope=Scope.PIXELS))
    assert (found.authentic, found.payload_sha256) == (True, PIXELS_SHA256)
    assert not run(request(content)).authentic


def test_lossy_re_encoding() -> None:
    """A JPEG of the picture has other pixels."""
    content = saved(opened("camera.png"), "JPEG").content
    assert not run(request(content, PIXELS_SIGNATURE, scope=Scope.PIXELS)).authentic
    assert not run(request(content)).authentic


def test_the_lowest_bit_of_one_pixel() -> None:
    """One pixel, one grey level off: not authentic in either scope."""
    changed = levels("camera.png")
    changed[300, 200] ^= 1
    content = saved(changed).content
    assert not run(request(content, PIXELS_SIGNATURE, scope=Scope.PIXELS)).authentic
    assert not run(request(content)).authentic


def test_the_pixels_are_upright() -> None:
    """PIXELS is of the picture as it is seen, whichever way the file stores it."""
    picture = PIL.Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30).astype(np.uint8))
    exif = PIL.Image.Exif()
    exif[274] = 6  # turned clockwise when shown
    content = saved(picture.transpose(PIL.Image.Transpose.ROTATE_90), exif=exif).content
    payload = b"30x20 RGB8\n" + picture.convert("RGB").tobytes()
    found = run(request(content, SIGNER.sign(payload), scope=Scope.PIXELS))
    assert found.authentic
    assert (found.image_width, found.image_height) == (30, 20)


@pytest.mark.parametrize("sign_bit", [0, 0x80])
@pytest.mark.parametrize("key", sorted(SMALL_ORDER))
def test_keys_of_small_order_are_refused(key: bytes, sign_bit: int) -> None:
    """All seven points, with either sign of x, and wherever they stand in the list."""
    key = key[:-1] + bytes([key[-1] | sign_bit])
    with pytest.raises(InvalidArgument, match="small order") as error:
        check(request(public_keys=(KEY, key)))
    assert error.value.field == "public_keys[1]"


@pytest.mark.parametrize("key", sorted(SMALL_ORDER))
def test_anyone_can_sign_for_keys_of_small_order(key: bytes) -> None:
    """Why they are refused: no secret, a few tries, and OpenSSL takes the signature.

    With s = 0 a signature (R, s) holds when R = -kA, and A has at most 8 multiples.
    """
    points = [p[:-1] + bytes([p[-1] | sign]) for p, sign in product(SMALL_ORDER, (0, 0x80))]
    forged = 0
    for point, picture in product(points, range(16)):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(point + bytes(32), bytes([picture]))
        except InvalidSignature:
            continue
        forged += 1
    assert forged


def test_one_key_and_signature_for_every_picture() -> None:
    """The neutral point as key and as R: without the check it would sign any picture."""
    point = b"\x01" + bytes(31)
    forged = request(signature=point + bytes(32), public_keys=(point,))
    assert authenticate(forged, Recorder()).authentic
    with pytest.raises(InvalidArgument):
        check(forged)


def test_sixteen_keys_are_allowed() -> None:
    """The last of the most keys that are taken."""
    assert run(request(public_keys=(OTHER,) * 15 + (KEY,))).key_index == 15


@pytest.mark.parametrize("keys", [(KEY, OTHER, OTHER), (OTHER, OTHER, KEY), (OTHER, OTHER, OTHER)])
def test_a_unit_for_each_key(keys: tuple[bytes, ...]) -> None:
    """The units add up whichever key signed."""
    progress = Recorder()
    run(request(public_keys=keys), progress)
    assert progress.calls[:5] == [("DECODING", 1), 1, (STAGES[0], 1), 1, (STAGES[1], 3)]
    assert sum(units for units in progress.calls[5:] if isinstance(units, int)) == 3
