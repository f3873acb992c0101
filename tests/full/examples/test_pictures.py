"""From files to pixels: limits checked by the header, decoding, frames and the working copy."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFile

from examples.analysis import pictures
from examples.analysis.messages import Image
from examples.analysis.pictures import (
    MAX_BYTES,
    array,
    check_header,
    count_frames,
    decode,
    frames,
    grey,
    is_animated,
    original_box,
    working_copy,
    working_size,
)
from tests.full.examples.conftest import (
    encoded,
    film,
    flat,
    levels,
    opened,
    oriented,
    refused,
    saved,
)

FORMATS = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "GIF": "image/gif",
    "TIFF": "image/tiff",
    "WEBP": "image/webp",
    "BMP": "image/bmp",
}


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the decoding of any pixel fail."""

    def refuse(_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)


def checked(image: Image | None, min_side: int = 1, longest: int = 2048) -> pictures.Header:
    return check_header(image, "image", min_side=min_side, longest=longest)


def chunk(name: bytes, data: bytes) -> bytes:
    """Return a PNG chunk with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def halved(image: Image) -> Image:
    return Image(content=image.content[: len(image.content) // 2])


# --- the header ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "mime_type"), FORMATS.items())
def test_size_and_type_are_read_from_the_header_of_each_format(
    form: str, mime_type: str, no_decoding: None
) -> None:
    """Size and type are found in the header of all six formats, without decoding."""
    header = checked(saved(PIL.Image.new("RGB", (40, 30)), form))
    assert (header.format, header.mime_type) == (form, mime_type)
    assert (header.width, header.height) == (40, 30)


def zipped_text() -> bytes:
    """Return a PNG with a compressed text of 80 MB, for which Pillow raises a ValueError."""
    content = flat(30, 30).content
    end_of_header = content.index(b"IDAT") - 4
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(80_000_000), 9))
    return content[:end_of_header] + text + content[end_of_header:]


def bomb(side: int) -> bytes:
    """Return a small PNG whose header claims a large size."""
    size = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def deep(mode: str) -> bytes:
    """Return a TIFF in a mode in which Pillow would silently turn the picture black."""
    return saved(PIL.Image.new(mode, (30, 30)), "TIFF").content


UNREADABLE = "is not a readable PNG, JPEG, GIF, TIFF, WEBP or BMP picture"
REFUSED = [
    (b"", "must have from 1 to 8,388,608 bytes, got 0"),
    (bytes(MAX_BYTES + 1), "must have from 1 to 8,388,608 bytes, got 8,388,609"),
    (b"just some text", UNREADABLE),
    (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", UNREADABLE),
    (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", UNREADABLE),
    (b"P5 64 64 255\n" + bytes(64 * 64), UNREADABLE),
    (b"\x89PNG\r\n\x1a\n", UNREADABLE),
    (encoded("multipage_rgb.tif").content, UNREADABLE),
    (zipped_text(), UNREADABLE),
    (flat(4000, 4001, "1").content, "must have at most 16,000,000 pixels, got 4000 x 4001"),
    (bomb(10_000), "must have at most 16,000,000 pixels"),  # Pillow warns of this size
    (bomb(14_000), "must have at most 16,000,000 pixels"),  # Pillow raises an exception for it
    (flat(401, 20).content, "must have sides of at most 20 : 1, got 401 x 20"),
    (deep("F"), "has pixels of 32 bits (mode F)"),
    (deep("I"), "has pixels of 32 bits (mode I)"),
    (flat(1, 9).content, "must have sides of at least 8 pixels, got 1 x 9"),
    (flat(180, 9).content, "must have sides of at least 8 pixels, got 180 x 9, 4 at work"),
]


@pytest.mark.parametrize(("content", "description"), REFUSED)
def test_picture_outside_the_limits_is_refused_by_its_header(
    content: bytes, description: str, no_decoding: None
) -> None:
    """A picture beyond a limit raises our error, not Pillow's.

    The limit on short sides applies to the shrunk copy.
    """
    error = refused(lambda: checked(Image(content=content), min_side=8, longest=80))
    assert error.field == "image.content"
    assert error.description.startswith(description)


@pytest.mark.parametrize("size", [(4000, 4000), (400, 20), (20, 400), (1, 1), (160, 16)])
def test_picture_at_the_limits_is_accepted(size: tuple[int, int]) -> None:
    """Pictures at the limits of pixels, of the ratio of sides and of short sides are accepted."""
    header = checked(flat(*size, "1"), min_side=min(size[1], 8), longest=max(80, max(size) // 2))
    assert (header.width, header.height) == size


def test_mime_type_is_compared_without_case() -> None:
    """The type is compared without case; the error for a wrong type names the content's type."""
    content = encoded("camera.png").content
    assert checked(Image(content=content, mime_type="IMAGE/PNG")).mime_type == "image/png"
    error = refused(lambda: checked(Image(content=content, mime_type="image/jpeg")))
    assert error.field == "image.mime_type"
    assert error.description == "is image/jpeg, but the content is image/png"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_is_upright(form: str, orientation: int) -> None:
    """Header and pixels give the upright size, in every format with EXIF."""
    image = saved(PIL.Image.new("RGB", (40, 30)), form, exif=oriented(orientation))
    header = checked(image)
    assert (header.width, header.height) == ((30, 40) if orientation > 4 else (40, 30))
    assert decode(image, "image").size == (header.width, header.height)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_unreadable_exif_turns_nothing(form: str) -> None:
    """A picture with a broken EXIF block is accepted and not turned."""
    image = saved(PIL.Image.new("RGB", (40, 30)), form, exif=b"Exif\0\0nonsense")
    assert checked(image).width == 40
    assert decode(image, "image").size == (40, 30)


def test_exif_behind_the_pixels_of_a_png_is_read(no_decoding: None) -> None:
    """If a PNG has its EXIF tag behind the pixels, the header is read without decoding them."""
    content = flat(40, 30).content
    end = content.index(b"IEND") - 4
    late = content[:end] + chunk(b"eXIf", oriented(6).tobytes()[6:]) + content[end:]
    assert checked(Image(content=late)).format == "PNG"


def test_jpeg_with_a_second_picture_is_accepted() -> None:
    """A JPEG that contains a second picture (format MPO) is accepted as a JPEG with one frame."""
    image = film("MPO", [RED, BLUE])
    with PIL.Image.open(io.BytesIO(image.content)) as opened_by_pillow:
        assert opened_by_pillow.format == "MPO"
    assert checked(Image(content=image.content, mime_type="image/jpeg")).format == "JPEG"
    assert not is_animated(image)
    assert count_frames(image, "image") == 1


# --- decoding ------------------------------------------------------------------------------------


def test_bytes_missing_or_behind_the_pixels_of_a_png_do_not_matter() -> None:
    """A PNG may lack its last chunk of 12 bytes, and bytes after its end are ignored."""
    whole = encoded("camera.png")
    for content in (whole.content[:-12], whole.content + bytes(range(100))):
        assert decode(Image(content=content), "image").tobytes() == decode(whole, "i").tobytes()


NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)


def broken_sum() -> Image:
    """Return a PNG with one wrong bit in the checksum of its pixels."""
    content = saved(NOISE).content
    place = content.rindex(b"IEND") - 5
    return Image(content=content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


BROKEN = [broken_sum(), *(halved(saved(NOISE, form)) for form in FORMATS if form != "WEBP")]


@pytest.mark.parametrize("image", BROKEN)
def test_picture_that_is_cut_off_or_damaged_is_refused(image: Image) -> None:
    """A cut-off or damaged picture has a valid header, and is refused when it is decoded."""
    checked(image)
    error = refused(lambda: decode(image, "reference"))
    assert error.field == "reference.content"
    assert error.description.startswith("cannot be decoded")


def pixels(*rows: object, dtype: str = "u1") -> npt.NDArray[np.generic]:
    return np.array(rows, dtype=dtype)


def with_transparent_black(mode: str) -> Image:
    black: object = (0, 0, 0) if mode == "RGB" else 0
    return saved(PIL.Image.new(mode, (1, 1), 0), transparency=black)


GREY_16 = [0, 128, 129, 257, 32768, 65535]
BIG_ENDIAN = PIL.Image.frombytes("I;16B", (3, 1), pixels([0, 257, 65535], dtype=">u2").tobytes())
ALPHA = pixels([[0, 0, 0, 0], [0, 0, 0, 128], [0, 0, 0, 255]])
RED, BLUE = PIL.Image.new("RGB", (1, 1), "red"), PIL.Image.new("RGB", (1, 1), "blue")
WHITE, GREY, BLACK = [255] * 3, [127] * 3, [0] * 3


@pytest.mark.parametrize(
    ("image", "row"),
    [
        # sixteen bits are divided by 257 and rounded, not clipped at 255, in either byte order
        (saved(pixels(GREY_16, dtype="u2"), "TIFF"), [0, 0, 1, 1, 128, 255]),
        (saved(pixels(GREY_16, dtype="u2")), [0, 0, 1, 1, 128, 255]),
        (saved(BIG_ENDIAN, "TIFF"), [0, 1, 255]),
        (saved(pixels([True, False], dtype="bool")), [255, 0]),
        (saved(ALPHA), [WHITE, GREY, BLACK]),  # alpha is blended over white
        *((with_transparent_black(mode), [WHITE]) for mode in ("L", "RGB", "P")),
        (film("WEBP", [RED, BLUE], lossless=True), [[255, 0, 0]]),  # only the first frame is used
    ],
)
def test_pixels_have_eight_opaque_bits_as_displayed(image: Image, row: list[object]) -> None:
    """Each decoded pixel has eight bits, is opaque, and is grey or RGB."""
    assert array(decode(image, "image"))[0].tolist() == row


@pytest.mark.parametrize(
    ("mode", "form"),
    [("LA", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("YCbCr", "TIFF"), ("LAB", "TIFF")],
)
def test_whatever_is_not_grey_becomes_rgb(mode: str, form: str) -> None:
    """Every mode except grey becomes RGB, even a mode with another order of channels."""
    assert decode(saved(PIL.Image.new(mode, (30, 20)), form), "image").mode == "RGB"


def test_grey_is_the_luminance_from_0_to_1() -> None:
    """Luminance is 0 to 1: the level divided by 255 for grey, the weighted channels for colour."""
    assert grey(decode(encoded("camera.png"), "image")) == pytest.approx(levels("camera.png") / 255)
    red = grey(decode(flat(3, 2, color=(255, 0, 0)), "image"))
    assert red == pytest.approx(np.full((2, 3), 0.2125))


# --- frames --------------------------------------------------------------------------------------


def animation(form: str, size: tuple[int, int], number: int) -> Image:
    colors = np.random.default_rng(0).integers(0, 256, (number, 3)).tolist()
    return film(form, [PIL.Image.new("RGB", size, tuple(color)) for color in colors])


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_all_frames_are_returned_in_order(form: str) -> None:
    """All frames of an animation, and all pages of a file, are returned in order."""
    image = animation(form, (30, 20), 5)
    found = list(frames(image, "image"))
    assert [frame.size for frame in found] == [(30, 20)] * 5
    assert len({frame.tobytes() for frame in found}) == 5
    assert found[0].tobytes() == decode(image, "image").tobytes()
    assert is_animated(image)
    assert count_frames(image, "image") == 5


@pytest.mark.parametrize("form", FORMATS)
def test_still_picture_has_one_frame(form: str) -> None:
    """A still picture has one frame and is not animated."""
    image = saved(PIL.Image.new("RGB", (30, 20)), form)
    assert not is_animated(image)
    assert count_frames(image, "image") == len(list(frames(image, "image"))) == 1
    assert not is_animated(Image(content=b"text"))


@pytest.mark.parametrize("form", ["GIF", "TIFF"])
def test_reading_more_than_64_frames_is_refused(form: str) -> None:
    """64 frames can be read; a 65th frame is refused, and counting stops there."""
    assert len(list(frames(animation(form, (8, 8), 64), "image"))) == 64
    image = animation(form, (8, 8), 70)
    assert count_frames(image, "image") == 65
    error = refused(lambda: list(frames(image, "image")))
    assert (error.field, error.description) == ("image.content", "has more than 64 frames")


def blank_pages(*sizes: tuple[int, int]) -> Image:
    """Return a TIFF of white pages, which compress well."""
    return film("TIFF", [PIL.Image.new("1", size, 1) for size in sizes], compression="group4")


def test_frames_have_a_limit_of_pixels_together() -> None:
    """All frames together may have up to 64 MP, however many frames there are."""
    error = refused(lambda: list(frames(blank_pages(*[(3900, 4000)] * 5), "image")))
    assert error.description == "has frames of more than 64,000,000 pixels together"


def grown(side: int) -> Image:
    """Return a GIF whose second frame is larger than the picture and enlarges it."""
    image = animation("GIF", (30, 20), 2)
    place = image.content.rindex(b"," + struct.pack("<HHHH", 0, 0, 30, 20)) + 5
    size = struct.pack("<HH", side, side)
    return Image(content=image.content[:place] + size + image.content[place + 4 :])


DEEP_PAGE = film("TIFF", [PIL.Image.new(mode, (9, 9)) for mode in "LF"])
SECOND_PAGES = [
    *((blank_pages((30, 20), (side, side)), "must have at most") for side in (4100, 14_000)),
    *((grown(side), "must have at most 16,000,000 pixels") for side in (4100, 10_000, 14_000)),
    (blank_pages((64, 64), (2000, 64)), "must have sides of at most 20 : 1"),
    (DEEP_PAGE, "has pixels of 32 bits (mode F)"),
]


@pytest.mark.parametrize(("image", "description"), SECOND_PAGES)
def test_each_page_is_measured_when_it_is_reached(image: Image, description: str) -> None:
    """Each page's size is checked before the page is decoded, even if pages are only counted."""
    checked(image)
    for read in (lambda: list(frames(image, "image")), lambda: count_frames(image, "image")):
        error = refused(read)
        assert error.field == "image.content"
        assert error.description.startswith(description)


def test_broken_second_page_is_named_in_the_error() -> None:
    """If a page is broken, the error has the number of the page."""
    image = animation("TIFF", (30, 20), 2)
    start = int.from_bytes(image.content[4:8], "little")
    entries = int.from_bytes(image.content[start : start + 2], "little")
    pointer = start + 2 + 12 * entries
    content = bytearray(image.content)
    content[pointer : pointer + 4] = len(content).to_bytes(4, "little")
    error = refused(lambda: list(frames(Image(content=bytes(content)), "image")))
    assert error.description == "cannot be read, frame 1 is broken"


def test_truncated_animation_is_refused() -> None:
    """A cut-off animation is refused, although its first frames can be read."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 40, 40), dtype=np.uint8)
    for form in ("GIF", "PNG", "TIFF"):
        image = halved(film(form, list(map(PIL.Image.fromarray, noise))))
        assert refused(lambda: list(frames(image, "image"))).field == "image.content"  # noqa: B023


# --- the working copy ----------------------------------------------------------------------------


def test_working_copy_equals_pillows_thumbnail() -> None:
    """The working copy equals Pillow's thumbnail, and a small picture is not enlarged."""
    picture = opened("coffee.png")
    own = picture.copy()
    own.thumbnail((256, 256), PIL.Image.Resampling.LANCZOS, reducing_gap=2.0)
    copy, scale = working_copy(picture, 256)
    assert (copy.tobytes(), scale) == (own.tobytes(), 256 / 600)
    assert working_copy(picture, 640) == (picture, 1.0)


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 4096))
def test_working_size_never_enlarges_or_vanishes(width: int, height: int, longest: int) -> None:
    """No side is enlarged or vanishes; a longest side above the limit shrinks to the limit."""
    small = working_size(width, height, longest)
    assert max(small) == min(longest, max(width, height))
    assert 1 <= small[0] <= width
    assert 1 <= small[1] <= height


@given(st.integers(8, 5000), st.integers(8, 5000), st.data())
def test_box_of_the_working_copy_is_inside_the_original(
    width: int, height: int, data: st.DataObject
) -> None:
    """Every box in the working copy becomes a box in the original, at least one pixel wide."""
    small = working_size(width, height, 640)
    left = data.draw(st.integers(0, small[0] - 1))
    top = data.draw(st.integers(0, small[1] - 1))
    right = data.draw(st.integers(left + 1, small[0]))
    bottom = data.draw(st.integers(top + 1, small[1]))
    scale = max(small) / max(width, height)
    box = original_box((left, top, right, bottom), scale, (width, height))
    assert min(box.x, box.y, box.width - 1, box.height - 1) >= 0
    assert box.x + box.width <= width
    assert box.y + box.height <= height
