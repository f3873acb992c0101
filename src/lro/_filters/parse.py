"""Parser of filters: tokens, grammar, limits and tree (spec §7.1-§7.4, §7.16)."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Final, TypeAlias

import attrs

from lro._base.errors import InvalidFilter


class Op(enum.Enum):
    """The comparators."""

    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    EQUAL = "="
    NOT_EQUAL = "!="
    HAS = ":"

    @property
    def orders(self) -> bool:
        """True for the four operators that need an order."""
        return self in (Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL)


@attrs.frozen
class Part:
    """One word or string of a member. ``stars`` are the positions of its wildcards."""

    text: str
    quoted: bool = False
    stars: tuple[int, ...] = ()
    position: int = attrs.field(default=0, eq=False)


@attrs.frozen
class Member:
    """Parts joined by dots: a path on the left of a comparison, elsewhere a literal.

    ``op_position`` is the position of the operator before a literal, set when a filter is checked.
    """

    parts: tuple[Part, ...]
    op_position: int = attrs.field(default=0, eq=False)

    @property
    def position(self) -> int:
        """The index of the member's first character in the filter."""
        return self.parts[0].position

    @property
    def text(self) -> str:
        """The literal: all parts with dots between them."""
        return ".".join(part.text for part in self.parts)

    @property
    def stars(self) -> tuple[int, ...]:
        """The positions of the wildcards in ``text``."""
        found: list[int] = []
        offset = 0
        for part in self.parts:
            found += (offset + star for star in part.stars)
            offset += len(part.text) + 1
        return tuple(found)

    @property
    def mixed(self) -> bool:
        """True if dots join a string to other parts: such a member is not a literal (spec §7.4)."""
        return len(self.parts) > 1 and any(part.quoted for part in self.parts)

    @property
    def lone_star(self) -> bool:
        """True for the unquoted ``*`` that asks for presence after ``:`` (spec §7.12(1))."""
        return self.parts == (Part("*", False, (0,)),)


@attrs.frozen
class Function:
    """A function call; ``name`` may be dotted."""

    name: str
    args: tuple[Member | Function | Composite, ...]
    position: int = attrs.field(default=0, eq=False)


@attrs.frozen
class Composite:
    """A group as an argument (spec §7.13). The tree has no node for any other group."""

    tree: Tree
    position: int = attrs.field(default=0, eq=False)


@attrs.frozen
class Search:
    """A test without an operator: a bare literal (spec §7.6) or a function call."""

    what: Member | Function


@attrs.frozen
class Comparison:
    """``left op right``; ``op_position`` is the position of the operator."""

    left: Member | Function
    op: Op
    right: Member | Function | Composite
    op_position: int = attrs.field(default=0, eq=False)

    @property
    def position(self) -> int:
        """The index of the comparison's first character in the filter."""
        return self.left.position


@attrs.frozen
class And:
    """At least two items joined by AND or white space, none of them an And."""

    items: tuple[Tree, ...]


@attrs.frozen
class Or:
    """At least two items joined by OR, none of them an Or."""

    items: tuple[Tree, ...]


@attrs.frozen
class Not:
    """An item negated by NOT or ``-``."""

    item: Tree


Tree: TypeAlias = And | Or | Not | Search | Comparison


def conjunction(items: Iterable[Tree]) -> Tree:
    """Join items by AND; a single item stays as it is, and nested Ands become one."""
    flat: list[Tree] = []
    for item in items:
        flat += item.items if isinstance(item, And) else (item,)
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def disjunction(items: Iterable[Tree]) -> Tree:
    """Join items by OR; a single item stays as it is, and nested Ors become one."""
    flat: list[Tree] = []
    for item in items:
        flat += item.items if isinstance(item, Or) else (item,)
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


_SHOWN_LENGTH: Final = 40
_MAX_SHOWN: Final = 60
_MAX_DESCRIPTION: Final = 199
_NEAR: Final = 0.7
_MAX_COMPARED: Final = 2000
"""Maximum number of names to compare with an unknown name; this takes up to about 50 ms."""


def refusal(description: str, position: int, hint: str = "") -> InvalidFilter:
    """Return the error for a filter that is wrong at this code point, counted from 0.

    The error is always one readable line: if names are very long, the hint is left out first.
    """
    if len(description + hint) <= _MAX_DESCRIPTION:
        description += hint
    elif len(description) > _MAX_DESCRIPTION:
        description = description[: _MAX_DESCRIPTION - 1] + "…"
    return InvalidFilter("filter", description, position)


def suggestion(text: str, known: Mapping[str, str]) -> str:
    """Return the hint for an error about an unknown name: the nearest known name, if any is near.

    ``known`` maps names to their spelling in filters. Letter case is ignored.
    """
    if len(text) > _SHOWN_LENGTH:  # comparing takes time, and no known name is this long
        return ""
    folded = {name.lower(): written for name, written in islice(known.items(), _MAX_COMPARED)}
    found = get_close_matches(text.lower(), folded, n=1, cutoff=_NEAR)
    return f"; did you mean {folded[found[0]]}?" if found else ""


def shown(text: str) -> str:
    """Return a piece of the filter for an error, quoted and cut."""
    whole = repr(text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "…")
    # In a repr, an unprintable character may become up to ten characters.
    return whole if len(whole) <= _MAX_SHOWN else repr(text[: _MAX_SHOWN // 12] + "…")


class TokenKind(enum.Enum):
    """The kind of a token. White space is a token, because it means AND between factors."""

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
class FilterToken:
    """One token.

    ``text`` is the token as written, but a string is unescaped and without quotes. ``stars`` are
    the positions of wildcards in ``text``. ``position`` is where the token begins in the filter.
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
"""Characters not allowed in filters: control characters and lone surrogates."""


def word(text: str, position: int) -> FilterToken:
    """Return a word token; all its stars are wildcards."""
    stars = tuple(index for index, char in enumerate(text) if char == "*")
    return FilterToken(kind=TokenKind.WORD, text=text, position=position, stars=stars)


def tokens(text: str) -> list[FilterToken]:
    """Return the tokens of a filter, with END at the end.

    Raises:
        InvalidFilter: A character is in a wrong place, or a string is broken.
    """
    found: list[FilterToken] = []
    at = 0
    while at < len(text):
        if text[at] in "\"'":
            token, at = _string(text, at)
        elif match := _TOKEN.match(text, at):
            name, piece = match.lastgroup or "", match.group()
            kind = TokenKind[name]
            plain = FilterToken(kind=kind, text=piece, position=at)
            token, at = (word(piece, at) if kind is TokenKind.WORD else plain), match.end()
        else:
            raise refusal(_stray(text[at]), at)
        found.append(token)
    return [*found, FilterToken(kind=TokenKind.END, text="", position=len(text))]


def _stray(char: str) -> str:
    if char == "!":
        return "expected '=' after '!'; a negation is written NOT or -"
    if char == "\\":
        return "expected a token, found a backslash; escapes stand only inside quotes"
    return f"expected a token, found the character {shown(char)}"


def _string(text: str, start: int) -> tuple[FilterToken, int]:
    quote = text[start]
    # Each item is one code point, so the length is the position of the next item.
    chars: list[str] = []
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
    token = FilterToken(kind=TokenKind.STRING, text=content, position=start, stars=tuple(stars))
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


MAX_LENGTH: Final = 8192
"""Maximum length of a filter, in code points."""
MAX_DEPTH: Final = 50
"""Maximum nesting depth of parentheses: of groups and calls together."""
MAX_UNITS: Final = 500
"""Maximum number of units of the grammar, including groups."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDS: Final = (TokenKind.END, TokenKind.CLOSE)
_BEGINNING: Final = "expected a field, a function, a value or '('"


def parse(text: str) -> Tree | None:
    """Return the tree of a filter, or None for the empty filter, which matches everything.

    Only the syntax is checked: fields and functions need not exist.

    Raises:
        InvalidFilter: The text is not in the language, or exceeds a limit of spec §7.16.
    """
    if len(text) > MAX_LENGTH:
        description = f"a filter has at most {MAX_LENGTH} characters, this one has {len(text)}"
        raise refusal(description, MAX_LENGTH)
    return _Parser(tokens(text)).filter()


@attrs.define
class _Parser:
    """Recursive descent parser. Its depth is bounded, because only parentheses recurse."""

    tokens: list[FilterToken]
    at: int = 0
    depth: int = 0
    units: int = 0

    @property
    def here(self) -> FilterToken:
        return self.tokens[self.at]

    @property
    def next(self) -> FilterToken:
        return self.tokens[self.at + 1]  # never used at the last token

    def skip_space(self) -> None:
        if self.here.kind is TokenKind.SPACE:
            self.at += 1

    def take(self, kind: TokenKind, expected: str) -> None:
        if self.here.kind is not kind:
            raise self.expected(expected)
        self.at += 1

    def expected(self, what: str) -> InvalidFilter:
        return refusal(f"{what}, found {self.here}", self.here.position)

    def filter(self) -> Tree | None:
        self.skip_space()
        if self.here.kind is TokenKind.END:
            return None
        tree = self.conj()
        self.skip_space()
        self.take(TokenKind.END, "expected the end of the filter")
        return tree

    def conj(self) -> Tree:
        """Parse the rules conj, seq and disj: OR binds tighter than AND and white space."""
        factors = [[self.unit()]]
        while self.goes_on():
            self.skip_space()
            if self.takes_keyword("OR"):
                factors[-1].append(self.unit())
                continue
            self.takes_keyword("AND")
            factors.append([self.unit()])
        return conjunction(disjunction(units) for units in factors)

    def goes_on(self) -> bool:
        return self.here.kind is TokenKind.SPACE and self.next.kind not in _ENDS

    def takes_keyword(self, keyword: str) -> bool:
        """Consume the keyword and its mandatory white space, if the keyword is next.

        Before ``(`` or ``.``, the word is not a keyword, but part of the name of a function.
        """
        if self.here.kind is not TokenKind.WORD or self.here.text != keyword:
            return False
        if self.next.kind in (TokenKind.OPEN, TokenKind.DOT):
            return False
        self.at += 1
        self.goes_on_after(keyword)
        self.take(TokenKind.SPACE, f"expected white space after {keyword}")
        return True

    def goes_on_after(self, keyword: str) -> None:
        token = self.next if self.here.kind is TokenKind.SPACE else self.here
        if token.kind in _ENDS:
            raise refusal(f"expected a test after {keyword}, found {token}", token.position)

    def unit(self) -> Tree:
        self.units += 1
        if self.units > MAX_UNITS:
            raise refusal(f"a filter has at most {MAX_UNITS} tests and groups", self.here.position)
        negated = self.takes_keyword("NOT") or self.takes_minus()
        if self.here.kind is TokenKind.OPEN:
            atom = self.group()
        elif self.here.kind is TokenKind.WORD and self.here.text.startswith("-"):
            raise self.expected("expected '(' before a second negation")
        else:
            atom = self.test()
        return Not(atom) if negated else atom

    def takes_minus(self) -> bool:
        token = self.here
        if token.kind is not TokenKind.WORD or not token.text.startswith("-"):
            return False
        if token.text == "-":
            self.at += 1
        else:
            self.tokens[self.at] = word(token.text[1:], token.position + 1)
        return True

    def group(self) -> Tree:
        opened = self.enter()
        tree = self.conj()
        self.leave(opened)
        return tree

    def enter(self) -> int:
        """Enter parentheses, and return the position of the opening parenthesis."""
        opened = self.here.position
        self.depth += 1
        if self.depth > MAX_DEPTH:
            description = f"parentheses can be nested at most {MAX_DEPTH} deep"
            raise refusal(description, opened)
        self.at += 1
        self.skip_space()
        return opened

    def leave(self, opened: int) -> None:
        self.skip_space()
        self.take(TokenKind.CLOSE, f"expected ')' for the '(' at character {opened}")
        self.depth -= 1
        self.stands_apart()

    def stands_apart(self) -> None:
        if self.here.kind in (TokenKind.WORD, TokenKind.STRING, TokenKind.OPEN):
            raise self.expected("expected white space between two tests")

    def test(self) -> Tree:
        left = self.operand(_BEGINNING)
        space = self.here.kind is TokenKind.SPACE
        operator = self.next if space else self.here
        if operator.kind is not TokenKind.OPERATOR:
            return Search(left)
        self.at += 2 if space else 1
        self.skip_space()
        right = self.argument(f"expected a value after {shown(operator.text)}")
        self.compares_once()
        return Comparison(left, Op(operator.text), right, operator.position)

    def compares_once(self) -> None:
        """Refuse an operator after a comparison, as in a chain or in a value that lacks quotes."""
        if self.here.kind is TokenKind.OPERATOR and self.here.text == Op.HAS.value:
            raise self.expected("expected quotes around a value that holds an operator")
        apart = self.here.kind is TokenKind.SPACE
        token = self.next if apart else self.here
        if token.kind is TokenKind.OPERATOR:
            why = (
                "join them with AND" if apart else "and a value that holds an operator needs quotes"
            )
            description = f"comparisons cannot be chained, {why}; found {shown(token.text)}"
            raise refusal(description, token.position)

    def argument(self, expected: str) -> Member | Function | Composite:
        if self.here.kind is TokenKind.OPEN:
            position = self.here.position
            return Composite(self.group(), position)
        return self.operand(expected)

    def operand(self, expected: str) -> Member | Function:
        start = self.here
        parts = [self.part(expected)]
        while self.here.kind is TokenKind.DOT:
            self.at += 1
            parts.append(self.part("expected a name or value after '.'"))
        if self.here.kind is TokenKind.OPEN:
            return self.call(parts)
        if start.kind is TokenKind.WORD and start.text in KEYWORDS:
            raise refusal(f"{expected}, found {start}", start.position)
        self.stands_apart()
        return Member(tuple(parts))

    def part(self, expected: str) -> Part:
        token = self.here
        if token.kind not in (TokenKind.WORD, TokenKind.STRING):
            raise self.expected(expected)
        self.at += 1
        return Part(token.text, token.kind is TokenKind.STRING, token.stars, token.position)

    def call(self, parts: list[Part]) -> Function:
        for part in parts:
            if part.quoted or not _IDENTIFIER.fullmatch(part.text):
                description = (
                    f"expected the name of a function before '(', found {shown(part.text)}"
                )
                raise refusal(description, part.position)
        opened = self.enter()
        args: list[Member | Function | Composite] = []
        if self.here.kind is not TokenKind.CLOSE:
            args.append(self.argument("expected an argument or ')'"))
            self.skip_space()
        while self.here.kind is TokenKind.COMMA:
            self.at += 1
            self.skip_space()
            args.append(self.argument("expected an argument after ','"))
            self.skip_space()
        self.leave(opened)
        return Function(".".join(part.text for part in parts), tuple(args), parts[0].position)
