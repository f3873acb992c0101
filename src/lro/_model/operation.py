"""Operations: their names, the requests about them, and the stored record with its life.

A record is the server's row around an operation. Changes are pure functions from a record to the
next one, or to None, which removes it; the table of states says which are allowed (spec §2, §3.1).
"""

from __future__ import annotations

import base64
import enum
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from lro._base.errors import (
    CancellationNotRequested,
    InvalidArgument,
    InvalidOperationName,
    InvalidParent,
    LeaseLost,
    MalformedRequest,
    NotApplied,
    OperationNotFound,
    got,
)
from lro._base.status import AnyMessage, Code, Json, Status, named, unknown_fields
from lro._messages.json_text import dumps, reread
from lro._messages.schema import Int32, field_number
from lro._messages.times import Duration
from lro._model.description import (
    NO_DESCRIPTION,
    NOWHERE,
    FailedAttempt,
    OperationDescription,
    Place,
)

MAX_NAME: Final = 1024
"""Longest name, in code points (spec §3.1(2))."""

MAX_NAMES: Final = 1000
"""Most names of one call (spec §3.11)."""

ID_BYTES: Final = 12
"""Random bytes of a new id: 96 bits, sixteen characters (spec §3.1(4))."""

_SORTED: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_SHIFTS: Final = range(36, -1, -6)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# Spec §3.1(2). A surrogate is refused too: a proto string cannot hold it (spec §1.9). Runs of
# characters are possessive and every choice is made by a look-ahead, so that no input makes these
# backtrack far. Groups are not possessive: Python matches such wrongly before 3.11.5.
_SEGMENT: Final = r"(?!(?:\.\.?|-)(?:/|\Z))[^/\x00-\x1f\x7f\ud800-\udfff]++"
_PAIR: Final = rf"(?!operations(?:/|\Z)){_SEGMENT}/{_SEGMENT}"
_PAIRS: Final = rf"{_PAIR}(?:/{_PAIR})*"
_NAME: Final = re.compile(rf"(?:({_PAIRS})/)?operations/({_SEGMENT}(?:/{_SEGMENT})*)\Z")
_PARENT: Final = re.compile(rf"(?:({_PAIRS})(?:/operations)?|operations)?\Z")

_RESERVED: Final = frozenset({".", "..", "-"})
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@attrs.frozen
class OperationName:
    """A name in its two parts; ``str()`` puts them together (spec §3.1(1)).

    :func:`parse_name` and :func:`join_name` are what checks names; this class only holds them.
    ``parent`` is empty at the root, ``id`` may have several segments.
    """

    parent: str
    id: str

    def __str__(self) -> str:
        return f"{self.parent}/operations/{self.id}" if self.parent else f"operations/{self.id}"


def parse_name(name: str) -> OperationName:
    """The parent and id of an operation's name (spec §3.1).

    Raises:
        InvalidOperationName: It does not have the form of a name, or is not a text.
    """
    if not isinstance(name, str):
        raise InvalidOperationName("name", f"must be a text, got {got(name)}")
    found = _NAME.match(name) if len(name) <= MAX_NAME else None
    if found is None:
        why = _fault(name) or "it has no collection 'operations' with an id after it"
        raise InvalidOperationName("name", f"{_shown(name)} names no operation: {why}")
    return OperationName(found[1] or "", found[2])


def parse_names(names: Sequence[str], parent: str | None = None) -> tuple[str, ...]:
    """The distinct names of a call for several operations, in their order (spec §3.11).

    ``parent`` is the one under which all of them have to stand, as :func:`normalise_parent` gives
    it; None: under any.

    Raises:
        MalformedRequest: There is no name, or there are more than 1000.
        InvalidOperationName: One does not have the form of a name; ``field`` says which.
        InvalidParent: One stands under another parent.
    """
    if not 1 <= len(names) <= MAX_NAMES:
        raise MalformedRequest("names", f"must be 1 to {MAX_NAMES} names, got {len(names)}")
    for index, name in enumerate(names):
        try:
            found = parse_name(name)
        except InvalidOperationName as exc:
            raise InvalidOperationName(f"names[{index}]", exc.description) from None
        if parent is not None and found.parent != parent:
            wanted = f"{parent}/operations" if parent else "operations"
            why = f"{name!r} is not in {wanted!r}, the collection of the path"
            raise InvalidParent(f"names[{index}]", why)
    return tuple(dict.fromkeys(names))


def normalise_parent(name: str) -> str:
    """The one spelling of the parent that a List call names; empty for the root (spec §3.3(2)).

    Raises:
        InvalidParent: It is neither a parent nor its collection ``…/operations``.
    """
    if not isinstance(name, str):
        raise InvalidParent("name", f"must be a text, got {got(name)}")
    found = _PARENT.match(name) if len(name) <= MAX_NAME else None
    if found is None:
        why = _fault(name) or (
            "it is the name of an operation"
            if _NAME.match(name)
            else "it has an odd number of segments"
        )
        raise InvalidParent("name", f"{_shown(name)} is no parent of operations: {why}")
    return found[1] or ""


def join_name(parent: str, unique_id: str) -> str:
    """The name of the operation ``unique_id`` under ``parent`` (spec §3.1(1)).

    ``parent`` is as :func:`normalise_parent` gives it.

    Raises:
        InvalidOperationName: The two do not make a well-formed name.
        InvalidParent: They make one, but of another parent.
    """
    name = str(OperationName(parent, unique_id))
    found = parse_name(name).parent
    if found != parent:
        raise InvalidParent("parent", f"{parent!r} ends early: {name!r} stands under {found!r}")
    return name


def new_id(random: Callable[[int], bytes], now: datetime) -> str:
    """A new id in ``[A-Za-z0-9_-]``: when it was made, and 96 random bits (spec §3.1(4)).

    ``random`` gives as many unpredictable bytes as it is asked for: ``secrets.token_bytes``. Ids of
    one time stand together in the index of a database, so that new records and those that expire
    touch few of its pages. The milliseconds come again after 139 years.
    """
    millis = (now - _EPOCH) // _MILLISECOND
    made = "".join([_SORTED[millis >> shift & 63] for shift in _SHIFTS])
    return made + base64.urlsafe_b64encode(random(ID_BYTES)).decode("ascii")


def _fault(name: str) -> str | None:
    """Which rule of spec §3.1(2) the text breaks, as a clause; None if it breaks none."""
    if len(name) > MAX_NAME:
        return f"it has {len(name)} characters, {MAX_NAME} are allowed"
    for place, segment in enumerate(name.split("/"), start=1):
        if not segment:
            return f"segment {place} is empty"
        if segment in _RESERVED:
            return f"segment {place} is {segment!r}"
        if unfit := _UNFIT.search(segment):
            return f"segment {place} contains {unfit[0]!r}"
    return None


def _shown(name: str) -> str:
    return repr(name) if len(name) <= MAX_NAME else f"{name[:40]!r}…"


PACKAGE = "google.longrunning."

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Operation:
    """A long-running operation as callers see it: the five fields of spec §1.2.

    ``result`` is the one-of: a packed response, an error, or nothing. While ``done`` is false there
    is none; done without a result is a success without a value (spec §2.5). In the FULL view of
    Get, BatchGet and List it also has a ``description``, which is empty otherwise (spec §3.11).
    """

    name: str = ""
    metadata: AnyMessage | None = None
    done: bool = False
    result: AnyMessage | Status | None = None
    unknown: bytes = unknown_fields()
    description: OperationDescription = NO_DESCRIPTION

    @property
    def response(self) -> AnyMessage | None:
        """The packed response of a success, or None."""
        return self.result if isinstance(self.result, AnyMessage) else None

    @property
    def error(self) -> Status | None:
        """The error of a failure or cancellation, or None."""
        return self.result if isinstance(self.result, Status) else None

    @property
    def state(self) -> str:
        """IN_PROGRESS, SUCCEEDED, FAILED or CANCELLED (spec §2.1)."""
        if not self.done:
            return "IN_PROGRESS"
        if not isinstance(self.result, Status):
            return "SUCCEEDED"
        return "CANCELLED" if self.result.code == Code.CANCELLED else "FAILED"


_SET_NAME, _SET_METADATA, _SET_DONE, _SET_RESULT, _SET_UNKNOWN, _SET_DESCRIPTION = (
    vars(Operation)[field.name].__set__ for field in attrs.fields(Operation)
)


def operation_of(
    name: str, metadata: AnyMessage | None, done: bool, result: AnyMessage | Status | None
) -> Operation:
    """Make an operation as its class does, in half the time: there is one at each read."""
    made = object.__new__(Operation)
    _SET_NAME(made, name)
    _SET_METADATA(made, metadata)
    _SET_DONE(made, done)
    _SET_RESULT(made, result)
    _SET_UNKNOWN(made, b"")
    _SET_DESCRIPTION(made, NO_DESCRIPTION)
    return made


@attrs.frozen
class MissingOperation:
    """An operation that was asked for and is not there, or not there any more."""

    name: str


Sighting: TypeAlias = Operation | MissingOperation
"""What a watcher is sent: the latest state of an operation, or that it is gone."""


def validate(operation: Operation) -> tuple[str, ...]:
    """The problems of an operation, sorted; none for one that a server may return (spec §1.15)."""
    problems = set()
    result = operation.result
    if not operation.done and result is not None:
        problems.add("RESULT_BEFORE_DONE")
    if isinstance(result, Status) and not 1 <= result.code <= 16:
        problems.add("ERROR_CODE_INVALID")
    packed = (operation.metadata, operation.response)
    if any(one is not None and not one.type_url for one in packed):
        problems.add("ANY_TYPE_MISSING")
    if operation.name:
        try:
            parse_name(operation.name)
        except InvalidOperationName:
            problems.add("NAME_INVALID")
    elif not operation.done:
        problems.add("NAME_MISSING")
    return tuple(sorted(problems))


@named(PACKAGE + "GetOperationRequest")
@attrs.frozen
class GetOperationRequest:
    """Asks for the latest state of an operation."""

    name: str = attrs.field(default="", metadata=field_number(1))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "ListOperationsRequest")
@attrs.frozen
class ListOperationsRequest:
    """Asks for a page of the operations of one parent that match a filter."""

    name: str = attrs.field(default="", metadata=field_number(4))
    filter: str = attrs.field(default="", metadata=field_number(1))
    page_size: Int32 = attrs.field(default=0, metadata=field_number(2))
    page_token: str = attrs.field(default="", metadata=field_number(3))
    unknown: bytes = unknown_fields()


@attrs.frozen
class ListOperationsResponse:
    """A page: the operations (field 1) and, if more follow, the token for them (field 2)."""

    operations: tuple[Operation, ...] = ()
    next_page_token: str = ""
    unknown: bytes = unknown_fields()


Show: TypeAlias = Callable[[Sequence[Operation]], Iterable[T]]
"""Makes parts of a reply of some operations.

It is called batch by batch, so that one batch is freed before the next is read.
"""


@attrs.frozen
class BatchGetOperationsRequest:
    """Asks for the latest state of 1 to 1000 operations at once, or to watch them (spec §3.11).

    An extension of this library: no message of google.longrunning.
    """

    names: tuple[str, ...] = ()


@attrs.frozen
class BatchGetOperationsResponse:
    """The operations that are there, in the order asked for, and the names of the others."""

    operations: tuple[Operation, ...] = ()
    missing: tuple[str, ...] = ()


@named(PACKAGE + "CancelOperationRequest")
@attrs.frozen
class CancelOperationRequest:
    """Asks for an operation to be cancelled."""

    name: str = attrs.field(default="", metadata=field_number(1))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "DeleteOperationRequest")
@attrs.frozen
class DeleteOperationRequest:
    """Asks for the record of an operation to be removed."""

    name: str = attrs.field(default="", metadata=field_number(1))
    unknown: bytes = unknown_fields()


@attrs.frozen
class RerunOperationRequest:
    """Asks for the work of an operation that has ended to be started again (spec §3.12).

    An extension of this library: no message of google.longrunning.
    """

    name: str = ""
    request_id: str = ""


@named(PACKAGE + "WaitOperationRequest")
@attrs.frozen
class WaitOperationRequest:
    """Asks for an answer when an operation is done, or when ``timeout`` is over."""

    name: str = attrs.field(default="", metadata=field_number(1))
    timeout: Duration | None = attrs.field(default=None, metadata=field_number(2))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "OperationInfo")
@attrs.frozen
class OperationInfo:
    """Full names of the response and metadata types of a method (spec §1.5)."""

    response_type: str = attrs.field(default="", metadata=field_number(1))
    metadata_type: str = attrs.field(default="", metadata=field_number(2))
    unknown: bytes = unknown_fields()


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


WEIGHT: Final = 100
"""The weight of a record without messages and name: the rest of an operation in JSON."""


def weight_of(name: str, metadata_bytes: int, result_bytes: int) -> int:
    """The weight of a record whose stored messages have these numbers of bytes as text."""
    return WEIGHT + len(name.encode()) + metadata_bytes + result_bytes


def _bytes_of(message: AnyMessage | Status | None) -> int:
    if message is None:
        return 0
    if isinstance(message, Status):
        details = sum(map(_bytes_of, message.details))
        return WEIGHT + len(message.message.encode("utf-8", "surrogatepass")) + details
    payload = message.payload
    if isinstance(payload, bytes):
        return 2 * len(payload) + len(message.type_url) + len('["","",true]')
    return len(dumps(payload)) + len(message.type_url) + len('["",]')


_FIELD: Final = 32
"""More bytes than a number, true, false or null of JSON takes, with its quotes and commas."""


def fits_by_estimate(packed: AnyMessage, limit: int) -> bool:
    """Return True if an upper bound of a plain message's JSON size is within ``limit``.

    False says nothing: then the message must be written to know its size.
    """
    payload: Any = packed.payload
    if payload.__class__ is not dict or len(payload) * _FIELD > limit:
        return False
    size = 2
    for key, value in payload.items():
        kind = value.__class__
        if kind is str:
            size += 6 * len(value)  # \u0000 is the longest form of a character
        elif kind is int:
            size += value.bit_length()
        elif kind is not float and kind is not bool and value is not None:
            return False
        size += 6 * len(key) + _FIELD
    return size <= limit


SMALL: Final = 64 * 1024
"""Bytes up to which an operation is written at once, even on an event loop."""

_NUMBER: Final = 11
"""Bytes of a number in a Struct in binary form, in which it may be longer than in JSON."""


def is_small(operation: Operation) -> bool:
    """Return True if the messages of an operation have about ``SMALL`` bytes at most.

    The walk stops after that many bytes, so it is short for a large operation too.
    """
    metadata, result = operation.metadata, operation.result
    if (metadata is None or fits_by_estimate(metadata, SMALL)) and (
        result is None or (isinstance(result, AnyMessage) and fits_by_estimate(result, SMALL))
    ):
        return True  # as most are
    found: list[Any] = [metadata, result]
    room = SMALL
    while found:
        value = found.pop()
        kind = value.__class__
        if kind is str or kind is bytes:
            room -= len(value)
        elif kind is int:
            room -= _NUMBER + value.bit_length() // 4
        elif kind is dict or kind is list:
            room -= len(value)
            if room >= 0:
                found += value
                found += value.values() if kind is dict else ()
        elif kind is AnyMessage:
            found.append(value.payload)
        elif kind is Status:
            found += (value.message, value.details)
        elif kind is tuple:
            found += value
        else:
            room -= _NUMBER
        if room < 0:
            return False
    return True


_DONE: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

KEPT_FAILURES: Final = 20
"""How many failed attempts a record keeps, the last ones."""

_FAILURE_TEXT: Final = 500


@attrs.frozen(kw_only=True, slots=False)
class Record:
    """The server's row around an operation. Callers never see it.

    Times are in UTC by the store's clock; none ends before it is created. ``owner`` and
    ``lease_until`` say which worker has the work, and until when that holds even if the worker has
    not said since that it lives. Without an owner the work waits, and is due at ``lease_until``;
    without both it is done outside. ``attempt`` counts the claims and fences every write of a
    worker. ``target`` is set only for work that must have it alone. ``keys`` is an object in JSON
    by which stores find the record: see ``Indexes``. The request is kept beside it, because polls
    must not read megabytes that only a worker needs. ``cancel_time`` is when a caller first asked
    for the work to stop. ``trace_context`` is the W3C traceparent of the start, with its tracestate
    after a space if there is one; empty if the start was not traced.

    ``notify`` is an object in JSON, which stores and engine only keep: the webhooks that the start
    asked for, and after the end which notifications are still owed. ``notify_at`` is when the next
    of those is due, or until when a process has taken it to send it; None: none is owed. Only
    records that have ended owe some.

    ``rank`` is minus the priority: of what waits and is due, the lowest comes first. ``lane`` is a
    number that stands for the concurrency key; 0: its method had none. Work that has not begun at
    ``begin_before`` ends; None: it waits for as long as it takes. ``failures`` is an object in
    JSON: the failed attempts (see ``FailedAttempts``). ``origin`` says what has started it, if no
    caller has: ``schedule NAME``, or the name of the operation of which it is a rerun.

    ``sent_time`` is when the name of waiting work was first sent to the workers of a broker; they
    may claim it at any time, and ``lease_until`` is when the name is sent again. None: since the
    work began to wait, its name has not been sent.
    """

    name: str
    parent: str
    method: str
    state: State = State.IN_PROGRESS
    metadata: AnyMessage | None = None
    result: AnyMessage | Status | None = None
    create_time: datetime
    update_time: datetime
    start_time: datetime | None = None
    end_time: datetime | None = None
    expire_time: datetime | None = None
    cancel_requested: bool = False
    cancel_time: datetime | None = None
    attempt: int = 0
    lost_attempts: int = 0
    owner: str = ""
    lease_until: datetime | None = None
    caller: str = ""
    request_id: str = ""
    target: str = ""
    version: int = 1
    keys: str | None = None
    trace_context: str = ""
    notify: str = attrs.field(default="", repr=False)  # has secrets
    notify_at: datetime | None = None
    rank: int = 0
    lane: int = 0
    begin_before: datetime | None = None
    failures: str = ""
    origin: str = ""
    sent_time: datetime | None = None

    @property
    def operation(self) -> Operation:
        """What callers see of it: the same object each time."""
        # By hand: functools.cached_property takes a lock, and longer than all the rest.
        known: Operation | None = self.__dict__.get("_operation")
        if known is None:
            done = self.state in _DONE
            known = operation_of(self.name, self.metadata, done, self.result)
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
    def keeps_request(self) -> bool:
        """True if the request is kept: for the work, or to start what has failed once more."""
        return self.state is not State.SUCCEEDED

    @property
    def error(self) -> Status | None:
        """The error it ended with, or None."""
        return self.result if isinstance(self.result, Status) else None

    @property
    def response(self) -> AnyMessage | None:
        """The response it ended with, or None."""
        return self.result if isinstance(self.result, AnyMessage) else None

    @property
    def failed_attempts(self) -> tuple[FailedAttempt, ...]:
        """The last failed attempts, the oldest first."""
        found = self._failures["last"]
        return tuple(FailedAttempt(n, _EPOCH + at * _MILLISECOND, *more) for n, at, *more in found)

    @property
    def failure_count(self) -> int:
        """How many attempts have failed."""
        count: int = self._failures["count"]
        return count

    @property
    def _failures(self) -> Any:
        return reread(self.failures) if self.failures else {"count": 0, "last": ()}

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
    def waits(self) -> bool:
        """Whether no worker holds the work: it waits to be claimed, for the first time or again."""
        return self.owner == "" and self.lease_until is not None

    @property
    def edition(self) -> tuple[int, datetime]:
        """What differs between any two versions of a record.

        The number alone is not enough: a database that was restored to an older state
        counts on from there, and gives the same numbers to other changes.
        """
        return self.version, self.update_time

    def with_metadata(self, metadata: AnyMessage | None) -> Record:
        """The same record, if that is its metadata; else one with it."""
        return self if metadata is self.metadata else self._with({"metadata": metadata})

    def with_keys(self, keys: str | None) -> Record:
        """The same record, if these are its keys; else one with them."""
        return self if keys == self.keys else self._with({"keys": keys})

    def next_version(self, **changes: Any) -> Record:
        """The next version of this record."""
        changes["version"] = self.version + 1
        return self._with(changes)

    def _with(self, changes: dict[str, Any]) -> Record:
        fields = self.__dict__ | changes
        fields.pop("_operation", None)  # was kept for the record as it was
        fields.pop("_weight", None)
        return Record.of(fields)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Record:
        """The record of all its fields, which the dictionary becomes.

        attrs' own way takes twice the time of everything else that a poll does; no field has a
        converter or validator that it would run.
        """
        record = object.__new__(cls)
        object.__setattr__(record, "__dict__", fields)
        return record


_DESCRIPTION_BYTES: Final = 660
"""About how many bytes of JSON a description has without its method and failed attempts."""
_FAILURE_BYTES: Final = 60
"""About how many bytes of JSON a failed attempt has without its texts."""


def full_weight(record: Record, *, inspectable: bool) -> int:
    """Return about how many bytes of JSON an operation has in the FULL view."""
    failures = record.failed_attempts if inspectable else ()
    texts = sum(_FAILURE_BYTES + len(dumps([one.error, one.text])) for one in failures)
    return record.weight + _DESCRIPTION_BYTES + len(record.method) + texts


def full_operation(
    record: Record, renamed: Mapping[str, str], place: Place | None = None
) -> Operation:
    """Return an operation in the FULL view: with its description.

    ``renamed`` has the present names of methods, by their aliases. ``place`` is that of the worker;
    None leaves out all that is only for operators.
    """
    host, pid = place or NOWHERE
    # Callers must not see the other fields of a record: caller, owner, lease, keys and target.
    description = OperationDescription(
        state=record.state.value,
        method=renamed.get(record.method, record.method),
        create_time=record.create_time,
        update_time=record.update_time,
        start_time=record.start_time,
        end_time=record.end_time,
        expire_time=record.expire_time,
        cancel_requested=record.cancel_requested,
        cancel_time=record.cancel_time,
        attempt=record.attempt,
        lost_attempts=record.lost_attempts,
        failed_attempts=record.failure_count,
        due_time=(record.sent_time or record.lease_until) if record.waits else None,
        begin_before=record.begin_before if record.waits and not record.attempt else None,
        priority=-record.rank,
        origin=record.origin,
        trace_id=record.trace_context[3:35],
        failures=() if place is None else record.failed_attempts,
        worker_host=host,
        worker_pid=pid,
    )
    return attrs.evolve(record.operation, description=description)


class Event(enum.Enum):
    """What can happen to an operation."""

    __hash__ = object.__hash__  # a member is one object; Enum's own hash is a call in Python

    CLAIM = "claim"
    RELEASE = "release"
    REPORT = "report"
    REQUEST_CANCEL = "request cancel of"
    COMPLETE = "complete"
    FAIL = "fail"
    ACKNOWLEDGE_CANCEL = "acknowledge cancel of"
    DELETE = "delete"
    HIDE = "hide"
    EXPIRE = "expire"


_ENDED: Final = {Event.DELETE: State.GONE, Event.EXPIRE: State.GONE}

TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.IN_PROGRESS: {
        Event.CLAIM: State.IN_PROGRESS,
        Event.RELEASE: State.IN_PROGRESS,
        Event.REPORT: State.IN_PROGRESS,
        Event.REQUEST_CANCEL: State.IN_PROGRESS,
        Event.COMPLETE: State.SUCCEEDED,
        Event.FAIL: State.FAILED,
        Event.ACKNOWLEDGE_CANCEL: State.CANCELLED,
        Event.DELETE: State.GONE,
        Event.HIDE: State.HIDDEN,
    },
    State.SUCCEEDED: {Event.REQUEST_CANCEL: State.SUCCEEDED, **_ENDED},
    State.FAILED: {Event.REQUEST_CANCEL: State.FAILED, **_ENDED},
    State.CANCELLED: {Event.REQUEST_CANCEL: State.CANCELLED, **_ENDED},
    State.HIDDEN: {
        Event.CLAIM: State.HIDDEN,
        Event.RELEASE: State.HIDDEN,
        Event.REPORT: State.HIDDEN,
        Event.COMPLETE: State.GONE,
        Event.FAIL: State.GONE,
        Event.ACKNOWLEDGE_CANCEL: State.GONE,
    },
    State.GONE: {},
}

_CALLER_EVENTS: Final = frozenset({Event.REQUEST_CANCEL, Event.DELETE, Event.HIDE})


Change = Callable[[Record], Record | None]
"""Gives the next version of a record, or None to remove it.

Those of the hot path are partial functions: a closure takes an object for each name that it uses,
and all of them wait with the change until it is stored, for the garbage collector to look at.
"""
Stamp = Callable[[Record], Record]
"""Gives a changed record what is derived from the rest of it."""


def step(record: Record, event: Event, now: datetime) -> State:
    """The state that an event leads to.

    Raises:
        OperationNotFound: A caller asked, but the record is deleted or expired.
        NotApplied: The event comes too late.
    """
    if event in _CALLER_EVENTS and not record.visible(now):
        raise OperationNotFound(record.name)
    try:
        return TRANSITIONS[record.state][event]
    except KeyError:
        raise NotApplied(record.name, event.value, record.state.value) from None


def lose(attempt: int, due: datetime, now: datetime) -> Change:
    """Let other workers do work whose worker was lost in this attempt, from ``due`` on."""

    def change(record: Record) -> Record:
        state = step(record, Event.RELEASE, now)
        _fence(record, attempt)
        lost = record.lost_attempts + 1
        return record.next_version(
            state=state, owner="", lease_until=due, update_time=now, lost_attempts=lost
        )

    return change


def if_not_cancelled(change: Change, cancel: Change) -> Change:
    """The same change, or another one for a record that a caller has asked to cancel."""

    def chosen(record: Record) -> Record | None:
        return (cancel if record.cancel_pending else change)(record)

    return chosen


def is_unheld(record: Record, abandoned: Collection[str] = ()) -> bool:
    """Whether nobody is at the work: it waits, or one of the ``abandoned`` owners has it."""
    return record.waits or (record.lease_until is not None and record.owner in abandoned)


def withdraw(
    error: Status, now: datetime, keep_for: timedelta, abandoned: Collection[str] = ()
) -> Change:
    """End work that is asked to stop and that no worker holds.

    ``abandoned`` are owners whose work nobody goes on with.

    Raises (when applied):
        LeaseLost: A worker holds it, or it is done outside.
    """
    cancel = end(error, now=now, keep_for=keep_for, acknowledge=True)

    def change(record: Record) -> Record | None:
        if not is_unheld(record, abandoned):
            raise LeaseLost(record.name, record.attempt, record.attempt)
        return cancel(record)

    return change


def claim(owner: str, until: datetime, now: datetime) -> Change:
    """Begin a new attempt of work that waits.

    Raises (when applied):
        LeaseLost: It does not wait: a worker has it, or it is done outside.
    """

    def change(record: Record) -> Record:
        state = step(record, Event.CLAIM, now)
        if not record.waits:
            raise LeaseLost(record.name, record.attempt, record.attempt)
        return record.next_version(
            state=state,
            owner=owner,
            lease_until=until,
            attempt=record.attempt + 1,
            start_time=record.start_time or now,
            update_time=now,
            sent_time=None,
        )

    return change


def call_back(due: datetime) -> Change:
    """Note that a name that was sent is of no use: the work is due again then, if it waits."""

    def change(record: Record) -> Record:
        if record.sent_time is None:
            return record
        return record.next_version(lease_until=due, sent_time=None)

    return change


def release(attempt: int, now: datetime) -> Change:
    """Hand the work back: the next worker may claim it, and no attempt counts as lost."""

    def change(record: Record) -> Record:
        state = step(record, Event.RELEASE, now)
        _fence(record, attempt)
        due = due_again(record, now)
        return record.next_version(state=state, owner="", lease_until=due, update_time=now)

    return change


def due_again(record: Record, now: datetime) -> datetime:
    """Return the due time of work that had begun: it goes before newer work that never began."""
    return min(record.create_time, now)


def note_start(attempt: int, stamp: Stamp) -> Change:
    """Bring what is derived up to date, such as the start; nothing once the work is over."""

    def change(record: Record) -> Record:
        _fence(record, attempt)
        stamped = record if record.done else stamp(record)
        return record if stamped is record else stamped.next_version(state=record.state)

    return change


def report(metadata: AnyMessage, attempt: int | None, now: datetime) -> Change:
    """Replace the metadata as a whole (spec §2.10)."""
    return functools.partial(_reported, metadata, attempt, now)


def _reported(metadata: AnyMessage, attempt: int | None, now: datetime, record: Record) -> Record:
    state = step(record, Event.REPORT, now)
    _fence(record, attempt)
    return record.next_version(state=state, metadata=metadata, update_time=now)


def check_reporting(record: Record, attempt: int) -> None:
    """Check that this attempt may store something now, as :func:`report` would.

    Raises:
        NotApplied: The operation is over.
        LeaseLost: Another attempt is the current one.
    """
    step(record, Event.REPORT, record.update_time)
    _fence(record, attempt)


def request_cancel(now: datetime) -> Change:
    """Mark that a caller wants the work to stop; no effect once it is done (spec §2.6)."""

    def change(record: Record) -> Record:
        state = step(record, Event.REQUEST_CANCEL, now)
        if record.done or record.cancel_requested:
            return record
        return record.next_version(
            state=state, cancel_requested=True, cancel_time=now, update_time=now
        )

    return change


def end(
    result: AnyMessage | Status | None,
    *,
    now: datetime,
    keep_for: timedelta,
    attempt: int | None = None,
    metadata: AnyMessage | None = None,
    acknowledge: bool = False,
) -> Change:
    """End the operation: done and the result in one step (spec §2.2).

    An Any is the response of a success, None a success without a value, a Status an error.
    ``acknowledge`` says that the error answers a request to cancel. ``metadata`` is the last one.

    Raises:
        InvalidArgument: The error's code is not from 1 to 16 (spec §2.3).

    Raises (when applied):
        CancellationNotRequested: No caller asked for the cancellation that is acknowledged.
    """
    event = Event.COMPLETE
    if isinstance(result, Status):
        if not 1 <= result.code <= 16:
            raise InvalidArgument("error.code", f"must be from 1 to 16, got {result.code}")
        event = Event.ACKNOWLEDGE_CANCEL if acknowledge else Event.FAIL
    return functools.partial(_ended, event, result, now, keep_for, attempt, metadata)


def _ended(
    event: Event,
    result: AnyMessage | Status | None,
    now: datetime,
    keep_for: timedelta,
    attempt: int | None,
    metadata: AnyMessage | None,
    record: Record,
) -> Record | None:
    state = step(record, event, now)
    _fence(record, attempt)
    if event is Event.ACKNOWLEDGE_CANCEL and not record.cancel_requested:
        raise CancellationNotRequested(record.name)
    if state is State.GONE:
        return None
    if isinstance(result, Status) and result.code == Code.CANCELLED:
        state = State.CANCELLED
    ended = max(now, record.create_time)  # the clock may have been set back
    return record.next_version(
        state=state,
        result=result,
        metadata=metadata or record.metadata,
        owner="",
        lease_until=None,
        sent_time=None,
        update_time=now,
        end_time=ended,
        expire_time=ended + keep_for,
    )


def delete(now: datetime, abandoned: Collection[str] = ()) -> Change:
    """Remove the record; while its work goes on it only disappears from sight (spec §2.7).

    ``abandoned`` are owners whose work nobody goes on with, if it is of a method that no live
    worker declares. What one of them has, or nobody, ends with its record: else it might keep
    others from its target for ever (spec §9.5). So does work that waits after a failed attempt.
    """

    def change(record: Record) -> Record | None:
        busy = not record.done and (record.target or record.lease_until is not None)
        busy = busy and not (abandoned and is_unheld(record, abandoned))
        busy = busy and not (record.waits and record.failures)
        state = step(record, Event.HIDE if busy else Event.DELETE, now)
        return None if state is State.GONE else record.next_version(state=state, update_time=now)

    return change


def retry(attempt: int, due: datetime, now: datetime) -> Change:
    """Let the work wait after a failed attempt: it is due again then. Deleted work is removed."""

    def change(record: Record) -> Record | None:
        state = step(record, Event.RELEASE, now)
        _fence(record, attempt)
        if state is State.HIDDEN:
            return None
        return record.next_version(state=state, owner="", lease_until=due, update_time=now)

    return change


def with_failure(change: Change, failed: FailedAttempt) -> Change:
    """Have a change also store a failed attempt."""

    def noted(record: Record) -> Record | None:
        changed = change(record)
        if changed is None:
            return None
        shown: list[Json] = [
            [one.attempt, (one.time - _EPOCH) // _MILLISECOND, one.error, one.text]
            for one in (*record.failed_attempts, failed)
        ]
        kept: Json = {"count": record.failure_count + 1, "last": shown[-KEPT_FAILURES:]}
        return attrs.evolve(changed, failures=dumps(kept).decode())

    return noted


def failure_text(text: str) -> str:
    """The text of an error as a record keeps it: cut off, and without what no database can keep."""
    return text[:_FAILURE_TEXT].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def with_losses(change: Change, lost: int) -> Change:
    """Have a change also store how many workers the work has lost."""

    def counted(record: Record) -> Record | None:
        changed = change(record)
        return None if changed is None else attrs.evolve(changed, lost_attempts=lost)

    return counted


def if_unchanged_since(seen: Record, change: Change) -> Change:
    """The same change, for a record that is held as it was when the change was decided on.

    Raises (when applied):
        LeaseLost: It has been claimed, handed back or taken over since.
    """

    def guarded(record: Record) -> Record | None:
        if (record.owner, record.attempt) != (seen.owner, seen.attempt):
            raise LeaseLost(record.name, seen.attempt, record.attempt)
        return change(record)

    return guarded


def with_derived(change: Change, stamp: Stamp) -> Change:
    """The same change, with what is derived brought up to date in the same step."""
    return functools.partial(_with_derived, change, stamp)


def _with_derived(change: Change, stamp: Stamp, record: Record) -> Record | None:
    changed = change(record)
    if changed is None or changed is record:
        return changed
    return stamp(changed)


def with_debt(change: Change, owed: Callable[[Record], bool]) -> Change:
    """The same change; a record that it ends owes notifications from then on, if ``owed`` says so.

    What callers cannot see owes none: a change that ends a deleted operation removes it.
    """
    return functools.partial(_with_debt, change, owed)


def _with_debt(change: Change, owed: Callable[[Record], bool], record: Record) -> Record | None:
    changed = change(record)
    if changed is None or changed.state not in _DONE or record.state in _DONE or not owed(changed):
        return changed
    return changed._with({"notify_at": changed.end_time})


def settle_notifications(claimed: Record, notify: str, notify_at: datetime | None) -> Change:
    """Store which notifications are still owed after a try, and when the next one is due.

    ``claimed`` is the record as ``OutboxStore.claim_due`` gave it; a ``notify_at`` of None says
    that none is owed any more. The operation does not count as updated: callers see no change.

    Raises (when applied):
        LeaseLost: Another process has taken the notifications since, or has settled them.
    """

    def change(record: Record) -> Record:
        if record.notify_at is None or record.notify_at != claimed.notify_at:
            raise LeaseLost(record.name, record.attempt, record.attempt)
        return record.next_version(notify=notify, notify_at=notify_at)

    return change


def _fence(record: Record, attempt: int | None) -> None:
    if attempt is not None and attempt != record.attempt:
        raise LeaseLost(record.name, attempt, record.attempt)
