"""How a filter is refused: a sentence, and the place in the text (spec §7.15)."""

from __future__ import annotations

from typing import Final

from lro._errors import InvalidFilter

_SHOWN_LENGTH: Final = 40
_LONGEST: Final = 60


def refusal(description: str, position: int) -> InvalidFilter:
    """The error for a filter that goes wrong at this code point, counted from 0."""
    return InvalidFilter("filter", description, position)


def shown(text: str) -> str:
    """A piece of the filter as an error shows it: quoted, and of bounded length."""
    whole = repr(text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "…")
    # A character that cannot be printed takes up to ten.
    return whole if len(whole) <= _LONGEST else repr(text[: _LONGEST // 12] + "…")
