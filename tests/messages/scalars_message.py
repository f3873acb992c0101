"""An attrs class with a field of each scalar type, and a Hypothesis strategy for its messages."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from hypothesis import strategies as st

from lro import AnyMessage, Int32, message
from lro.types import (
    BytesValue,
    DoubleValue,
    FieldMask,
    Float,
    Int32Value,
    Int64,
    Int64Value,
    ListValue,
    UInt32,
    UInt64,
    Value,
)
from tests.filters.messages import ExportMetadata, Stage, Warning


@message("lrofix.v1.Scalars")
@attrs.frozen
class Scalars:
    """A field of each scalar kind; kinds that differ only in binary form share a Python type."""

    f_double: float = 0.0
    f_float: Float = 0.0
    f_int32: Int32 = 0
    f_int64: Int64 = 0
    f_uint32: UInt32 = 0
    f_uint64: UInt64 = 0
    f_sint32: Int32 = 0
    f_sint64: Int64 = 0
    f_fixed32: UInt32 = 0
    f_fixed64: UInt64 = 0
    f_sfixed32: Int32 = 0
    f_sfixed64: Int64 = 0
    f_bool: bool = False
    f_string: str = ""
    f_bytes: bytes = b""
    f_stage: Stage = Stage.STAGE_UNSPECIFIED
    packed_ints: tuple[Int32, ...] = ()
    words: tuple[str, ...] = ()
    pairs: Mapping[str, str] = attrs.field(factory=dict)
    flags: Mapping[bool, str] = attrs.field(factory=dict)
    by_id: Mapping[Int64, str] = attrs.field(factory=dict)
    maybe: str | None = None
    value: Value | None = None
    list: ListValue | None = None
    w_bytes: BytesValue | None = None
    w_int64: Int64Value | None = None
    w_double: DoubleValue | None = None
    nothing: str | None = None


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KINDS = {
    float: st.floats(allow_nan=False),
    Float: st.floats(allow_nan=False, width=32),
    Int64: st.integers(-(2**63), 2**63 - 1),
    Int32: st.integers(-(2**31), 2**31 - 1),
    UInt32: st.integers(0, 2**32 - 1),
    UInt64: st.integers(0, 2**64 - 1),
    bool: st.booleans(),
    str: TEXT,
    bytes: st.binary(max_size=5),
    object: JSON,
    datetime: st.datetimes(timezones=st.just(UTC)),
    timedelta: st.timedeltas(timedelta(days=-3_652_500), timedelta(days=3_652_500)),
    Stage: st.sampled_from(Stage),
    AnyMessage: st.just(AnyMessage("x/lrofix.v1.Book", {"title": "t"})),
    Value: st.builds(Value, JSON.filter(lambda value: value is not None)),
    ListValue: st.builds(ListValue, st.lists(JSON, max_size=3)),
    FieldMask: st.just(FieldMask(("a_b",))),
    Int32Value: st.builds(Int32Value, st.integers(-(2**31), 2**31 - 1)),
    Int64Value: st.builds(Int64Value, st.integers(-(2**63), 2**63 - 1)),
    Warning: st.none(),  # some registries do not know this class
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of this field type, or for messages of this class."""
    if kind in KINDS:
        return KINDS[kind]
    parts = typing.get_args(kind)
    if type(None) in parts:
        return st.none() | values_of(parts[0])
    if typing.get_origin(kind) is tuple:
        return st.lists(values_of(parts[0]), max_size=2).map(tuple)
    if parts:
        return st.dictionaries(*map(values_of, parts), max_size=2)
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values_of(hint) for name, hint in hints.items()})


# The vectors' schema makes ``nothing`` null; ``uri`` and ``snapshot_id`` exclude ``window``.
SCALARS = values_of(Scalars).map(lambda one: attrs.evolve(one, nothing=None))
METADATA = values_of(ExportMetadata).map(lambda one: attrs.evolve(one, uri=None, snapshot_id=None))


def signs(message: object) -> list[float]:
    """Return the signs of a message's floats: equality does not distinguish -0.0 from 0.0."""
    values = attrs.astuple(message)  # type: ignore[arg-type]  # any attrs class
    return [math.copysign(1, value) for value in values if isinstance(value, float)]
