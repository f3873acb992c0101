"""Makes texts from peers safe to show in a terminal or a log."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that control a terminal, change the direction of text, or are invisible.

They include U+200C and U+200D, which join letters of some scripts and emoji, because two names that
differ only in these characters look the same.
"""
_BLANK: Final = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Invisible characters of other categories: Default_Ignorable_Code_Point, and U+2800."""


def plain(text: str) -> str:
    r"""Return a text with invisible characters escaped, as ``\x1b``, ``\u200b`` or ``\n``.

    So a peer's text cannot control a terminal, begin another log line, or look like another text.
    """
    visible = text.isprintable() and not re.search(_BLANK, text)
    return text if visible else "".join(map(_written, text))


def _written(one: str) -> str:
    unseen = unicodedata.category(one) in _UNSEEN or re.match(_BLANK, one)
    return one.encode("unicode_escape").decode() if unseen else one
