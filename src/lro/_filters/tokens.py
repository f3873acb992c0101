"""The text of a filter: cut into tokens, or refused at a place in it (spec §7.1, §7.15)."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Final

import attrs

from lro._base.errors import InvalidFilter

_SHOWN_LENGTH: Final = 40
_MAX_SHOWN: Final = 60
_MAX_DESCRIPTION: Final = 199
_NEAR: Final = 0.7
_MAX_COMPARED: Final = 2000
"""The most names that are compared to find the nearest: some 50 ms at worst."""


def refusal(description: str, position: int, hint: str = "") -> InvalidFilter:
    """Make the error for a filter that goes wrong at this code point, counted from 0.

    It stays one readable line, also where types have very long names: the hint is left out first.
    """
    if len(description + hint) <= _MAX_DESCRIPTION:
        description += hint
    elif len(description) > _MAX_DESCRIPTION:
        description = description[: _MAX_DESCRIPTION - 1] + "…"
    return InvalidFilter("filter", description, position)


def suggestion(text: str, known: Mapping[str, str]) -> str:
    """The hint of an error about an unknown name: the nearest of the known ones, if any is near.

    ``known`` gives for each name how it is written in a filter. Letter case does not count.
    """
    if len(text) > _SHOWN_LENGTH:  # comparing takes time, and no known name is this long
        return ""
    folded = {name.lower(): written for name, written in islice(known.items(), _MAX_COMPARED)}
    found = get_close_matches(text.lower(), folded, n=1, cutoff=_NEAR)
    return f"; did you mean {folded[found[0]]}?" if found else ""


def shown(text: str) -> str:
    """A piece of the filter as an error shows it: quoted, and of bounded length."""
    whole = repr(text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "…")
    # A character that cannot be printed takes up to ten.
    return whole if len(whole) <= _MAX_SHOWN else repr(text[: _MAX_SHOWN // 12] + "…")


class TokenKind(enum.Enum):
    """What a token is. White space counts: between factors it means AND."""

    SPACE = "white space"
    WORD = "a word"
    STRING = "a string"
    OPERATOR = "an operator"
    OPEN = "'('"
    CLOSE = "')'"
    COMMA = "','"
    DOT = "'.'"
    END = "the end of the filter"


@attrs.frozen(kw_only=True)
class Token:
    """One token.

    ``text`` is the text as written; of a string, what it says once unescaped. ``stars`` are the
    positions in ``text`` of the stars that are wildcards, ``position`` is where the token begins
    in the filter.
    """

    kind: TokenKind
    text: str
    position: int
    stars: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind is TokenKind.WORD and self.text in KEYWORDS:
            return f"the keyword {self.text}"
        if self.kind is TokenKind.STRING:
            return f"the string {shown(self.text)}"
        if self.kind in (TokenKind.WORD, TokenKind.OPERATOR):
            return shown(self.text)
        return str(self.kind.value)


KEYWORDS: Final = frozenset({"AND", "OR", "NOT"})

_TOKEN: Final = re.compile(
    r"(?P<SPACE>[ \t\r\n]+)"
    r"|(?P<OPERATOR><=|>=|!=|[<>=:])"
    r"|(?P<OPEN>\()|(?P<CLOSE>\))|(?P<COMMA>,)|(?P<DOT>\.)"
    r"|(?P<WORD>[^\x00-\x20\x7f\ud800-\udfff(),.:=<>!\"'\\]+)"
)
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES: Final[Mapping[str, str]] = {
    "\\": "\\", '"': '"', "'": "'", "*": "*", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_NEVER: Final = frozenset(
    {chr(code) for code in (*range(0x20), 0x7F, *range(0xD800, 0xE000))} - set("\t\r\n")
)
"""What stands nowhere in a filter: control characters, and halves of surrogate pairs."""


def word(text: str, position: int) -> Token:
    """A word: all its stars are wildcards."""
    stars = tuple(index for index, char in enumerate(text) if char == "*")
    return Token(kind=TokenKind.WORD, text=text, position=position, stars=stars)


def tokens(text: str) -> list[Token]:
    """All tokens of a filter, the last one END.

    Raises:
        InvalidFilter: A character that cannot stand where it stands, or a broken string.
    """
    found: list[Token] = []
    at = 0
    while at < len(text):
        if text[at] in "\"'":
            token, at = _string(text, at)
        elif match := _TOKEN.match(text, at):
            name, piece = match.lastgroup or "", match.group()
            kind = TokenKind[name]
            plain = Token(kind=kind, text=piece, position=at)
            token, at = (word(piece, at) if kind is TokenKind.WORD else plain), match.end()
        else:
            raise refusal(_stray(text[at]), at)
        found.append(token)
    return [*found, Token(kind=TokenKind.END, text="", position=len(text))]


def _stray(char: str) -> str:
    if char == "!":
        return "expected '=' after '!'; a negation is written NOT or -"
    if char == "\\":
        return "expected a token, found a backslash; escapes stand only inside quotes"
    return f"expected a token, found the character {shown(char)}"


def _string(text: str, start: int) -> tuple[Token, int]:
    quote = text[start]
    chars: list[str] = []  # one code point each, so that its length is the position of the next
    stars: list[int] = []
    at = start + 1
    while at < len(text) and text[at] != quote:
        if text[at] == "\\":
            char, at = _escape(text, at)
        else:
            char = text[at]
            if char in _NEVER:
                raise refusal(f"a string cannot hold the character {shown(char)}", at)
            if char == "*":
                stars.append(len(chars))
            at += 1
        chars.append(char)
    if at >= len(text):
        description = f"expected {quote} to end the string that begins here"
        raise refusal(f"{description}, found the end of the filter", start)
    content = "".join(chars)
    token = Token(kind=TokenKind.STRING, text=content, position=start, stars=tuple(stars))
    return token, at + 1


def _escape(text: str, at: int) -> tuple[str, int]:
    char = text[at + 1 : at + 2]
    if char in _ESCAPES:
        return _ESCAPES[char], at + 2
    if char != "u":
        raise refusal(f"expected an escape, found {shown(text[at : at + 2])}", at)
    unit = _unit(text, at)
    if not 0xD800 <= unit <= 0xDFFF:
        return chr(unit), at + 6
    low = _unit(text, at + 6) if text[at + 6 : at + 8] == "\\u" else 0
    if unit > 0xDBFF or not 0xDC00 <= low <= 0xDFFF:
        raise refusal("expected a pair of surrogates, high and low, found only one", at)
    return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)), at + 12


def _unit(text: str, at: int) -> int:
    digits = text[at + 2 : at + 6]
    if not _HEX.fullmatch(digits):
        raise refusal(f"expected four hexadecimal digits after \\u, found {shown(digits)}", at)
    return int(digits, 16)
