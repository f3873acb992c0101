"""What a terminal is shown: text in which nothing controls it, and a line of status."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from types import TracebackType
from typing import Final

import click

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that control a terminal, turn text around, or are invisible.

There are no exceptions: the joiners of some scripts and of emoji (U+200C, U+200D) also make two
names look alike, and a text stays readable with them written out.
"""

_BEYOND: Final = re.compile(r"[^\n -~]")
_ERASED: Final = "\r\x1b[K"
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
    """Whether every shell takes a word as it is, wherever it stands.

    Not safe are quotes, white space, what some shell expands, such as ``~``, ``=`` and ``:``, and
    a hyphen in front, which makes an option.
    """
    return _SAFE.fullmatch(word) is not None


def _written(one: str) -> str:
    return repr(one)[1:-1] if unicodedata.category(one) in _UNSEEN else one


def _escaped(found: re.Match[str]) -> str:
    if unicodedata.category(found[0]) not in _UNSEEN:
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class StatusLine:
    """A line on standard error that says how many operations are waited for, and is redrawn.

    Only a terminal that can erase a line gets it. Call :meth:`clear` before printing anything else.
    """

    def __init__(self, wanted: bool) -> None:
        dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        self._drawn = wanted and not dumb and sys.stderr.isatty()

    def show(self, left: int) -> None:
        """Draw the line for this number of operations."""
        if self._drawn and left:
            things = "1 operation" if left == 1 else f"{left} operations"
            click.echo(f"{_ERASED}waiting for {things}", err=True, nl=False)

    def clear(self) -> None:
        """Erase the line."""
        if self._drawn:
            click.echo(_ERASED, err=True, nl=False)

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
