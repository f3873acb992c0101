"""Conversion of records to and from rows of the SQL stores, and the cache of records."""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs

from lro._base.errors import InvalidArgument, RequestIdConflict
from lro._base.status import AnyMessage, Json, Status
from lro._engine.process import PerProcess
from lro._engine.store_port import DEBT_LIFE, RequestKey
from lro._messages.json_text import dumps_bounded, reread
from lro._model.operation import Change, Record, State, weight_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

REQUEST_LIFE: Final = timedelta(hours=24)
"""Time for which a request key is remembered (spec §9.2(2))."""

COLUMNS: Final = tuple(field.name for field in attrs.fields(Record))
"""Columns in the order of :func:`to_row`. Times are microseconds since 1970 in UTC."""


def added_columns(number: str, text: str) -> Mapping[str, str]:
    """Return the columns that schema version 1 lacked (the last columns), with their SQL types."""
    numbers = dict.fromkeys(("rank", "lane"), f"{number} NOT NULL DEFAULT 0")
    empty = f"{text} NOT NULL DEFAULT ''"
    texts = dict.fromkeys(("failures", "origin"), empty)
    return {**numbers, "begin_before": number, **texts, "sent_time": number, "rerun": empty}


_NAME, _METADATA, _RESULT = map(COLUMNS.index, ("name", "metadata", "result"))

STAMP_COLUMNS: Final = ("version", "update_time")
"""Columns that together identify a state of a record: see ``Record.edition``."""

Stamp: TypeAlias = tuple[int, int]
"""The values of ``STAMP_COLUMNS``."""


def micros(moment: datetime) -> int:
    """Convert a time to its stored form."""
    return (moment - _EPOCH) // MICROSECOND


def moment(stored: int) -> datetime:
    """Convert a stored time."""
    return _EPOCH + timedelta(microseconds=stored)


SWEEP_TIME: Final = f"""(expire_time
    + CASE WHEN notify_at IS NULL THEN 0 ELSE {DEBT_LIFE // MICROSECOND} END)"""
"""The SQL of :func:`sweep_time`."""


def sweep_time(record: Record) -> int | None:
    """Return the stored time of a record's removal, which pending notifications delay."""
    if record.expire_time is None:
        return None
    longer = 0 if record.notify_at is None else DEBT_LIFE // MICROSECOND
    return micros(record.expire_time) + longer


def stamp_of(record: Record) -> Stamp:
    """Return a record's values of ``STAMP_COLUMNS``."""
    return record.version, micros(record.update_time)


def to_row(record: Record) -> tuple[object, ...]:
    """Return the values of a record's columns."""
    fields = record.__dict__
    return tuple([dump(fields[name]) if dump else fields[name] for name, dump in _PLAN])


def from_row(row: Sequence[Any], weight: int | None = None) -> Record:
    """Return the record of a row; ``weight`` is its :func:`row_weight` if that is known."""
    fields = dict(zip(COLUMNS, row, strict=True))
    fields["_weight"] = row_weight(row) if weight is None else weight
    for name, load in _LOADS:
        if fields[name] is not None:
            fields[name] = load(fields[name])
    return Record.of(fields)


def row_weight(row: Sequence[Any]) -> int:
    """Return the weight of a row's record without decoding it."""
    size = 0
    for text in (row[_METADATA], row[_RESULT]):
        if text is not None:
            size += len(text) if text.isascii() else len(text.encode())
    return weight_of(row[_NAME], size)


def text_length(row: Sequence[Any]) -> int:
    """Return the number of characters in the messages of a row."""
    return len(row[_METADATA] or "") + len(row[_RESULT] or "")


def filled(record: Record) -> tuple[tuple[str, ...], list[Any]]:
    """Return the columns in which a record differs from the default, and its values in them.

    Most columns of a new record have their defaults. A value that is equal to the default, but is
    another object, may be returned too.
    """
    fields = _values(record.__dict__)
    columns, read, dumps = _filling(tuple(map(operator.is_not, fields, _DEFAULTS)))
    values = list(read(fields))
    for place, dump in dumps:
        values[place] = dump(values[place])
    return columns, values


_Filling: TypeAlias = tuple[
    tuple[str, ...], Callable[[Sequence[object]], Sequence[object]], Sequence[tuple[int, "_Dump"]]
]
"""Some columns, a function that picks their values from all, and the conversions by place."""


@functools.lru_cache(maxsize=128)
def _filling(chosen: tuple[bool, ...]) -> _Filling:
    plan = list(itertools.compress(_PLAN, chosen))
    dumps = [(place, dump) for place, (_, dump) in enumerate(plan) if dump]
    places = itertools.compress(range(len(COLUMNS)), chosen)
    return tuple(name for name, _ in plan), operator.itemgetter(*places), dumps


def changes(before: Record, after: Record) -> tuple[tuple[str, ...], list[object]]:
    """Return the columns in which two records differ, and the second record's values in them."""
    old, new = before.__dict__, after.__dict__
    columns, values = [], []
    # Most fields of a changed record are the same objects as before, which is quick to check.
    for name, dump in itertools.compress(_PLAN, map(operator.is_not, _values(new), _values(old))):
        value = new[name]
        # In Python 1, 1.0 and True are equal, so messages cannot be compared: always write them.
        if name in _MESSAGES or value != old[name]:
            columns.append(name)
            values.append(dump(value) if dump else value)
    return tuple(columns), values


def refuse_untextual(record: Record, key: RequestKey | None = None) -> None:
    """Refuse texts that some database cannot store, so that all stores behave alike.

    Raises:
        InvalidArgument: A text has a NUL or a lone surrogate; the error names the field.
    """
    texts = _texts_of(record.__dict__)
    if key is not None:
        texts += (key.method, key.caller, key.request_id, key.fingerprint)
    if textual("".join(texts)):
        return
    names = (*_TEXTS, "method", "caller", "request_id", "request_id")
    wrong, text = next(pair for pair in zip(names, texts, strict=False) if not textual(pair[1]))
    wanted = "must be Unicode text without the character U+0000"
    raise InvalidArgument(wrong, f"{wanted}, got {text[:80]!r}")


def repeats_start(key: RequestKey, fingerprint: str, at: datetime, now: datetime) -> bool:
    """Return True if a start with this key repeats an earlier start that was made at ``at``.

    Raises:
        RequestIdConflict: The key was used less than 24 hours ago with another fingerprint.
    """
    if now - at >= REQUEST_LIFE:
        return False
    if not key.fits(fingerprint):
        raise RequestIdConflict("request_id", "was used before with another request")
    return True


def taken(name: str) -> InvalidArgument:
    """Return the error for an insert whose name is already in use."""
    return InvalidArgument("name", f"{name!r} is taken")


def textual(text: str) -> bool:
    """Return True if a database can store the text: it has no NUL and no lone surrogate."""
    if "\0" in text:
        return False
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def pack(packed: AnyMessage | None) -> str | None:
    """Convert a packed message to text."""
    return None if packed is None else dumps_bounded(_any_value(packed)).decode()


def unpack(text: str) -> AnyMessage:
    """Convert text to a packed message."""
    return _any(reread(text))


def _any_value(packed: AnyMessage) -> Json:
    if isinstance(packed.payload, bytes):
        return [packed.type_url, packed.payload.hex(), True]
    return [packed.type_url, packed.payload]


def _any(value: Json) -> AnyMessage:
    assert isinstance(value, list)
    url, payload = value[0], value[1]
    assert isinstance(url, str)
    if len(value) == 3:
        assert isinstance(payload, str)
        return AnyMessage(url, bytes.fromhex(payload))
    return AnyMessage(url, payload)


def _dump_result(result: AnyMessage | Status | None) -> str | None:
    if isinstance(result, Status):
        details: list[Json] = [_any_value(detail) for detail in result.details]
        shown: Json = {"code": int(result.code), "message": result.message, "details": details}
        return dumps_bounded(shown).decode()
    return pack(result)


def _load_result(text: str) -> AnyMessage | Status:
    value: Any = reread(text)
    if isinstance(value, dict):
        details = tuple(_any(detail) for detail in value["details"])
        return Status(value["code"], value["message"], details)
    return _any(value)


def _dump_time(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // MICROSECOND


_Dump = Callable[[Any], object]
_Load = Callable[[Any], Any]
_SPECIAL: Final[dict[str, tuple[_Dump, _Load]]] = {
    "state": (str.__str__, {state.value: state for state in State}.__getitem__),
    "metadata": (pack, unpack),
    "result": (_dump_result, _load_result),
    "cancel_requested": (int, bool),
    **{
        name: (_dump_time, moment)
        for name in COLUMNS
        if name.endswith("_time") or name in ("lease_until", "notify_at", "begin_before")
    },
}
_MESSAGES: Final = frozenset({"metadata", "result"})
_TEXTS: Final = (
    *("name", "parent", "method", "owner", "caller", "request_id", "target", "notify"),
    *("failures", "origin"),
)
_texts_of: Final[Callable[[Mapping[str, Any]], tuple[str, ...]]] = operator.itemgetter(*_TEXTS)
_values: Final[Callable[[Mapping[str, Any]], tuple[object, ...]]] = operator.itemgetter(*COLUMNS)
_DUMPS: Final = {name: dump for name, (dump, _) in _SPECIAL.items()}
_PLAN: Final = tuple((name, _DUMPS.get(name)) for name in COLUMNS)
_DEFAULTS: Final = tuple(field.default for field in attrs.fields(Record))
DEFAULTS: Final[Mapping[str, object]] = {
    name: dump(default) if dump else default
    for (name, dump), default in zip(_PLAN, _DEFAULTS, strict=True)
    if default is not attrs.NOTHING
}
"""The stored values of the columns that :func:`filled` may leave out."""
_LOADS: Final = tuple((name, _SPECIAL[name][1]) for name in COLUMNS if name in _SPECIAL)


MAX_BYTES: Final = 32_000_000
"""Estimated memory of all records in one cache, in bytes."""

_RECORD_BYTES: Final = 2_000
"""Estimated memory of a record without its messages."""
_BYTES_PER_CHARACTER: Final = 8
"""Estimated memory of a message for each character of its stored text."""


@attrs.define(eq=False)
class _Kept:
    """A record in the cache."""

    stamp: Stamp
    record: Record
    text_length: int
    wanted: bool
    """True if a caller has asked for the record since its first version was cached."""


class RecordCache(PerProcess):
    """Cache of the records last seen; any of them may be outdated.

    A record is current if the stored record has the same stamp (:func:`stamp_of`). This rule holds
    even after a database is restored to an older state and no connection notices. Only committed
    records may be cached: another change may reuse the stamp of a change that was rolled back.

    The record of an ended operation stays in the cache only if a caller asked for it. Otherwise a
    server that starts thousands of operations a second would cache many records that no caller
    reads, and pause to garbage-collect them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    def __contains__(self, name: str) -> bool:
        """Return True if a record of this name is cached; it may be outdated."""
        return name in self._kept

    def peek(self, name: str) -> Record | None:
        """Return the cached record, but do not count this as a read by a caller.

        A caller that waits receives the end without a read, and seldom reads it again.
        """
        kept = self._kept.get(name)
        return None if kept is None else kept.record

    def get(self, name: str) -> Record | None:
        """Return the cached record for a caller; None if it is not cached."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        kept.wanted = True
        return kept.record

    def current(self, name: str, stamp: Stamp) -> Record | None:
        """Return the cached record for a caller if it has this stamp."""
        kept = self._kept.get(name)
        if kept is None or kept.stamp != stamp:
            return None
        kept.wanted = True
        return kept.record

    def text_length(self, name: str) -> int:
        """Return the ``text_length`` of a cached record, or 0 if the record is not cached."""
        kept = self._kept.get(name)
        return 0 if kept is None else kept.text_length

    def keep(self, record: Record, text_length: int, *, wanted: bool = False) -> Record:
        """Cache a record, whose messages have ``text_length`` characters, in place of old records.

        A record that would take more than an eighth of the cache is not cached. The record of an
        ended operation is cached only if a caller wants it now (``wanted``), or wanted an earlier
        version in the cache.

        Returns:
            The record.
        """
        size = _size(text_length)
        with self._lock:
            before = self._drop(record.name)
            wanted = wanted or (before is not None and before.wanted)
            if 8 * size <= MAX_BYTES and (wanted or not record.done):
                self._kept[record.name] = _Kept(stamp_of(record), record, text_length, wanted)
                self._bytes += size
            while self._bytes > MAX_BYTES:
                self._drop(next(iter(self._kept)))
        return record

    def changed(self, name: str, change: Change) -> tuple[Record, Record | None] | None:
        """Return a cached record and the result of a change to it; None if nothing changes.

        Also return None if the record is not cached, or if the change raises an error. The error
        may be due to an outdated record in the cache.
        """
        kept = self._kept.get(name)
        if kept is None:
            return None
        record = kept.record
        try:
            changed = change(record)
        except Exception:
            return None
        return None if changed is record else (record, changed)

    def forget(self, name: str) -> None:
        """Drop a record that was removed from the store."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> _Kept | None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._bytes -= _size(kept.text_length)
        return kept


def _size(text_length: int) -> int:
    return _RECORD_BYTES + _BYTES_PER_CHARACTER * text_length
