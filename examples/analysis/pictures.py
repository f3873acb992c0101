"""Decodes picture files: checks headers, decodes pixels, and makes smaller working copies.

The limits are checked on the header alone, before any pixel is decoded: a file of 48 kB can be a
picture of 50 megapixels. Pillow fails in many ways (``OSError``, ``ValueError``, ...), so every
exception in a call of Pillow, and only there, becomes :class:`InvalidArgument`.
"""

from __future__ import annotations

import io
import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL import ExifTags, ImageOps
from skimage.color import rgb2gray

from examples.analysis.messages import BoundingBox, Image
from examples.analysis.progress import DECODING, Progress
from lro import InvalidArgument

Levels: TypeAlias = npt.NDArray[np.uint8]
"""An array of rows x columns, or rows x columns x 3, with values 0..255."""
Grey: TypeAlias = npt.NDArray[np.float64]
"""An array of rows x columns with values 0..1."""

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_PIXELS: Final = 16_000_000
MAX_RATIO: Final = 20
MAX_FRAMES: Final = 64
MAX_FRAME_PIXELS: Final = 64_000_000

MIME_TYPES: Final = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "GIF": "image/gif",
    "TIFF": "image/tiff",
    "WEBP": "image/webp",
    "BMP": "image/bmp",
}
_BOMBS: Final = (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning)
_TURNED: Final = frozenset({5, 6, 7, 8})
"""The EXIF orientations that swap width and height."""


@attrs.frozen(kw_only=True)
class Header:
    """The header of a file's first picture; the size is that of the upright picture."""

    format: str
    mime_type: str
    width: int
    height: int
    mode: str


def check_header(image: Image | None, field: str, *, min_side: int, longest: int) -> Header:
    """Check everything that can be checked without decoding a pixel.

    ``min_side`` is the shortest allowed side of the working copy in pixels. If
    the copy's longer side would exceed ``longest``, the copy is scaled down to that. ``field`` is
    the path of ``image`` in its request.
    """
    content, path = _content(image, field), f"{field}.content"
    with _opened(content, path) as picture:
        form = _format(picture)
        width, height = _upright_size(picture)
        header = Header(
            format=form, mime_type=MIME_TYPES[form], width=width, height=height, mode=picture.mode
        )
    given = image.mime_type.lower() if image is not None else ""
    if given and given != header.mime_type:
        raise InvalidArgument(
            f"{field}.mime_type", f"is {given}, but the content is {header.mime_type}"
        )
    _check_limits(width, height, header.mode, path)
    side = min(working_size(width, height, longest))
    if side < min_side:
        at_work = f", {side} at work" if longest < max(width, height) else ""
        raise InvalidArgument(
            path, f"must have sides of at least {min_side} pixels, got {width} x {height}{at_work}"
        )
    return header


def decode(image: Image | None, field: str) -> PIL.Image.Image:
    """Decode the first picture of a file; it becomes upright, opaque, and ``L`` or ``RGB``."""
    content, path = _content(image, field), f"{field}.content"
    with _opened(content, path) as picture:
        _check_sums(picture, content, path)
        return _plain(picture, path)


def is_animated(image: Image) -> bool:
    """Return True if the headers of a file say that it has more than one picture."""
    try:
        with PIL.Image.open(io.BytesIO(image.content), formats=tuple(MIME_TYPES)) as picture:
            if picture.format == "TIFF":  # Pillow's is_animated would read all pages
                picture.seek(1)
                return True
            return _format(picture) != "JPEG" and bool(getattr(picture, "is_animated", False))
    except Exception:
        return False


def frames(image: Image | None, field: str) -> Iterator[PIL.Image.Image]:
    """Decode all pictures of an animated or multi-page file, as :func:`decode` does.

    The size of every frame is checked before the frame is decoded, because a TIFF's second page may
    be larger than its first."""
    content, path = _content(image, field), f"{field}.content"
    total = 0
    with _opened(content, path) as picture:
        _check_sums(picture, content, path)
        for index in itertools.count():
            if not _seek(picture, index, path):
                return
            if index == MAX_FRAMES:
                raise InvalidArgument(path, f"has more than {MAX_FRAMES} frames")
            total += picture.width * picture.height
            if total > MAX_FRAME_PIXELS:
                raise InvalidArgument(
                    path, f"has frames of more than {MAX_FRAME_PIXELS:,} pixels together"
                )
            yield _plain(picture, path)


def count_frames(image: Image | None, field: str) -> int:
    """Count the pictures of a file; 65 means more than 64."""
    path = f"{field}.content"
    with _opened(_content(image, field), path) as picture:
        if _format(picture) == "JPEG":  # the further pictures in a phone's file are previews
            return 1
        count = 1
        while count <= MAX_FRAMES and _seek(picture, count, path):
            count += 1
        return count


def working_size(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return the size of a picture, scaled down if its longer side exceeds ``longest``."""
    larger = max(width, height)
    if larger <= longest:
        return width, height
    return max(1, round(width * longest / larger)), max(1, round(height * longest / larger))


def working_copy(picture: PIL.Image.Image, longest: int) -> tuple[PIL.Image.Image, float]:
    """Return the working copy of a picture, and its scale: working / original size, at most 1."""
    size = working_size(*picture.size, longest)
    if size == picture.size:
        return picture, 1.0
    copy = picture.resize(size, PIL.Image.Resampling.LANCZOS, reducing_gap=2.0)
    return copy, max(size) / max(picture.size)


@attrs.frozen
class Work:
    """A decoded picture, its working copy, and the scale of the copy."""

    original: PIL.Image.Image
    copy: PIL.Image.Image
    scale: float

    @property
    def sizes(self) -> dict[str, Any]:
        """The size fields that every response has."""
        width, height = self.original.size
        return {"scale": self.scale, "image_width": width, "image_height": height}


def opened(longest: int, progress: Progress, **images: Image | None) -> list[Work]:
    """Decode the pictures in these fields of a request, and report the stage DECODING."""
    progress.stage(DECODING, len(images))
    found = []
    for field, image in images.items():
        original = decode(image, field)
        found.append(Work(original, *working_copy(original, longest)))
        progress.step()
    return found


def array(picture: PIL.Image.Image) -> Levels:
    """Return the pixels, 0..255, as rows x columns if grey, otherwise rows x columns x 3."""
    return np.asarray(picture)


def grey(picture: PIL.Image.Image) -> Grey:
    """Return the luminance, 0..1, as rows x columns."""
    levels = array(picture)
    if levels.ndim == 2:
        return levels / 255
    luminance: Grey = rgb2gray(levels)
    return luminance


def as_png(pixels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> Image:
    """Encode a grey (8 or 16 bits) or RGB array as a PNG file."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return Image(content=file.getvalue(), mime_type=MIME_TYPES["PNG"])


def hex_color(color: npt.ArrayLike) -> str:
    """Return red, green and blue in 0..255 as ``#rrggbb``; a single value is a grey."""
    levels = np.broadcast_to(np.rint(color).astype(int), 3)
    return "#" + "".join(f"{level:02x}" for level in levels)


def original_box(
    edges: tuple[float, float, float, float], scale: float, size: tuple[int, int]
) -> BoundingBox:
    """Convert a box of the working copy to pixels of the original picture, clipped to it.

    ``edges`` are left, top, right and bottom of the box, where right and bottom are just outside.
    ``size`` is the width and height of the original.
    """
    left, top, right, bottom = (round(edge / scale) for edge in edges)
    left, top = max(left, 0), max(top, 0)
    right, bottom = min(right, size[0]), min(bottom, size[1])
    return BoundingBox(x=left, y=top, width=right - left, height=bottom - top)


def _content(image: Image | None, field: str) -> bytes:
    if image is None:
        raise InvalidArgument(field, "is required")
    content = image.content
    if not 1 <= len(content) <= MAX_BYTES:
        raise InvalidArgument(
            f"{field}.content", f"must have from 1 to {MAX_BYTES:,} bytes, got {len(content):,}"
        )
    return content


def _opened(content: bytes, path: str) -> PIL.Image.Image:
    try:
        return PIL.Image.open(io.BytesIO(content), formats=tuple(MIME_TYPES))
    except _BOMBS:
        raise InvalidArgument(path, f"must have at most {MAX_PIXELS:,} pixels") from None
    except Exception as exc:
        raise InvalidArgument(path, f"is not a readable {_or(MIME_TYPES)} picture") from exc


def _or(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"


def _format(picture: PIL.Image.Image) -> str:
    # The format of a phone's JPEG with a second picture is "MPO" in Pillow.
    return "JPEG" if picture.format == "MPO" else picture.format or ""


def _upright_size(picture: PIL.Image.Image) -> tuple[int, int]:
    width, height = picture.size
    if picture.format == "TIFF":  # Pillow's size is that of the upright picture
        return width, height
    try:
        # PngImageFile.getexif would decode all pixels to find tags after the pixels.
        orientation = PIL.Image.Image.getexif(picture).get(ExifTags.Base.Orientation)
    except Exception:  # an unreadable tag is ignored, see _upright
        return width, height
    return (height, width) if orientation in _TURNED else (width, height)


def _check_limits(width: int, height: int, mode: str, path: str) -> None:
    if width * height > MAX_PIXELS:
        raise InvalidArgument(
            path, f"must have at most {MAX_PIXELS:,} pixels, got {width} x {height}"
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidArgument(
            path, f"must have sides of at most {MAX_RATIO} : 1, got {width} x {height}"
        )
    if mode in ("F", "I"):  # Pillow would silently make both 0.5 and NaN black
        raise InvalidArgument(
            path, f"has pixels of 32 bits (mode {mode}), at most 16 bits per channel are read"
        )


def _check_sums(picture: PIL.Image.Image, content: bytes, path: str) -> None:
    """Refuse a PNG with a wrong checksum, because Pillow ignores checksums of pixel chunks."""
    if picture.format != "PNG":
        return
    start, name = len(b"\x89PNG\r\n\x1a\n"), b""
    while name != b"IEND" and start + 12 <= len(content):
        end = start + 8 + int.from_bytes(content[start : start + 4])
        name = content[start + 4 : start + 8]
        if zlib.crc32(content[start + 4 : end]) != int.from_bytes(content[end : end + 4]):
            raise InvalidArgument(path, f"cannot be decoded: byte {start} on is cut off or broken")
        start = end + 4


def _seek(picture: PIL.Image.Image, index: int, path: str) -> bool:
    """Go to a frame and check its size; return False if the file has no such frame."""
    try:
        picture.seek(index)
    except EOFError:
        return False
    except _BOMBS:
        raise InvalidArgument(
            path, f"must have at most {MAX_PIXELS:,} pixels in frame {index}"
        ) from None
    except Exception as exc:
        raise InvalidArgument(path, f"cannot be read, frame {index} is broken") from exc
    _check_limits(*picture.size, picture.mode, path)
    return True


def _plain(picture: PIL.Image.Image, path: str) -> PIL.Image.Image:
    """Decode the current frame; it becomes upright, opaque, and ``L`` (grey) or ``RGB``."""
    try:
        picture.load()
        return _opaque(_upright(picture))
    except Exception as exc:
        found = f"{_format(picture)} of {picture.width} x {picture.height} pixels"
        raise InvalidArgument(path, f"cannot be decoded: the {found} is cut off or broken") from exc


def _upright(picture: PIL.Image.Image) -> PIL.Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # an unreadable EXIF block is ignored, as in browsers
        return picture.copy()


def _opaque(picture: PIL.Image.Image) -> PIL.Image.Image:
    if picture.mode.startswith("I;16"):  # Pillow's own conversion clips at 255
        levels = np.rint(np.asarray(picture, dtype=np.uint16) / 257).astype(np.uint8)
        return PIL.Image.fromarray(levels)
    if picture.has_transparency_data:
        white = PIL.Image.new("RGBA", picture.size, "white")
        return PIL.Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")
