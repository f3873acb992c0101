"""What a caller prefers of a reply: the header ``Prefer`` (RFC 7240)."""

from __future__ import annotations

import re
from typing import Final

import attrs

_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+\-.^_`|~]++"
_WORD: Final = rf'(?:{_TOKEN}|"(?:[^"\\]|\\.)*+")'
_PAIR: Final = rf"{_TOKEN}(?:[ \t]*+=[ \t]*+{_WORD})?+"
_PREFERENCE: Final = re.compile(
    rf"({_TOKEN})(?:[ \t]*+=[ \t]*+({_WORD}))?+[ \t]*+(?:;[ \t]*+(?:{_PAIR})?+[ \t]*+)*+", re.DOTALL
)
"""One preference with its parameters, of which none is known here (RFC 7240 §2)."""
_ELEMENT: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*+"?+)++', re.DOTALL)
"""One element of a list; commas within quotes are its own."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SECONDS: Final = re.compile(r"(?=[0-9])0*+([0-9]{0,9})[0-9]*+", re.ASCII)


@attrs.frozen
class Preferences:
    """What is preferred of the reply to a start.

    ``wait``: to be answered within this number of seconds, in which the operation may end; None:
    not said. ``respond_async``: not to be kept waiting for the end.
    """

    wait: int | None = None
    respond_async: bool = False


NO_PREFERENCES: Final = Preferences()


def read_preferences(header: str) -> Preferences:
    """Read the header ``Prefer``; several are one list, joined by commas.

    Names are compared without regard to letter case, and of a preference that is given twice the
    first counts. What is malformed or not known is passed over (RFC 7240 §2).
    """
    found: dict[str, str] = {}
    for element in _ELEMENT.findall(header):
        matched = _PREFERENCE.fullmatch(element.strip(" \t"))
        if matched is not None:
            found.setdefault(matched[1].lower(), _word(matched[2] or ""))
    return Preferences(_seconds(found.get("wait", "")), found.get("respond-async") == "")


def _word(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1]) if text.startswith('"') else text


def _seconds(text: str) -> int | None:
    """The seconds of a delta-seconds; what is longer than all waits stays so with nine digits."""
    found = _SECONDS.fullmatch(text)
    return None if found is None else int(found[1] or 0)
