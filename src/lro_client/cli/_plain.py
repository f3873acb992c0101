"""Text from elsewhere, of a server or of an argument, as a terminal may get it."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""What a terminal obeys, what turns text around, and what nobody sees.

Without exceptions: the joiners of some scripts and of emoji (U+200C, U+200D) also make two names
look alike, and a text stays readable with them written out.
"""

_BEYOND: Final = re.compile(r"[^\n -~]")
_SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%+@/-]*", re.ASCII)


def plain(text: str) -> str:
    r"""A text in which all can be seen: what cannot is written as ``\x1b``, ``\u200b``, ``\n``."""
    return text if text.isprintable() else "".join(map(_written, text))


def one_line(text: str) -> str:
    """The same on one line, with single spaces for all white space."""
    return plain(" ".join(text.split()))


def plain_json(text: str) -> str:
    """JSON that means the same, with what cannot be seen in it as JSON escapes."""
    return _BEYOND.sub(_escaped, text)


def safe_in_shells(word: str) -> bool:
    """Whether no shell takes anything in a word for more than a letter, wherever it stands.

    Left out are, beside quotes and white space, what some shell expands in some place, such as
    ``~``, ``=`` and ``:``, and a hyphen in front, which makes an option.
    """
    return _SAFE.fullmatch(word) is not None


def _written(one: str) -> str:
    return repr(one)[1:-1] if unicodedata.category(one) in _UNSEEN else one


def _escaped(found: re.Match[str]) -> str:
    if unicodedata.category(found[0]) not in _UNSEEN:
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
