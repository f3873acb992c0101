"""The grammar beyond the vectors: positions, limits, and trees printed and read again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lro.errors import InvalidFilter
from tests.filters.every_field_kind import compiled
from tests.filters.test_vectors import ROWS, TYPES
from tests.filters.tree_printing import Json, to_text, tree_of

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
        tree_of(text)
    return caught.value


KEYWORDS = ("AND", "OR", "NOT")
OPS = ["<", "<=", ">", ">=", "=", "!=", ":"]
WORD_CHARS = st.characters(
    exclude_characters="\x7f(),.:=<>!\"'\\ ", min_codepoint=0x21, exclude_categories=("Cs",)
)
WORDS = st.text(WORD_CHARS, min_size=1, max_size=6)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


def literal(words: list[str]) -> Json:
    """Words joined by dots, all of whose stars are wildcards."""
    text = ".".join(words)
    stars = [index for index, char in enumerate(text) if char == "*"]
    return {"text": text, **({"wildcards": stars} if stars else {})}


@st.composite
def strings(draw: st.DrawFn) -> Json:
    """A string, some of whose stars are wildcards."""
    text = draw(TEXTS)
    stars = [index for index, char in enumerate(text) if char == "*"]
    wild = sorted(draw(st.sets(st.sampled_from(stars)))) if stars else []
    return {"string": text, **({"wildcards": wild} if wild else {})}


def begins(item: Json) -> bool:
    """Whether a unit may begin with this literal."""
    first = item["member"][0] if "member" in item else item
    return "text" not in first or not first["text"].startswith("-")


def is_argument(item: Json) -> bool:
    """Whether it does not begin with a keyword."""
    first = item["member"][0] if "member" in item else item
    return "text" not in first or first["text"].partition(".")[0] not in KEYWORDS


PARTS = WORDS.map(lambda word: literal([word])) | strings()
MIXED = st.lists(PARTS, min_size=2, max_size=3).filter(
    lambda parts: any("string" in part for part in parts)
)
LITERALS = (
    st.lists(WORDS, min_size=1, max_size=3).map(literal)
    | strings()
    | MIXED.map(lambda parts: {"member": parts})
).filter(is_argument)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", fullmatch=True)
CALLS = st.builds(lambda name, args: {"call": name, "args": args}, NAMES, st.lists(LITERALS))
PATHS = st.lists(TEXTS, min_size=1, max_size=3).map(lambda parts: {"path": parts})


def comparisons(rights: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Something compared with one of these."""
    sides = st.fixed_dictionaries({"op": st.sampled_from(OPS), "lhs": PATHS | CALLS, "rhs": rights})
    return sides.map(lambda found: {"cmp": found})


def joined(trees: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Larger trees of these."""

    def several(kind: str) -> st.SearchStrategy[Json]:
        others = trees.filter(lambda tree: kind not in tree)
        return st.lists(others, min_size=2, max_size=4).map(lambda items: {kind: items})

    groups = comparisons(trees.map(lambda tree: {"expr": tree}))
    return several("and") | several("or") | trees.map(lambda tree: {"not": tree}) | groups


TESTS = (LITERALS.filter(begins) | CALLS).map(lambda what: {"global": what})


@settings(max_examples=60)
@given(st.none() | st.recursive(TESTS | comparisons(LITERALS | CALLS), joined, max_leaves=12))
def test_a_printed_tree_reads_back(tree: Json) -> None:
    """Printing and parsing are each other's inverse."""
    assert tree_of(to_text(tree)) == tree


@given(st.lists(st.sampled_from(SNIPPETS), max_size=12), st.sampled_from(["", " "]))
def test_token_soup_is_refused_or_evaluated(snippets: list[str], between: str) -> None:
    """Whatever the text: InvalidFilter with a place in it, or a filter that can be evaluated."""
    text = between.join(snippets)
    try:
        found = compiled(text, TYPES)
    except InvalidFilter as exc:
        assert 0 <= exc.position <= len(text)
    else:
        assert {found.matches(row) for row in ROWS} <= {True, False}


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


@pytest.mark.parametrize("name", ["AND", "OR.f", "NOT"])
def test_a_keyword_may_begin_the_name_of_a_function(name: str) -> None:
    """Before ``(`` and in a dotted function name a keyword is a name (spec §7.2(2))."""
    call = {"global": {"call": name, "args": [{"text": "b"}]}}
    assert tree_of(f"a {name}(b)") == {"and": [{"global": {"text": "a"}}, call]}
    assert tree_of(f"-{name}(b)") == {"not": call}


def test_limits_are_the_last_that_pass() -> None:
    """8192 code points, 50 nested parentheses of both kinds, 500 units (spec §7.16)."""
    for text, more in (
        ("é" * 8192, "é" * 8193),
        ("(" * 50 + "a" + ")" * 50, "(" * 51),
        ("x:(" + "f(" * 49 + ")" * 50, "x:(" + "f(" * 50),
        ("a " * 500, "a " * 501),
        ("(a) " * 250, "(a) " * 250 + "a"),
    ):
        assert tree_of(text)
        assert "at most" in refused(more).description
