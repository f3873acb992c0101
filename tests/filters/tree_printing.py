"""Trees printed: as the JSON of spec §7.4, and as the text of a filter."""

from __future__ import annotations

from lro._filters.parse import (
    And,
    Comparison,
    Composite,
    Function,
    Member,
    Not,
    Or,
    Part,
    Search,
    Tree,
)


def to_json(tree: Tree | None) -> object:
    """The tree of the vectors."""
    match tree:
        case None:
            return None
        case And(items):
            return {"and": [to_json(item) for item in items]}
        case Or(items):
            return {"or": [to_json(item) for item in items]}
        case Not(item):
            return {"not": to_json(item)}
        case Search(what):
            return {"global": _argument(what)}
        case Comparison(left, op, right):
            side = left if isinstance(left, Member) else None
            lhs = {"path": [part.text for part in side.parts]} if side else _argument(left)
            return {"cmp": {"op": op.value, "lhs": lhs, "rhs": _argument(right)}}


def _argument(arg: Member | Function | Composite) -> dict[str, object]:
    match arg:
        case Function(name, args):
            return {"call": name, "args": [_argument(each) for each in args]}
        case Composite(tree):
            return {"expr": to_json(tree)}
        case Member(parts):
            if arg.mixed:
                return {"member": [_literal(Member((part,))) for part in parts]}
            return _literal(arg)


def _literal(member: Member) -> dict[str, object]:
    kind = "string" if member.parts[0].quoted else "text"
    stars = {"wildcards": list(member.stars)} if member.stars else {}
    return {kind: member.text, **stars}


def to_text(tree: Tree | None) -> str:
    """A filter that parses to this tree; groups stand wherever they may be needed."""
    match tree:
        case None:
            return ""
        case And(items):
            return " AND ".join(_unit(item) for item in items)
        case Or(items):
            return " OR ".join(_unit(item) for item in items)
        case Not():
            return _unit(tree)
        case Search(what):
            return _written(what)
        case Comparison(left, op, right):
            return f"{_written(left)} {op.value} {_written(right)}"


def _unit(tree: Tree) -> str:
    match tree:
        case Search() | Comparison():
            return to_text(tree)
        case Not(item):
            return (
                f"NOT ({to_text(item)})" if isinstance(item, And | Or | Not) else f"-{_unit(item)}"
            )
        case _:
            return f"({to_text(tree)})"


def _written(arg: Member | Function | Composite) -> str:
    match arg:
        case Function(name, args):
            return f"{name}({', '.join(_written(each) for each in args)})"
        case Composite(tree):
            return f"({to_text(tree)})"
        case Member(parts):
            return ".".join(_part(part) for part in parts)


def _part(part: Part) -> str:
    if not part.quoted:
        return part.text
    return '"' + "".join(_char(part, index) for index in range(len(part.text))) + '"'


def _char(part: Part, index: int) -> str:
    char = part.text[index]
    if char == "*":
        return "*" if index in part.stars else "\\*"
    if char in '"\\':
        return "\\" + char
    return f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else char
