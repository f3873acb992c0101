"""Every error of the package: one root, a canonical code, the facts as attributes (spec §6).

Plain classes: each keeps exactly its arguments in ``args``, so that unpickling calls it with them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Final

from lro._base.details import (
    BadRequest,
    ErrorInfo,
    FieldViolation,
    PreconditionFailure,
    PreconditionViolation,
    ResourceInfo,
    RetryInfo,
)
from lro._base.status import Code

OPERATION_TYPE = "google.longrunning.Operation"

MAX_CHALLENGE: Final = 1000
"""Characters of the challenge of an Unauthenticated."""


class LroError(Exception):
    """Base of every error this package raises.

    ``code`` is the canonical code that a caller gets, ``reason`` the machine-readable reason of
    spec §6.4. ``str(error)`` is the sentence that goes out as the status message.
    """

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "INTERNAL"
    fact_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that are variable parts of the message."""

    @property
    def status_code(self) -> Code:
        """The code of this very error; :class:`StatusError` carries its own."""
        return self.code

    def facts(self) -> Mapping[str, str]:
        """Each variable part of the message, by name (spec §6.3(1))."""
        found = {name: getattr(self, name) for name in self.fact_names}
        return {name: str(value) for name, value in found.items() if value != ""}

    def more_details(self) -> Sequence[object]:
        """Detail messages beside the ErrorInfo (spec §6.3(2))."""
        return ()

    def details(self, domain: str) -> tuple[object, ...]:
        """All detail messages of a reply: exactly one ErrorInfo, then the others."""
        info = ErrorInfo(reason=self.reason, domain=domain, metadata=dict(self.facts()))
        return (info, *self.more_details())


class InvalidArgument(LroError):
    """A field of a request is wrong: which one (proto spelling, dotted), and why."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"
    fact_names: ClassVar[tuple[str, ...]] = ("field",)

    def __init__(self, field: str, description: str) -> None:
        super().__init__(field, description)
        self.field, self.description = field, description

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description

    def more_details(self) -> Sequence[object]:
        violation = FieldViolation(field=self.field, description=self.description)
        return (BadRequest(field_violations=(violation,)),)


class InvalidOperationName(InvalidArgument):
    """The name does not have the form of spec §3.1."""

    reason = "INVALID_OPERATION_NAME"


class InvalidParent(InvalidArgument):
    """The ``name`` of a List call is not a parent (spec §3.3(2))."""

    reason = "INVALID_PARENT"


class InvalidPageSize(InvalidArgument):
    """The page size is negative or no int32 (spec §3.4(1), §5.8(4))."""

    reason = "INVALID_PAGE_SIZE"


class InvalidPageToken(InvalidArgument):
    """The page token was altered, is foreign, or belongs to another list (spec §3.4(5))."""

    reason = "INVALID_PAGE_TOKEN"


class PageTokenExpired(InvalidArgument):
    """The page token is older than three days (spec §3.4(6))."""

    reason = "PAGE_TOKEN_EXPIRED"


class InvalidFilter(InvalidArgument):
    """The filter is not in the language or does not fit the types (spec §7.15).

    ``position`` is the code point, counted from 0, at which the filter goes wrong.
    """

    reason = "INVALID_FILTER"
    fact_names = ("field", "position")

    def __init__(self, field: str, description: str, position: int = 0) -> None:
        super().__init__(field, description)
        self.args = (field, description, position)
        self.position = position

    def __str__(self) -> str:
        return f"filter, at character {self.position}: {self.description}"

    def more_details(self) -> Sequence[object]:
        # A program may show this description alone, so the place is in it as well.
        description = f"at character {self.position}: {self.description}"
        violation = FieldViolation(field=self.field, description=description)
        return (BadRequest(field_violations=(violation,)),)


class InvalidTimeout(InvalidArgument):
    """A timeout or deadline is negative or no valid duration (spec §4.2, §4.9)."""

    reason = "INVALID_TIMEOUT"


class MalformedRequest(InvalidArgument):
    """A path, query or body cannot be read (spec §5.3, §5.8, §5.9)."""

    reason = "MALFORMED_REQUEST"


class UnsupportedMediaType(InvalidArgument):
    """The body is not JSON in UTF-8 by its Content-Type (spec §5.9(2))."""

    reason = "UNSUPPORTED_MEDIA_TYPE"


class RequestTooLarge(InvalidArgument):
    """The body is larger than the server takes (spec §5.9(4))."""

    reason = "REQUEST_TOO_LARGE"


class InvalidRequestId(InvalidArgument):
    """The request id is not a textual UUID (spec §9.2(1))."""

    reason = "INVALID_REQUEST_ID"


class RequestIdConflict(InvalidArgument):
    """The request id was used with another request (spec §9.2(3))."""

    reason = "REQUEST_ID_CONFLICT"


class OperationNotFound(LroError):
    """No operation has this name: it never existed, was deleted, or expired."""

    code = Code.NOT_FOUND
    reason = "OPERATION_NOT_FOUND"
    fact_names = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"there is no operation {self.name!r}"

    def more_details(self) -> Sequence[object]:
        return (ResourceInfo(resource_type=OPERATION_TYPE, resource_name=self.name),)


class NotApplied(LroError):
    """A change came too late: the operation was already over (spec §2.8)."""

    code = Code.FAILED_PRECONDITION
    reason = "NOT_APPLIED"
    fact_names = ("name", "event", "state")

    def __init__(self, name: str, event: str, state: str) -> None:
        super().__init__(name, event, state)
        self.name, self.event, self.state = name, event, state

    def __str__(self) -> str:
        return f"{self.name}: {self.event} was not applied, the operation is {self.state}"


class LeaseLost(LroError):
    """A worker wrote with an attempt that is no longer the running one (design: fencing)."""

    code = Code.ABORTED
    reason = "LEASE_LOST"
    fact_names = ("name", "attempt", "current")

    def __init__(self, name: str, attempt: int, current: int) -> None:
        super().__init__(name, attempt, current)
        self.name, self.attempt, self.current = name, attempt, current

    def __str__(self) -> str:
        if self.attempt == self.current:
            return f"{self.name}: somebody holds attempt {self.current}"
        return f"{self.name}: attempt {self.attempt} lost its lease to attempt {self.current}"


class CancellationNotRequested(LroError):
    """A worker acknowledged a cancellation that nobody asked for (spec §2.3)."""

    code = Code.FAILED_PRECONDITION
    reason = "CANCELLATION_NOT_REQUESTED"
    fact_names = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"nobody asked for the cancellation of {self.name!r}"

    def more_details(self) -> Sequence[object]:
        violation = PreconditionViolation(
            type="CANCEL_REQUESTED", subject=self.name, description=str(self)
        )
        return (PreconditionFailure(violations=(violation,)),)


class TargetBusy(LroError):
    """The target allows one operation at a time and has one (spec §9.5)."""

    code = Code.ABORTED
    reason = "TARGET_BUSY"
    fact_names = ("target",)

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target

    def __str__(self) -> str:
        return f"another operation is working on {self.target!r}, which allows one at a time"


class Described(LroError):
    """An error that is told in the words of whoever raises it."""

    default: ClassVar[str] = "the call failed"

    def __init__(self, description: str = "") -> None:
        super().__init__(description)
        self.description = description or self.default

    def __str__(self) -> str:
        return self.description


class Unauthenticated(Described):
    """The caller did not prove who they are. Raised by the application's hook.

    ``challenge`` is the header ``WWW-Authenticate`` of the reply, which says how callers may prove
    it and which every reply with status 401 must have (RFC 9110 §11.6.1): ``Bearer``, for instance,
    or ``Basic realm="pictures"``.

    Raises:
        ValueError: The challenge is no text of 1 to 1000 characters that can stand in a header.
    """

    code = Code.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"
    default = "the call carries no valid credentials"

    def __init__(self, description: str = "", challenge: str = "Bearer") -> None:
        super().__init__(description)
        self.args = (description, challenge)
        self.challenge = checked_challenge(challenge)


def checked_challenge(challenge: object) -> str:
    """The same, if it can be a header ``WWW-Authenticate``.

    Raises:
        ValueError: It cannot.
    """
    if isinstance(challenge, str) and 0 < len(challenge) <= MAX_CHALLENGE:
        # Servers refuse a header that begins or ends with a space (RFC 9110 §5.5).
        bare = challenge == challenge.strip()
        if bare and challenge.isascii() and challenge.isprintable():
            return challenge
    wanted = f"printable ASCII, 1 to {MAX_CHALLENGE} characters without spaces around them"
    raise ValueError(f"challenge: must be {wanted}, got {got(challenge)}")


class PermissionDenied(Described):
    """The caller may not do this. Raised by the application's hook."""

    code = Code.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"
    default = "the caller may not do this"


class DeadlineExceeded(Described):
    """The caller's deadline, or a method's time limit, has passed."""

    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"
    default = "the deadline of the call has passed"


class Cancelled(Described):
    """The work was asked to stop. Raised inside a method by ``job.report()`` and its like."""

    code = Code.CANCELLED
    reason = "CANCELLED"
    default = "the operation was cancelled"


class Retryable(Described):
    """An error that passes: ``retry_after`` says when asking again makes sense."""

    def __init__(
        self, description: str = "", retry_after: timedelta = timedelta(seconds=1)
    ) -> None:
        super().__init__(description)
        self.args = (description, retry_after)
        self.retry_after = retry_after

    def more_details(self) -> Sequence[object]:
        return (RetryInfo(retry_delay=self.retry_after),)


class ResourceExhausted(Retryable):
    """A queue or quota is full; nothing was stored."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "RESOURCE_EXHAUSTED"


class Unavailable(Retryable):
    """A store or backend cannot be reached for now, or the service is stopping."""

    code = Code.UNAVAILABLE
    reason = "UNAVAILABLE"


class StatusError(LroError):
    """Any failure, put in the terms of a caller: raise it in a method to choose the error.

    ``chosen`` is the canonical code (not OK), ``message`` English text for developers,
    ``extra`` further detail messages, ``why`` the ErrorInfo reason (by default the code's name).
    """

    def __init__(
        self, chosen: Code, message: str, extra: tuple[object, ...] = (), why: str = ""
    ) -> None:
        super().__init__(chosen, message, extra, why)
        self.chosen, self.message, self.extra, self.why = chosen, message, extra, why

    def __str__(self) -> str:
        return self.message

    @property
    def status_code(self) -> Code:
        """The code that was chosen for this error."""
        return self.chosen

    def details(self, domain: str) -> tuple[object, ...]:
        """An ErrorInfo with the chosen reason, then the details that were given."""
        info = ErrorInfo(reason=self.why or self.chosen.name, domain=domain)
        return (info, *self.extra)


def got(value: object) -> str:
    """A value as error texts quote it: its repr, cut to a readable length."""
    try:
        text = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    except BaseException as exc:  # the application may have written the repr
        if interrupts(exc):
            raise
        # An integer of thousands of digits is not written out either.
        text = f"{'a huge' if issubclass(type(value), int) else 'some'} {type(value).__name__}"
    return text if len(text) <= 64 else text[:61] + "..."


def interrupts(error: BaseException) -> bool:
    """Whether this is Ctrl-C, which Python raises in the main thread, wherever that is."""
    main = threading.current_thread() is threading.main_thread()
    return main and isinstance(error, KeyboardInterrupt)
