"""From tokens to the tree: the grammar and its limits (spec §7.2, §7.3, §7.16)."""

from __future__ import annotations

import re
from typing import Final

import attrs

from lro._base.errors import InvalidFilter
from lro._filters.tokens import KEYWORDS, Token, TokenKind, refusal, shown, tokens, word
from lro._filters.tree import (
    Call,
    Comparison,
    Group,
    Member,
    Not,
    Op,
    Part,
    Search,
    Tree,
    conjunction,
    disjunction,
)

MAX_LENGTH: Final = 8192
"""Code points of a filter."""
MAX_DEPTH: Final = 50
"""Parentheses inside one another, of groups and calls together."""
MAX_UNITS: Final = 500
"""Units of the grammar, also those that are groups."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDS: Final = (TokenKind.END, TokenKind.CLOSE)
_BEGINNING: Final = "expected a field, a function, a value or '('"


def parse(text: str) -> Tree | None:
    """The tree of a filter, or None for the empty one, which matches everything.

    Syntax only: fields and functions need not exist.

    Raises:
        InvalidFilter: The text is not in the language, or exceeds a limit of spec §7.16.
    """
    if len(text) > MAX_LENGTH:
        description = f"a filter has at most {MAX_LENGTH} characters, this one has {len(text)}"
        raise refusal(description, MAX_LENGTH)
    return _Parser(tokens(text)).filter()


@attrs.define
class _Parser:
    """Recursive descent; its depth is bounded, because only parentheses make it recur."""

    tokens: list[Token]
    at: int = 0
    depth: int = 0
    units: int = 0

    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    @property
    def next(self) -> Token:
        return self.tokens[self.at + 1]  # asked only where the end has not been reached

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
        """The productions conj, seq and disj in one: OR binds tighter than AND and white space."""
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
        """Take the keyword and the white space that must follow, if it stands here.

        Before ``(`` or ``.`` it is (part of) the name of a function.
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
        """Go into parentheses; the position of the one that opens them."""
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
        """Refuse an operator after a comparison: a chain, or a value that lacks its quotes."""
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

    def argument(self, expected: str) -> Member | Call | Group:
        if self.here.kind is TokenKind.OPEN:
            position = self.here.position
            return Group(self.group(), position)
        return self.operand(expected)

    def operand(self, expected: str) -> Member | Call:
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

    def call(self, parts: list[Part]) -> Call:
        for part in parts:
            if part.quoted or not _IDENTIFIER.fullmatch(part.text):
                description = (
                    f"expected the name of a function before '(', found {shown(part.text)}"
                )
                raise refusal(description, part.position)
        opened = self.enter()
        args: list[Member | Call | Group] = []
        if self.here.kind is not TokenKind.CLOSE:
            args.append(self.argument("expected an argument or ')'"))
            self.skip_space()
        while self.here.kind is TokenKind.COMMA:
            self.at += 1
            self.skip_space()
            args.append(self.argument("expected an argument after ','"))
            self.skip_space()
        self.leave(opened)
        return Call(".".join(part.text for part in parts), tuple(args), parts[0].position)
