"""Names, parents and ids (spec §3.1, §3.3(2))."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lro._model.operation import join_name, new_id, normalise_parent
from lro.errors import InvalidOperationName, InvalidParent
from lro.wire import OperationName, parse_name
from tests.vector_files import vectors

CASES = vectors("names")["cases"]

# A small set of pieces makes reserved words, double slashes and odd lengths frequent.
PIECES = st.sampled_from(
    ["a", "operations", "operationsx", "-", ".", "..", "", "é:%2F", "\x7f", "--"]
)
NEAR_NAMES = st.lists(PIECES, max_size=7).map("/".join)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_name_is_parsed_as_its_vector_says(case: dict[str, Any]) -> None:
    """Each name in names.json is parsed into its parts or refused with its error."""
    name, expect = case["name"], case["expect"]
    if case["kind"] == "operation" and "error" in expect:
        with pytest.raises(InvalidOperationName) as refused:
            parse_name(name)
        assert refused.value.code.name == expect["error"]
    elif case["kind"] == "operation":
        assert parse_name(name) == OperationName(expect["parent"], expect["id"])
        assert join_name(expect["parent"], expect["id"]) == name
    elif "error" in expect:
        with pytest.raises(InvalidParent) as no_parent:
            normalise_parent(name)
        assert no_parent.value.code.name == expect["error"]
    else:
        assert normalise_parent(name) == expect["parent"]


def reference(name: str) -> OperationName | None:
    """Parse a name by the rules of spec §3.1 (1) and (2), one after another."""
    segments = name.split("/")
    if len(name) > 1024 or any(s in ("", ".", "..", "-") for s in segments):
        return None
    if any(ord(c) < 0x20 or ord(c) == 0x7F or 0xD800 <= ord(c) < 0xE000 for c in name):
        return None
    for n in range(0, len(segments) - 1, 2):
        if segments[n] == "operations":
            return OperationName("/".join(segments[:n]), "/".join(segments[n + 1 :]))
    return None


def parsed(name: str) -> OperationName | None:
    try:
        return parse_name(name)
    except InvalidOperationName:
        return None


def parent(name: str) -> str | None:
    try:
        return normalise_parent(name)
    except InvalidParent:
        return None


@given(NEAR_NAMES | st.text(max_size=30))
@example("operations/" + "x" * 1013)
@example("operations/" + "x" * 1014)
def test_name_regex_agrees_with_the_rules_of_the_spec(name: str) -> None:
    """The regular expression agrees with a function that applies the rules one by one."""
    found = parsed(name)
    assert found == reference(name)
    if found is not None:
        assert str(found) == name
        assert normalise_parent(found.parent) == found.parent


@given(NEAR_NAMES | st.text(max_size=30))
def test_text_is_a_parent_exactly_if_adding_an_id_gives_a_name(name: str) -> None:
    """A text is a parent, or a parent's collection, exactly if adding an id gives a valid name."""
    under = {reference(f"{name}/operations/x"), reference(f"{name}/x")}
    parents = {found.parent for found in under if found and found.id == "x"}
    assert parent(name) == ("" if name == "" else next(iter(parents), None))


@given(NEAR_NAMES, NEAR_NAMES)
def test_joined_name_is_split_into_its_parts(above: str, unique_id: str) -> None:
    """A joined name has the given parts, or ``join_name`` refuses the parts."""
    try:
        name = join_name(above, unique_id)
    except (InvalidOperationName, InvalidParent):
        assert reference(f"{above}/operations/{unique_id}") != OperationName(above, unique_id)
    else:
        assert parse_name(name) == OperationName(above, unique_id)


def test_a_name_is_not_joined_under_an_operation() -> None:
    """A name below an operation's name would be parsed differently, and is therefore refused."""
    with pytest.raises(InvalidParent, match="is under ''") as refused:
        join_name("operations/a", "b")
    assert refused.value.field == "parent"


def test_invalid_name_error_names_the_segment_and_the_reason() -> None:
    """The error about an invalid name is short, names the wrong segment and gives the reason."""
    for name, says in (
        ("operations/a\x00", r"segment 2 contains '\x00'"),
        ("projects/p", "no collection 'operations'"),
        ("operations/" + "x" * 2000, "it has 2011 characters, 1024 are allowed"),
    ):
        with pytest.raises(InvalidOperationName) as refused:
            parse_name(name)
        assert says in str(refused.value)
        assert refused.value.field == "name"
        assert len(str(refused.value)) < 200
    for parent, says in (("projects", "an odd number of seg"), ("operations/a", "is the name of")):
        with pytest.raises(InvalidParent, match=says):
            normalise_parent(parent)


@pytest.mark.parametrize("name", [None, 5, ["operations/a"], b"operations/a"])
def test_name_or_parent_that_is_not_a_string_is_refused(name: Any) -> None:
    """A name that is not a string raises the usual error for a wrong argument, not a TypeError."""
    for read, error in ((parse_name, InvalidOperationName), (normalise_parent, InvalidParent)):
        with pytest.raises(error, match="name: must be a text, got "):
            read(name)


NOW = datetime(2030, 1, 1, tzinfo=UTC)


@given(st.binary(min_size=12, max_size=12))
def test_a_new_id_keeps_all_random_bits(source: bytes) -> None:
    """Twelve random bytes become sixteen characters of a valid id."""
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return source

    unique_id = new_id(random, NOW)
    assert asked == [12]
    assert re.fullmatch(r"[A-Za-z0-9_-]{23}", unique_id)
    assert unique_id[7:] == base64.urlsafe_b64encode(source).decode()
    assert parse_name(f"operations/{unique_id}").id == unique_id


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_ids_sort_by_creation_time(one: datetime, other: datetime) -> None:
    """Ids sort by creation time to the millisecond, for 139 years from 1970."""
    made = [new_id(bytes, moment)[:7] for moment in (one, other)]
    first = datetime(1970, 1, 1, tzinfo=UTC)
    millis = [(moment - first) // timedelta(milliseconds=1) for moment in (one, other)]
    if all(0 <= number < 2**42 for number in millis):
        assert (made[0] < made[1]) is (millis[0] < millis[1])
        assert (made[0] == made[1]) is (millis[0] == millis[1])
