"""Parsing filters: the specification's vectors, and further positions, limits and trees."""

from __future__ import annotations

import typing

import pytest

from lro import Code
from lro._filters.parse import And, Comparison, Composite, Function, Member, Not, Or, Search, parse
from lro.errors import InvalidFilter
from tests.filters.every_field_kind import compiled, refusal
from tests.filters.messages import Row, row, types
from tests.vector_files import by_id, vectors

Json = typing.Any


def tree_of(text: str) -> Json:
    """Return the tree of a filter in the vectors' form."""
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


def refused(text: str) -> InvalidFilter:
    """Return the error of a text that is not a filter."""
    with pytest.raises(InvalidFilter) as caught:
        tree_of(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "position", "description"),
    [  # the tests of errors that callers get have further cases
        ("a AND'b'", 5, "expected white space after AND, found the string 'b'"),
        ("a = f() : c", 8, "comparisons cannot be chained, join them with AND; found ':'"),
        ("(a = 1) = 2", 8, "expected a field, a function, a value or '(', found '='"),
        ("a --b", 3, "expected '(' before a second negation, found '-b'"),
        ("NOT -b", 4, "expected '(' before a second negation, found '-b'"),
        ("'\udfff'", 1, "a string cannot hold the character '\\udfff'"),
        ('"f"(1)', 0, "expected the name of a function before '(', found 'f'"),
        ('a "' + "x" * 60 + '"b', 64, "expected white space between two tests, found 'b'"),
        (
            "a = " + "*" * 60 + "()",
            4,
            f"expected the name of a function before '(', found {'*' * 40 + '…'!r}",
        ),
    ],
)
def test_a_refusal_says_what_and_where(text: str, position: int, description: str) -> None:
    """An error's position counts code points from 0. Its text quotes only a part of the filter."""
    error = refused(text)
    assert (error.position, error.description) == (position, description)
    assert error.field == "filter"


@pytest.mark.parametrize("name", ["AND", "OR.f", "NOT"])
def test_a_keyword_may_begin_the_name_of_a_function(name: str) -> None:
    """A keyword before ``(`` or in a dotted function name is read as a name (spec §7.2(2))."""
    call = {"global": {"call": name, "args": [{"text": "b"}]}}
    assert tree_of(f"a {name}(b)") == {"and": [{"global": {"text": "a"}}, call]}
    assert tree_of(f"-{name}(b)") == {"not": call}


def test_limits_are_the_last_that_pass() -> None:
    """A filter may have 8192 code points, 50 nested parentheses and 500 units (spec §7.16)."""
    for text, more in (
        ("é" * 8192, "é" * 8193),
        ("(" * 50 + "a" + ")" * 50, "(" * 51),
        ("x:(" + "f(" * 49 + ")" * 50, "x:(" + "f(" * 50),
        ("a " * 500, "a " * 501),
        ("(a) " * 250, "(a) " * 250 + "a"),
    ):
        assert tree_of(text)
        assert "at most" in refused(more).description


PARSE_OK = vectors("filter_parse_ok")["cases"]
PARSE_ERROR = vectors("filter_parse_error")["cases"]
EVAL = vectors("filter_eval")
TYPES = types([*EVAL["metadata_types"], "google.protobuf.Struct"])
ROWS = [row(record) for record in EVAL["records"]]


@pytest.mark.parametrize("case", PARSE_OK, ids=by_id)
def test_a_filter_parses_to_its_tree(case):
    """Each valid filter of the vectors is parsed to the tree that its vector gives (spec §7.4)."""
    assert tree_of(case["filter"]) == case["ast"]


@pytest.mark.parametrize("case", PARSE_ERROR, ids=by_id)
def test_a_text_that_is_not_a_filter_is_refused(case):
    """An invalid filter is refused with an error that has a position and a short text."""
    with pytest.raises(InvalidFilter) as caught:
        tree_of(case["filter"])
    assert caught.value.code is Code[case["error"]]
    assert 0 <= caught.value.position <= len(case["filter"])
    assert len(caught.value.description) < 200


@pytest.mark.parametrize("case", EVAL["cases"], ids=by_id)
def test_a_filter_matches_these_records(case):
    """A filter of the vectors matches the records that its vector lists, or is refused."""
    metadata = types(case.get("metadata_types", EVAL["metadata_types"]))
    response = types(EVAL["response_types"])
    if "error" in case["expect"]:
        with pytest.raises(InvalidFilter) as caught:
            compiled(case["filter"], metadata, response)
        assert caught.value.code is Code[case["expect"]["error"]]
        assert 0 <= caught.value.position <= len(case["filter"])
    else:
        found = compiled(case["filter"], metadata, response)
        assert [one.name for one in ROWS if found.matches(one)] == case["expect"]["names"]


def test_nothing_matches_without_types():
    """Without types, a test of a metadata field is refused, but not a test of presence."""
    assert compiled("-metadata:*", []).matches(Row())
    assert "no type is registered for metadata" in refusal("metadata.verb = export", [])
