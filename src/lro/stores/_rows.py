"""A record as a row of a table: the one place that knows the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any as Anything
from typing import Final

import attrs

from lro._any import Any, Json
from lro._jsontext import dumps_bounded, reread
from lro._record import Record, State
from lro._status import Status

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

COLUMNS: Final = tuple(field.name for field in attrs.fields(Record))
"""Columns in the order of :func:`to_row`. Times are microseconds since 1970 in UTC."""


def micros(moment: datetime) -> int:
    """A time as it stands in a row."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(stored: int) -> datetime:
    """A time read from a row."""
    return _EPOCH + timedelta(microseconds=stored)


def to_row(record: Record) -> tuple[object, ...]:
    """The values of a record's columns."""
    return tuple(
        dump(getattr(record, name)) if dump else getattr(record, name) for name, dump, _ in _PLAN
    )


def from_row(row: Sequence[Anything]) -> Record:
    """The record of a row."""
    fields = dict(zip(COLUMNS, row, strict=True))
    for name, load in _LOADS:
        if fields[name] is not None:
            fields[name] = load(fields[name])
    return Record.of(fields)


def pack(packed: Any | None) -> str | None:
    """A packed message as text."""
    return None if packed is None else dumps_bounded(_any_value(packed)).decode()


def unpack(text: str) -> Any:
    """The packed message of a text."""
    return _any(reread(text))


def _any_value(packed: Any) -> Json:
    if isinstance(packed.payload, bytes):
        return [packed.type_url, packed.payload.hex(), True]
    return [packed.type_url, packed.payload]


def _any(value: Json) -> Any:
    assert isinstance(value, list)
    url, payload = value[0], value[1]
    assert isinstance(url, str)
    if len(value) == 3:
        assert isinstance(payload, str)
        return Any(url, bytes.fromhex(payload))
    return Any(url, payload)


def _dump_result(result: Any | Status | None) -> str | None:
    if isinstance(result, Status):
        details: list[Json] = [_any_value(detail) for detail in result.details]
        shown: Json = {"code": int(result.code), "message": result.message, "details": details}
        return dumps_bounded(shown).decode()
    return pack(result)


def _load_result(text: str) -> Any | Status:
    value: Anything = reread(text)
    if isinstance(value, dict):
        details = tuple(_any(detail) for detail in value["details"])
        return Status(value["code"], value["message"], details)
    return _any(value)


def _dump_time(at: datetime | None) -> int | None:
    return None if at is None else micros(at)


def _dump_state(state: State) -> str:
    return state.value


_Dump = Callable[[Anything], object]
_Load = Callable[[Anything], Anything]
_SPECIAL: Final[dict[str, tuple[_Dump, _Load]]] = {
    "state": (_dump_state, {state.value: state for state in State}.__getitem__),
    "metadata": (pack, unpack),
    "result": (_dump_result, _load_result),
    "cancel_requested": (int, bool),
    **{
        name: (_dump_time, moment)
        for name in COLUMNS
        if name.endswith("_time") or name == "lease_until"
    },
}
_PLAN: Final = tuple((name, *_SPECIAL.get(name, (None, None))) for name in COLUMNS)
_LOADS: Final = tuple((name, load) for name, _, load in _PLAN if load is not None)
