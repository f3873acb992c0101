"""How a filter is refused: a sentence, and the place in the text (spec §7.15)."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Final

from lro._base.errors import InvalidFilter

_SHOWN_LENGTH: Final = 40
_LONGEST: Final = 60
_LONGEST_DESCRIPTION: Final = 199
_NEAR: Final = 0.7
_COMPARED: Final = 2000
"""Names that are looked at for the nearest: some 50 ms at worst."""


def refusal(description: str, position: int, hint: str = "") -> InvalidFilter:
    """The error for a filter that goes wrong at this code point, counted from 0.

    It stays a line that can be read, also where types have very long names: a hint goes first.
    """
    if len(description + hint) <= _LONGEST_DESCRIPTION:
        description += hint
    elif len(description) > _LONGEST_DESCRIPTION:
        description = description[: _LONGEST_DESCRIPTION - 1] + "…"
    return InvalidFilter("filter", description, position)


def suggestion(text: str, known: Mapping[str, str]) -> str:
    """The hint of an error about an unknown name: the nearest of the known ones, if any is near.

    ``known`` gives for each name how it is written in a filter. Letter case does not count.
    """
    if len(text) > _SHOWN_LENGTH:  # comparing takes time, and no name is as long
        return ""
    folded = {name.lower(): written for name, written in islice(known.items(), _COMPARED)}
    found = get_close_matches(text.lower(), folded, n=1, cutoff=_NEAR)
    return f"; did you mean {folded[found[0]]}?" if found else ""


def shown(text: str) -> str:
    """A piece of the filter as an error shows it: quoted, and of bounded length."""
    whole = repr(text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "…")
    # A character that cannot be printed takes up to ten.
    return whole if len(whole) <= _LONGEST else repr(text[: _LONGEST // 12] + "…")
