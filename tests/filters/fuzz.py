"""Filters made to do harm, and what holds for all of them."""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from hypothesis import strategies as st

from lro import Any, Status
from lro._filters.filter import Filter
from lro.errors import InvalidFilter
from tests.filters.every_field_kind import EVERYTHING, NAME, compiled
from tests.filters.messages import START, Row, row, types, url
from tests.vector_files import vectors

T = typing.TypeVar("T")

EVAL: Final[typing.Any] = vectors("filter_eval")
METADATA: Final = [
    *types([*EVAL["metadata_types"], *EVAL["response_types"], "google.protobuf.Struct"]),
    *EVERYTHING,
]
RESPONSE: Final = types(EVAL["response_types"])
HANGS_SECONDS: Final = 10.0
"""Far above what anything takes here: what is slower counts as hanging."""

LIMITS: Final = ("a filter has at most", "parentheses can be nested at most")
CASES: Final[typing.Any] = [
    vectors(file)["cases"] for file in ("filter_parse_ok", "filter_parse_error", "filter_eval")
]
SEEDS: Final = sorted(
    {case["filter"] for cases in CASES for case in cases if len(case["filter"]) < 1000}
)
ODD: Final = "\x00\x1f\x7f\ud800\udfff\u0130ß\ufb03\u0345\u202e\u200d\u0301\u2028\ufeff\U000e0001🙂"
"""Control characters, halves of pairs, what folds to more than one, what is not seen."""

TOKENS: Final = (
    *("AND", "OR", "NOT", "-", "(", ")", "()", " ", "  ", "\t\n", ".", ",", ":", "=", "!=", "<="),
    *(">=", "<", ">", "!", "\\", '"', "'", "*", "\\*", '"*"', "\\u0041", '"\\ud83d\\ude42"'),
    *("name", "done", "error.code", "metadata", "metadata.", "response.", "state()", "type(", "x"),
    *("create_time()", "'2030-01-01T00:00:00Z'", "1.5s", "1e308", "1e-308", "1e309", "9" * 400),
    *("9" * 401, "-0", "true", "null", "IN_PROGRESS", "extra.a.b", "labels.k", "steps.name"),
)
PATHS: Final = (
    *("name", "done", "error.code", "error.message", "error.details", "state()", "end_time()"),
    *("cancel_requested()", "type(metadata)", "create_time()", "metadata", "response"),
    *(f"metadata.{field.name}" for one in METADATA if one.shape for field in one.shape.fields),
    *("metadata.steps.name", "metadata.steps.notes", "metadata.extra.a.b", "metadata.labels.k"),
    *("metadata.node.below.links.label", "metadata.value.a", "metadata.by_key.a.b"),
)

LETTERS: Final = st.sampled_from("ab*9.e-_ß" + ODD) | st.characters(codec=None)
NUMBERS: Final = st.from_regex(
    r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?s?", fullmatch=True
)
WORDS: Final = st.text("ab*-9_@ßİ🙂", min_size=1, max_size=8).filter(lambda word: word[0] != "-")
STRINGS: Final = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
)
LITERALS: Final = (
    st.sampled_from(["*", "true", "null", "RED", "FAILED", "x", "'2024-01-01T00:00:00Z'", "1.5s"])
    | NUMBERS.map(lambda number: f'"{number}"')
    | WORDS
    | STRINGS
)


SOUP: Final = (
    st.text(LETTERS, max_size=60)
    | st.lists(st.sampled_from(TOKENS) | st.text(LETTERS, max_size=3), max_size=30).map("".join)
    | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1"))
)


@st.composite
def mutants(draw: st.DrawFn) -> str:
    """A filter of the vectors, some of it cut out, doubled, or replaced by something else."""
    text: str = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = draw(st.integers(begin, min(len(text), begin + 12)))
        cut = text[begin:end]
        other = draw(
            st.sampled_from(["", cut + cut, f"({cut})", f" {cut} "])
            | st.sampled_from(TOKENS)
            | st.sampled_from(SEEDS)
            | st.text(LETTERS, max_size=3)
        )
        text = f"{text[:begin]}{other}{text[end:]}"
    return text


@st.composite
def giants(draw: st.DrawFn) -> str:
    """One piece again and again, up to the limits and beyond."""
    piece = draw(st.sampled_from(TOKENS) | st.sampled_from(SEEDS) | st.text(LETTERS, max_size=4))
    count = draw(st.sampled_from([49, 50, 51, 499, 500, 501, 4000, 8192]))
    before, after = draw(st.tuples(st.sampled_from(PATHS), st.sampled_from(TOKENS)))
    joint = draw(st.sampled_from(["", " ", " OR ", ".", ","]))
    text = joint.join([piece] * count)
    return draw(st.sampled_from([text, f"{before}:{text}", f"{before} = ({text})", text + after]))[
        : draw(st.sampled_from([8191, 8192, 8193, 20_000]))
    ]


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(LETTERS, max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "label", "below", "links", "k", "7"]), inner)
    ),
    max_leaves=8,
)
FIELDS: Final = [field.json_name for one in METADATA if one.shape for field in one.shape.fields]
METADATA_VALUES: Final = st.builds(
    Any,
    st.sampled_from([url(one.full_name) for one in METADATA] + [url(NAME)] * 3),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4) | JSON | st.binary(max_size=5),
)
KNOWN: Final = [row(record) for record in EVAL["records"]]
ROWS: Final = st.sampled_from(KNOWN) | st.builds(
    Row,
    name=st.text(LETTERS, max_size=9),
    done=st.booleans(),
    error=st.none() | st.builds(Status, st.integers(0, 16), st.text(LETTERS, max_size=5)),
    metadata=st.none() | METADATA_VALUES,
    end_time=st.sampled_from([None, START, START + timedelta(microseconds=1)]),
    cancel_requested=st.booleans(),
)


def read(text: str) -> Filter | None:
    """The filter, or None for one that is refused as it ought to be; soon, either way."""
    try:
        return in_time(lambda: compiled(text, METADATA, RESPONSE))
    except InvalidFilter as refused:
        check_refusal(refused, text)
        return None


def in_time(call: Callable[[], T]) -> T:
    """What a call gives, which does not hang."""
    began = time.process_time()
    try:
        return call()
    finally:
        took = time.process_time() - began
        assert took < HANGS_SECONDS, f"it takes {took:.1f} s"


def check_refusal(refused: InvalidFilter, text: str) -> None:
    """A refusal names a place in the filter, and is one line that can be read."""
    assert 0 <= refused.position <= len(text)
    assert refused.description
    assert refused.description.isprintable(), ascii(refused.description)
    assert len(refused.description) < 200, ascii(refused.description)
    assert str(refused).encode()


def check_text(text: str, rows: Sequence[Row]) -> list[bool] | None:
    """Any text is a filter or refused; ``NOT`` of a filter is its complement (spec §7.5)."""
    wanted = read(text)
    if wanted is None or not text.strip(" \t\r\n"):
        return None
    found = [in_time(lambda subject=subject: wanted.matches(subject)) for subject in rows]  # type: ignore[misc]  # a default keeps the subject
    try:
        other = compiled(f"NOT ({text})", METADATA, RESPONSE)
    except InvalidFilter as refused:
        assert refused.description.startswith(LIMITS), refused
    else:
        assert [not one for one in found] == [other.matches(subject) for subject in rows]
    return found
