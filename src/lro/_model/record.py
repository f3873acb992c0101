"""The server's row around an operation, and where in its life that is."""

from __future__ import annotations

import enum
import typing
from datetime import datetime
from typing import Final

import attrs

from lro._base.any import Any
from lro._base.status import Status
from lro._messages.json_text import dumps
from lro._model.operation import Operation


class State(enum.StrEnum):
    """Where in its life an operation is."""

    __hash__ = str.__hash__  # as Enum's, without a call in Python

    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    HIDDEN = "HIDDEN"
    """Deleted for callers while its work goes on, and keeps its target (spec §2.7, §9.5)."""
    GONE = "GONE"

    @property
    def done(self) -> bool:
        """Whether the operation has ended and callers can still see it."""
        return self in _DONE


GIVEN_UP: Final = "!"
"""How the owner of a record ends whose process has said that the work is lost."""

WEIGHT: Final = 100
"""The weight of a record without messages and name: the rest of an operation in JSON."""


def weight_of(name: str, metadata_bytes: int, result_bytes: int) -> int:
    """The weight of a record whose stored messages have these numbers of bytes as text."""
    return WEIGHT + len(name.encode()) + metadata_bytes + result_bytes


def _bytes_of(message: Any | Status | None) -> int:
    if message is None:
        return 0
    if isinstance(message, Status):
        details = sum(map(_bytes_of, message.details))
        return WEIGHT + len(message.message.encode("utf-8", "surrogatepass")) + details
    payload = message.payload
    if isinstance(payload, bytes):
        return 2 * len(payload) + len(message.type_url) + len('["","",true]')
    return len(dumps(payload)) + len(message.type_url) + len('["",]')


_DONE: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


@attrs.frozen(kw_only=True, slots=False)
class Record:
    """The server's row around an operation. Callers never see it.

    Times are in UTC by the store's clock; none ends before it is created. ``owner`` and
    ``lease_until`` say which process has the work and until when that holds unless renewed. Without
    an owner any worker may claim the work, and maintenance sends its name again after
    ``lease_until``; without both the work is done outside. ``attempt`` counts the claims and fences
    every write of a worker. ``target`` is set only for work that must have it alone. ``keys`` is an
    object in JSON by which stores find the record: see ``Indexes``. The request is kept beside it,
    because polls must not read megabytes that only a worker needs.
    """

    name: str
    parent: str
    method: str
    state: State = State.IN_PROGRESS
    metadata: Any | None = None
    result: Any | Status | None = None
    create_time: datetime
    update_time: datetime
    start_time: datetime | None = None
    end_time: datetime | None = None
    expire_time: datetime | None = None
    cancel_requested: bool = False
    attempt: int = 0
    lost_attempts: int = 0
    owner: str = ""
    lease_until: datetime | None = None
    caller: str = ""
    request_id: str = ""
    target: str = ""
    version: int = 1
    keys: str | None = None

    @property
    def operation(self) -> Operation:
        """What callers see of it: the same object each time."""
        # By hand: functools.cached_property takes a lock, and longer than all the rest.
        known: Operation | None = self.__dict__.get("_operation")
        if known is None:
            done = self.state in _DONE
            known = Operation(name=self.name, metadata=self.metadata, done=done, result=self.result)
            self.__dict__["_operation"] = known
        return known

    @property
    def weight(self) -> int:
        """About how many bytes of JSON callers get of it: as many as its messages are stored in."""
        known: int | None = self.__dict__.get("_weight")
        if known is None:
            known = weight_of(self.name, _bytes_of(self.metadata), _bytes_of(self.result))
            self.__dict__["_weight"] = known
        return known

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.state in _DONE

    @property
    def error(self) -> Status | None:
        """The error it ended with, or None."""
        return self.result if isinstance(self.result, Status) else None

    @property
    def response(self) -> Any | None:
        """The response it ended with, or None."""
        return self.result if isinstance(self.result, Any) else None

    def visible(self, now: datetime) -> bool:
        """Whether callers can see it: not deleted, not expired (spec §9.4)."""
        if self.state is State.HIDDEN or self.state is State.GONE:
            return False
        return self.expire_time is None or now < self.expire_time

    def finished_or_hidden(self, now: datetime) -> bool:
        """Whether waiting for it is over: it is done, or callers cannot see it."""
        return self.state in _DONE or not self.visible(now)

    @property
    def cancel_pending(self) -> bool:
        """Whether a caller has asked to stop work that goes on."""
        return self.cancel_requested and self.state not in _DONE

    @property
    def unclaimed(self) -> bool:
        """Whether no worker holds the work: it waits to be claimed, for the first time or again."""
        return self.owner == "" and self.lease_until is not None

    @property
    def given_up(self) -> bool:
        """Whether no process claims to have the work: none ever did, or the last one said so."""
        return self.owner == "" or self.owner.endswith(GIVEN_UP)

    @property
    def edition(self) -> tuple[int, datetime]:
        """What differs between any two versions of a record.

        The number alone does not tell them apart: a database that was restored to an older state
        counts on from there, and gives the same numbers to other changes.
        """
        return self.version, self.update_time

    def with_metadata(self, metadata: Any | None) -> Record:
        """The same record, if that is its metadata; else one with it."""
        return self if metadata is self.metadata else self._with({"metadata": metadata})

    def with_keys(self, keys: str | None) -> Record:
        """The same record, if these are its keys; else one with them."""
        return self if keys == self.keys else self._with({"keys": keys})

    def next_version(self, **changes: typing.Any) -> Record:
        """The next version of this record."""
        changes["version"] = self.version + 1
        return self._with(changes)

    def _with(self, changes: dict[str, typing.Any]) -> Record:
        fields = self.__dict__ | changes
        fields.pop("_operation", None)  # was kept for the record as it was
        fields.pop("_weight", None)
        return Record.of(fields)

    @classmethod
    def of(cls, fields: dict[str, typing.Any]) -> Record:
        """The record of all its fields, which the dictionary becomes.

        attrs' own way takes twice the time of everything else that a poll does; no field has a
        converter or validator that it would run.
        """
        record = object.__new__(cls)
        object.__setattr__(record, "__dict__", fields)
        return record
