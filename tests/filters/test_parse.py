"""The grammar beyond the vectors: positions, limits, and trees printed and read again."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro._filters.filter import compile_filter
from lro._filters.parse import (
    KEYWORDS,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_UNITS,
    And,
    Comparison,
    Composite,
    Function,
    Member,
    Not,
    Op,
    Or,
    Part,
    Search,
    Tree,
    parse,
)
from lro.errors import InvalidFilter
from tests.filters.messages import TYPES
from tests.filters.test_vectors import ROWS
from tests.filters.tree_printing import to_text

WORD_CHARS = st.characters(
    exclude_characters="\x7f(),.:=<>!\"'\\ ", min_codepoint=0x21, exclude_categories=("Cs",)
)
STRING_CHARS = st.characters(exclude_categories=("Cs",))
SNIPPETS = [
    *("AND", "OR", "NOT", "-", "--", "(", ")", ",", ".", ":", "=", "!=", "<", "<=", ">", ">="),
    *("!", "\\", "*", '"', "'", '"a*\\*"', "'\\u00e9'", "\\ud83d", "\x00", "\t", "é", "null"),
    *("5", "-5", "1.5", "1e308", "1.5s", '"2024-01-01T00:00:00Z"', "true", "COPYING", "FAILED"),
    *("name", "done", "error", "error.code", "response", "metadata", "metadata.tags", "extra"),
    *("metadata.labels.env", "metadata.extra.list", "metadata.steps.took", "metadata.stage"),
    *("state()", "create_time()", "type(metadata)", "cancel_requested()"),
]


def refused(text: str) -> InvalidFilter:
    """The error of a text that is no filter."""
    with pytest.raises(InvalidFilter) as caught:
        parse(text)
    return caught.value


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """A word that may stand anywhere, or a string."""
    if draw(st.booleans()):
        text = draw(st.text(STRING_CHARS, max_size=6))
        stars = [index for index, char in enumerate(text) if char == "*"]
        active = draw(st.sets(st.sampled_from(stars))) if stars else set()
        return Part(text, True, tuple(sorted(active)))
    text = draw(st.text(WORD_CHARS, min_size=1, max_size=6))
    return Part(text, False, tuple(index for index, char in enumerate(text) if char == "*"))


def begins(member: Member) -> bool:
    """Whether a unit may begin with it."""
    first = member.parts[0]
    return first.quoted or (first.text not in KEYWORDS and not first.text.startswith("-"))


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", fullmatch=True)
MEMBERS = st.lists(parts(), min_size=1, max_size=3).map(lambda found: Member(tuple(found)))
ARGUMENTS = MEMBERS.filter(lambda member: member.parts[0].text not in KEYWORDS)
CALLS = st.builds(Function, NAMES, st.lists(ARGUMENTS, max_size=3).map(tuple))
LEFTS = MEMBERS.filter(begins) | CALLS


def joined(trees: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    """Larger trees of these."""

    def several(kind: type) -> st.SearchStrategy[list[Tree]]:
        others = trees.filter(lambda tree: not isinstance(tree, kind))
        return st.lists(others, min_size=2, max_size=4)

    groups = st.builds(Comparison, LEFTS, st.sampled_from(Op), st.builds(Composite, trees))
    return (
        several(And).map(lambda items: And(tuple(items)))
        | several(Or).map(lambda items: Or(tuple(items)))
        | st.builds(Not, trees)
        | groups
    )


TESTS = st.builds(Search, LEFTS) | st.builds(
    Comparison, LEFTS, st.sampled_from(Op), ARGUMENTS | CALLS
)


@given(st.none() | st.recursive(TESTS, joined, max_leaves=12))
def test_a_printed_tree_reads_back(tree: Tree | None) -> None:
    """Printing and parsing are each other's inverse."""
    assert parse(to_text(tree)) == tree


@given(st.lists(st.sampled_from(SNIPPETS), max_size=12), st.sampled_from(["", " "]))
def test_token_soup_is_refused_or_evaluated(snippets: list[str], between: str) -> None:
    """Whatever the text: InvalidFilter with a place in it, or a filter that can be evaluated."""
    text = between.join(snippets)
    try:
        compiled = compile_filter(text, metadata=list(TYPES.values()), response=[])
    except InvalidFilter as exc:
        assert 0 <= exc.position <= len(text)
    else:
        assert {compiled.matches(row) for row in ROWS} <= {True, False}


@given(st.text(max_size=40))
def test_any_text_is_refused_or_parsed(text: str) -> None:
    """No text makes the parser fail in another way."""
    try:
        parse(text)
    except InvalidFilter as exc:
        assert 0 <= exc.position <= len(text)


@pytest.mark.parametrize(
    ("text", "position", "description"),
    [
        ("a AND", 5, "expected a test after AND, found the end of the filter"),
        ("a AND'b'", 5, "expected white space after AND, found the string 'b'"),
        ("a OR\t\n", 6, "expected a test after OR, found the end of the filter"),
        ("f(a, (NOT ))", 10, "expected a test after NOT, found ')'"),
        ("a = b = c", 6, "comparisons cannot be chained, join them with AND; found '='"),
        ("a = f() : c", 8, "comparisons cannot be chained, join them with AND; found ':'"),
        (
            "a=b<=c",
            3,
            "comparisons cannot be chained, and a value that holds an operator needs quotes;"
            " found '<='",
        ),
        ("a b:c:d", 5, "expected quotes around a value that holds an operator, found ':'"),
        ("(a = 1) = 2", 8, "expected a field, a function, a value or '(', found '='"),
        ("a --b", 3, "expected '(' before a second negation, found '-b'"),
        ("NOT -b", 4, "expected '(' before a second negation, found '-b'"),
        (
            'a "b',
            2,
            'expected " to end the string that begins here, found the end of the filter',
        ),
        ('a "\\q"', 3, "expected an escape, found '\\\\q'"),
        ("a\x7f", 1, "expected a token, found the character '\\x7f'"),
        ("a\ud800", 1, "expected a token, found the character '\\ud800'"),
        ("'\udfff'", 1, "a string cannot hold the character '\\udfff'"),
        ("f(a = 1)", 4, "expected ')' for the '(' at character 1, found '='"),
        ("a (b (c) ", 9, "expected ')' for the '(' at character 2, found the end of the filter"),
        ('"f"(1)', 0, "expected the name of a function before '(', found 'f'"),
        (
            "x" * 60 + "(1",
            62,
            "expected ')' for the '(' at character 60, found the end of the filter",
        ),
        ('a "' + "x" * 60 + '"b', 64, "expected white space between two tests, found 'b'"),
        (
            "a = " + "*" * 60 + "()",
            4,
            f"expected the name of a function before '(', found {'*' * 40 + '…'!r}",
        ),
    ],
)
def test_a_refusal_says_what_and_where(text: str, position: int, description: str) -> None:
    """The position counts code points from 0; the sentence shows a bounded piece of the text."""
    error = refused(text)
    assert (error.position, error.description) == (position, description)
    assert error.field == "filter"


def test_a_keyword_may_begin_the_name_of_a_function() -> None:
    """Before ``(`` and in a dotted function name a keyword is a name (spec §7.2(2))."""
    assert parse("a AND(b)") == And(
        (Search(Member((Part("a"),))), Search(Function("AND", (_b(),))))
    )
    assert parse("a OR.f(b)") == And(
        (Search(Member((Part("a"),))), Search(Function("OR.f", (_b(),))))
    )
    assert parse("-NOT(b)") == Not(Search(Function("NOT", (_b(),))))
    assert parse("f( )") == Search(Function("f", ()))


def test_the_place_of_an_operator_is_known_and_does_not_count() -> None:
    """Two comparisons written differently are equal, each with the place of its operator."""
    one, other = parse("a=b"), parse("a  = b")
    assert isinstance(one, Comparison)
    assert isinstance(other, Comparison)
    assert one == other
    assert hash(one) == hash(other)
    assert (one.op_position, other.op_position) == (1, 3)


def _b() -> Member:
    return Member((Part("b"),))


def test_limits_are_the_last_that_pass() -> None:
    """8192 code points, 50 nested parentheses of both kinds, 500 units (spec §7.16)."""
    for text, more in (
        ("é" * MAX_LENGTH, "é" * (MAX_LENGTH + 1)),
        ("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH, "(" * (MAX_DEPTH + 1)),
        ("x:(" + "f(" * (MAX_DEPTH - 1) + ")" * MAX_DEPTH, "x:(" + "f(" * MAX_DEPTH),
        ("a " * MAX_UNITS, "a " * (MAX_UNITS + 1)),
        ("(a) " * (MAX_UNITS // 2), "(a) " * (MAX_UNITS // 2) + "a"),
    ):
        parse(text)
        assert "at most" in refused(more).description


def test_parentheses_side_by_side_do_not_nest() -> None:
    """Only depth is limited to 50, not the number of groups."""
    assert parse("(a) " * 200) is not None


def test_the_deepest_filter_needs_a_modest_stack() -> None:
    """Reading, checking and evaluating at full depth leaves room for the callers of the library."""
    nested = "-(x OR (y AND " * 12 + "name = ((-(-((a OR b) c))))" + "))" * 12
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 400)
    try:
        compile_filter(nested, metadata=[], response=[]).matches(ROWS[0])
        parse("a:(" * MAX_DEPTH + "b" + ")" * MAX_DEPTH)
    finally:
        sys.setrecursionlimit(limit)
