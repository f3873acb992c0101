"""From a file to pixels: limits by the header alone, decoding, frames, and the working copy."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFile

from examples.analysis import pictures
from examples.analysis.messages import BoundingBox, Image
from examples.analysis.pictures import (
    MAX_BYTES,
    array,
    as_png,
    check_header,
    count_frames,
    decode,
    frames,
    grey,
    hex_color,
    is_animated,
    original_box,
    working_copy,
    working_size,
)
from tests.full.examples.conftest import encoded, flat, levels, opened, refused, saved

FORMATS = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "GIF": "image/gif",
    "TIFF": "image/tiff",
    "WEBP": "image/webp",
    "BMP": "image/bmp",
}
READABLE = [
    "astronaut.png", "camera.png", "horse.png", "hubble_deep_field.jpg", "multipage.tif",
    "no_time_for_that_tiny.gif", "retina.jpg", "text.png",
]  # fmt: skip


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as soon as a pixel is decoded."""

    def refuse(_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)


def checked(image: Image | None, min_side: int = 1, longest: int = 2048) -> pictures.Header:
    return check_header(image, "image", min_side=min_side, longest=longest)


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def halved(image: Image) -> Image:
    return Image(content=image.content[: len(image.content) // 2])


# --- the header ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "mime_type"), FORMATS.items())
def test_header_of_each_format(form: str, mime_type: str, no_decoding: None) -> None:
    """Six formats are read, their size and type found without decoding."""
    header = checked(saved(PIL.Image.new("RGB", (40, 30)), form))
    assert (header.format, header.mime_type) == (form, mime_type)
    assert (header.width, header.height) == (40, 30)


@pytest.mark.parametrize("name", READABLE)
def test_header_of_bundled_files(name: str, no_decoding: None) -> None:
    """Real files pass, and their size is that of Pillow."""
    header = checked(encoded(name))
    with PIL.Image.open(io.BytesIO(encoded(name).content)) as picture:
        assert (header.width, header.height) == picture.size


def test_no_image() -> None:
    """A request without a picture is refused with the name of the field."""
    error = refused(lambda: checked(None))
    assert (error.field, error.description) == ("image", "is required")


def test_empty_content() -> None:
    """No bytes are no picture, and the error says the limits."""
    error = refused(lambda: checked(Image()))
    assert error.field == "image.content"
    assert error.description == "must have from 1 to 8,388,608 bytes, got 0"


def test_too_many_bytes() -> None:
    """A file of more than 8 MiB is refused before it is looked at."""
    error = refused(lambda: checked(Image(content=bytes(MAX_BYTES + 1))))
    assert error.description == "must have from 1 to 8,388,608 bytes, got 8,388,609"


@pytest.mark.parametrize(
    "content",
    [
        b"just some text",
        b"<!DOCTYPE html><html><body>404</body></html>",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        b"\x89PNG\r\n\x1a\n",
        encoded("multipage_rgb.tif").content,
    ],
    ids=["text", "html", "svg", "pdf", "signature", "multipage_rgb"],
)
def test_unreadable_picture_is_refused_in_own_words(content: bytes) -> None:
    """What Pillow cannot open is refused, without the words of Pillow."""
    error = refused(lambda: checked(Image(content=content)))
    assert error.field == "image.content"
    assert error.description == "is not a readable PNG, JPEG, GIF, TIFF, WEBP or BMP picture"


def test_text_bomb() -> None:
    """A compressed text chunk of 80 MB in a PNG is refused, though Pillow raises ValueError."""
    content = flat(30, 30).content
    end_of_header = content.index(b"IDAT") - 4
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(80_000_000), 9))
    image = Image(content=content[:end_of_header] + text + content[end_of_header:])
    assert refused(lambda: checked(image)).field == "image.content"


def test_mime_type() -> None:
    """A type may be given in any case; the error for a wrong one names the type of the content."""
    content = encoded("camera.png").content
    assert checked(Image(content=content, mime_type="IMAGE/PNG")).mime_type == "image/png"
    error = refused(lambda: checked(Image(content=content, mime_type="image/jpeg")))
    assert error.field == "image.mime_type"
    assert error.description == "is image/jpeg, but the content is image/png"


@pytest.mark.parametrize("side", [10_000, 14_000])
def test_sizes_at_which_pillow_warns_and_refuses(side: int) -> None:
    """Above 89 MP Pillow warns, above 179 MP it raises: the answer stays about the pixels."""
    size = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    content = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    error = refused(lambda: checked(Image(content=content)))
    assert error.description.startswith("must have at most 16,000,000 pixels")


def test_sixteen_megapixels_are_allowed() -> None:
    """The limit itself is within."""
    assert checked(flat(4000, 4000, "1")).width == 4000


def test_ratio() -> None:
    """20 : 1 is allowed, either way round; one pixel more is not."""
    assert checked(flat(400, 20)).width == 400
    assert checked(flat(20, 400)).height == 400
    error = refused(lambda: checked(flat(401, 20)))
    assert error.description == "must have sides of at most 20 : 1, got 401 x 20"


@pytest.mark.parametrize("mode", ["F", "I"])
def test_32_bits(mode: str) -> None:
    """Modes that Pillow would silently turn to black are refused."""
    error = refused(lambda: checked(saved(PIL.Image.new(mode, (30, 30)), "TIFF")))
    assert error.description.startswith(f"has pixels of 32 bits (mode {mode})")


def test_one_pixel() -> None:
    """1x1 is enough where one pixel is, and else refused with both sizes."""
    assert checked(flat(1, 1)).height == 1
    error = refused(lambda: checked(flat(1, 1), min_side=8))
    assert error.description == "must have sides of at least 8 pixels, got 1 x 1"


def test_least_side_is_that_at_work() -> None:
    """A long picture is shrunk first: 1280 x 64 has 32 pixels at work."""
    assert checked(flat(1280, 64), min_side=32, longest=640).height == 64
    error = refused(lambda: checked(flat(1280, 64), min_side=33, longest=640))
    assert error.description == "must have sides of at least 33 pixels, got 1280 x 64, 32 at work"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_is_upright(form: str, orientation: int) -> None:
    """Header and pixels agree on which side is up, in every format with EXIF."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    image = saved(PIL.Image.new("RGB", (40, 30)), form, exif=exif)
    header = checked(image)
    assert (header.width, header.height) == ((30, 40) if orientation > 4 else (40, 30))
    assert decode(image, "image").size == (header.width, header.height)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_unreadable_exif_turns_nothing(form: str) -> None:
    """A broken EXIF block is no reason to refuse a picture that every browser shows."""
    image = saved(PIL.Image.new("RGB", (40, 30)), form, exif=b"Exif\0\0nonsense")
    assert checked(image).width == 40
    assert decode(image, "image").size == (40, 30)


def test_exif_behind_the_pixels(no_decoding: None) -> None:
    """In a PNG the tag may follow the pixels: the header is read without them."""
    content = flat(40, 30).content
    end = content.index(b"IEND") - 4
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    late = content[:end] + chunk(b"eXIf", exif.tobytes()[6:]) + content[end:]
    assert checked(Image(content=late)).format == "PNG"


def test_phone_picture() -> None:
    """A JPEG with a second picture in it calls itself MPO, and is a JPEG all the same."""
    image = saved(
        PIL.Image.new("RGB", (40, 30)),
        "MPO",
        save_all=True,
        append_images=[PIL.Image.new("RGB", (40, 30), "red")],
    )
    with PIL.Image.open(io.BytesIO(image.content)) as opened_by_pillow:
        assert opened_by_pillow.format == "MPO"
    assert checked(Image(content=image.content, mime_type="image/jpeg")).format == "JPEG"
    assert not is_animated(image)
    assert count_frames(image, "image") == 1


# --- decoding ------------------------------------------------------------------------------------


def test_png_without_its_end() -> None:
    """A PNG that lacks just its last chunk, of 12 bytes, has all its pixels."""
    whole = encoded("camera.png")
    cut = Image(content=whole.content[:-12])
    assert decode(cut, "image").tobytes() == decode(whole, "image").tobytes()


def test_bytes_behind_a_png() -> None:
    """What follows the end of a PNG is no part of it."""
    image = Image(content=encoded("camera.png").content + bytes(range(100)))
    assert decode(image, "image").size == (512, 512)


def test_decoding_without_a_picture() -> None:
    """Asking for the pixels of nothing is the caller's error, by field."""
    assert refused(lambda: decode(None, "reference")).field == "reference"


@pytest.mark.parametrize("form", ["TIFF", "PNG"])
def test_16_bit_grey(form: str) -> None:
    """Sixteen bits are divided by 257 and rounded, not clipped at 255."""
    values = np.array([[0, 128, 129, 257, 32768, 65535]] * 2, dtype=np.uint16)
    picture = decode(saved(values, form), "image")
    assert picture.mode == "L"
    assert array(picture)[0].tolist() == [0, 0, 1, 1, 128, 255]


def test_16_bit_of_the_other_byte_order() -> None:
    """A big-endian TIFF has the same levels."""
    values = np.array([[0, 257, 65535]] * 2, dtype=">u2")
    content = saved(PIL.Image.frombytes("I;16B", (3, 2), values.tobytes()), "TIFF")
    assert array(decode(content, "image"))[0].tolist() == [0, 1, 255]


def test_alpha_goes_over_white() -> None:
    """Transparent is white, half transparent black is grey, opaque stays."""
    pixels = np.zeros((1, 3, 4), dtype=np.uint8)
    pixels[0, :, 3] = 0, 128, 255
    assert array(decode(saved(pixels), "image"))[0].tolist() == [[255] * 3, [127] * 3, [0] * 3]


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_transparent_color(mode: str) -> None:
    """A colour declared transparent becomes white, too."""
    transparent: object = (0, 0, 0) if mode == "RGB" else 0
    image = saved(PIL.Image.new(mode, (3, 2), 0), transparency=transparent)
    assert array(decode(image, "image"))[0, 0].tolist() == [255] * 3


@pytest.mark.parametrize(
    ("mode", "form", "result"),
    [
        ("1", "PNG", "L"),
        ("1", "TIFF", "L"),
        ("L", "PNG", "L"),
        ("LA", "PNG", "RGB"),
        ("P", "GIF", "RGB"),
        ("P", "PNG", "RGB"),
        ("RGB", "BMP", "RGB"),
        ("RGBA", "WEBP", "RGB"),
        ("CMYK", "JPEG", "RGB"),
        ("CMYK", "TIFF", "RGB"),
        ("YCbCr", "TIFF", "RGB"),
        ("LAB", "TIFF", "RGB"),
    ],
)
def test_modes(mode: str, form: str, result: str) -> None:
    """Black and white and grey become grey, everything else RGB."""
    image = saved(PIL.Image.new(mode, (30, 20)), form)
    checked(image)
    assert decode(image, "image").mode == result


def test_black_and_white_have_full_range() -> None:
    """One bit becomes 0 and 255."""
    bits = PIL.Image.fromarray(np.eye(4, dtype=bool))
    assert array(decode(saved(bits), "image")).tolist() == (np.eye(4) * 255).tolist()


def test_first_frame() -> None:
    """Of an animation the first frame is taken."""
    first, second = PIL.Image.new("RGB", (8, 8), "red"), PIL.Image.new("RGB", (8, 8), "blue")
    image = saved(first, "WEBP", save_all=True, append_images=[second], lossless=True)
    assert array(decode(image, "image"))[0, 0].tolist() == [255, 0, 0]


def test_grey() -> None:
    """Luminance is 0..1: levels / 255 of grey pictures, weighted channels of colour."""
    assert grey(decode(encoded("camera.png"), "image")) == pytest.approx(levels("camera.png") / 255)
    red = grey(decode(flat(3, 2, color=(255, 0, 0)), "image"))
    assert red == pytest.approx(np.full((2, 3), 0.2125))


# --- frames --------------------------------------------------------------------------------------


def animation(form: str, size: tuple[int, int], number: int) -> Image:
    """So many frames, each of another colour."""
    colors = np.random.default_rng(0).integers(0, 256, (number, 3)).tolist()
    first, *rest = [PIL.Image.new("RGB", size, tuple(color)) for color in colors]
    return saved(first, form, save_all=True, append_images=rest)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_frames(form: str) -> None:
    """All frames of an animation or a file with pages, in their order."""
    image = animation(form, (30, 20), 5)
    found = list(frames(image, "image"))
    assert [frame.size for frame in found] == [(30, 20)] * 5
    assert len({frame.tobytes() for frame in found}) == 5
    assert found[0].tobytes() == decode(image, "image").tobytes()
    assert is_animated(image)
    assert count_frames(image, "image") == 5


@pytest.mark.parametrize("form", FORMATS)
def test_still_pictures(form: str) -> None:
    """A still picture is not animated, and is its own only frame."""
    image = saved(PIL.Image.new("RGB", (30, 20)), form)
    assert not is_animated(image)
    assert count_frames(image, "image") == 1
    assert len(list(frames(image, "image"))) == 1


def test_no_picture_is_not_animated() -> None:
    """What cannot be opened shows nothing."""
    assert not is_animated(Image(content=b"text"))


@pytest.mark.parametrize("form", ["GIF", "TIFF"])
def test_frames_are_counted_with_a_cap(form: str) -> None:
    """64 frames are read; with 65 reading fails, and counting stops."""
    assert len(list(frames(animation(form, (8, 8), 64), "image"))) == 64
    image = animation(form, (8, 8), 70)
    assert count_frames(image, "image") == 65
    error = refused(lambda: list(frames(image, "image")))
    assert (error.field, error.description) == ("image.content", "has more than 64 frames")


def blank_pages(*sizes: tuple[int, int]) -> Image:
    """A TIFF of white pages, well compressed."""
    first, *rest = [PIL.Image.new("1", size, 1) for size in sizes]
    return saved(first, "TIFF", save_all=True, append_images=rest, compression="group4")


def test_frames_have_a_limit_of_pixels_together() -> None:
    """64 MP are the end, whatever the number of frames."""
    image = blank_pages(*[(3900, 4000)] * 5)
    error = refused(lambda: list(frames(image, "image")))
    assert error.description == "has frames of more than 64,000,000 pixels together"


@pytest.mark.parametrize("side", [4100, 10_000, 14_000])
def test_second_page_too_large(side: int) -> None:
    """A page is measured when it is reached, before it is decoded."""
    image = blank_pages((30, 20), (side, side))
    checked(image)
    for read in (lambda: list(frames(image, "image")), lambda: count_frames(image, "image")):
        error = refused(read)
        assert error.field == "image.content"
        assert error.description.startswith("must have at most 16,000,000 pixels")


@pytest.mark.parametrize("side", [4100, 10_000, 14_000])
def test_second_frame_too_large(side: int) -> None:
    """A GIF grows when a frame does not fit: that is measured, too."""
    image = animation("GIF", (30, 20), 2)
    place = image.content.rindex(b"," + struct.pack("<HHHH", 0, 0, 30, 20)) + 5
    larger = image.content[:place] + struct.pack("<HH", side, side) + image.content[place + 4 :]
    error = refused(lambda: list(frames(Image(content=larger), "image")))
    assert error.description.startswith("must have at most 16,000,000 pixels")


def test_second_page_of_another_mode() -> None:
    """Every page obeys the rule of the modes."""
    first = PIL.Image.new("L", (30, 20))
    image = saved(first, "TIFF", save_all=True, append_images=[PIL.Image.new("F", (30, 20))])
    error = refused(lambda: list(frames(image, "image")))
    assert error.description.startswith("has pixels of 32 bits (mode F)")


def test_second_page_broken() -> None:
    """A page whose directory leads nowhere is reported by its number."""
    image = animation("TIFF", (30, 20), 2)
    start = int.from_bytes(image.content[4:8], "little")
    entries = int.from_bytes(image.content[start : start + 2], "little")
    pointer = start + 2 + 12 * entries
    content = bytearray(image.content)
    content[pointer : pointer + 4] = len(content).to_bytes(4, "little")
    error = refused(lambda: list(frames(Image(content=bytes(content)), "image")))
    assert error.description == "cannot be read, frame 1 is broken"


def test_animation_cut_in_half() -> None:
    """The frames before the cut are not taken for the whole."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 40, 40), dtype=np.uint8)
    first, *rest = [PIL.Image.fromarray(frame) for frame in noise]
    for form in ("GIF", "PNG", "TIFF"):
        image = halved(saved(first, form, save_all=True, append_images=rest))
        assert refused(lambda: list(frames(image, "image"))).field == "image.content"  # noqa: B023


# --- the working copy and the way back -----------------------------------------------------------


def test_working_copy_shrinks() -> None:
    """The longest side becomes the limit, the other follows, and the scale is returned."""
    copy, scale = working_copy(PIL.Image.new("RGB", (1000, 333)), 640)
    assert copy.size == (640, 213)
    assert scale == 0.64


def test_working_copy_never_enlarges() -> None:
    """A small picture is worked on as it is."""
    picture = PIL.Image.new("L", (100, 50))
    assert working_copy(picture, 640) == (picture, 1.0)


def test_working_copy_is_as_of_thumbnail() -> None:
    """The pixels are those of Pillow's own thumbnail."""
    picture = opened("coffee.png")
    own = picture.copy()
    own.thumbnail((256, 256), PIL.Image.Resampling.LANCZOS, reducing_gap=2.0)
    assert working_copy(picture, 256)[0].tobytes() == own.tobytes()


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 4096))
def test_working_size(width: int, height: int, longest: int) -> None:
    """No side is enlarged, none vanishes, and the longest is the limit if it was above."""
    small = working_size(width, height, longest)
    assert max(small) == min(longest, max(width, height))
    assert 1 <= small[0] <= width
    assert 1 <= small[1] <= height


def test_original_box() -> None:
    """A box found at half size is twice as large and as far in the original."""
    box = original_box((10, 20, 30, 50), 0.5, (1000, 1000))
    assert box == BoundingBox(x=20, y=40, width=40, height=60)


@given(st.integers(8, 5000), st.integers(8, 5000), st.data())
def test_original_box_lies_inside(width: int, height: int, data: st.DataObject) -> None:
    """Every box of the working copy has its place, at least a pixel wide, in the original."""
    small = working_size(width, height, 640)
    left = data.draw(st.integers(0, small[0] - 1))
    top = data.draw(st.integers(0, small[1] - 1))
    right = data.draw(st.integers(left + 1, small[0]))
    bottom = data.draw(st.integers(top + 1, small[1]))
    scale = max(small) / max(width, height)
    box = original_box((left, top, right, bottom), scale, (width, height))
    assert box.x >= 0
    assert box.y >= 0
    assert box.width >= 1
    assert box.height >= 1
    assert box.x + box.width <= width
    assert box.y + box.height <= height


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_as_png(dtype: type) -> None:
    """An array becomes a PNG of as many bits, and every value survives."""
    values = np.arange(256, dtype=dtype).reshape(16, 16) * (np.iinfo(dtype).max // 255)
    image = as_png(values)
    assert checked(image).mime_type == image.mime_type == "image/png"
    with PIL.Image.open(io.BytesIO(image.content)) as picture:
        assert np.array_equal(np.asarray(picture), values)


def test_hex_color() -> None:
    """Colours are rounded, and a grey has three equal parts."""
    assert hex_color([0.4, 127.6, 255.0]) == "#0080ff"
    assert hex_color(17.2) == hex_color([17.2]) == "#111111"
