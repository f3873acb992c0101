"""authenticate: RFC 8032 signatures of the file and of its pixels, and the keys that anyone
can sign for."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from examples.analysis.messages import AuthenticateRequest, AuthenticateResponse, Image, Scope
from examples.analysis.verbs.authenticate import SMALL_ORDER, STAGES, check
from lro import InvalidArgument
from tests.full.examples.conftest import Recorder, answer, encoded, levels, opened, saved

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


def test_known_signature_of_the_file_is_authentic() -> None:
    """The published signature of camera.png, which OpenSSL accepts too, is authentic."""
    assert KEY == SIGNER.public_key().public_bytes_raw()
    assert SIGNATURE == SIGNER.sign(CAMERA)
    assert len(CAMERA) == 139_512
    found = answer(request())
    assert found.authentic
    assert found.key_index == 0
    assert found.key_fingerprint == hashlib.sha256(KEY).hexdigest()
    assert found.key_fingerprint.startswith("56475aa7")
    assert found.payload_sha256.startswith("b0793d2a")
    assert (found.image_width, found.image_height, found.scale) == (512, 512, 1.0)


def test_signature_of_no_listed_key_is_not_authentic() -> None:
    """If no listed key matches, the response has only the digest and the size."""
    found = answer(request(public_keys=(OTHER,)))
    assert found == AuthenticateResponse(
        payload_sha256=hashlib.sha256(CAMERA).hexdigest(), image_width=512, image_height=512
    )
    assert (found.key_index, found.key_fingerprint) == (None, None)


@given(place=st.integers(0, 511), of_file=st.booleans())
def test_signature_or_file_with_a_flipped_bit_is_not_authentic(place: int, of_file: bool) -> None:
    """After one bit of the signature or the file is flipped, the picture is not authentic."""
    changed = bytearray(CAMERA if of_file else SIGNATURE)
    changed[-1 - place // 8 - 100 * of_file] ^= 1 << place % 8
    given = {"content" if of_file else "signature": bytes(changed)}
    assert not answer(request(**given)).authentic


@given(seed=st.binary(min_size=32, max_size=32), bit=st.integers(0, 255))
def test_signature_of_any_key_holds_for_it_alone(seed: bytes, bit: int) -> None:
    """A signature by any key is valid for that key, but not for the key with one bit flipped."""
    signer = Ed25519PrivateKey.from_private_bytes(seed)
    key = signer.public_key().public_bytes_raw()
    changed = bytearray(key)
    changed[bit // 8] ^= 1 << bit % 8
    found = answer(request(signature=signer.sign(CAMERA), public_keys=(bytes(changed), key)))
    assert (found.authentic, found.key_index) == (True, 1)


def test_signature_of_pixels_covers_size_and_rgb_bytes() -> None:
    """With scope PIXELS, the signature covers the picture's size and RGB bytes."""
    found = answer(request(signature=PIXELS_SIGNATURE, scope=Scope.PIXELS))
    assert (found.authentic, found.payload_sha256) == (True, PIXELS_SHA256)


@pytest.mark.parametrize(
    ("form", "options"), [("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})]
)
def test_lossless_re_encoding_keeps_pixels_but_not_content_authentic(
    form: str, options: dict[str, object]
) -> None:
    """After lossless re-encoding, the pixels are still authentic, but the file's content is not."""
    content = saved(opened("camera.png"), form, **options).content
    found = answer(request(content, PIXELS_SIGNATURE, scope=Scope.PIXELS))
    assert (found.authentic, found.payload_sha256) == (True, PIXELS_SHA256)
    assert not answer(request(content)).authentic


def test_changed_pixels_are_not_authentic() -> None:
    """A JPEG copy is not authentic, nor is a copy in which one pixel differs by one level."""
    changed = levels("camera.png")
    changed[300, 200] ^= 1
    for image in (saved(opened("camera.png"), "JPEG"), saved(changed)):
        assert not answer(request(image.content, PIXELS_SIGNATURE, scope=Scope.PIXELS)).authentic
        assert not answer(request(image.content)).authentic


@pytest.mark.parametrize("sign_bit", [0, 0x80])
@pytest.mark.parametrize("key", sorted(SMALL_ORDER))
def test_keys_of_small_order_are_refused(key: bytes, sign_bit: int) -> None:
    """All seven keys of small order are refused, with either sign bit, anywhere in the list."""
    key = key[:-1] + bytes([key[-1] | sign_bit])
    with pytest.raises(InvalidArgument, match="small order") as error:
        check(request(public_keys=(KEY, key)))
    assert error.value.field == "public_keys[1]"


@pytest.mark.parametrize("keys", [(KEY, OTHER, OTHER), (OTHER,) * 15 + (KEY,), (OTHER,)])
def test_progress_has_a_unit_for_each_key(keys: tuple[bytes, ...]) -> None:
    """Each key is one unit of progress, whichever key has signed."""
    progress = Recorder()
    found = answer(request(public_keys=keys), progress)
    assert found.key_index == (keys.index(KEY) if KEY in keys else None)
    assert progress.stages == ["DECODING", *STAGES]
    assert progress.units("VERIFYING") == (len(keys), len(keys))
