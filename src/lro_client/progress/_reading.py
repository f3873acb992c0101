"""The progress of an operation, read from common fields of metadata (spec §9.6)."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from unicodedata import category

import attrs

from lro import AnyMessage, LroError, Struct, Timestamp, TypeRegistry
from lro.types import Json

Lookup = Callable[[str], object]
"""A function that returns the value of a field by its name in snake_case, or None."""

_SNAKE: Final = re.compile(r"_([a-z0-9])")
_UNSET: Final = "_UNSPECIFIED"
"""The suffix of the name of an unset enum value (AIP-126)."""
_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control characters, direction marks and invisible characters."""


def lookup(metadata: object, types: TypeRegistry | None) -> Lookup | None:
    """Return the function that reads a message's fields, or None if the message has no fields.

    ``types`` decodes a packed binary message if it knows the message's class.
    """
    if isinstance(metadata, AnyMessage):
        metadata = _payload(metadata, types)
    if isinstance(metadata, Struct):
        metadata = metadata.fields
    if isinstance(metadata, Mapping):
        return _in_mapping(metadata)
    if metadata is None or isinstance(metadata, (str, bytes, int, float, list, tuple)):
        return None
    return _in_object(metadata)


def _payload(packed: AnyMessage, types: TypeRegistry | None) -> Json | bytes:
    if types is None or not isinstance(packed.payload, bytes):
        return packed.payload
    try:
        return types.json_payload(packed)
    except LroError:
        return packed.payload


def _in_mapping(fields: Mapping[Any, object]) -> Lookup:
    def look(name: str) -> object:
        found = fields.get(_camel(name))
        return fields.get(name) if found is None else found

    return look


def _in_object(message: Any) -> Lookup:
    # Messages of every library have attributes: attrs, dataclasses, protobuf, pydantic, msgspec.
    descriptor = getattr(message, "DESCRIPTOR", None)

    def look(name: str) -> object:
        found: object = getattr(message, name, None)
        if found is None or descriptor is None:
            return found
        return _in_protobuf(message, descriptor, name, found)

    return look


def _in_protobuf(message: Any, descriptor: Any, name: str, value: object) -> object:
    field = descriptor.fields_by_name.get(name)
    if field is None or (field.has_presence and not message.HasField(name)):
        return None  # the attribute is not a field, or the field was not set
    if field.enum_type is not None and isinstance(value, int):
        known = field.enum_type.values_by_number.get(value)
        return None if known is None else known.name
    return value


def _camel(name: str) -> str:
    return _SNAKE.sub(lambda low: low[1].upper(), name)


def number(value: object) -> float | None:
    """Return a value as a finite number, or None. JSON may have it as a string (spec §1.9)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def text(value: object) -> str:
    """Return a string or the name of an enum member on one line, without control characters.

    For other values and for unset enum values, return an empty string.
    """
    if isinstance(value, enum.Enum):
        value = value.name
    if not isinstance(value, str) or value.endswith(_UNSET):
        return ""
    return one_line(value)


def one_line(value: str) -> str:
    """Return a server's text on one line, without control characters."""
    if not value.isprintable():
        value = "".join(" " if category(one) in _CONTROLS else one for one in value)
    return " ".join(value.split())


def first_number(look: Lookup, names: Iterable[str]) -> float | None:
    """Return the first number of 0 or more in these fields."""
    for name in names:
        found = number(look(name))
        if found is not None and found >= 0:
            return found
    return None


@attrs.frozen
class Progress:
    """The progress of an operation, as its metadata reports it.

    ``fraction`` is the share that is done, from 0 to 1. ``done`` and ``total`` are in the
    operation's units, such as files. Each is None if it is not known. ``total`` is more than
    0. ``fraction`` and ``done`` are never negative. ``message`` is one line of text without control
    characters.
    """

    fraction: float | None = None
    done: float | None = None
    total: float | None = None
    message: str = ""


ProgressOf = Callable[[object], Progress | None]
"""A function that reads the progress from metadata, which can be typed or packed.

Write such a function for custom metadata.
"""

_PERCENTS: Final = (
    "progress_percent",
    "progress_percentage",
    "percent",
    "percent_complete",
    "percent_done",
)
_SHARES: Final = ("fraction", "progress_fraction", "fraction_complete", "fraction_done")
_PAIRS: Final = (
    ("done", "total"),
    ("completed", "total"),
    ("processed_count", "total_count"),
    ("done_units", "total_units"),
    ("items_done", "items_total"),
    ("completed_work", "estimated_work"),
)
_NESTED: Final = (
    "progress",
    "progress_work_documents",
    "progress_work_bytes",
    "progress_documents",
    "progress_entities",
    "progress_bytes",
)
"""Fields with a message that contains the progress. The last five fields are Google's."""
_MESSAGES: Final = ("status_detail", "status_message", "message", "current_step", "stage", "state")
_CANCELLING: Final = ("cancel_requested", "requested_cancellation")
_MAX_DEPTH: Final = 3


def progress_of(metadata: object, types: TypeRegistry | None = None) -> Progress | None:
    """Return the progress that metadata reports, or None if it reports none.

    ``metadata`` is a typed message (attrs, dataclass, protobuf, or any object with attributes), a
    packed :class:`lro.AnyMessage`, or a mapping with keys in lowerCamelCase or snake_case.
    ``types`` reads messages that are packed in binary form.

    The function uses the first field with a sensible number: a percentage, a share from 0 to 1,
    ``progress`` (a float up to 1 is a share, any other number is a percentage), a pair
    such as ``done`` and ``total``, or a nested message, in this order. A share above 1 means
    that the work is complete. Negative numbers, a total of 0, infinities and texts that are not
    numbers are ignored. The function never raises.
    """
    try:
        look = lookup(metadata, types)
        found = None if look is None else _read(look, types, _MAX_DEPTH)
    except Exception:  # a property of the application's class may raise anything
        return None
    return None if found in (None, Progress()) else found


def create_time_of(metadata: object, types: TypeRegistry | None = None) -> datetime | None:
    """Return the time of the start, in UTC, from ``create_time`` or ``start_time`` of metadata."""
    try:
        look = lookup(metadata, types)
        return None if look is None else _moment(look("create_time") or look("start_time"))
    except Exception:  # a property of the application's class may raise anything
        return None


def _read(look: Lookup, types: TypeRegistry | None, depth: int) -> Progress:
    done, total = _pair(look)
    inner = _nested(look, types, depth)
    if done is None and inner is not None:
        done, total = inner.done, inner.total
    fraction = _percentage(look)
    if fraction is None and done is not None and total is not None:
        fraction = done / total
    if fraction is None and inner is not None:
        fraction = inner.fraction
    message = _message(look) or ("" if inner is None else inner.message)
    return Progress(None if fraction is None else min(fraction, 1.0), done, total, message)


def _percentage(look: Lookup) -> float | None:
    percent = first_number(look, _PERCENTS)
    if percent is not None:
        return percent / 100
    share = first_number(look, _SHARES)
    if share is not None:
        return share
    found = look("progress")
    plain = number(found)
    if plain is None or plain < 0:
        return None
    counted = isinstance(found, int) or (isinstance(found, str) and found.strip().isdigit())
    return plain / 100 if counted or plain > 1 else plain


def _pair(look: Lookup) -> tuple[float | None, float | None]:
    alone: float | None = None
    for done_name, total_name in _PAIRS:
        done, total = first_number(look, [done_name]), first_number(look, [total_name])
        if done is not None and total:
            return done, total
        alone = done if alone is None else alone
    if all(look(done_name) is None for done_name, _ in _PAIRS):  # JSON omits zeros (spec §1.8)
        total = first_number(look, [total_name for _, total_name in _PAIRS])
        if total:
            return 0.0, total
    return alone, None


def _nested(look: Lookup, types: TypeRegistry | None, depth: int) -> Progress | None:
    for name in _NESTED if depth else ():
        inside = lookup(look(name), types)
        if inside is not None:
            found = _read(inside, types, depth - 1)
            if found != Progress():
                return found
    return None


def _message(look: Lookup) -> str:
    shown = next(filter(None, (text(look(name)) for name in _MESSAGES)), "")
    if not shown:  # google.cloud.common.OperationMetadata has a verb and its target
        shown = " ".join(filter(None, (text(look("verb")), text(look("target")))))
    if any(look(name) is True for name in _CANCELLING):
        return f"{shown}, cancelling" if shown else "cancelling"
    return shown


def _moment(value: Any) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, Timestamp):
        value = value.to_datetime()
    elif hasattr(value, "ToDatetime"):  # protobuf's Timestamp
        value = value.ToDatetime(UTC)
    aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(UTC) if aware else None
