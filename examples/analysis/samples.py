"""A request for each analysis that has something to show, of pictures inside scikit-image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
from PIL import Image as Pillow

from examples.analysis import messages as m
from examples.analysis.demo import picture, requests
from examples.analysis.messages import BoundingBox, Image
from examples.analysis.pictures import decode, saved
from examples.analysis.router import NAMES

PICTURES: Final = ("astronaut.png", "chelsea.png", "coffee.png", "coins.png", "rocket.jpg")


def sample(verb: str) -> Any:
    """The request of the demo, or a better one where that would show little."""
    astronaut, brick, coffee, grass = (
        decode(picture(f"{name}.png"), name) for name in ("astronaut", "brick", "coffee", "grass")
    )
    match verb:
        case "verify":
            detail = saved(coffee.rotate(25).crop((190, 110, 450, 290)))
            return m.VerifyRequest(image=saved(coffee), reference=detail)
        case "compare":
            after = coffee.copy()
            after.paste(coffee.crop((380, 60, 440, 120)), (40, 40))
            after.paste(coffee.crop((0, 0, 90, 60)), (480, 310))
            return m.CompareRequest(image=saved(after), reference=saved(coffee))
        case "explain":
            both = Pillow.new("L", (512, 256))
            both.paste(grass.crop((0, 256, 256, 512)))
            both.paste(brick.crop((256, 256, 512, 512)), (256, 0))
            return m.ExplainRequest(image=saved(both), segment_count=144)
        case "track":
            corners = [(60 + 5 * abs(step % 16 - 8), 2 * step) for step in range(30)]
            views = [astronaut.crop((x, y, x + 300, y + 300)) for x, y in corners]
            box = BoundingBox(x=77, y=66, width=95, height=95)
            return m.TrackRequest(frames=tuple(saved(view, "JPEG") for view in views), box=box)
    return dict(zip(NAMES, requests(), strict=True))[verb][0]


def assigned(verb: str, files: Sequence[Image], box: str = "") -> Any:
    """The sample with these pictures, if there are any, and this box ``X,Y,WIDTH,HEIGHT``.

    Raises:
        ValueError: The analysis takes another number of pictures, or that is not a box.
    """
    request = sample(verb)
    fields = [field for field in ("image", "reference") if hasattr(request, field)]
    if box:
        x, y, width, height = map(int, box.split(","))
        request = attrs.evolve(request, box=BoundingBox(x=x, y=y, width=width, height=height))
    if files and verb == "track":
        still, frames = (None, tuple(files)) if len(files) > 1 else (files[0], ())
        return attrs.evolve(request, image=still, frames=frames)
    if len(files) not in (0, len(fields)):
        raise ValueError(f"{verb} takes {' and '.join(fields)}, got {len(files)} pictures")
    return attrs.evolve(request, **dict(zip(fields, files, strict=False)))
