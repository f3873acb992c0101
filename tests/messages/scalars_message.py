"""The message of the vectors that has every scalar once, as an attrs class; and any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, timedelta

import attrs
from hypothesis import strategies as st

from lro import Any, Float, Int32, UInt32, UInt64, message
from lro.types import BytesValue, DoubleValue, Int64Value, ListValue, StringValue, Value
from tests.filters.messages import ExportMetadata, Stage, Step, Window


@message("lrofix.v1.Scalars")
@attrs.frozen
class Scalars:
    """The kinds that differ only in binary form share a Python type."""

    f_double: float = 0.0
    f_float: Float = 0.0
    f_int32: Int32 = 0
    f_int64: int = 0
    f_uint32: UInt32 = 0
    f_uint64: UInt64 = 0
    f_sint32: Int32 = 0
    f_sint64: int = 0
    f_fixed32: UInt32 = 0
    f_fixed64: UInt64 = 0
    f_sfixed32: Int32 = 0
    f_sfixed64: int = 0
    f_bool: bool = False
    f_string: str = ""
    f_bytes: bytes = b""
    f_stage: Stage = Stage.STAGE_UNSPECIFIED
    packed_ints: tuple[Int32, ...] = ()
    words: tuple[str, ...] = ()
    pairs: Mapping[str, str] = attrs.field(factory=dict)
    flags: Mapping[bool, str] = attrs.field(factory=dict)
    by_id: Mapping[int, str] = attrs.field(factory=dict)
    maybe: str | None = None
    value: Value | None = None
    list: ListValue | None = None
    w_bytes: BytesValue | None = None
    w_int64: Int64Value | None = None
    w_double: DoubleValue | None = None
    nothing: str | None = None


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
DOUBLE = st.floats(allow_nan=False)
FLOAT = st.floats(allow_nan=False, width=32)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)

SCALARS = st.builds(
    Scalars,
    f_double=DOUBLE,
    f_float=FLOAT,
    f_int32=INT32,
    f_int64=INT64,
    f_uint32=UINT32,
    f_uint64=UINT64,
    f_sint32=INT32,
    f_sint64=INT64,
    f_fixed32=UINT32,
    f_fixed64=UINT64,
    f_sfixed32=INT32,
    f_sfixed64=INT64,
    f_bool=st.booleans(),
    f_string=TEXT,
    f_bytes=st.binary(max_size=5),
    f_stage=st.sampled_from(Stage),
    packed_ints=st.lists(INT32, max_size=3).map(tuple),
    words=st.lists(TEXT, max_size=3).map(tuple),
    pairs=st.dictionaries(TEXT, TEXT, max_size=2),
    flags=st.dictionaries(st.booleans(), TEXT, max_size=2),
    by_id=st.dictionaries(INT64, TEXT, max_size=2),
    maybe=st.none() | TEXT,
    value=st.none() | st.builds(Value, JSON.filter(lambda value: value is not None)),
    list=st.none() | st.builds(ListValue, st.lists(JSON, max_size=3)),
    w_bytes=st.none() | st.builds(BytesValue, st.binary(max_size=3)),
    w_int64=st.none() | st.builds(Int64Value, INT64),
    w_double=st.none() | st.builds(DoubleValue, DOUBLE),
)

MOMENTS = st.none() | st.datetimes(timezones=st.just(UTC))
SPANS = st.none() | st.timedeltas(timedelta(days=-3_652_500), timedelta(days=3_652_500))
STEPS = st.builds(
    Step,
    name=TEXT,
    attempts=INT32,
    ok=st.booleans(),
    took=SPANS,
    notes=st.lists(TEXT, max_size=2).map(tuple),
    stage=st.sampled_from(Stage),
)

METADATA = st.builds(
    ExportMetadata,
    create_time=MOMENTS,
    end_time=MOMENTS,
    target=TEXT,
    cancel_requested=st.booleans(),
    progress_percent=INT32,
    stage=st.sampled_from(Stage),
    labels=st.dictionaries(TEXT, TEXT, max_size=2),
    steps=st.lists(STEPS, max_size=2).map(tuple),
    elapsed=SPANS,
    rate=DOUBLE,
    extra=st.none() | OBJECT,
    note=st.none() | st.builds(StringValue, TEXT),
    checksum=st.binary(max_size=5),
    shard_names=st.dictionaries(INT32, TEXT, max_size=2),
    step_index=st.dictionaries(TEXT, STEPS, max_size=2),
    priority=st.none() | INT32,
    current_step=st.none() | STEPS,
    history=st.lists(st.sampled_from(Stage), max_size=3).map(tuple),
    quota=UINT64,
    ratio=FLOAT,
    window=st.none() | st.builds(Window, MOMENTS, SPANS),
    payload=st.none() | st.just(Any("x/lrofix.v1.Book", {"title": "t"})),
)


def signs(message: object) -> list[float]:
    """The signs of the floats in a message: equality does not distinguish -0.0 from 0.0."""
    values = attrs.astuple(message)  # type: ignore[arg-type]  # any attrs class
    return [math.copysign(1, value) for value in values if isinstance(value, float)]
