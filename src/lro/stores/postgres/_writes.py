"""What is written, as one JSON text per record: groups of them are joined without another look."""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import attrs

from lro._base.any import Any, Json
from lro._engine.store_port import RequestKey
from lro._messages.json_text import dumps
from lro._model.record import Record
from lro.stores._group_commit import QueuedWrite
from lro.stores._rows import COLUMNS, pack, refuse_untextual, stamp_of

WRITTEN: Final = tuple(name for name in COLUMNS if name != "name")
"""What an update writes: the name is the record's identity."""

Row: TypeAlias = tuple[object, ...]
"""What :func:`to_row` gives."""


def digest(*texts: str) -> str:
    """The hash that stands for a name, a parent, a target or a request key in the indexes.

    128 bits: two names of one hash are not to be found, let alone met with.
    """
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


NO_RECORD: Final = "0" * 32
"""A hash that no name has."""


@functools.lru_cache(maxsize=16_384)  # waiters read the same names again
def id_of(name: str) -> str:
    """The hash of a name; ``NOBODY`` for a name that is not valid UTF-8."""
    try:
        return digest(name)
    except UnicodeEncodeError:
        return NO_RECORD


def ids_of(names: Sequence[str]) -> str:
    """The hashes of these names, as PostgreSQL writes an array."""
    return "{" + ",".join([id_of(name) for name in names]) + "}"


def sql_array(numbers: Iterable[int | None]) -> str:
    """These numbers, as PostgreSQL writes an array."""
    return "{" + ",".join(["NULL" if one is None else str(one) for one in numbers]) + "}"


class WriteKind(enum.Enum):
    """How a record is written."""

    INSERT = "insert"
    START = "insert, if neither its key nor its target is taken"
    CHANGE = "change"
    END = "change to done"
    REMOVE = "remove"


@attrs.define(eq=False, kw_only=True)
class RecordWrite(QueuedWrite):
    """A record to be written.

    ``touches`` is what it locks: of two writes that touch the same, one goes with a later group.
    ``order`` is its place in a group, so that all groups lock in one order. ``applied`` is what the
    server has answered; ``doubtful`` says that an earlier attempt may have been carried out.
    """

    name: str
    kind: WriteKind
    text: bytes
    touches: tuple[str, ...]
    order: str
    applied: bool = False
    doubtful: bool = False
    error: Exception | None = None

    def again(self) -> RecordWrite:
        """A write of the same record, to be queued once more."""
        return attrs.evolve(self, error=None)


def insertion(record: Record, row: Row, request: Any, key: RequestKey | None) -> RecordWrite:
    """The insert of a record, which is this row, its request and its key.

    Raises:
        InvalidArgument: A text cannot be stored.
        ValueError, TypeError: The request is not JSON.
    """
    refuse_untextual(record, key)
    fields = _fields(record, row)
    fields["request"] = pack(request)
    touches = [id_of(record.name)]
    if record.target:
        touches.append(str(fields["target_id"]))
    if key is not None:
        fields["key_id"] = start_id(key)
        fields["fingerprint"] = key.fingerprint
        fields["first"] = dumps(list(row)).decode()  # type: ignore[arg-type]  # a row is JSON
        touches.append(str(fields["key_id"]))
    return RecordWrite(
        name=record.name,
        kind=WriteKind.INSERT if len(touches) == 1 else WriteKind.START,
        text=dumps(fields),
        touches=tuple(touches),
        order=touches[0],
    )


def replacement(old: Record, new: Record, row: Row) -> RecordWrite:
    """The update of a record to a new one, which is this row, if it is still as it was.

    Raises:
        InvalidArgument: A text cannot be stored.
    """
    refuse_untextual(new)
    fields = _fields(new, row)
    if new.metadata is old.metadata:  # which may be large, and is not sent again
        fields["metadata"] = None
        fields["same_metadata"] = True
    fields["over"] = new.done
    return _if_unchanged(old, fields, WriteKind.END if new.done else WriteKind.CHANGE)


def removal(old: Record) -> RecordWrite:
    """The removal of a record, if it is still as it was."""
    return _if_unchanged(old, {"id": id_of(old.name)}, WriteKind.REMOVE)


def start_id(key: RequestKey) -> str:
    """The hash that stands for a request key."""
    return digest(key.method, key.caller, key.request_id)


def target_id(target: str) -> str | None:
    """The hash that stands for a target, None for none."""
    return digest(target) if target else None


def _fields(record: Record, row: Row) -> dict[str, Json]:
    fields: dict[str, Json] = dict(zip(COLUMNS, row, strict=True))  # type: ignore[arg-type]  # JSON
    fields["id"] = id_of(record.name)
    fields["parent_id"] = id_of(record.parent)
    fields["target_id"] = target_id(record.target)
    return fields


def _if_unchanged(old: Record, fields: dict[str, Json], kind: WriteKind) -> RecordWrite:
    fields["old_version"], fields["old_update"], fields["old_lease"] = stamp_of(old)
    id_ = str(fields["id"])
    return RecordWrite(name=old.name, kind=kind, text=dumps(fields), touches=(id_,), order=id_)
