"""All errors of the package: one base class, a canonical code, facts as attributes (spec §6).

Each error keeps exactly its arguments in ``args``, because unpickling calls the class with them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import CodeType
from typing import Any, ClassVar, Final

from lro._base.status import (
    BadRequest,
    Code,
    ErrorInfo,
    FieldViolation,
    PreconditionFailure,
    PreconditionViolation,
    ResourceInfo,
    RetryInfo,
    Status,
)

OPERATION_TYPE = "google.longrunning.Operation"

MAX_CHALLENGE: Final = 1000
"""Maximum length of the challenge of an :class:`Unauthenticated` error, in characters."""


LONGEST: Final = timedelta(days=36_500)
"""The longest span that an argument may have: a hundred years."""


class LroError(Exception):
    """The base class of all errors of this package.

    ``code`` is the canonical code that a caller gets, ``reason`` the machine-readable reason of
    spec §6.4, and ``str(error)`` the status message.
    """

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "INTERNAL"
    fact_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that are variable parts of the message."""

    @property
    def status_code(self) -> Code:
        """The code of this error; a :class:`StatusError` has a code per instance."""
        return self.code

    def facts(self) -> Mapping[str, str]:
        """Return the variable parts of the message by name (spec §6.3(1))."""
        found = {name: getattr(self, name) for name in self.fact_names}
        return {name: str(value) for name, value in found.items() if value != ""}

    def more_details(self) -> Sequence[object]:
        """Return the detail messages other than the ErrorInfo (spec §6.3(2))."""
        return ()

    def details(self, domain: str) -> tuple[object, ...]:
        """Return all detail messages of a reply: one ErrorInfo, then :meth:`more_details`."""
        info = ErrorInfo(reason=self.reason, domain=domain, metadata=dict(self.facts()))
        return (info, *self.more_details())


class InvalidArgument(LroError):
    """A request has a wrong field: ``field`` is its dotted proto path, ``description`` says why."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"
    fact_names: ClassVar[tuple[str, ...]] = ("field",)

    def __init__(self, field: str, description: str) -> None:
        super().__init__(field, description)
        self.field: str = field
        self.description: str = description

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description

    @property
    def violations(self) -> tuple[FieldViolation, ...]:
        """A violation for each wrong field, in order."""
        return (FieldViolation(field=self.field, description=self.description),)

    def more_details(self) -> Sequence[object]:
        return (BadRequest(field_violations=self.violations),)


class InvalidFields(InvalidArgument):
    """Several fields of a request are wrong. At most a hundred violations are kept.

    ``field`` and ``description`` are those of the first violation.
    """

    def __init__(self, *violations: FieldViolation) -> None:
        super().__init__(violations[0].field, violations[0].description)
        self._violations = violations[:MAX_VIOLATIONS]
        self.args: tuple[Any, ...] = self._violations

    def __str__(self) -> str:
        found = (str(InvalidArgument(one.field, one.description)) for one in self._violations[:5])
        more = len(self._violations) - 5
        return "; ".join(found) + (f"; and {more} more" if more > 0 else "")

    @property
    def violations(self) -> tuple[FieldViolation, ...]:
        """A violation for each wrong field, in order."""
        return self._violations


MAX_VIOLATIONS: Final = 100


def all_of(errors: Sequence[InvalidArgument]) -> InvalidArgument:
    """Return one error with all violations of these errors."""
    if len(errors) == 1:
        return errors[0]
    return InvalidFields(*(one for error in errors for one in error.violations))


class InvalidOperationName(InvalidArgument):
    """The name does not have the form of spec §3.1."""

    reason = "INVALID_OPERATION_NAME"


class InvalidParent(InvalidArgument):
    """The ``name`` of a List call is not a parent (spec §3.3(2))."""

    reason = "INVALID_PARENT"


class InvalidPageSize(InvalidArgument):
    """The page size is negative or not an int32 (spec §3.4(1), §5.8(4))."""

    reason = "INVALID_PAGE_SIZE"


class InvalidPageToken(InvalidArgument):
    """The page token was altered, or belongs to another list or service (spec §3.4(5))."""

    reason = "INVALID_PAGE_TOKEN"


class PageTokenExpired(InvalidArgument):
    """The page token is older than three days (spec §3.4(6))."""

    reason = "PAGE_TOKEN_EXPIRED"


class InvalidFilter(InvalidArgument):
    """The filter is not in the language or does not fit the types (spec §7.15).

    ``position`` is the index of the wrong code point, from 0.
    """

    reason = "INVALID_FILTER"
    fact_names: ClassVar[tuple[str, ...]] = ("field", "position")

    def __init__(self, field: str, description: str, position: int = 0) -> None:
        super().__init__(field, description)
        self.args: tuple[Any, ...] = (field, description, position)
        self.position = position

    def __str__(self) -> str:
        return f"filter, at character {self.position}: {self.description}"

    def more_details(self) -> Sequence[object]:
        # The position is also in the description, because a program may show only the description.
        description = f"at character {self.position}: {self.description}"
        violation = FieldViolation(field=self.field, description=description)
        return (BadRequest(field_violations=(violation,)),)


class InvalidTimeout(InvalidArgument):
    """A timeout or deadline is negative or not a valid duration (spec §4.2, §4.9)."""

    reason = "INVALID_TIMEOUT"


class MalformedRequest(InvalidArgument):
    """A path, query or body cannot be read (spec §5.3, §5.8, §5.9)."""

    reason = "MALFORMED_REQUEST"


class UnsupportedMediaType(InvalidArgument):
    """The Content-Type of the body is not JSON in UTF-8 (spec §5.9(2))."""

    reason = "UNSUPPORTED_MEDIA_TYPE"


class RequestTooLarge(InvalidArgument):
    """The body is larger than the server accepts (spec §5.9(4))."""

    reason = "REQUEST_TOO_LARGE"


class InvalidRequestId(InvalidArgument):
    """The request id is not a valid text, or not a UUID where it must be one (spec §9.2(1))."""

    reason = "INVALID_REQUEST_ID"


class RequestIdConflict(InvalidArgument):
    """The request id was used with another request (spec §9.2(3))."""

    reason = "REQUEST_ID_CONFLICT"


class OperationNotFound(LroError):
    """No operation has this name: it never existed, was deleted, or expired."""

    code = Code.NOT_FOUND
    reason = "OPERATION_NOT_FOUND"
    fact_names: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"there is no operation {self.name!r}"

    def more_details(self) -> Sequence[object]:
        return (ResourceInfo(resource_type=OPERATION_TYPE, resource_name=self.name),)


class NotApplied(LroError):
    """A change came too late: the operation had already ended (spec §2.8)."""

    code = Code.FAILED_PRECONDITION
    reason = "NOT_APPLIED"
    fact_names: ClassVar[tuple[str, ...]] = ("name", "event", "state")

    def __init__(self, name: str, event: str, state: str) -> None:
        super().__init__(name, event, state)
        self.name: str = name
        self.event: str = event
        self.state: str = state

    def __str__(self) -> str:
        return f"{self.name}: {self.event} was not applied, the operation is {self.state}"


class LeaseLost(LroError):
    """A worker tried to write for an attempt that is no longer current."""

    code = Code.ABORTED
    reason = "LEASE_LOST"
    fact_names: ClassVar[tuple[str, ...]] = ("name", "attempt", "current")

    def __init__(self, name: str, attempt: int, current: int) -> None:
        super().__init__(name, attempt, current)
        self.name: str = name
        self.attempt: int = attempt
        self.current: int = current

    def __str__(self) -> str:
        if self.attempt == self.current:
            return f"{self.name}: a worker holds attempt {self.current}"
        return f"{self.name}: attempt {self.attempt} lost its lease to attempt {self.current}"


class CancellationNotRequested(LroError):
    """A worker acknowledged a cancellation that no caller asked for (spec §2.3)."""

    code = Code.FAILED_PRECONDITION
    reason = "CANCELLATION_NOT_REQUESTED"
    fact_names: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no caller asked for the cancellation of {self.name!r}"

    def more_details(self) -> Sequence[object]:
        violation = PreconditionViolation(
            type="CANCEL_REQUESTED", subject=self.name, description=str(self)
        )
        return (PreconditionFailure(violations=(violation,)),)


class NotRerunnable(LroError):
    """The work of an operation cannot be started again: ``description`` says why."""

    code = Code.FAILED_PRECONDITION
    reason = "NOT_RERUNNABLE"
    fact_names: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self, name: str, description: str) -> None:
        super().__init__(name, description)
        self.name = name
        self.description = description

    def __str__(self) -> str:
        return f"{self.name} cannot be started again: {self.description}"


class TargetBusy(LroError):
    """The target allows one operation at a time, and another operation works on it (spec §9.5)."""

    code = Code.ABORTED
    reason = "TARGET_BUSY"
    fact_names: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target

    def __str__(self) -> str:
        return f"another operation is working on {self.target!r}, which allows one at a time"


class Described(LroError):
    """An error whose description is passed by the code that raises the error."""

    default: ClassVar[str] = "the call failed"

    def __init__(self, description: str = "") -> None:
        super().__init__(description)
        self.description: str = description or self.default

    def __str__(self) -> str:
        return self.description


class Unauthenticated(Described):
    """The caller did not prove who they are. Raised by the application's hook.

    ``challenge`` is the header ``WWW-Authenticate`` of the reply, which tells callers how to
    authenticate: ``Bearer`` or ``Basic realm="pictures"``, for example. Every reply with status 401
    must have this header (RFC 9110 §11.6.1).

    Raises:
        ValueError: The challenge is not a text of 1 to 1000 characters that fits in a header.
    """

    code = Code.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"
    default = "the call carries no valid credentials"

    def __init__(self, description: str = "", challenge: str = "Bearer") -> None:
        super().__init__(description)
        self.args: tuple[Any, ...] = (description, challenge)
        self.challenge: str = checked_challenge(challenge)


def checked_challenge(challenge: object) -> str:
    """Return the challenge if it is a valid value of the header ``WWW-Authenticate``.

    Raises:
        ValueError: The challenge is not a valid value.
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
    """The work was asked to stop. Raised inside a method by the calls of ``job``."""

    code = Code.CANCELLED
    reason = "CANCELLED"
    default = "the operation was cancelled"


class Retryable(Described):
    """A transient error; ``retry_after`` is the time to wait before the next try."""

    def __init__(
        self, description: str = "", retry_after: timedelta = timedelta(seconds=1)
    ) -> None:
        super().__init__(description)
        self.args: tuple[Any, ...] = (description, retry_after)
        self.retry_after = retry_after

    def more_details(self) -> Sequence[object]:
        return (RetryInfo(retry_delay=self.retry_after),)


class ResourceExhausted(Retryable):
    """A queue or quota is full; nothing was stored."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "RESOURCE_EXHAUSTED"


class Unavailable(Retryable):
    """A store or backend cannot be reached now, or the service is shutting down."""

    code = Code.UNAVAILABLE
    reason = "UNAVAILABLE"


class RetryLater(Retryable):
    """Raise this in a method to have the method called again after the time ``after``.

    Meanwhile the operation waits in the store. The call counts as a failed attempt: after the last
    attempt that ``lro.Retry`` or ``max_attempts`` allows, the operation fails with this error.
    An ``after`` of more than a hundred years is reduced to a hundred years.

    Raises:
        TypeError: ``after`` is not a timedelta.
    """

    code = Code.UNAVAILABLE
    reason = "RETRY_LATER"

    def __init__(self, after: timedelta, description: str = "") -> None:
        if not isinstance(after, timedelta):
            raise TypeError(f"after: must be a timedelta, got {got(after)}")
        after = min(max(timedelta(0), after), LONGEST)
        super().__init__(description or "the method asked to be called again later", after)
        self.args: tuple[Any, ...] = (after, description)


class StatusError(LroError):
    """An error that a method chooses for callers.

    ``chosen`` is the canonical code (not OK), ``message`` an English text for developers, ``extra``
    further detail messages, and ``why`` the reason in ErrorInfo (by default the code's name).

    Raises:
        DeclarationError: ``chosen`` is not a :class:`lro.Code`, for instance a text.
    """

    def __init__(
        self, chosen: Code, message: str, extra: tuple[object, ...] = (), why: str = ""
    ) -> None:
        if not isinstance(chosen, Code):
            wanted = f"must be a code, such as lro.Code.NOT_FOUND, got {got(chosen)}"
            raise DeclarationError("chosen", wanted)
        super().__init__(chosen, message, extra, why)
        self.chosen: Code = chosen
        self.message: str = message
        self.extra: tuple[object, ...] = extra
        self.why: str = why

    def __str__(self) -> str:
        return self.message

    @property
    def status_code(self) -> Code:
        """The code that was chosen for this error."""
        return self.chosen

    def details(self, domain: str) -> tuple[object, ...]:
        """Return an ErrorInfo with the chosen reason, then the given details."""
        info = ErrorInfo(reason=self.why or self.chosen.name, domain=domain)
        return (info, *self.extra)


class WorkFailed(LroError):
    """The operation called ``name`` ended with an error, ``status``. Raised by a handle.

    ``extra`` has the details of the status as messages; details of unknown types stay packed. A
    method that does not catch this error fails with the code and the details of the operation.
    """

    def __init__(self, name: str, status: Status, extra: tuple[object, ...] = ()) -> None:
        super().__init__(name, status, extra)
        self.name: str = name
        self.status: Status = status
        self.extra: tuple[object, ...] = extra

    def __str__(self) -> str:
        return f"{self.name} ended with {self.status_code.name}: {self.status.message}"

    @property
    def status_code(self) -> Code:
        """The canonical code of the operation; UNKNOWN for 0 and for unlisted numbers."""
        return Code.of(self.status.code or Code.UNKNOWN)

    def details(self, domain: str) -> tuple[object, ...]:
        """Return the details of the operation, with an ErrorInfo added if it has none."""
        if any(isinstance(one, ErrorInfo) for one in self.extra):
            return self.extra
        return (ErrorInfo(reason=self.status_code.name, domain=domain), *self.extra)


class WorkCancelled(WorkFailed):
    """The operation called ``name`` was cancelled. Raised by a handle."""


class WaitTimeout(LroError, TimeoutError):
    """The operation called ``name`` was not done within ``timeout`` seconds, and continues.

    Raised by a handle.
    """

    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"
    fact_names: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self, name: str, timeout: float) -> None:
        super().__init__(name, timeout)
        self.name: str = name
        self.timeout: float = timeout

    def __str__(self) -> str:
        return f"{self.name} was not done within {self.timeout:g} s; it goes on"


def _clipped(path: str) -> str:
    return path if len(path) <= 200 else path[:200] + "..."


class RouteNotFound(LroError):
    """The server has no route with this path (spec §5.7(2))."""

    code = Code.NOT_FOUND
    reason = "ROUTE_NOT_FOUND"
    fact_names: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path: str = _clipped(path)

    def __str__(self) -> str:
        return f"there is nothing at {self.path}"


class HttpMethodNotAllowed(LroError):
    """The path does not support this HTTP method (spec §5.7(4)). ``allow`` is sorted."""

    code = Code.UNIMPLEMENTED
    reason = "HTTP_METHOD_NOT_ALLOWED"

    def __init__(self, method: str, path: str, allow: tuple[str, ...]) -> None:
        super().__init__(method, path, allow)
        self.method: str = method
        self.path: str = _clipped(path)
        self.allow: tuple[str, ...] = allow

    def __str__(self) -> str:
        return f"{self.path} takes {', '.join(self.allow)}, not {self.method}"

    def facts(self) -> Mapping[str, str]:
        return {"method": self.method, "path": self.path, "allow": ", ".join(self.allow)}


class MethodNotSupported(LroError):
    """The service does not support this verb (spec §3.9)."""

    code = Code.UNIMPLEMENTED
    reason = "METHOD_NOT_SUPPORTED"
    fact_names: ClassVar[tuple[str, ...]] = ("method",)

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method

    def __str__(self) -> str:
        return f"{self.method} is not supported by this service"


class StreamsNotSupported(MethodNotSupported):
    """This server cannot serve Watch, because each stream would occupy a thread (spec §3.11)."""

    def __str__(self) -> str:
        return (
            f"{self.method} is not supported here: a stream would hold a thread of this server for"
            " as long as the operations run; use WaitOperation or BatchGetOperations"
        )


class NameRefused(PermissionDenied):
    """The caller may not see one of several operations, so the whole call is refused."""

    fact_names: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self, name: str, description: str) -> None:
        super().__init__(description)
        self.args: tuple[Any, ...] = (name, description)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"

    def more_details(self) -> Sequence[object]:
        return (ResourceInfo(resource_type=OPERATION_TYPE, resource_name=self.name),)


class CrossSiteRequest(PermissionDenied):
    """A page of another site made a call that could change something (spec §5.9(5)).

    ``origin`` is the header ``Origin`` of the request, or empty.
    """

    reason = "CROSS_SITE_REQUEST"
    fact_names: ClassVar[tuple[str, ...]] = ("origin",)

    def __init__(self, origin: str) -> None:
        self.origin = _clipped(origin)
        page = f"a page of {self.origin!r}" if origin else "a page of another site"
        super().__init__(f"{page} may not make this call: trusted_origins does not name its origin")
        self.args: tuple[Any, ...] = (origin,)


class PartialSuccessNotSupported(LroError):
    """The request sets ``return_partial_success`` (spec §1.6(2))."""

    code = Code.UNIMPLEMENTED
    reason = "PARTIAL_SUCCESS_NOT_SUPPORTED"

    def __str__(self) -> str:
        return "return_partial_success is not supported by this service"


class HookFailed(LroError):
    """A hook of the application failed: it neither allowed nor refused a call (spec §3.1(5))."""

    def __init__(self, hook: str, description: str) -> None:
        super().__init__(hook, description)
        self.hook: str = hook
        self.description: str = description

    def __str__(self) -> str:
        return f"{self.hook} {self.description}"


class DeclarationError(LroError, ValueError):
    """An argument, message class, method or template is declared wrongly."""

    code = Code.FAILED_PRECONDITION
    reason = "INVALID_DECLARATION"

    def __init__(self, subject: str, description: str) -> None:
        super().__init__(subject, description)
        self.subject: str = subject
        self.description: str = description

    def __str__(self) -> str:
        return f"{self.subject}: {self.description}"


class EncodingError(LroError):
    """A message (``type_name``) cannot be packed or written as JSON; ``path`` is the field."""

    reason = "ENCODING_FAILED"

    def __init__(self, type_name: str, path: str, description: str) -> None:
        super().__init__(type_name, path, description)
        self.type_name: str = type_name
        self.path: str = path
        self.description: str = description

    def __str__(self) -> str:
        where = f" field {self.path}" if self.path else ""
        return f"{self.type_name}:{where} {self.description}"


class MessageTooLarge(EncodingError):
    """A message is too large to store; ``setting`` is the field of ``Limits`` with the maximum."""

    reason = "MESSAGE_TOO_LARGE"
    fact_names: ClassVar[tuple[str, ...]] = ("type_name", "size", "limit", "setting")

    def __init__(self, type_name: str, size: int, limit: int, setting: str) -> None:
        text = f"has {size} bytes, at most {limit} are kept (the setting is Limits.{setting})"
        super().__init__(type_name, "", text)
        self.args: tuple[Any, ...] = (type_name, size, limit, setting)
        self.size: int = size
        self.limit: int = limit
        self.setting: str = setting


class MessageUnreadable(LroError):
    """This process cannot read a message that another process stored (spec §1.14(3))."""

    code = Code.FAILED_PRECONDITION
    reason = "MESSAGE_UNREADABLE"
    fact_names: ClassVar[tuple[str, ...]] = ("type_name",)

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name)
        self.type_name: str = type_name

    def __str__(self) -> str:
        return f"this server cannot read a message of the type {self.type_name!r}"


class BatchTooLarge(LroError):
    """The operations of a BatchGet together exceed the size limit of a reply."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "BATCH_TOO_LARGE"
    fact_names: ClassVar[tuple[str, ...]] = ("names", "limit")

    def __init__(self, names: int, limit: int) -> None:
        super().__init__(names, limit)
        self.names: int = names
        self.limit: int = limit

    def __str__(self) -> str:
        return (
            f"the {self.names} operations have more than {self.limit} bytes together: ask for fewer"
            " names at once (the setting is Limits.page_bytes)"
        )


class TooManyHeld(ResourceExhausted):
    """Too many calls wait, or too many operations are watched, at once; see ``Limits``."""

    reason = "TOO_MANY_HELD"
    fact_names: ClassVar[tuple[str, ...]] = ("limit", "setting")

    def __init__(self, what: str, limit: int, setting: str) -> None:
        text = f"{what}: at most {limit} at once (the setting is Limits.{setting}); ask again later"
        super().__init__(text)
        self.args: tuple[Any, ...] = (what, limit, setting)
        self.limit: int = limit
        self.setting: str = setting


class UnknownType(LroError):
    """The registry has no codec for a type name (spec §1.14(2))."""

    reason = "UNKNOWN_TYPE"

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name)
        self.type_name = type_name

    def __str__(self) -> str:
        return f"the message type {self.type_name!r} is not registered"


class WebhookError(LroError):
    """A received webhook cannot be trusted or read."""

    code = Code.UNAUTHENTICATED
    reason = "INVALID_WEBHOOK"

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description

    def __str__(self) -> str:
        return f"webhook: {self.description}"


class MissingExtra(LroError):
    """An optional dependency is not installed: ``part`` needs the extra ``extra``."""

    code = Code.FAILED_PRECONDITION
    reason = "MISSING_EXTRA"

    def __init__(self, part: str, extra: str) -> None:
        super().__init__(part, extra)
        self.part: str = part
        self.extra: str = extra

    def __str__(self) -> str:
        return f"{self.part} needs the extra {self.extra!r}: pip install 'lro[{self.extra}]'"


_GOT: Final = ", got "
"""The text between the description of a message error and the wrong value."""


def got(value: object) -> str:
    """Return the repr of a value for an error text, cut to a readable length."""
    try:
        text = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    except BaseException as exc:  # repr() of an application's class may raise any error
        if interrupts(exc):
            raise
        # Python also refuses to write an integer of thousands of digits.
        text = f"{'a huge' if issubclass(type(value), int) else 'some'} {type(value).__name__}"
    return text if len(text) <= 64 else text[:61] + "..."


def loggable(error: BaseException) -> BaseException:
    """Return an error for a log: an EncodingError without the wrong value in its description."""
    if not isinstance(error, EncodingError):
        return error
    said = error.description.partition(_GOT)[0]
    return EncodingError(error.type_name, error.path, said).with_traceback(error.__traceback__)


def one_line(text: str) -> str:
    """Return at most 200 characters of a caller's text for a log, escaped if not printable.

    So the text cannot imitate another log line or control a terminal.
    """
    some = text[:200]
    return some if some.isprintable() else ascii(some)


def interrupts(error: BaseException) -> bool:
    """Return True if a signal raised this error, which can happen anywhere in the main thread.

    Examples are KeyboardInterrupt after Ctrl-C, and exceptions by which the application's own
    signal handlers end the program.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    return isinstance(error, KeyboardInterrupt) or _is_of_signal_handler(error)


def _is_of_signal_handler(error: BaseException) -> bool:
    import signal  # imported late, like all modules that only a rare case needs
    import traceback

    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(function: object) -> CodeType | None:
    # Returns the code that runs when the object is called; None for ``SIG_DFL`` and ``SIG_IGN``.
    if not callable(function):
        return None
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):  # a method has the code of its function
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its code is asked
    return getattr(function, "__code__", None)
