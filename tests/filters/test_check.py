"""What is refused before any record is looked at, and the checked tree that a store may read."""

from __future__ import annotations

import enum

import attrs
import pytest

from lro import Int32
from lro._filters.filter import Filter, compile_filter
from lro._filters.parse import Op, suggestion
from lro._filters.parse import refusal as refused
from lro._filters.plan import All, Compare, RecordTest, Some, Source, Untrue
from lro._filters.types import MessageType, ValueType
from lro._messages.shapes import shape_of
from lro.errors import InvalidFilter
from tests.filters.every_field_kind import compiled, refusal
from tests.filters.messages import types


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("state", None),
        ("state = FAILED", "or a function such as state()"),
        ("NOT(a)", "expected white space between NOT and '('"),
        ("type((metadata)) = x", "type takes metadata or response, without quotes"),
        ("type(f()) = x", "type takes metadata or response, without quotes"),
        ("type(metadata.a) = x", "type takes metadata or response, without quotes"),
        ("type(metadata, response) = x", "type takes metadata or response, without quotes"),
        ("state('') = x", "state takes no argument"),
        ("type.metadata() = x", "expected one of the functions"),
        ("response.x = 1", "no type is registered for response, so nothing is in it"),
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


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("metadata.colours = RED", "colour"),
        ("metadata.node.below.lable = x", "label"),
        ("metadata.node.links.lable:x", "label"),
        ("metadata.by_long.1.lable = x", "label"),
        ("metadata.node:lable", "label"),
        ("metadata:byLang", "by_long"),
        ("error:detials", "details"),
        ("nam = x", "name"),
        ("mask2:*", "metadata.mask"),
        ("metadata.node.links.lable = x", None),  # the operator is what is wrong
        ("metadata.node.links:lable", None),
        ("metadata.by_long.lable = x", None),  # a key, and no number
        ("metadata.by_long:lable", None),
        ("metadata:'colours'.x", None),
        ("metadata:(colours)", None),
        ("metadata.blob.colours = x", None),
        ("metadata.colour.colours = x", None),
        ("name.colours = x", None),
        ("x = RED", None),
        ("colour" * 10 + " = RED", None),
        ("state() = colour", None),
    ],
)
def test_the_nearest_name_is_suggested(text: str, hint: str | None) -> None:
    """Of an unknown field or name, if one is near, where a field was looked for."""
    said = refusal(text)
    assert said.partition("; did you mean ")[2] == (f"{hint}?" if hint else "")


def test_names_of_every_type_are_suggested() -> None:
    """Of several types, those that have the message; what is said of all of them stays."""
    known = types(["lrofix.v1.ImportMetadata", "lrofix.v1.ExportMetadata"])
    with pytest.raises(InvalidFilter) as caught:
        compile_filter("metadata.verbs = x", metadata=known, response=[])
    assert caught.value.description == (
        "there is no field 'verbs'; no type registered for metadata accepts this;"
        " did you mean verb?"
    )


def test_of_several_types_a_wrong_value_says_more_than_a_wrong_operator() -> None:
    """A type that takes the operator but not the value went further."""
    one, other = (
        MessageType(f"acme.v1.{name}", shape_of(attrs.make_class(name, {"x": field}, frozen=True)))
        for name, field in (
            ("One", attrs.field(default=False, type=bool)),
            ("Other", attrs.field(default=0, type=Int32)),
        )
    )
    for both in ([one, other], [other, one]):
        with pytest.raises(InvalidFilter, match="expected a number, found 'yes'") as caught:
            compile_filter("metadata.x > yes", metadata=both, response=[])
        assert caught.value.position == 13


def test_a_description_stays_short_whatever_the_names() -> None:
    """One line under 200 characters, also where types have longer names than they should."""
    many = enum.Enum("Many", {"N" * 150: 0, "M": 1})  # type: ignore[misc]  # made here
    long = "long_" * 12
    fields = {
        "many": attrs.field(default=next(iter(many)), type=many),
        long: attrs.field(default=0, type=Int32),
    }
    big = MessageType("acme.v1.Big", shape_of(attrs.make_class("Big", fields, frozen=True)))

    def said(text: str) -> str:
        with pytest.raises(InvalidFilter) as caught:
            compile_filter(text, metadata=[big], response=[])
        return caught.value.description

    assert said("metadata.many = x") == "expected one of the names …, found 'x'"
    assert said(f"metadata.{long[:40]} = 1") == (
        f"there is no field '{long[:40]}'; did you mean {long}?"
    )
    assert said(f"{long[:40]} = 1").endswith(f"found '{long[:40]}'")  # the hint would be too long
    assert refused("x" * 200, 0).description == "x" * 198 + "…"


def test_suggestions_compare_a_bounded_number_of_names() -> None:
    """The nearest is sought among 2000 names, in bounded time."""
    known = {f"field_{number}": f"f{number}" for number in range(5000)}
    assert suggestion("FIELD_1999", known) == "; did you mean f1999?"
    assert suggestion("field_2001", known) != "; did you mean f2001?"


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
