"""Filters made to do harm, and what holds for all of them: ``python -m tests.filters.fuzz``."""

from __future__ import annotations

import argparse
import collections
import functools
import time
import typing
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import attrs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lro import Any, Status
from lro._base.status import type_url
from lro._filters.filter import Filter, compile_filter
from lro.errors import InvalidFilter
from tests.filters.every_field_kind import EVERYTHING, NAME
from tests.filters.messages import START, TYPES, Row, row
from tests.vector_files import vectors

EVAL: Final[typing.Any] = vectors("filter_eval")
METADATA: Final = [*TYPES.values(), EVERYTHING]
RESPONSE: Final = [TYPES[name] for name in EVAL["response_types"]]
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


@attrs.frozen
class Joined:
    """A filter as a tree whose leaves are tests in text: spelled in more than one way."""

    how: str
    items: tuple[Joined | str, ...]


def tight(tree: Joined | str) -> str:
    """With no parenthesis, white space or keyword more than needed."""
    if isinstance(tree, str):
        return tree
    if tree.how == "not":
        return f"-{_in_group(tree.items[0])}"
    inner = [tight(item) if _binds(item, tree.how) else _in_group(item) for item in tree.items]
    return (" OR " if tree.how == "or" else " ").join(inner)


def loose(tree: Joined | str) -> str:
    """With parentheses around everything that may have some, in other words."""
    if isinstance(tree, str):
        return f"( {tree}\n)"
    if tree.how == "not":
        return f"NOT ({loose(tree.items[0])})"
    return "(" + f"\t{tree.how.upper()} ".join(map(loose, tree.items)) + ")"


def _in_group(tree: Joined | str) -> str:
    return tree if isinstance(tree, str) else f"({tight(tree)})"


def _binds(item: Joined | str, how: str) -> bool:
    return isinstance(item, str) or item.how == "not" or (item.how, how) == ("or", "and")


TESTS: Final = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(PATHS),
    st.sampled_from(["", " "]),
    st.sampled_from(["=", "!=", ":", "<", "<=", ">", ">="]),
    st.sampled_from(["", " "]),
    LITERALS | st.lists(LITERALS, min_size=1, max_size=3).map(lambda all: f"({' OR '.join(all)})"),
)
BARE: Final = LITERALS.map(lambda text: f"x{text}" if text in ("AND", "OR", "NOT") else text)
TREES: Final = st.recursive(
    TESTS | TESTS | BARE,
    lambda inner: (
        st.builds(Joined, st.sampled_from(["and", "or"]), st.tuples(inner, inner))
        | st.builds(Joined, st.sampled_from(["and", "or"]), st.tuples(inner, inner, inner))
        | st.builds(Joined, st.just("not"), st.tuples(inner))
    ),
    max_leaves=12,
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
    st.sampled_from([type_url(one.full_name) for one in METADATA] + [type_url(NAME)] * 3),
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


@attrs.define
class Tally:
    """What has been tried, by kind, and the longest that anything took, in seconds."""

    counts: collections.Counter[str] = attrs.field(factory=collections.Counter)
    slowest_compile: float = 0.0
    slowest_match: float = 0.0

    def compile(self, text: str) -> Filter | None:
        """The filter, or None for one that is refused as it ought to be."""
        began = time.process_time()
        try:
            made = compile_filter(text, metadata=METADATA, response=RESPONSE)
        except InvalidFilter as refused:
            made = None
            self.counts["refused"] += 1
            check_refusal(refused, text)
        else:
            self.counts["valid"] += 1
        took = time.process_time() - began
        self.slowest_compile = max(self.slowest_compile, took)
        assert took < HANGS_SECONDS, f"reading it takes {took:.1f} s"
        return made

    def match(self, wanted: Filter, subject: Row) -> bool:
        """Whether it matches, which is a bool and no error, and soon."""
        began = time.process_time()
        found = wanted.matches(subject)
        took = time.process_time() - began
        self.counts["matched" if found else "not matched"] += 1
        self.slowest_match = max(self.slowest_match, took)
        assert found is True or found is False
        assert took < HANGS_SECONDS, f"matching takes {took:.1f} s"
        return found


def check_refusal(refused: InvalidFilter, text: str) -> None:
    """A refusal names a place in the filter, and is one line that can be read."""
    assert 0 <= refused.position <= len(text)
    assert refused.description
    assert refused.description.isprintable(), ascii(refused.description)
    assert len(refused.description) < 200, ascii(refused.description)
    assert str(refused).encode()


def check_text(tally: Tally, text: str, rows: Sequence[Row]) -> None:
    """Any text is a filter or refused; ``NOT`` of a filter is its complement (spec §7.5)."""
    wanted = tally.compile(text)
    if wanted is None or not text.strip(" \t\r\n"):
        return
    try:
        other = compile_filter(f"NOT ({text})", metadata=METADATA, response=RESPONSE)
    except InvalidFilter as refused:
        assert refused.description.startswith(LIMITS), refused
        return
    for subject in rows:
        assert tally.match(wanted, subject) is not tally.match(other, subject)
        tally.counts["complements"] += 1


def check_tree(tally: Tally, tree: Joined | str, rows: Sequence[Row]) -> None:
    """However a tree is spelled, it is the same filter, or the same mistake."""
    one, other = tally.compile(tight(tree)), tally.compile(loose(tree))
    assert (one is None) == (other is None)
    tally.counts["trees"] += 1
    if one is not None and other is not None:
        for subject in rows:
            assert tally.match(one, subject) is tally.match(other, subject)


def run(tally: Tally, examples: int, **options: object) -> None:
    """Try so many of each kind; ``options`` are more settings of Hypothesis."""
    chosen = settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        **options,  # type: ignore[arg-type]  # each as settings() declares it
    )
    rows = st.lists(ROWS, min_size=1, max_size=3)
    kinds: dict[str, st.SearchStrategy[str]] = {
        "soup": SOUP,
        "mutants": mutants(),
        "giants": giants(),
        "grammar": TREES.map(tight),
    }
    for kind, texts in kinds.items():
        _try(chosen, tally, kind, functools.partial(check_text, tally), texts, rows)
    _try(chosen, tally, "spellings", functools.partial(check_tree, tally), TREES, rows)


def _try(
    chosen: settings,
    tally: Tally,
    kind: str,
    check: Callable[..., None],
    made: st.SearchStrategy[object],
    rows: st.SearchStrategy[list[Row]],
) -> None:
    @chosen
    @given(made, rows)
    def one(example: object, subjects: list[Row]) -> None:
        tally.counts[f"examples of {kind}"] += 1
        check(example, subjects)

    one()


def main() -> None:
    """Go on until the minutes are over, and say what was tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.filters.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--round", type=int, default=500, help="examples of a kind in a round")
    options = parser.parse_args()
    until, tally = time.monotonic() + options.minutes * 60, Tally()
    phases = [Phase.generate, Phase.shrink]
    while time.monotonic() < until:
        run(tally, options.round, derandomize=False, database=None, phases=phases)
        compiling, matching = tally.slowest_compile * 1e3, tally.slowest_match * 1e3
        print(dict(tally.counts), f"slowest: {compiling:.0f} ms, {matching:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
