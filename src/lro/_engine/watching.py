"""What one watcher was told of its operations, and what it must be told now (spec §3.11)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

import attrs

from lro._base.any import Any
from lro._model.operation import Operation
from lro._model.record import Record


@attrs.frozen
class MissingOperation:
    """An operation that was asked for and is not there, or not there any more."""

    name: str


Sighting: TypeAlias = Operation | MissingOperation
"""What a watcher is told: the latest state of an operation, or that it is gone."""


@attrs.frozen
class _Told:
    edition: tuple[int, datetime]
    metadata: bytes


class WatchList:
    """The operations that a watcher still has to hear of.

    It keeps names and a few bytes for each, however large the operations are and however slow the
    watcher is: a state is read when there is somebody to take it. An operation that is told as done
    or gone is over, since neither ever changes.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._left: dict[str, _Told | None] = dict.fromkeys(names)
        self._due = dict.fromkeys(self._left)

    @property
    def over(self) -> bool:
        """Whether all were told as done or gone."""
        return not self._left

    @property
    def left(self) -> Collection[str]:
        """The names of those that are not over."""
        return self._left.keys()

    def changed(self, name: str) -> None:
        """Perhaps: it must be read again."""
        if name in self._left:
            self._due[name] = None

    def differs(self, name: str, edition: tuple[int, datetime] | None) -> bool:
        """Whether what was told of a name is another edition than this; None: it is gone."""
        if name not in self._left or name in self._due:
            return False  # it is over, or to be read anyway
        told = self._left[name]
        return told is None or told.edition != edition

    def take(self, limit: int) -> list[str]:
        """Up to so many names to be read now, those that have waited longest."""
        names = [name for name, _ in zip(self._due, range(limit), strict=False)]
        for name in names:
            del self._due[name]
        return names

    def read(self, names: Iterable[str], found: Mapping[str, Record]) -> list[Sighting]:
        """What is to be told of names that were taken, given the records that can be seen."""
        seen = [self._read(name, found.get(name)) for name in names]
        return [one for one in seen if one is not None]

    def _read(self, name: str, record: Record | None) -> Sighting | None:
        if record is None:
            self._drop(name)
            return MissingOperation(name)
        if record.done:
            self._drop(name)
            return record.operation
        before = self._left[name]
        if before is not None and before.edition == record.edition:
            return None
        now = _Told(record.edition, _print(record.metadata))
        self._left[name] = now
        # Claims and requests to cancel make versions, too, which look the same to callers.
        return None if before is not None and before.metadata == now.metadata else record.operation

    def _drop(self, name: str) -> None:
        del self._left[name]
        self._due.pop(name, None)


def _print(metadata: Any | None) -> bytes:
    """A few bytes that tell one metadata from another; 1, 1.0 and true are not the same."""
    if metadata is None:
        return b""
    text = repr((metadata.type_url, metadata.payload))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
