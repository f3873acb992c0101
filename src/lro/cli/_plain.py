"""Text of arguments and files as a terminal may get it."""

from __future__ import annotations

import unicodedata
from typing import Final

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""What a terminal obeys, what turns text around, and what nobody sees."""


def plain(text: str) -> str:
    r"""A text in which all can be seen: what cannot is written as ``\x1b``, ``\u200b``, ``\n``."""
    return text if text.isprintable() else "".join(map(_written, text))


def _written(one: str) -> str:
    return repr(one)[1:-1] if unicodedata.category(one) in _UNSEEN else one
