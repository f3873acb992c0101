"""The syntax tree of a filter: what is written, before any name is looked up (spec §7.2, §7.4).

Positions say where in the text a node begins; they do not count for equality.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias

import attrs


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
        """True for the four that need an order, not just equality."""
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
    """Parts joined by dots: on the left of a comparison a path, elsewhere a literal.

    ``op_position`` is given for a literal that is checked: where the operator before it stands.
    """

    parts: tuple[Part, ...]
    op_position: int = attrs.field(default=0, eq=False)

    @property
    def position(self) -> int:
        """Where it begins in the filter."""
        return self.parts[0].position

    @property
    def text(self) -> str:
        """The literal: all parts, with the dots between them."""
        return ".".join(part.text for part in self.parts)

    @property
    def stars(self) -> tuple[int, ...]:
        """The positions in ``text`` of the wildcards."""
        found: list[int] = []
        offset = 0
        for part in self.parts:
            found += (offset + star for star in part.stars)
            offset += len(part.text) + 1
        return tuple(found)

    @property
    def mixed(self) -> bool:
        """True if it is not a literal: a string with a dot beside it (spec §7.4)."""
        return len(self.parts) > 1 and any(part.quoted for part in self.parts)

    @property
    def lone_star(self) -> bool:
        """True for the unquoted ``*`` that asks for presence after ``:`` (spec §7.12(1))."""
        return self.parts == (Part("*", False, (0,)),)


@attrs.frozen
class Call:
    """A function call; ``name`` may be dotted."""

    name: str
    args: tuple[Member | Call | Group, ...]
    position: int = attrs.field(default=0, eq=False)


@attrs.frozen
class Group:
    """A group that stands as an argument (spec §7.13). Other groups leave no trace."""

    tree: Tree
    position: int = attrs.field(default=0, eq=False)


@attrs.frozen
class Search:
    """A test without operator: a bare literal (spec §7.6) or a function standing alone."""

    what: Member | Call


@attrs.frozen
class Comparison:
    """``left op right``; ``op_position`` is where the operator stands."""

    left: Member | Call
    op: Op
    right: Member | Call | Group
    op_position: int = attrs.field(default=0, eq=False)

    @property
    def position(self) -> int:
        """Where it begins in the filter."""
        return self.left.position


@attrs.frozen
class And:
    """Joined by AND or by white space: at least two items, none of them an And."""

    items: tuple[Tree, ...]


@attrs.frozen
class Or:
    """Joined by OR: at least two items, none of them an Or."""

    items: tuple[Tree, ...]


@attrs.frozen
class Not:
    """Negated by NOT or ``-``."""

    item: Tree


Tree: TypeAlias = And | Or | Not | Search | Comparison


def conjunction(items: Iterable[Tree]) -> Tree:
    """The items joined by AND; one item alone stays what it is, nested Ands become one."""
    flat: list[Tree] = []
    for item in items:
        flat += item.items if isinstance(item, And) else (item,)
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def disjunction(items: Iterable[Tree]) -> Tree:
    """The items joined by OR; one item alone stays what it is, nested Ors become one."""
    flat: list[Tree] = []
    for item in items:
        flat += item.items if isinstance(item, Or) else (item,)
    return flat[0] if len(flat) == 1 else Or(tuple(flat))
