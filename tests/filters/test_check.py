"""What is refused before any record is looked at, and the checked tree that a store may read."""

from __future__ import annotations

import enum

import attrs
import pytest

from lro._errors import InvalidFilter
from lro._filters import Filter, MessageType, compile_filter
from lro._filters._conditions import Compare
from lro._filters._plan import All, RecordTest, Some, Source, Untrue
from lro._filters._tree import Op
from lro._filters._types import ValueType
from lro._shapes import shape_of
from tests.filters.everything import compiled, refusal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("state", None),
        ("state = FAILED", "or a function such as state()"),
        ("NOT(a)", "expected white space between NOT and '('"),
        ("type((metadata)) = x", "'type' takes no such argument"),
        ("type(f()) = x", "'type' takes no such argument"),
        ("type(metadata.a) = x", "expected one of the functions"),
        ("name.x = 1", "'x' cannot be below text"),
        ("done:x", "expected true or false, found 'x'"),
        ("error.details:x", "takes only ':*'"),
        ("metadata:'*'", "there is no field '*'"),
        ("metadata:a.b", "there is no field 'a.b'"),
        ("metadata = *", "metadata takes only ':', not '='"),
        ("metadata.node = x", "a message takes only ':', not '='"),
        ("metadata.colour < RED", "an enum has no order, so it takes no '<'"),
        ("metadata.colour = BLUE", "expected one of the names RED, GREEN, VERT, found 'BLUE'"),
        ("name:(a f())", "expected a value, found the function 'f'"),
        ('name:(a "b".c)', "not a mixture"),
        ("response.x:1", "no type is registered for response"),
    ],
)
def test_a_refusal_says_what_does_not_fit(text: str, said: str | None) -> None:
    """Types are checked before any record is looked at, with a sentence that helps."""
    if said is None:
        assert isinstance(compiled(text), Filter)  # a bare literal, not a field
    else:
        assert said in refusal(text)


def test_long_enums_are_not_listed_whole() -> None:
    """An error shows the first names of an enum with many."""
    many = enum.Enum("Many", {f"N{number}": number for number in range(20)})  # type: ignore[misc]  # made here
    cls = attrs.make_class("Big", {"many": attrs.field(default=many.N0, type=many)}, frozen=True)
    with pytest.raises(InvalidFilter, match="N7, …, found 'x'"):
        compile_filter(
            "metadata.many = x", metadata=[MessageType("acme.v1.Big", shape_of(cls))], response=[]
        )


def test_the_tree_can_be_read() -> None:
    """A store finds sources, operators and converted literals in the checked tree."""
    tree = compiled("done = true -(name = a OR create_time() < '1970-01-01T00:00:01Z')").tree
    assert isinstance(tree, All)
    done, negated = tree.items
    assert isinstance(done, RecordTest)
    assert done.source is Source.DONE
    assert done.route.steps == ()
    assert done.route.condition == Compare(Op.EQUAL, ValueType.BOOL, True)
    assert isinstance(negated, Untrue)
    assert isinstance(negated.item, Some)
    name, created = negated.item.items
    assert isinstance(name, RecordTest)
    assert isinstance(created, RecordTest)
    assert name.route.condition == Compare(Op.EQUAL, ValueType.TEXT, "a")
    assert created.route.condition == Compare(Op.LESS, ValueType.MOMENT, 10**9)
    assert compiled("").tree == All(())
    assert compiled(" ").text == " "
