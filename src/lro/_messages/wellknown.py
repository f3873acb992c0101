"""The well-known types as Python values, and their special JSON forms (spec §1.13)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, cast

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import InvalidArgument, got
from lro._base.status import WRAPPED_TYPES, AnyMessage, Json, named
from lro._messages.json_text import plain_copy
from lro._messages.scalars import DUMPERS, LOADERS, Dumper, Loader, dump_string, is_text
from lro._messages.schema import Int32, Kind
from lro._messages.times import (
    Duration,
    Timestamp,
    datetime_text,
    duration_text,
    parse_datetime,
    parse_duration,
    parse_timestamp,
    timestamp_text,
)

PACKAGE: Final = "google.protobuf."
_SNAKE: Final = re.compile(r"_([a-z])")
_HUMP: Final = re.compile(r"[A-Z]")


@named(PACKAGE + "Empty")
@attrs.frozen(eq=False, repr=False)
class Empty(ByFields):
    """A message without fields, for methods without a result."""


@named(PACKAGE + "FieldMask")
@attrs.frozen(eq=False, repr=False)
class FieldMask(ByFields):
    """A list of field paths, in proto spelling."""

    paths: tuple[str, ...] = ()


@named(PACKAGE + "Struct")
@attrs.frozen(eq=False, repr=False)
class Struct(ByFields):
    """Any JSON object."""

    fields: Mapping[str, object] = attrs.field(factory=dict, hash=False)


@named(PACKAGE + "Value")
@attrs.frozen(eq=False, repr=False)
class Value(ByFields):
    """Any JSON value; None is JSON's null."""

    value: object = attrs.field(default=None, hash=False)


@named(PACKAGE + "ListValue")
@attrs.frozen(eq=False, repr=False)
class ListValue(ByFields):
    """Any JSON array."""

    values: Sequence[object] = attrs.field(factory=list, hash=False)


@named(PACKAGE + "StringValue")
@attrs.frozen(eq=False, repr=False)
class StringValue(ByFields):
    """A string that can be absent from a field."""

    value: str = ""


@named(PACKAGE + "BoolValue")
@attrs.frozen(eq=False, repr=False)
class BoolValue(ByFields):
    """A bool that can be absent from a field."""

    value: bool = False


@named(PACKAGE + "BytesValue")
@attrs.frozen(eq=False, repr=False)
class BytesValue(ByFields):
    """Bytes that can be absent from a field."""

    value: bytes = b""


@named(PACKAGE + "Int32Value")
@attrs.frozen(eq=False, repr=False)
class Int32Value(ByFields):
    """An int32 that can be absent from a field."""

    value: int = 0


@named(PACKAGE + "Int64Value")
@attrs.frozen(eq=False, repr=False)
class Int64Value(ByFields):
    """An int64 that can be absent from a field."""

    value: int = 0


@named(PACKAGE + "UInt32Value")
@attrs.frozen(eq=False, repr=False)
class UInt32Value(ByFields):
    """A uint32 that can be absent from a field."""

    value: int = 0


@named(PACKAGE + "UInt64Value")
@attrs.frozen(eq=False, repr=False)
class UInt64Value(ByFields):
    """A uint64 that can be absent from a field."""

    value: int = 0


@named(PACKAGE + "FloatValue")
@attrs.frozen(eq=False, repr=False)
class FloatValue(ByFields):
    """A 32-bit float that can be absent from a field."""

    value: float = 0.0


@named(PACKAGE + "DoubleValue")
@attrs.frozen(eq=False, repr=False)
class DoubleValue(ByFields):
    """A double that can be absent from a field."""

    value: float = 0.0


WRAPPER_KINDS: Final[Mapping[type, Kind]] = {
    StringValue: Kind.STRING,
    BoolValue: Kind.BOOL,
    BytesValue: Kind.BYTES,
    Int32Value: Kind.INT32,
    Int64Value: Kind.INT64,
    UInt32Value: Kind.UINT32,
    UInt64Value: Kind.UINT64,
    FloatValue: Kind.FLOAT,
    DoubleValue: Kind.DOUBLE,
}


def dump_json(value: object) -> Json:
    """Convert plain Python data to a JSON value; containers are copied.

    Raises:
        InvalidArgument: The data has NaN, bytes or non-text keys, which no Value can have.
    """
    if isinstance(value, (dict, list)):
        copy = plain_copy(value)
        if copy is not None:
            return copy
    return _walk(value)


def _uncopied_object(value: object) -> Json:
    if not isinstance(value, dict):
        raise InvalidArgument("", f"must be a mapping, got {got(value)}")
    return value


def _uncopied(value: object) -> Json:
    return cast(Json, value)


UNCOPIED: Final[Mapping[object, Dumper]] = {dict: _uncopied_object, object: _uncopied}
"""Dumpers that neither copy nor check, for messages that are copied as a whole afterwards."""


def _dump_object(value: object) -> Json:
    if not isinstance(value, Mapping):
        raise InvalidArgument("", f"must be a mapping, got {got(value)}")
    return dump_json(value)


def _dump_list(value: object) -> Json:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise InvalidArgument("", f"must be a list, got {got(value)}")
    return dump_json(value)


def _walk(value: object) -> Json:
    # Used for data that ``plain_copy`` does not copy: converts the data, or finds what is wrong.
    if isinstance(value, str):
        return dump_string(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        _check_finite(value)
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidArgument("", "must have text keys")
        return {dump_string(key): _walk(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_walk(item) for item in value]
    raise InvalidArgument("", f"must be plain JSON data, got {got(value)}")


def _check_finite(value: float) -> None:
    try:
        finite = math.isfinite(value)
    except OverflowError:  # raised for an integer beyond the range of double
        finite = False
    if not finite:
        raise InvalidArgument("", f"must be within the range of double, got {got(value)}")


def load_any(value: Json, *, strict: bool) -> AnyMessage:
    """Read the JSON form of an Any, and keep its payload unchanged (spec §1.10).

    For a special type, keys other than ``value`` are dropped, or refused if ``strict``.

    Raises:
        InvalidArgument: The value is not an object, or has no usable ``@type``.
    """
    if not isinstance(value, dict):
        raise InvalidArgument("", f"must be an object with '@type', got {got(value)}")
    if not value:
        return AnyMessage()
    url = value.get("@type")
    if not isinstance(url, str) or "/" not in url or not is_text(url):
        raise InvalidArgument("@type", f"must be a type URL with a slash, got {got(url)}")
    rest = value.copy()
    del rest["@type"]
    if url.rpartition("/")[2] not in WRAPPED_TYPES:
        if url.endswith("/google.protobuf.Empty") and rest == {"value": {}}:
            rest = {}  # some servers send Empty as {"value": {}}
        return AnyMessage(url, rest)
    if "value" not in rest:
        raise InvalidArgument("value", "is missing beside this '@type'")
    if strict and len(rest) > 1:
        extra = next(key for key in rest if key != "value")
        raise InvalidArgument(extra, "does not belong beside this '@type'")
    return AnyMessage(url, rest["value"])


def dump_any(packed: object) -> Json:
    """Return the JSON form of an Any whose payload is a JSON value.

    Raises:
        InvalidArgument: The value is not an Any, or its payload is in binary form.
    """
    if not isinstance(packed, AnyMessage):
        raise InvalidArgument("", f"must be an Any, got {got(packed)}")
    payload = packed.payload
    if packed.empty:
        return {}
    if isinstance(payload, bytes):
        raise InvalidArgument("", f"is a {packed.type_name} in binary form, which has no JSON here")
    if isinstance(payload, dict) and packed.type_name not in WRAPPED_TYPES:
        return {"@type": packed.type_url, **payload}
    return {"@type": packed.type_url, "value": payload}


def _load_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise InvalidArgument("", f"must be an object, got {got(value)}")
    return cast("dict[str, Json]", dump_json(value))


def _load_list(value: Json) -> ListValue:
    if not isinstance(value, list):
        raise InvalidArgument("", f"must be a list, got {got(value)}")
    return ListValue(cast("list[Json]", dump_json(value)))


def _load_mask(value: Json) -> FieldMask:
    if not isinstance(value, str) or "_" in value or not is_text(value):
        wanted = "must be paths in lowerCamelCase with commas between"
        raise InvalidArgument("", f"{wanted}, got {got(value)}")
    paths = value.split(",") if value else []
    return FieldMask(tuple(_HUMP.sub(lambda hump: "_" + hump[0].lower(), path) for path in paths))


def _dump_mask(mask: FieldMask) -> Json:
    shown = [_SNAKE.sub(lambda low: low[1].upper(), path) for path in mask.paths]
    text = ",".join(shown)
    if "_" in text or _load_mask(text) != mask:
        raise InvalidArgument("", f"has a path without a JSON form: {got(mask.paths)}")
    return text


def _checked(printer: Callable[..., Json], python: type) -> Dumper:
    def dump(value: object) -> Json:
        if not isinstance(value, python):
            raise InvalidArgument("", f"must be a {python.__name__}, got {got(value)}")
        try:
            return printer(value)
        except (ValueError, OverflowError) as exc:  # raised for a date outside the range in UTC
            raise InvalidArgument("", str(exc)) from None

    return dump


def _dump_timedelta(span: timedelta) -> str:
    return duration_text(Duration.from_timedelta(span))


def _load_timedelta(value: Json) -> timedelta:
    return parse_duration(value).to_timedelta()


def _wrapper(cls: type, kind: Kind) -> tuple[Loader, Dumper]:
    load, dump = LOADERS[kind], DUMPERS[kind]
    return (lambda value: cls(load(value))), _checked(lambda wrapped: dump(wrapped.value), cls)


SPECIAL: Final[Mapping[object, tuple[Loader, Dumper]]] = {
    Duration: (parse_duration, _checked(duration_text, Duration)),
    Timestamp: (parse_timestamp, _checked(timestamp_text, Timestamp)),
    timedelta: (_load_timedelta, _checked(_dump_timedelta, timedelta)),
    datetime: (parse_datetime, _checked(datetime_text, datetime)),
    FieldMask: (_load_mask, _checked(_dump_mask, FieldMask)),
    Struct: (
        lambda value: Struct(_load_object(value)),
        _checked(lambda struct: _dump_object(struct.fields), Struct),
    ),
    Value: (
        lambda value: Value(dump_json(value)),
        _checked(lambda value: dump_json(value.value), Value),
    ),
    ListValue: (_load_list, _checked(lambda value: _dump_list(value.values), ListValue)),
    dict: (_load_object, _dump_object),
    object: (dump_json, dump_json),
    **{cls: _wrapper(cls, kind) for cls, kind in WRAPPER_KINDS.items()},
}
"""Loader and dumper of each class whose JSON form is not an object of fields."""

NULL_IS_A_VALUE: Final = frozenset({Value, object})
"""Classes for which null is a value, not absence (spec §1.8(3))."""

MESSAGES: Final[tuple[type, ...]] = (
    AnyMessage, Empty, Duration, Timestamp, FieldMask, Struct, Value, ListValue, *WRAPPER_KINDS,
)  # fmt: skip


@named("lro.v1.OperationMetadata")
@attrs.frozen(eq=False, repr=False)
class OperationMetadata(ByFields):
    """The metadata of methods that declare no metadata class.

    ``job.progress`` sets ``status_message`` and ``progress_percent``; the library sets all other
    fields. ``target`` is the exclusive target of the work, or the target that the start named;
    ``verb`` is the name of the method, and ``api_version`` the version in its package.
    """

    create_time: datetime | None = None
    """When the operation was started."""
    end_time: datetime | None = None
    """When the operation ended; not set while it is in progress."""
    target: str = ""
    """The resource that the operation works on."""
    verb: str = ""
    """The name of the method, with a lower-case first letter."""
    status_message: str = ""
    """A human-readable text about what the work is doing now.

    After a success, a text that was reported with less than 100 percent is removed.
    """
    requested_cancellation: bool = False
    """True if a caller asked to cancel the operation."""
    api_version: str = ""
    """The version of the API that started the operation, such as `v1`."""
    start_time: datetime | None = None
    """When the work began; not set while the operation waits."""
    expire_time: datetime | None = None
    """When the operation is removed; not set while it is in progress."""
    progress_percent: Int32 | None = None
    """How much of the work is done, from 0 to 100; not set before the first report."""
