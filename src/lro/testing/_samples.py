"""Sample records and keys for the checks of stores."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from lro._base.any import Any
from lro._base.errors import OperationNotFound
from lro._base.status import Status
from lro._engine.store_port import Inserted, RequestKey, Store
from lro._model.record import Record
from lro._model.transitions import Change, end
from lro.testing._clock import ManualClock, refuses

StoreCheck: TypeAlias = Callable[[Store, ManualClock], None]
"""A promise as code: given an empty store and its clock, it raises unless the promise is kept."""

REQUEST: Final = Any(
    "type.googleapis.com/lro.testing.Request", {"text": "\u00dcn\u00ef \u2713 \U0001f600"}
)
METHODS: Final = frozenset({"M"})
"""The method of sample records, for :meth:`Store.orphans`."""
DONE: Final = Any("type.googleapis.com/lro.testing.Response", {})


def record_of(clock: ManualClock, unique_id: str = "a", **fields: typing.Any) -> Record:
    """A new record under ``parent``, by default at the root."""
    parent = str(fields.get("parent", ""))
    name = f"{parent}/operations/{unique_id}" if parent else f"operations/{unique_id}"
    known = {"parent": "", "method": "M", "create_time": clock(), "update_time": clock()}
    return Record(name=name, **{**known, **fields})


def held(
    clock: ManualClock, unique_id: str = "a", *, seconds: float = 15, **fields: typing.Any
) -> Record:
    """A new record whose work a worker holds for these seconds."""
    lease = {"owner": "us", "lease_until": clock() + timedelta(seconds=seconds)}
    return record_of(clock, unique_id, **{**lease, **fields})


def key_of(
    request_id: str = "r", fingerprint: str = "f", *, method: str = "M", caller: str = ""
) -> RequestKey:
    """A request key."""
    return RequestKey(method, caller, request_id, fingerprint)


def insert(
    store: Store, record: Record, key: RequestKey | None = None, *, check_only: bool = False
) -> Inserted:
    """Insert a record with the sample request."""
    return store.insert(record, REQUEST, key, check_only=check_only)


def end_of(clock: ManualClock, result: Any | Status | None = DONE, days: float = 30) -> Change:
    """The change that ends an operation, whose record is then kept for these days."""
    return end(result, now=clock(), keep_for=timedelta(days=days))


def ids(records: Sequence[Record]) -> list[str]:
    """What stands after ``operations/`` in the names of these records."""
    return [record.name.partition("operations/")[2] for record in records]


def gone(store: Store, name: str) -> None:
    """Fail unless the store has no such record."""
    refuses(OperationNotFound, lambda: store.get(name), f"{name} is gone")
