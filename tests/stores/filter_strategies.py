"""Filters that Hypothesis draws: mostly of what stands in the records, so that they match."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import attrs
from hypothesis import strategies as st

from lro import TypeRegistry
from lro._messages.schema import json_name
from lro.adapters import Record
from lro.stores._rows import micros
from lro.types import Json
from tests.stores.record_strategies import seldom
from tests.vector_files import vectors

Draw: TypeAlias = st.DrawFn
Facts: TypeAlias = Mapping[str, Sequence[tuple[str, "Json | Key"]]]
"""By kind: what can stand on the left of a test, and a value that is found there."""

OPERATORS: Final = ("=", "=", "=", ":", ":", "!=", "<", "<=", ">", ">=")
KINDS: Final = (*["packed"] * 3, *["indexed"] * 3, "record", "record", "name", "text")
VECTORS: Final = tuple(str(case["filter"]) for case in vectors("filter_eval")["cases"])  # type: ignore[union-attr, index, call-overload]  # as the file is made
_WORD: Final = re.compile(r"[^\x00-\x20\x7f(),.:=<>!\"'\\*-][^\x00-\x20\x7f(),.:=<>!\"'\\*]*")
_KEYWORDS: Final = ("AND", "OR", "NOT")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "*": "\\*", "\n": "\\n", "\t": "\\t"}
_EPOCH: Final = datetime(1970, 1, 1)


@attrs.frozen
class Key:
    """A key or field that is there."""

    name: str


def facts_of(
    records: Iterable[Record], types: TypeRegistry, indexed: Collection[str] = ()
) -> Facts:
    """What can be asked of these records; those of ``indexed`` paths are a kind of their own."""
    found: dict[str, list[tuple[str, Json | Key]]] = {
        "record": [("metadata", Key("*")), ("response", Key("*")), ("error", Key("*"))],
        "name": [],
        "packed": [("metadata.target", "data"), ("metadata.priority", 5)],
        "text": [("", "data")],
    }
    for record in records:
        found["name"].append(("name", record.name))
        found["record"] += _of_record(record)
        for source, packed in (("metadata", record.metadata), ("response", record.response)):
            if packed is not None:
                found["record"].append((f"type({source})", packed.type_name))
                payload = types.readable(packed).payload
                if not isinstance(payload, bytes):
                    found["packed"] += _below(source, payload)
    places = {f"metadata.{json_name(path)}" for path in indexed}
    found["indexed"] = [fact for fact in found["packed"] if fact[0] in places] or found["packed"]
    texts = [("", value) for _, value in found["packed"] if isinstance(value, str) and value]
    found["text"] += [*texts, *found["name"]]
    return found


def _of_record(record: Record) -> Iterator[tuple[str, Json | Key]]:
    yield "state()", record.state.value
    yield "done", record.done
    yield "cancel_requested()", record.cancel_requested
    for nanos in (-1, 0, 0, 1, 1000):
        yield "create_time()", _moment(record.create_time, nanos)
        if record.end_time is not None:
            yield "end_time()", _moment(record.end_time, nanos)
    if record.error is not None:
        yield "error.code", record.error.code
        yield "error.message", record.error.message
        yield "error", Key("details")


def _moment(at: datetime, nanos: int) -> str:
    """So many nanoseconds beside a moment."""
    seconds, rest = divmod(micros(at) * 1000 + nanos, 10**9)
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{rest:09}Z"


def _below(path: str, value: Json) -> Iterator[tuple[str, Json | Key]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield path, Key(key)
            yield from _below(f"{path}.{step(key)}", inner)
    elif isinstance(value, list):
        yield path, Key("*")
        for inner in value:
            yield from _below(path, inner)
    else:
        yield path, value


def step(key: str) -> str:
    """A part of a path."""
    return key if _WORD.fullmatch(key) else quoted(key)


def quoted(text: str) -> str:
    """A text in quotes, without wildcards."""
    return '"' + "".join(_ESCAPES.get(letter) or _letter(letter) for letter in text) + '"'


def _letter(letter: str) -> str:
    return letter if letter >= " " and letter != "\x7f" else f"\\u{ord(letter):04x}"


@st.composite
def filters(draw: Draw, facts: Facts) -> str:
    """A filter, in most cases a valid one."""
    if seldom(draw, 20):
        return draw(st.sampled_from(VECTORS))
    return _tree(draw, facts, draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3])))


def _tree(draw: Draw, facts: Facts, depth: int) -> str:
    if not depth:
        return _test(draw, facts)
    how = draw(st.sampled_from([" AND ", " ", " OR ", " OR ", "NOT ", "-"]))
    if how in ("NOT ", "-"):
        return f"{how}({_tree(draw, facts, depth - 1)})"
    some = [_tree(draw, facts, depth - 1) for _ in range(draw(st.integers(2, 3)))]
    return how.join(f"({one})" if draw(st.booleans()) else one for one in some)


def _test(draw: Draw, facts: Facts) -> str:
    kind = draw(st.sampled_from(KINDS))
    left, value = draw(st.sampled_from(facts[kind]))
    if kind == "text":
        assert isinstance(value, str)
        return _searched(draw, value)
    if kind == "packed" and seldom(draw, 12):
        value = draw(st.sampled_from(facts[kind]))[1]
    if isinstance(value, Key):
        return f"{left}:{'*' if value.name == '*' else step(value.name)}"
    usual = isinstance(value, bool) or kind == "indexed" or left == "state()"
    op = draw(st.sampled_from(OPERATORS[: 6 if usual and not seldom(draw, 6) else None]))
    if kind == "packed" and seldom(draw, 8):
        return f"{left}:*"
    space = draw(st.sampled_from(["", "", " "]))
    if not seldom(draw, 8):
        return f"{left}{space}{op}{space}{_literal(draw, value)}"
    other = draw(st.sampled_from(facts[kind]))[1]
    some = [value if isinstance(one, Key) else one for one in (value, other)]
    joint = draw(st.sampled_from([" OR ", " AND ", " NOT ", " -"]))
    return f"{left}{space}{op}({joint.join(_apart(draw, one) for one in some)})"


def _apart(draw: Draw, value: Json) -> str:
    """A literal that may stand in a group, where a minus would negate."""
    literal = _literal(draw, value)
    return quoted(literal) if literal.startswith("-") else literal


def _searched(draw: Draw, text: str) -> str:
    begin = draw(st.integers(0, min(len(text) - 1, 20)))
    piece = text[begin : begin + draw(st.integers(1, 9))]
    forms = [piece, piece.upper(), piece.lower(), piece.casefold()]
    return _literal(draw, draw(st.sampled_from(forms)))


def _literal(draw: Draw, value: Json) -> str:
    if isinstance(value, bool) or value is None:
        word = {True: "true", False: "false", None: "null"}[value]
        return draw(st.sampled_from([word, word, f'"{word}"']))
    if isinstance(value, int | float):
        return _number(draw, value)
    assert isinstance(value, str)
    if not seldom(draw, 5) or not value or value.endswith("Z"):
        bare = _WORD.fullmatch(value) and value not in _KEYWORDS and draw(st.booleans())
        return value if bare else quoted(value)
    begin = draw(st.integers(0, len(value)))
    end = draw(st.integers(begin, len(value)))
    return quoted(value[:begin])[:-1] + "*" + quoted(value[end:])[1:]


def _number(draw: Draw, value: float) -> str:
    text = repr(value)
    form = draw(st.sampled_from(["{}", "{}", '"{}"', "{}e0", "{}.0", "0{}"]))
    if "e" in text or "." in text or value < 0:
        return draw(st.sampled_from([text, f'"{text}"', repr(value + 1)]))
    return form.format(text)
