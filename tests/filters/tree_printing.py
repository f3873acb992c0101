"""Syntax trees as the JSON of spec §7.4, and the text of a filter for such a tree."""

from __future__ import annotations

import re
import typing

from lro._filters.parse import (
    And,
    Comparison,
    Composite,
    Function,
    Member,
    Not,
    Or,
    Search,
    parse,
)

Json = typing.Any
WORD = re.compile(r"(?!(?:AND|OR|NOT)\b)[A-Za-z_]\w*")


def tree_of(text: str) -> Json:
    """The tree of a filter, as in the vectors."""
    return _json(parse(text))


def _json(tree: object) -> Json:
    match tree:
        case And(items):
            return {"and": [_json(item) for item in items]}
        case Or(items):
            return {"or": [_json(item) for item in items]}
        case Not(item):
            return {"not": _json(item)}
        case Search(what):
            return {"global": _json(what)}
        case Comparison(left, op, right):
            path = {"path": [part.text for part in left.parts]} if type(left) is Member else None
            return {"cmp": {"op": op.value, "lhs": path or _json(left), "rhs": _json(right)}}
        case Function(name, args):
            return {"call": name, "args": [_json(each) for each in args]}
        case Composite(inner):
            return {"expr": _json(inner)}
        case Member(parts) if tree.mixed:
            return {"member": [_json(Member((part,))) for part in parts]}
        case Member(parts):
            kind = "string" if parts[0].quoted else "text"
            stars = {"wildcards": list(tree.stars)} if tree.stars else {}
            return {kind: tree.text, **stars}
        case _:
            return None


def to_text(tree: Json) -> str:
    """A filter that parses to this tree; groups stand wherever they may be needed."""
    match tree:
        case None:
            return ""
        case {"and": items}:
            return " AND ".join(map(_unit, items))
        case {"or": items}:
            return " OR ".join(map(_unit, items))
        case {"not": {"and": _} | {"or": _} | {"not": _} as item}:
            return f"NOT ({to_text(item)})"
        case {"not": item}:
            return f"-{to_text(item)}"
        case {"global": what}:
            return to_text(what)
        case {"cmp": {"op": op, "lhs": left, "rhs": right}}:
            return f"{to_text(left)} {op} {to_text(right)}"
        case {"path": parts}:
            return ".".join(part if WORD.fullmatch(part) else _quoted(part) for part in parts)
        case {"call": name, "args": args}:
            return f"{name}({', '.join(map(to_text, args))})"
        case {"expr": inner}:
            return f"({to_text(inner)})"
        case {"member": parts}:
            return ".".join(map(to_text, parts))
        case {"string": text}:
            return _quoted(text, tree.get("wildcards", ()))
        case _:
            return str(tree["text"])


def _unit(tree: Json) -> str:
    return f"({to_text(tree)})" if "and" in tree or "or" in tree else to_text(tree)


def _quoted(text: str, stars: typing.Collection[int] = ()) -> str:
    return '"' + "".join(_char(char, index in stars) for index, char in enumerate(text)) + '"'


def _char(char: str, wild: bool) -> str:
    if char == "*":
        return "*" if wild else "\\*"
    if char in '"\\':
        return "\\" + char
    return f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else char
