"""Operations: names, requests and responses of the verbs, the stored record and its states.

A record is the server's row for an operation. A change is a pure function from a record to its next
version, or to None, which removes it. The table of states defines which changes are allowed (spec
§2, §3.1).
"""

from __future__ import annotations

import binascii
import enum
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import (
    CancellationNotRequested,
    InvalidArgument,
    InvalidOperationName,
    InvalidParent,
    InvalidRequestId,
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
"""Maximum length of a name, in code points (spec §3.1(2))."""

MAX_NAMES: Final = 1000
"""Maximum number of names in one call (spec §3.11)."""

ID_BYTES: Final = 12
"""Number of random bytes in a new id: 96 bits, sixteen characters (spec §3.1(4))."""

_SORTED: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz",
)
"""Translates the digits of base64 so that texts sort as the numbers that they stand for."""
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_REPEAT: Final = 64**7
"""Number of milliseconds after which the time in new ids repeats."""

# Spec §3.1(2). A surrogate is refused too: a proto string cannot have one (spec §1.9). It is looked
# for separately, because a set with surrogates takes long to compile and to match. Runs of
# characters are possessive and every choice has a look-ahead, so no input makes these patterns
# backtrack far. Groups are not possessive: Python before 3.11.5 matches possessive groups wrongly.
_SEGMENT: Final = r"(?!(?:\.\.?|-)(?:/|\Z))[^/\x00-\x1f\x7f]++"
_PAIR: Final = rf"(?!operations(?:/|\Z)){_SEGMENT}/{_SEGMENT}"
_PAIRS: Final = rf"{_PAIR}(?:/{_PAIR})*"
_NAME: Final = re.compile(rf"(?:({_PAIRS})/)?operations/({_SEGMENT}(?:/{_SEGMENT})*)\Z")
_PARENT: Final = rf"(?:({_PAIRS})(?:/operations)?|operations)?\Z"

_RESERVED: Final = frozenset({".", "..", "-"})
_SURROGATE: Final = r"[\ud800-\udfff]"
_UNFIT: Final = rf"[\x00-\x1f\x7f]|{_SURROGATE}"


@attrs.frozen(repr=False)
class OperationName(ByFields):
    """The two parts of an operation's name; ``str()`` joins them (spec §3.1(1)).

    ``parent`` is empty at the root; ``id`` may have several segments. :func:`parse_name` and
    :func:`join_name` check names; the class itself does not.
    """

    parent: str
    id: str

    def __str__(self) -> str:
        return f"{self.parent}/operations/{self.id}" if self.parent else f"operations/{self.id}"


def parse_name(name: str) -> OperationName:
    """Split the name of an operation into parent and id (spec §3.1).

    Raises:
        InvalidOperationName: The value is not a valid name.
    """
    found = check_name(name)
    return OperationName(found[1] or "", found[2])


def check_name(name: str) -> re.Match[str]:
    """Check a name as :func:`parse_name` does; return the match, with parent and id as groups.

    Raises:
        InvalidOperationName: The value is not a valid name.
    """
    if not isinstance(name, str):
        raise InvalidOperationName("name", f"must be a text, got {got(name)}")
    fits = len(name) <= MAX_NAME and (name.isascii() or not re.search(_SURROGATE, name))
    found = _NAME.match(name) if fits else None
    if found is None:
        why = _fault(name) or "it has no collection 'operations' with an id after it"
        raise InvalidOperationName("name", f"{_shown(name)} names no operation: {why}")
    return found


def parse_names(names: Sequence[str], parent: str | None = None) -> tuple[str, ...]:
    """Return the distinct names in a call for several operations, in order (spec §3.11).

    All names must be under ``parent``, a result of ``normalise_parent``; None allows any parent.

    Raises:
        MalformedRequest: There is no name, or there are more than 1000.
        InvalidOperationName: A name is not valid; ``field`` has its index.
        InvalidParent: A name is under another parent.
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
    """Return the canonical form of a List call's parent; empty for the root (spec §3.3(2)).

    Raises:
        InvalidParent: The name is not a parent or its collection ``…/operations``.
    """
    if not isinstance(name, str):
        raise InvalidParent("name", f"must be a text, got {got(name)}")
    fits = len(name) <= MAX_NAME and (name.isascii() or not re.search(_SURROGATE, name))
    found = re.match(_PARENT, name) if fits else None
    if found is None:
        why = _fault(name) or (
            "it is the name of an operation"
            if _NAME.match(name)
            else "it has an odd number of segments"
        )
        raise InvalidParent("name", f"{_shown(name)} is not a valid parent: {why}")
    return found[1] or ""


def join_name(parent: str, unique_id: str) -> str:
    """Return the name of the operation ``unique_id`` under ``parent`` (spec §3.1(1)).

    ``parent`` is the result of :func:`normalise_parent`.

    Raises:
        InvalidOperationName: Parent and id do not make a valid name.
        InvalidParent: Parent and id make a valid name under another parent.
    """
    name = str(OperationName(parent, unique_id))
    found = parse_name(name).parent
    if found != parent:
        raise InvalidParent("parent", f"{parent!r} ends early: {name!r} is under {found!r}")
    return name


def new_id(random: Callable[[int], bytes], now: datetime) -> str:
    """Return a new id in ``[A-Za-z0-9_-]``: the time and 96 random bits (spec §3.1(4)).

    ``random`` takes a count, and returns that many unpredictable bytes (``secrets.token_bytes``).
    Ids of about the same time are close together in the index of a database, so new and expiring
    records touch few of its pages. The time, in milliseconds, repeats after 139 years.
    """
    millis = (now - _EPOCH) // _MILLISECOND % _REPEAT
    time = binascii.b2a_base64(millis.to_bytes(6, "big"), newline=False).translate(_SORTED)
    bits = binascii.b2a_base64(random(ID_BYTES), newline=False).translate(_URL_SAFE)
    return (time[1:] + bits).decode()  # the first digit of the time is always 0


MAX_REQUEST_ID: Final = 128
"""The most characters (code points) of a request id."""

_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_NIL: Final = "00000000-0000-0000-0000-000000000000"
_NOT_IN_REQUEST_ID: Final = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def normal_request_id(text: str, *, only_uuid: bool = False) -> str:
    """Return the form in which a request id is compared with other ids (spec §9.2(1)).

    A UUID is compared in lower case, and any other text as it is. With ``only_uuid``, the id must
    be a UUID, as AIP-155 has it.

    Raises:
        InvalidRequestId: The text is not a valid request id.
    """
    if _UUID.fullmatch(text):
        if text == _NIL:
            raise _wrong_request_id("must not be a UUID of zeros only")
        return text.lower()
    if only_uuid:
        cure = f"make one of your own key: uuid.uuid5(uuid.NAMESPACE_URL, {got(text)})"
        raise _wrong_request_id(f"must be a UUID of 36 characters here, got {got(text)}; {cure}")
    if not 0 < len(text) <= MAX_REQUEST_ID:
        wanted = f"must be a text of 1 to {MAX_REQUEST_ID} characters"
        raise _wrong_request_id(f"{wanted}, got {len(text)}")
    if found := _NOT_IN_REQUEST_ID.search(text):
        kinds = "control characters, line separators or lone surrogates"
        place = f"U+{ord(found[0]):04X} at character {found.start()}"
        raise _wrong_request_id(f"must not have {kinds}, got {place}")
    if text != text.strip():
        raise _wrong_request_id(f"must not begin or end with white space, got {got(text)}")
    return text


def _wrong_request_id(why: str) -> InvalidRequestId:
    return InvalidRequestId("request_id", why)


def rerun_request_id(name: str) -> str:
    """Return the one request id for reruns of an operation, so that only one rerun starts."""
    import uuid

    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}:rerun"))


def _fault(name: str) -> str | None:
    # Returns a clause about the rule of spec §3.1(2) that the text breaks; None for a valid text.
    if len(name) > MAX_NAME:
        return f"it has {len(name)} characters, {MAX_NAME} are allowed"
    for place, segment in enumerate(name.split("/"), start=1):
        if not segment:
            return f"segment {place} is empty"
        if segment in _RESERVED:
            return f"segment {place} is {segment!r}"
        if unfit := re.search(_UNFIT, segment):
            return f"segment {place} contains {unfit[0]!r}"
    return None


def _shown(name: str) -> str:
    return repr(name) if len(name) <= MAX_NAME else f"{name[:40]!r}…"


PACKAGE = "google.longrunning."

T = TypeVar("T")


class _Measured:
    """Has a place for the result of :func:`is_small`, so that only the first poll computes it."""

    __slots__ = ("small",)
    small: bool


@attrs.frozen(kw_only=True, repr=False)
class Operation(ByFields, _Measured):
    """A long-running operation as callers see it, with the five fields of spec §1.2.

    ``result`` is the one-of: a packed response, an error, or None. While ``done`` is false,
    ``result`` is None. If ``done`` is true, None means a success without a value (spec §2.5).
    ``description`` is empty, except in the FULL view of Get, BatchGet and List (spec §3.11).
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

_SET_SMALL = vars(_Measured)["small"].__set__


def operation_of(
    name: str, metadata: AnyMessage | None, done: bool, result: AnyMessage | Status | None
) -> Operation:
    """Make an operation for a read, in half the time that the constructor takes."""
    made = object.__new__(Operation)
    _SET_NAME(made, name)
    _SET_METADATA(made, metadata)
    _SET_DONE(made, done)
    _SET_RESULT(made, result)
    _SET_UNKNOWN(made, b"")
    _SET_DESCRIPTION(made, NO_DESCRIPTION)
    return made


@attrs.frozen(eq=False, repr=False)
class MissingOperation(ByFields):
    """The name of an operation that does not exist, or no longer exists."""

    name: str


WatchItem: TypeAlias = Operation | MissingOperation
"""The latest state of a watched operation, or the name of an operation that no longer exists."""


def validate(operation: Operation) -> tuple[str, ...]:
    """Return the sorted problems of an operation; empty if a server may return it (spec §1.15)."""
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
@attrs.frozen(eq=False, repr=False)
class GetOperationRequest(ByFields):
    """The request for the latest state of an operation."""

    name: str = attrs.field(default="", metadata=field_number(1))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "ListOperationsRequest")
@attrs.frozen(eq=False, repr=False)
class ListOperationsRequest(ByFields):
    """The request for a page of the operations of a parent that match a filter."""

    name: str = attrs.field(default="", metadata=field_number(4))
    filter: str = attrs.field(default="", metadata=field_number(1))
    page_size: Int32 = attrs.field(default=0, metadata=field_number(2))
    page_token: str = attrs.field(default="", metadata=field_number(3))
    unknown: bytes = unknown_fields()


@attrs.frozen(eq=False, repr=False)
class ListOperationsResponse(ByFields):
    """A page of operations (field 1), and the token of the next page, if any (field 2)."""

    operations: tuple[Operation, ...] = ()
    next_page_token: str = ""
    unknown: bytes = unknown_fields()


Render: TypeAlias = Callable[[Sequence[Operation]], Iterable[T]]
"""Render some operations as parts of a reply.

It is called batch by batch, so that one batch is freed before the next batch is read.
"""


@attrs.frozen(eq=False, repr=False)
class BatchGetOperationsRequest(ByFields):
    """The request to get the latest state of 1 to 1000 operations, or to watch them (spec §3.11).

    An extension of this library; google.longrunning has no such message.
    """

    names: tuple[str, ...] = ()


@attrs.frozen(eq=False, repr=False)
class BatchGetOperationsResponse(ByFields):
    """The operations that exist, in the order of the request, and the missing names."""

    operations: tuple[Operation, ...] = ()
    missing: tuple[str, ...] = ()


@named(PACKAGE + "CancelOperationRequest")
@attrs.frozen(eq=False, repr=False)
class CancelOperationRequest(ByFields):
    """The request to cancel an operation."""

    name: str = attrs.field(default="", metadata=field_number(1))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "DeleteOperationRequest")
@attrs.frozen(eq=False, repr=False)
class DeleteOperationRequest(ByFields):
    """The request to delete an operation."""

    name: str = attrs.field(default="", metadata=field_number(1))
    unknown: bytes = unknown_fields()


@attrs.frozen(eq=False, repr=False)
class RerunOperationRequest(ByFields):
    """The request to start the work of an ended operation again (spec §3.12).

    An extension of this library; google.longrunning has no such message.
    """

    name: str = ""
    request_id: str = ""


@named(PACKAGE + "WaitOperationRequest")
@attrs.frozen(eq=False, repr=False)
class WaitOperationRequest(ByFields):
    """The request to wait until an operation is done, or until ``timeout`` has passed."""

    name: str = attrs.field(default="", metadata=field_number(1))
    timeout: Duration | None = attrs.field(default=None, metadata=field_number(2))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "OperationInfo")
@attrs.frozen(eq=False, repr=False)
class OperationInfo(ByFields):
    """Full names of the response and metadata types of a method (spec §1.5)."""

    response_type: str = attrs.field(default="", metadata=field_number(1))
    metadata_type: str = attrs.field(default="", metadata=field_number(2))
    unknown: bytes = unknown_fields()


class State(enum.StrEnum):
    """The state of an operation."""

    __hash__ = str.__hash__  # the hash of Enum has the same value, but is slower

    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    HIDDEN = "HIDDEN"
    """Deleted for callers, but the work continues and keeps its target (spec §2.7, §9.5)."""
    GONE = "GONE"

    @property
    def done(self) -> bool:
        """True if the operation has ended and callers can still see it."""
        return self in _DONE


WEIGHT: Final = 100
"""Size of an operation in JSON without its messages and name, in bytes."""


def weight_of(name: str, message_bytes: int) -> int:
    """Return the weight of a record whose stored messages have this size as text."""
    return WEIGHT + len(name.encode()) + message_bytes


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
"""Maximum size of a JSON number, true, false or null with quotes and comma, in bytes."""


def fits_by_estimate(packed: AnyMessage, limit: int) -> bool:
    """Return True if an upper bound of a plain message's JSON size is within ``limit``.

    If the result is False, the size is known only after the message is written.
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
"""Maximum size of an operation that is written on the event loop, in bytes."""

_NUMBER: Final = 11
"""Size of a number in a Struct's binary form, in bytes; it can be larger than in JSON."""


def is_small(operation: Operation) -> bool:
    """Return True if the messages of an operation have at most about ``SMALL`` bytes.

    The walk stops after that many bytes, so it is short for a large operation too.
    """
    metadata, result = operation.metadata, operation.result
    if metadata is None and result is None:
        return True
    try:
        return operation.small
    except AttributeError:  # the first question about this version of the operation
        small = _fits(metadata, result)
    _SET_SMALL(operation, small)
    return small


def _fits(metadata: AnyMessage | None, result: AnyMessage | Status | None) -> bool:
    if (metadata is None or fits_by_estimate(metadata, SMALL)) and (
        result is None or (isinstance(result, AnyMessage) and fits_by_estimate(result, SMALL))
    ):
        return True  # most operations are small enough for this test
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
"""Number of failed attempts that a record keeps; the oldest are dropped."""

_FAILURE_TEXT: Final = 500


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class Record(ByFields):
    """The server's row for an operation. Callers never see it.

    Times are in UTC by the store's clock; an operation never ends before it is created. The request
    is stored beside the record, so that polls do not read megabytes that only a worker needs.

    - ``owner``: the worker that has the work; ``lease_until``: the end of its lease. Without an
      owner the work waits and is due at ``lease_until``; without both, the application does the
      work.
    - ``attempt``: counts claims, and fences every write of a worker.
    - ``target``: the exclusive target of the work, if it has one.
    - ``keys``: a JSON object of the indexed keys of the record, see ``Indexes``.
    - ``cancel_time``: when a caller first asked to cancel.
    - ``trace_context``: the W3C traceparent of the start, and after a space its tracestate, if any;
      empty if the start was not traced.
    - ``notify``: a JSON object with the webhooks of the start, and after the end with the pending
      notifications. Stores and the engine do not interpret it.
    - ``notify_at``: when the next notification is due, or when the claim of the process that is
      sending the notification ends. None: no notification is pending. Only ended operations have
      pending notifications.
    - ``rank``: the negated priority; due work with the lowest rank is claimed first.
    - ``lane``: a number for the concurrency key; 0: the method had no keys at the start.
    - ``begin_before``: the deadline for beginning the work; None: there is no deadline.
    - ``failures``: the failed attempts as a JSON object, see ``failed_attempts``.
    - ``origin``: empty if a caller started the operation; else ``schedule NAME``, or the name of
      the operation that was rerun.
    - ``sent_time``: when the name of waiting work was first sent to a broker. Workers of the broker
      can claim the work at any time; at ``lease_until`` the name is sent again. None: the name was
      not sent since the work began to wait.
    - ``rerun``: the name of the latest rerun of the operation; empty: there was no rerun.
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
    notify: str = attrs.field(default="", repr=False)  # may contain secrets of webhooks
    notify_at: datetime | None = None
    rank: int = 0
    lane: int = 0
    begin_before: datetime | None = None
    failures: str = ""
    origin: str = ""
    sent_time: datetime | None = None
    rerun: str = ""

    @property
    def operation(self) -> Operation:
        """The operation as callers see it; always the same object."""
        # This is no functools.cached_property, whose lock takes longer than this code.
        known: Operation | None = self.__dict__.get("_operation")
        if known is None:
            done = self.state in _DONE
            known = operation_of(self.name, self.metadata, done, self.result)
            self.__dict__["_operation"] = known
        return known

    @property
    def weight(self) -> int:
        """The approximate size of the operation in JSON, in bytes, from its stored messages."""
        known: int | None = self.__dict__.get("_weight")
        if known is None:
            messages = _bytes_of(self.metadata) + _bytes_of(self.result)
            known = self.__dict__["_weight"] = weight_of(self.name, messages)
        return known

    @property
    def done(self) -> bool:
        """True if the operation has ended and callers can see it."""
        return self.state in _DONE

    @property
    def keeps_request(self) -> bool:
        """True if the request is kept: for the work, or for a rerun of failed work."""
        return self.state is not State.SUCCEEDED

    @property
    def error(self) -> Status | None:
        """The error of the operation, or None."""
        return self.result if isinstance(self.result, Status) else None

    @property
    def response(self) -> AnyMessage | None:
        """The response of the operation, or None."""
        return self.result if isinstance(self.result, AnyMessage) else None

    @property
    def failed_attempts(self) -> tuple[FailedAttempt, ...]:
        """The latest failed attempts, oldest first."""
        found = self._failures["last"]
        return tuple(FailedAttempt(n, _EPOCH + at * _MILLISECOND, *more) for n, at, *more in found)

    @property
    def failure_count(self) -> int:
        """The number of failed attempts."""
        count: int = self._failures["count"]
        return count

    @property
    def _failures(self) -> Any:
        return reread(self.failures) if self.failures else {"count": 0, "last": ()}

    def visible(self, now: datetime) -> bool:
        """Return True if callers can see the operation: not deleted, not expired (spec §9.4)."""
        if self.state is State.HIDDEN or self.state is State.GONE:
            return False
        return self.expire_time is None or now < self.expire_time

    def require_visible(self, now: datetime) -> Record:
        """Return this record.

        Raises:
            OperationNotFound: Callers cannot see the operation.
        """
        if not self.visible(now):
            raise OperationNotFound(self.name)
        return self

    def finished_or_hidden(self, now: datetime) -> bool:
        """Return True if no caller can wait: the operation is done, or callers cannot see it."""
        return self.state in _DONE or not self.visible(now)

    @property
    def cancel_pending(self) -> bool:
        """True if a caller asked to cancel and the operation has not ended."""
        return self.cancel_requested and self.state not in _DONE

    @property
    def waits(self) -> bool:
        """True if the work waits to be claimed, for the first time or again."""
        return self.owner == "" and self.lease_until is not None

    @property
    def edition(self) -> tuple[int, datetime]:
        """The identity of this version of the record.

        The version number is not enough: after a database is restored to an older state, the
        numbers of lost changes are used again.
        """
        return self.version, self.update_time

    def with_metadata(self, metadata: AnyMessage | None) -> Record:
        """Return a copy with this metadata; the record itself if it has this very object."""
        if metadata is self.metadata:
            return self
        return self.next_version(metadata=metadata, version=self.version)

    def with_keys(self, keys: str | None) -> Record:
        """Return a copy with these keys; the record itself if the keys are equal."""
        return self if keys == self.keys else self.next_version(keys=keys, version=self.version)

    def next_version(self, **changes: Any) -> Record:
        """Return the next version of this record, with changes; ``version`` can be one of them."""
        fields = self.__dict__ | changes
        if "version" not in changes:
            fields["version"] += 1
        fields.pop("_operation", None)  # ``operation`` is cached for the old record
        fields.pop("_weight", None)
        record = object.__new__(Record)
        object.__setattr__(record, "__dict__", fields)
        return record

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Record:
        """Make a record that keeps ``fields``, a dictionary of all fields, as its ``__dict__``.

        The constructor would take twice as long as all other steps of a poll. Skipping it is safe,
        because no field has a converter or validator.
        """
        record = object.__new__(cls)
        object.__setattr__(record, "__dict__", fields)
        return record


_DESCRIPTION_BYTES: Final = 660
"""Approximate size of a description in JSON without its method and failed attempts, in bytes."""
_FAILURE_BYTES: Final = 60
"""Approximate size of a failed attempt in JSON without its texts, in bytes."""


def full_weight(record: Record, *, inspectable: bool) -> int:
    """Return the approximate size of an operation in JSON in the FULL view, in bytes."""
    failures = record.failed_attempts if inspectable else ()
    texts = sum(_FAILURE_BYTES + len(dumps([one.error, one.text])) for one in failures)
    names = len(record.method) + len(record.rerun)
    return record.weight + _DESCRIPTION_BYTES + names + texts


def full_operation(
    record: Record, renamed: Mapping[str, str], place: Place | None = None
) -> Operation:
    """Return an operation in the FULL view: with its description.

    ``renamed`` maps aliases of methods to their present names. ``place`` is the place of the
    worker; None leaves out all fields that are only for operators.
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
        rerun=record.rerun,
        trace_id=record.trace_context[3:35],
        failures=() if place is None else record.failed_attempts,
        worker_host=host,
        worker_pid=pid,
    )
    return attrs.evolve(record.operation, description=description)


class Event(enum.Enum):
    """An event in the life of an operation."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slower

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
"""Returns the next version of a record, or None to remove it.

On the hot path, changes are partial functions: a closure has a cell for each variable that it uses,
and the garbage collector visits the cells until the change is stored.
"""
Stamp = Callable[[Record], Record]
"""Brings the derived fields of a changed record up to date."""


def next_state(record: Record, event: Event, now: datetime, attempt: int | None = None) -> State:
    """Return the state that an event leads to; ``attempt`` is the attempt that causes it, if any.

    Raises:
        OperationNotFound: The event is from a caller, and the record is deleted or expired.
        NotApplied: The event is too late.
        LeaseLost: This is not the current attempt.
    """
    if event in _CALLER_EVENTS:
        record.require_visible(now)
    try:
        state = TRANSITIONS[record.state][event]
    except KeyError:
        raise NotApplied(record.name, event.value, record.state.value) from None
    if attempt is not None and attempt != record.attempt:
        raise LeaseLost(record.name, attempt, record.attempt)
    return state


def lose(attempt: int, due: datetime, now: datetime) -> Change:
    """Release the work of an attempt whose worker was lost; the work is due at ``due``."""

    def change(record: Record) -> Record:
        state = next_state(record, Event.RELEASE, now, attempt)
        lost = record.lost_attempts + 1
        return record.next_version(
            state=state, owner="", lease_until=due, update_time=now, lost_attempts=lost
        )

    return change


def if_not_cancelled(change: Change, cancel: Change) -> Change:
    """Apply ``cancel`` if a caller asked to cancel an operation before its end, else ``change``."""

    def chosen(record: Record) -> Record | None:
        return (cancel if record.cancel_pending else change)(record)

    return chosen


def is_unowned(record: Record, lost_owners: Collection[str] = ()) -> bool:
    """Return True if the work waits, or its owner is in ``lost_owners``."""
    return record.waits or (record.lease_until is not None and record.owner in lost_owners)


def withdraw(
    error: Status, now: datetime, keep_for: timedelta, lost_owners: Collection[str] = ()
) -> Change:
    """End work that a caller asked to cancel and that no worker owns.

    ``lost_owners`` are owners whose work no process continues.

    Raises (when applied):
        LeaseLost: A worker owns the work, or the application does the work.
    """
    cancel = end(error, now=now, keep_for=keep_for, acknowledge=True)

    def change(record: Record) -> Record | None:
        if not is_unowned(record, lost_owners):
            raise LeaseLost(record.name, record.attempt, record.attempt)
        return cancel(record)

    return change


def claim(owner: str, until: datetime, now: datetime) -> Change:
    """Begin a new attempt at waiting work.

    Raises (when applied):
        LeaseLost: A worker already owns the work, or the application does the work.
    """

    def change(record: Record) -> Record:
        state = next_state(record, Event.CLAIM, now)
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


def requeue(due: datetime) -> Change:
    """Forget that the name of waiting work was sent to a broker; the work is now due at ``due``."""

    def change(record: Record) -> Record:
        if record.sent_time is None:
            return record
        return record.next_version(lease_until=due, sent_time=None)

    return change


def release(attempt: int, now: datetime) -> Change:
    """Release the work, so that another worker can claim it; the attempt does not count as lost."""

    def change(record: Record) -> Record:
        state = next_state(record, Event.RELEASE, now, attempt)
        due = due_again(record, now)
        return record.next_version(state=state, owner="", lease_until=due, update_time=now)

    return change


def due_again(record: Record, now: datetime) -> datetime:
    """Return an early due time for released work, so that it is claimed before newer work."""
    return min(record.create_time, now)


def note_start(attempt: int, stamp: Stamp) -> Change:
    """Bring derived fields, such as the start time, up to date; do nothing after the end."""

    def change(record: Record) -> Record:
        if attempt != record.attempt:
            raise LeaseLost(record.name, attempt, record.attempt)
        stamped = record if record.done else stamp(record)
        return record if stamped is record else stamped.next_version(state=record.state)

    return change


def report(metadata: AnyMessage, attempt: int | None, now: datetime) -> Change:
    """Replace the metadata as a whole (spec §2.10)."""
    return functools.partial(_reported, metadata, attempt, now)


def _reported(metadata: AnyMessage, attempt: int | None, now: datetime, record: Record) -> Record:
    state = next_state(record, Event.REPORT, now, attempt)
    return record.next_version(state=state, metadata=metadata, update_time=now)


def check_reporting(record: Record, attempt: int) -> None:
    """Check that this attempt may still write, as :func:`report` does.

    Raises:
        NotApplied: The operation has ended.
        LeaseLost: This is not the current attempt.
    """
    next_state(record, Event.REPORT, record.update_time, attempt)


def request_cancel(now: datetime) -> Change:
    """Record a caller's request to cancel; do nothing after the end (spec §2.6)."""

    def change(record: Record) -> Record:
        state = next_state(record, Event.REQUEST_CANCEL, now)
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
    """End the operation, with its result and last metadata in one step (spec §2.2).

    The result is the response of a success, None for a success without a value, or an error.
    ``acknowledge`` means that the error acknowledges a request to cancel.

    Raises:
        InvalidArgument: The error's code is not from 1 to 16 (spec §2.3).

    Raises (when applied):
        CancellationNotRequested: ``acknowledge`` is set, but no caller asked to cancel.
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
    state = next_state(record, event, now, attempt)
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


def delete(now: datetime, lost_owners: Collection[str] = ()) -> Change:
    """Remove the record, or hide it while its work continues (spec §2.7).

    ``lost_owners`` are owners whose work no process continues, because no live worker declares the
    method. Then records of their work and of waiting work are removed, not hidden; otherwise the
    work could block its target for ever (spec §9.5). Records of work that waits after a failed
    attempt are also removed.
    """

    def change(record: Record) -> Record | None:
        busy = not record.done and (record.target or record.lease_until is not None)
        busy = busy and not (lost_owners and is_unowned(record, lost_owners))
        busy = busy and not (record.waits and record.failures)
        state = next_state(record, Event.HIDE if busy else Event.DELETE, now)
        return None if state is State.GONE else record.next_version(state=state, update_time=now)

    return change


def retry(attempt: int, due: datetime, now: datetime) -> Change:
    """Let work wait after a failed attempt until ``due``. Deleted work is removed."""

    def change(record: Record) -> Record | None:
        state = next_state(record, Event.RELEASE, now, attempt)
        if state is State.HIDDEN:
            return None
        return record.next_version(state=state, owner="", lease_until=due, update_time=now)

    return change


def with_failure(change: Change, failed: FailedAttempt) -> Change:
    """Return a change that also stores a failed attempt."""

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
    """Return the text of an error for a record: cut, without characters that databases refuse."""
    return text[:_FAILURE_TEXT].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def note_rerun(name: str) -> Change:
    """Store the name of the rerun of an operation. The update time stays."""

    def change(record: Record) -> Record:
        return record.next_version(rerun=name)

    return change


def with_lost_attempts(change: Change, lost: int) -> Change:
    """Return a change that also stores ``lost``, the number of attempts whose worker was lost."""

    def counted(record: Record) -> Record | None:
        changed = change(record)
        return None if changed is None else attrs.evolve(changed, lost_attempts=lost)

    return counted


def if_unchanged_since(seen: Record, change: Change) -> Change:
    """Apply a change only if the record has the same owner and attempt as ``seen``.

    Raises (when applied):
        LeaseLost: The work has been claimed, released or taken over since.
    """

    def guarded(record: Record) -> Record | None:
        if (record.owner, record.attempt) != (seen.owner, seen.attempt):
            raise LeaseLost(record.name, seen.attempt, record.attempt)
        return change(record)

    return guarded


def with_derived(
    change: Change, stamp: Stamp | None = None, sends: Callable[[Record], bool] | None = None
) -> Change:
    """Return a change that also brings derived fields up to date, by ``stamp``.

    If it ends a record, it also marks notifications as pending. ``sends`` tells, for the ended
    record, whether there are notifications to send. A deleted operation has no notifications,
    because its end removes the record.
    """
    return functools.partial(_with_derived, change, stamp, sends)


def _with_derived(
    change: Change, stamp: Stamp | None, sends: Callable[[Record], bool] | None, record: Record
) -> Record | None:
    changed = change(record)
    if changed is None or changed is record:
        return changed
    if stamp is not None:
        changed = stamp(changed)
    if sends is not None and changed.done and not record.done and sends(changed):
        changed = changed.next_version(notify_at=changed.end_time, version=changed.version)
    return changed


def settle_notifications(claimed: Record, notify: str, notify_at: datetime | None) -> Change:
    """Store the notifications that are pending after a delivery, and when the next is due.

    ``claimed`` is the record that ``OutboxStore.claim_due`` returned. A ``notify_at`` of None means
    that no notification is pending. The update time stays, because callers see no change.

    Raises (when applied):
        LeaseLost: Another process has claimed or settled the notifications since.
    """

    def change(record: Record) -> Record:
        if record.notify_at is None or record.notify_at != claimed.notify_at:
            raise LeaseLost(record.name, record.attempt, record.attempt)
        return record.next_version(notify=notify, notify_at=notify_at)

    return change
