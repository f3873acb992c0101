"""Filters that are refused before any record is read, and the text of the errors."""

from __future__ import annotations

import enum
import typing

import attrs
import pytest

from lro import Int32, TypeRegistry
from lro._filters.parse import refusal as shortened
from tests.filters.every_field_kind import refusal, refused
from tests.filters.messages import types


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NOT(a)", "expected white space between NOT and '('"),
        ("type((metadata)) = x", "type takes metadata or response, without quotes"),
        ("type(metadata, response) = x", "type takes metadata or response, without quotes"),
        ("type.metadata() = x", "expected one of the functions"),
        ("response.x = 1", "no type is registered for response, so nothing is in it"),
        ("error.details:x", "takes only ':*'"),
        ("metadata:'*'", "there is no field '*'"),
        ("metadata:a.b", "there is no field 'a.b'"),
        ("metadata.colour = BLUE", "expected one of the names RED, GREEN, VERT, found 'BLUE'"),
        ("name:(a f())", "expected a value, found the function 'f'"),
        ('name:(a "b".c)', "not a mixture"),
    ],
)
def test_filter_error_names_the_part_that_does_not_fit(text: str, said: str) -> None:
    """A filter that does not fit the types is refused. The error says how to fix the filter."""
    assert said in refusal(text)


def registered(full_name: str, **fields: typing.Any) -> typing.Any:
    """Return the type of a message with these fields."""
    made = attrs.make_class("Made", fields, frozen=True)
    registry = TypeRegistry()
    registry.register(made, full_name)
    return types([full_name], registry)


def test_long_enums_are_not_listed_whole() -> None:
    """The error about an enum with many names lists only the first names."""
    many = enum.Enum("Many", {f"N{number}": number for number in range(20)})  # type: ignore[misc]  # made here
    big = registered("acme.v1.Big", many=attrs.field(default=many.N0, type=many))
    assert "N7, …, found 'x'" in refusal("metadata.many = x", big)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("metadata.by_long.1.lable = x", "label"),
        ("metadata.node:lable", "label"),
        ("metadata:byLang", "by_long"),
        ("error:detials", "details"),
        ("mask2:*", "metadata.mask"),
        ("metadata.node.links.lable = x", None),  # the operator is wrong, not the name
        ("metadata.node.links:lable", None),
        ("metadata.by_long.lable = x", None),  # the key must be a number
        ("metadata.by_long:lable", None),
        ("metadata:'colours'.x", None),
        ("metadata:(colours)", None),
        ("metadata.blob.colours = x", None),
        ("metadata.colour.colours = x", None),
        ("name.colours = x", None),
        ("colour" * 10 + " = RED", None),
        ("state() = colour", None),
    ],
)
def test_the_nearest_name_is_suggested(text: str, hint: str | None) -> None:
    """Where a field name is expected, the error about an unknown name suggests a similar name."""
    said = refusal(text)
    assert said.partition("; did you mean ")[2] == (f"{hint}?" if hint else "")


def test_names_of_every_type_are_suggested() -> None:
    """A suggested name may be of any registered type. The error keeps text that all types share."""
    known = types(["lrofix.v1.ImportMetadata", "lrofix.v1.ExportMetadata"])
    assert refusal("metadata.verbs = x", known) == (
        "there is no field 'verbs'; no type registered for metadata accepts this;"
        " did you mean verb?"
    )


def test_of_several_types_a_wrong_value_says_more_than_a_wrong_operator() -> None:
    """If only one of two types allows the operator, the error is about the wrong value."""
    one = registered("acme.v1.One", x=attrs.field(default=False, type=bool))
    other = registered("acme.v1.Other", x=attrs.field(default=0, type=Int32))
    for both in ([*one, *other], [*other, *one]):
        found = refused("metadata.x > yes", both)
        assert found.description.startswith("expected a number, found 'yes'")
        assert found.position == 13


def test_filter_error_is_one_short_line_despite_long_names() -> None:
    """A filter's error is one line under 200 characters, even if a type has very long names."""
    many = enum.Enum("Many", {"N" * 150: 0, "M": 1})  # type: ignore[misc]  # made here
    long = "long_" * 12
    fields = {
        "many": attrs.field(default=next(iter(many)), type=many),
        long: attrs.field(default=0, type=Int32),
    }
    big = registered("acme.v1.Big", **fields)
    assert refusal("metadata.many = x", big) == "expected one of the names …, found 'x'"
    assert refusal(f"metadata.{long[:40]} = 1", big) == (
        f"there is no field '{long[:40]}'; did you mean {long}?"
    )
    hinted = refusal(f"{long[:40]} = 1", big)  # the hint would be too long, and is left out
    assert hinted.endswith(f"found '{long[:40]}'")
    assert shortened("x" * 200, 0).description == "x" * 198 + "…"


def test_the_nearest_name_is_sought_among_two_thousand() -> None:
    """The search for a similar name is bounded. Of 2040 fields only the first 2000 are compared."""
    fields = {f"field_{number}": attrs.field(default="", type=str) for number in range(2040)}
    big = registered("acme.v1.Big", **fields)
    assert refusal("metadata.FIELD_1999 = x", big).endswith("did you mean field_1999?")
    assert not refusal("metadata.FIELD_2001 = x", big).endswith("did you mean field_2001?")
