"""Hostile filters cost no more work than their length and the record's size justify.

Work is counted in calls of Python and C functions, because seconds depend on the machine. A
generous time limit catches single calls that would hang.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lro import AnyMessage, Status
from lro._filters.filter import Filter
from lro.errors import InvalidFilter
from lro.types import Json
from tests.filters.every_field_kind import EVERYTHING, NAME, compiled, deep_list, matches
from tests.filters.messages import START, Row, row, types, url
from tests.vector_files import vectors

T = typing.TypeVar("T")

EVAL: Final[Any] = vectors("filter_eval")
METADATA: Final = [
    *types([*EVAL["metadata_types"], *EVAL["response_types"], "google.protobuf.Struct"]),
    *EVERYTHING,
]
RESPONSE: Final = types(EVAL["response_types"])
HANGS_SECONDS: Final = 10.0
"""CPU seconds after which a call counts as hanging. Each call of these tests needs far fewer."""

LIMITS: Final = ("a filter has at most", "parentheses can be nested at most")
CASES: Final[Any] = [
    vectors(file)["cases"] for file in ("filter_parse_ok", "filter_parse_error", "filter_eval")
]
SEEDS: Final = sorted(
    {case["filter"] for cases in CASES for case in cases if len(case["filter"]) < 1000}
)
ODD: Final = "\x00\x1f\x7f\ud800\udfff\u0130ß\ufb03\u0345\u202e\u200d\u0301\u2028\ufeff\U000e0001🙂"
"""Control characters, lone surrogates, invisible characters, and some with longer foldings."""

TOKENS: Final = (
    *("AND", "OR", "NOT", "-", "(", ")", "()", " ", "  ", "\t\n", ".", ",", ":", "=", "!=", "<="),
    *(">=", "<", ">", "!", "\\", '"', "'", "*", "\\*", '"*"', "\\u0041", '"\\ud83d\\ude42"'),
    *("name", "done", "error.code", "metadata", "metadata.", "response.", "state()", "type(", "x"),
    *("create_time()", "'2030-01-01T00:00:00Z'", "1.5s", "1e308", "1e-308", "1e309", "9" * 400),
    *("9" * 401, "-0", "true", "null", "IN_PROGRESS", "extra.a.b", "labels.k", "steps.name"),
)
PATHS: Final = (
    *("name", "done", "error.code", "error.message", "error.details", "state()", "end_time()"),
    *(
        "cancel_requested()",
        "waiting()",
        "method()",
        "type(metadata)",
        "create_time()",
        "metadata",
        "response",
    ),
    *(f"metadata.{field.name}" for one in METADATA if one.shape for field in one.shape.fields),
    *("metadata.steps.name", "metadata.steps.notes", "metadata.extra.a.b", "metadata.labels.k"),
    *("metadata.node.below.links.label", "metadata.value.a", "metadata.by_key.a.b"),
)

LETTERS: Final = st.sampled_from("ab*9.e-_ß" + ODD) | st.characters(codec=None)


SOUP: Final = (
    st.text(LETTERS, max_size=60)
    | st.lists(st.sampled_from(TOKENS) | st.text(LETTERS, max_size=3), max_size=30).map("".join)
    | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1"))
)


@st.composite
def mutants(draw: st.DrawFn) -> str:
    """Return a filter of the vectors with pieces cut out, doubled, or replaced."""
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
    """Return a text in which a piece is repeated up to the limits of filters, or beyond."""
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
    AnyMessage,
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
    waits=st.booleans(),
    method=st.text(LETTERS, max_size=9),
)


def read(text: str) -> Filter | None:
    """Compile the text in bounded time. If it is refused, check the error and return None."""
    try:
        return in_time(lambda: compiled(text, METADATA, RESPONSE))
    except InvalidFilter as refused:
        check_refusal(refused, text)
        return None


def in_time(call: Callable[[], T]) -> T:
    """Make the call, and check that it does not hang."""
    began = time.process_time()
    try:
        return call()
    finally:
        took = time.process_time() - began
        assert took < HANGS_SECONDS, f"it takes {took:.1f} s"


def check_refusal(refused: InvalidFilter, text: str) -> None:
    """Check that the error has a position in the filter and one printable line as description."""
    assert 0 <= refused.position <= len(text)
    assert refused.description
    assert refused.description.isprintable(), ascii(refused.description)
    assert len(refused.description) < 200, ascii(refused.description)
    assert str(refused).encode()


def check_text(text: str, rows: Sequence[Row]) -> list[bool] | None:
    """Match the rows, unless the text is refused. ``NOT`` must invert each result (spec §7.5)."""
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


EXPORT: Final = "lrofix.v1.ExportMetadata"
SLACK: Final = 100
"""Function calls that may be added for work that is done only once."""


def work(call: Callable[[], object]) -> int:
    """Count the function calls made by ``call``, with the garbage collector off."""
    count = 0

    def seen(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def check_linear(works: Mapping[int, int]) -> None:
    """Check that the number of calls grows at most in proportion to the size."""
    for small, large in itertools.pairwise(works):
        most = works[small] * (large / small) * 1.1 + SLACK
        assert works[large] <= most, f"grows faster than the size: {works}"


FILTERS: Final[Mapping[str, Callable[[int], str]]] = {
    "groups in groups": lambda n: "(" * (n // 16) + "a" + ")" * (n // 16),
    "negations in groups": lambda n: "-(" * (n // 16) + "a" + ")" * (n // 16),
    "both kinds in turn": lambda n: "(a b OR " * (n // 32) + "a" + ")" * (n // 32),
    "calls in calls": lambda n: "f(" * (n // 16) + ")" * (n // 16),
    "ORs": lambda n: " OR ".join(["done=true"] * (n // 2)),
    "adjacency": lambda n: " ".join(["x"] * (n // 2)),
    "ORs under ANDs": lambda n: " ".join(["a OR b"] * (n // 4)),
    "negations": lambda n: " ".join(["-x"] * (n // 2)),
    "values in a group": lambda n: f"metadata.tags:({' OR '.join(['x*'] * (n // 2))})",
    "numbers in a group": lambda n: f"error.code = ({' '.join(['1e308'] * (n // 2))})",
    "stars": lambda n: "*" * n,
    "stars in a string": lambda n: f'name = "{"a*" * n}"',
    "escapes": lambda n: '"' + r"\u00e9" * n + '"',
    "digits": lambda n: "error.code = " + "9" * n,
    "an exponent": lambda n: "error.code = 1e" + "9" * n,
    "a fraction of a duration": lambda n: "metadata.elapsed > 1." + "9" * n + "s",
    "a year": lambda n: f'create_time() > "{"9" * n}-01-01T00:00:00Z"',
    "a key": lambda n: "metadata.by_long." + "9" * n + ":*",
    "steps of a Struct": lambda n: "metadata.extra" + ".a" * n + " = x",
    "dots": lambda n: "name" + "." * n,
    "operators": lambda n: "a " + "=" * n,
    "white space": lambda n: "a" + " \t\r\n" * n + "b",
    "marks on a letter": lambda n: "a" + "\u0301" * n,
    "what folds to more": lambda n: "ΐİß" * n,
}


@pytest.mark.parametrize("kind", FILTERS)
def test_parsing_takes_time_linear_in_the_filter(kind: str) -> None:
    """A filter twice as long takes at most twice the work to parse, even if it is invalid."""
    make = FILTERS[kind]
    read(make(16))  # this call does the work that is done only once
    check_linear({size: work(lambda size=size: read(make(size))) for size in (200, 400, 800)})  # type: ignore[misc]  # a default keeps the size


PAYLOADS: Mapping[str, tuple[str, str, Callable[[int], Any]]] = {
    "a repeated field": ("metadata.tags:z", EXPORT, lambda n: {"tags": ["a"] * n}),
    "patterns on it": ("metadata.tags:*a*z", EXPORT, lambda n: {"tags": ["aaa"] * n}),
    "repeated twice": ("metadata.steps.notes:z", EXPORT, lambda n: {"steps": steps(n // 10, 10)}),
    "the other way": ("metadata.steps.notes:z", EXPORT, lambda n: {"steps": steps(10, n // 10)}),
    "times": (
        "metadata.when:'2030-01-01T00:00:00Z'",
        NAME,
        lambda n: {"when": ["2031-01-01T00:00:00Z"] * n},
    ),
    "a map's keys": (
        "metadata.labels:(x y z)",
        EXPORT,
        lambda n: {"labels": {str(number): "" for number in range(n)}},
    ),
    "objects in lists": (
        "metadata.extra.a.b.c:z",
        EXPORT,
        lambda n: {"extra": {"a": [{"b": [{"c": "x"}]}] * n}},
    ),
    "a list as deep as it is long": (
        "metadata.loose.b:z",
        NAME,
        lambda n: {"loose": deep_list(n, {"b": "x"})},
    ),
    "the search of many strings": ("a*z", EXPORT, lambda n: {"tags": ["a"] * n}),
    "the search of one long string": ("a*a*z", EXPORT, lambda n: {"verb": "a" * n}),
    "the search of messages": ("z", NAME, lambda n: {"node": {"links": [{"label": "a"}] * n}}),
    "numbers of any size": (
        "metadata.extra.a:1e308",
        EXPORT,
        lambda n: {"extra": {"a": [10**4000, -(10**4000), 1.5] * (n // 3)}},
    ),
}


def steps(count: int, notes: int) -> Json:
    """Return ``count`` messages, each with a list of ``notes`` texts."""
    return [{"notes": ["a"] * notes}] * count


@pytest.mark.parametrize("kind", PAYLOADS)
def test_matching_takes_time_linear_in_the_record(kind: str) -> None:
    """Matching a record twice as large takes at most twice the work."""
    text, name, make = PAYLOADS[kind]
    wanted = compiled(text, METADATA, RESPONSE)
    works = {}
    for size in (500, 1000, 2000):
        subject = Row(metadata=AnyMessage(url(name), make(size)))
        assert not wanted.matches(subject)
        works[size] = work(lambda subject=subject: wanted.matches(subject))  # type: ignore[misc]  # a default keeps the subject
    check_linear(works)


@pytest.mark.parametrize(
    "test", ["metadata.tags:z{}", "metadata.steps.name:z{}*", "z{}", "a*z{}", "metadata.verb:*z{}"]
)
def test_matching_takes_time_linear_in_the_tests(test: str) -> None:
    """A filter with twice as many tests takes at most twice the work to match a record."""
    payload: Any = {"tags": ["a"] * 50, "steps": [{"name": "a"}] * 50, "verb": "a" * 500}
    subject = Row(metadata=AnyMessage(url(EXPORT), payload))
    works = {}
    for count in (50, 100, 200):
        text = " OR ".join(test.format(number) for number in range(count))
        wanted = compiled(text, METADATA, RESPONSE)
        assert not wanted.matches(subject)
        works[count] = work(lambda wanted=wanted: wanted.matches(subject))  # type: ignore[misc]  # a default keeps the filter
    check_linear(works)


class Counted(list[Any]):
    """A list that counts how often it was iterated."""

    rounds = 0

    def __iter__(self) -> Iterator[Any]:
        self.rounds += 1
        return super().__iter__()


def test_equal_paths_are_read_once() -> None:
    """Many tests of one path read its values once, and do not compare each pair (spec §3.4(8))."""
    tags = Counted(f"t{number}" for number in range(1000))
    values = " OR ".join(f"x{number}" for number in range(400))
    wanted = compiled(f"metadata.tags:({values} OR t999)", METADATA)
    subject = Row(metadata=AnyMessage(url(EXPORT), {"tags": tags}))
    assert wanted.matches(subject)
    assert tags.rounds == 1
    assert work(lambda: wanted.matches(subject)) < 20_000


MEGABYTE: Final = 10**6
LONG: Final = {"verb": "a" * MEGABYTE}


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ("*" * 8192, LONG),
        ("a*" * 4095 + "z", LONG),
        ("a*" * 4095 + "z", {"tags": ["a" * 1000] * 900}),
        ("metadata.verb = *" + "a*" * 4000 + "z", LONG),
        ("metadata.verb = *" + "a" * 4000 + "z" + "a" * 4000, LONG),
        ("a" * 4000 + "z" + "a" * 4000, LONG),
        (" OR ".join(["za*z"] * 500), {"verb": "za" * (MEGABYTE // 2)}),
        ("-" + " -".join(["aaaaaaazaaaaaa"] * 500), {"verb": "a" * (MEGABYTE // 20)}),
        ("ΐ" * 8192, {"verb": "ΐ" * MEGABYTE}),
        ("metadata.extra" + ".a" * 4085 + "= b", {"extra": {}}),
        (f"metadata.bytes_done < {'9' * 394}e308", {"bytesDone": 1}),
        (f"metadata.ratio = ({' '.join(['1e308'] * 498)})", {"ratio": 1}),
        ("(" * 50 + "a " * 450 + ")" * 50, {"verb": "b"}),
    ],
    ids=range(13),
)
def test_hostile_filters_end_in_time(text: str, payload: Json) -> None:
    """The worst filter of each kind is evaluated in time on a megabyte of data."""
    subject = Row(metadata=AnyMessage(url(EXPORT), payload))
    began = time.process_time()
    wanted = compiled(text, METADATA, RESPONSE)
    wanted.matches(subject)
    assert time.process_time() - began < HANGS_SECONDS


@pytest.mark.parametrize(
    "test", ["*b*{}z", "ab{}", "metadata.extra.a:{}", "metadata.extra.a.b{}:z"]
)
def test_filter_that_takes_too_many_steps_is_refused(test: str) -> None:
    """A filter of allowed length is refused if it takes too many steps (spec §7.16)."""
    wanted = compiled(" OR ".join(test.format(number) for number in range(290)), METADATA)
    assert not wanted.matches(Row(metadata=AnyMessage(url(EXPORT), {"tags": ["a"]})))
    verb = "a" * MEGABYTE if test == "ab{}" else ""
    large: Json = {"verb": verb, "tags": ["bbb"] * 9000, "extra": {"a": [0.5, []] * 10_000}}
    with pytest.raises(InvalidFilter, match="too many tests"):
        wanted.matches(Row(metadata=AnyMessage(url(EXPORT), large)))


def test_the_depth_of_a_filter_needs_few_frames() -> None:
    """A filter with 50 nested parentheses needs only a small part of the stack."""
    texts = ["-(a " * 49 + "b" + ")" * 49, "(x OR -(y " * 25 + "b" + "))" * 25]
    texts += [f"done = {text.replace('a', 'true').replace('b', 'false')}" for text in texts[:1]]
    texts[2] = "done = (" + "-(true " * 49 + "false" + ")" * 50
    usual, depth = sys.getrecursionlimit(), len(inspect.stack(0))
    sys.setrecursionlimit(depth + 500)
    try:
        for text in texts:
            compiled(text, []).matches(Row())
    finally:
        sys.setrecursionlimit(usual)


NUMBERS: Final = (
    *("0", "-0", "-0.0", "007", "5", "-5", "0.1", "2.5e+3", "1E-308", "16777217", "5e-1"),
    *("9007199254740993", "9223372036854775807", "9223372036854775808", "1e308", "-1e308"),
    *("1e-308", "4.9406564584124654e-308", f"1e{'0' * 390}7", "9" * 400, "9" * 395 + "e308"),
    *("0." + "0" * 397 + "1", "1" + "0" * 300 + "e-300"),
)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:22])
def test_numbers_of_any_size_compare_exactly(number: str) -> None:
    """Integers are compared with the exact number, and doubles with the double nearest to it."""
    exact = Fraction(number)
    for value in (-5, 0, 1, 5, 2**31 - 1):
        for op, wanted in (("<", value < exact), ("=", value == exact), ("!=", value != exact)):
            assert matches(f"metadata.limit {op} {number}", {"limit": value}) is wanted
    for held in (0.0, 0.1, 5.0, 1e308, -1e308, 5e-324):
        assert matches(f"metadata.rate < {number}", {"rate": held}) is (held < float(number))
    for other in (f"{number}e309", "1e309", "1e-309", "9" * 401, f"1e{'9' * 500}"):
        with pytest.raises(InvalidFilter):
            compiled(f"metadata.limit = {other}")


@pytest.mark.parametrize("char", ODD, ids=ascii)
def test_odd_characters_are_text_or_refused(char: str) -> None:
    """An odd character is searched for as it is, or refused with an error of one line."""
    never = not char.encode("utf-8", "replace").strip(b"?") or char < " " or char == "\x7f"
    for text in (char, f'"{char}"', f"metadata.loose.{char}:*", f'metadata.loose = "x{char}*"'):
        assert (read(text) is None) is never
    for text in (char * 500, f"{char * 500} = 1", f"{char * 90}(x)", f"done = {char * 500}"):
        read(text)
    if not never:
        assert matches(f'metadata.loose = "{char}*{char}"', {"loose": char * 2})
        assert matches(char, {"loose": f"a{char.upper()}"}) is (
            char.casefold() in f"a{char.upper()}".casefold()
        )


def test_search_match_cannot_span_two_strings() -> None:
    """A search does not match across two strings, even if folding changes their lengths."""
    payload: Json = {"loose": ["İa", "bß", "\u0345c", "\ud800", "d\udc00e"]}
    for text, found in (("ab", False), ("a*b", False), ("ss", True), ("ßc", False), ("ιc", True)):
        assert matches(text, payload) is found, text
    assert matches("i̇A", payload)


FEW: Final = settings(max_examples=15)
SOME_ROWS: Final = st.lists(ROWS, min_size=1, max_size=3)


@pytest.mark.parametrize("texts", [SOUP, mutants(), giants()], ids=["soup", "mutants", "giants"])
@FEW
@given(data=st.data())
def test_any_text_is_a_filter_or_refused(
    texts: st.SearchStrategy[str], data: st.DataObject
) -> None:
    check_text(data.draw(texts), data.draw(SOME_ROWS))
