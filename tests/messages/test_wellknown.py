"""The well-known types: their special JSON forms, both ways (spec §1.13)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest

from lro import Duration, Empty, LroError, Struct, TypeRegistry
from lro.types import BoolValue, FieldMask, Int32Value, ListValue, StringValue, UInt64Value, Value

TYPES = TypeRegistry()
FAR_WEST = timezone(timedelta(hours=-12))


@attrs.frozen
class Known:
    moment: datetime | None = None
    span: timedelta | None = None
    duration: Duration | None = None
    mask: FieldMask | None = None
    struct: Struct | None = None
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    value: Value | None = None
    listed: ListValue | None = None
    small: Int32Value | None = None
    big: UInt64Value | None = None
    flag: BoolValue | None = None
    text: StringValue | None = None
    empty: Empty | None = None


KNOWN = [
    ("moment", datetime(2030, 1, 1, tzinfo=UTC), "2030-01-01T00:00:00Z"),
    ("span", timedelta(seconds=1.5), "1.500s"),
    ("duration", Duration(1, 5), "1.000000005s"),
    ("mask", FieldMask(("a_b", "c.d_e")), "aB,c.dE"),
    ("mask", FieldMask(), ""),
    ("struct", Struct({"a": [1, None, {"b": True}]}), {"a": [1, None, {"b": True}]}),
    ("struct", Struct(), {}),
    ("fields", {"a": None, "b": (1, 2)}, {"a": None, "b": [1, 2]}),
    ("value", Value(None), None),
    ("value", Value([1]), [1]),
    ("listed", ListValue([None, "a"]), [None, "a"]),
    ("small", Int32Value(0), 0),
    ("big", UInt64Value(0), "0"),
    ("flag", BoolValue(), False),
    ("text", StringValue(), ""),
    ("empty", Empty(), {}),
]


@pytest.mark.parametrize(("name", "value", "shown"), KNOWN)
def test_a_well_known_type(name, value, shown):
    """Its special form, both ways (spec §1.13)."""
    assert TYPES.dump(Known(**{name: value})) == {name: shown}
    again = TYPES.load(json.loads(json.dumps({name: shown})), Known)
    assert getattr(again, name) == (shown if name == "fields" else value)


NOT_KNOWN = [
    ("moment", "2030-01-01"), ("moment", datetime(2030, 1, 1)), ("moment", 5),
    ("moment", datetime.max.replace(tzinfo=FAR_WEST)),
    ("span", "1.5s"), ("span", timedelta.max), ("duration", Duration(1, -1)),
    ("mask", FieldMask(("aB",))), ("mask", FieldMask(("a__b",))), ("mask", "a"),
    ("struct", Struct([1])), ("struct", {"a": 1}), ("struct", Struct({5: 1})),
    ("struct", Struct({"a": math.nan})), ("struct", Struct({"a": 10**400})),
    ("struct", Struct({"a": b"x"})), ("struct", Struct({"a": object()})),
    ("struct", Struct({"a": {"\ud800": 1}})), ("struct", Struct({"a": ["\ud800"]})),
    ("fields", [1]), ("fields", {"a": math.inf}), ("value", 5), ("value", Value({1, 2})),
    ("listed", [1]), ("listed", ListValue("ab")), ("listed", ListValue(5)),
    ("small", 5), ("small", Int32Value("5")), ("big", Int32Value(5)), ("empty", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), NOT_KNOWN)
def test_what_a_well_known_type_does_not_hold(name, value):
    """Never a crash of another kind: the error names the field."""
    with pytest.raises(LroError) as caught:
        TYPES.dump(Known(**{name: value}))
    assert caught.value.path.startswith(name)
