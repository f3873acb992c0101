"""Every error of the package: one root, a canonical code, the facts as attributes (spec §6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

import attrs

from lro._details import (
    BadRequest,
    ErrorInfo,
    FieldViolation,
    PreconditionFailure,
    PreconditionViolation,
    ResourceInfo,
    RetryInfo,
)
from lro._status import Code

OPERATION_TYPE = "google.longrunning.Operation"


class LroError(Exception):
    """Base of every error this package raises.

    ``code`` is the canonical code that a caller gets, ``reason`` the machine-readable reason of
    spec §6.4. ``str(error)`` is the sentence that goes out as the status message.
    """

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    @property
    def status_code(self) -> Code:
        """The code of this very error; :class:`StatusError` carries its own."""
        return self.code

    def facts(self) -> Mapping[str, str]:
        """Each variable part of the message, by name (spec §6.3(1))."""
        return {}

    def more_details(self) -> Sequence[object]:
        """Detail messages beside the ErrorInfo (spec §6.3(2))."""
        return ()

    def details(self, domain: str) -> tuple[object, ...]:
        """All detail messages of a reply: exactly one ErrorInfo, then the others."""
        info = ErrorInfo(reason=self.reason, domain=domain, metadata=dict(self.facts()))
        return (info, *self.more_details())


@attrs.define(eq=False)
class InvalidArgument(LroError):
    """A field of a request is wrong: which one (proto spelling, dotted), and why."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"
    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description

    def facts(self) -> Mapping[str, str]:
        return {"field": self.field} if self.field else {}

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


@attrs.define(eq=False)
class InvalidFilter(InvalidArgument):
    """The filter is not in the language or does not fit the types (spec §7.15).

    ``position`` is the code point, counted from 0, at which the filter goes wrong.
    """

    reason = "INVALID_FILTER"
    position: int = 0

    def __str__(self) -> str:
        return f"filter, at character {self.position}: {self.description}"

    def facts(self) -> Mapping[str, str]:
        return {"field": self.field, "position": str(self.position)}


class InvalidTimeout(InvalidArgument):
    """A timeout or deadline is negative or no valid duration (spec §4.2, §4.9)."""

    reason = "INVALID_TIMEOUT"


class MalformedRequest(InvalidArgument):
    """A path, query or body cannot be read (spec §5.3, §5.8, §5.9)."""

    reason = "MALFORMED_REQUEST"


class InvalidRequestId(InvalidArgument):
    """The request id is not a textual UUID (spec §9.2(1))."""

    reason = "INVALID_REQUEST_ID"


class RequestIdConflict(InvalidArgument):
    """The request id was used with another request (spec §9.2(3))."""

    reason = "REQUEST_ID_CONFLICT"


@attrs.define(eq=False)
class OperationNotFound(LroError):
    """No operation has this name: it never existed, was deleted, or expired."""

    code = Code.NOT_FOUND
    reason = "OPERATION_NOT_FOUND"
    name: str

    def __str__(self) -> str:
        return f"there is no operation {self.name!r}"

    def facts(self) -> Mapping[str, str]:
        return {"name": self.name}

    def more_details(self) -> Sequence[object]:
        return (ResourceInfo(resource_type=OPERATION_TYPE, resource_name=self.name),)


@attrs.define(eq=False)
class MethodNotSupported(LroError):
    """The service has switched this verb off (spec §3.9)."""

    code = Code.UNIMPLEMENTED
    reason = "METHOD_NOT_SUPPORTED"
    method: str

    def __str__(self) -> str:
        return f"{self.method} is not supported by this service"

    def facts(self) -> Mapping[str, str]:
        return {"method": self.method}


class PartialSuccessNotSupported(LroError):
    """``return_partial_success`` was asked for (spec §1.6(2))."""

    code = Code.UNIMPLEMENTED
    reason = "PARTIAL_SUCCESS_NOT_SUPPORTED"

    def __str__(self) -> str:
        return "return_partial_success is not supported by this service"


@attrs.define(eq=False)
class NotApplied(LroError):
    """A change came too late: the operation was already over (spec §2.8)."""

    code = Code.FAILED_PRECONDITION
    reason = "NOT_APPLIED"
    name: str
    event: str
    state: str

    def __str__(self) -> str:
        return f"{self.name}: {self.event} was not applied, the operation is {self.state}"

    def facts(self) -> Mapping[str, str]:
        return {"name": self.name, "event": self.event, "state": self.state}


@attrs.define(eq=False)
class LeaseLost(LroError):
    """A worker wrote with an attempt that is no longer the running one (design: fencing)."""

    code = Code.ABORTED
    reason = "LEASE_LOST"
    name: str
    attempt: int
    current: int

    def __str__(self) -> str:
        return (
            f"{self.name}: attempt {self.attempt} lost its lease, attempt {self.current} has it now"
        )

    def facts(self) -> Mapping[str, str]:
        return {"name": self.name, "attempt": str(self.attempt), "current": str(self.current)}


@attrs.define(eq=False)
class CancellationNotRequested(LroError):
    """A worker acknowledged a cancellation that nobody asked for (spec §2.3)."""

    code = Code.FAILED_PRECONDITION
    reason = "CANCELLATION_NOT_REQUESTED"
    name: str

    def __str__(self) -> str:
        return f"nobody asked for the cancellation of {self.name!r}"

    def facts(self) -> Mapping[str, str]:
        return {"name": self.name}

    def more_details(self) -> Sequence[object]:
        violation = PreconditionViolation(
            type="CANCEL_REQUESTED", subject=self.name, description=str(self)
        )
        return (PreconditionFailure(violations=(violation,)),)


@attrs.define(eq=False)
class TargetBusy(LroError):
    """The target allows one operation at a time and has one (spec §9.5)."""

    code = Code.ABORTED
    reason = "TARGET_BUSY"
    target: str

    def __str__(self) -> str:
        return f"another operation is working on {self.target!r}, which allows one at a time"

    def facts(self) -> Mapping[str, str]:
        return {"target": self.target}


@attrs.define(eq=False)
class RouteNotFound(LroError):
    """No route of the server has this path (spec §5.7(2))."""

    code = Code.NOT_FOUND
    reason = "ROUTE_NOT_FOUND"
    path: str

    def __str__(self) -> str:
        return f"there is nothing at {self.path}"

    def facts(self) -> Mapping[str, str]:
        return {"path": self.path}


@attrs.define(eq=False)
class HttpMethodNotAllowed(LroError):
    """The path exists, but not with this HTTP method (spec §5.7(4)). ``allow`` is sorted."""

    code = Code.UNIMPLEMENTED
    reason = "HTTP_METHOD_NOT_ALLOWED"
    method: str
    path: str
    allow: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} takes {', '.join(self.allow)}, not {self.method}"

    def facts(self) -> Mapping[str, str]:
        return {"method": self.method, "path": self.path, "allow": ", ".join(self.allow)}


class UnsupportedMediaType(InvalidArgument):
    """The body is not JSON in UTF-8 by its Content-Type (spec §5.9(2))."""

    reason = "UNSUPPORTED_MEDIA_TYPE"


class RequestTooLarge(InvalidArgument):
    """The body is larger than the server takes (spec §5.9(4))."""

    reason = "REQUEST_TOO_LARGE"


@attrs.define(eq=False)
class Unauthenticated(LroError):
    """The caller did not prove who they are. Raised by the application's hook."""

    code = Code.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"
    description: str = "the call carries no valid credentials"

    def __str__(self) -> str:
        return self.description


@attrs.define(eq=False)
class PermissionDenied(LroError):
    """The caller may not do this. Raised by the application's hook."""

    code = Code.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"
    description: str = "the caller may not do this"

    def __str__(self) -> str:
        return self.description


@attrs.define(eq=False)
class Retryable(LroError):
    """An error that passes: ``retry_after`` says when asking again makes sense."""

    description: str
    retry_after: timedelta = timedelta(seconds=1)

    def __str__(self) -> str:
        return self.description

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


@attrs.define(eq=False)
class DeadlineExceeded(LroError):
    """The caller's deadline, or a method's time limit, has passed."""

    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"
    description: str = "the deadline of the call has passed"

    def __str__(self) -> str:
        return self.description


@attrs.define(eq=False)
class Cancelled(LroError):
    """The work was asked to stop. Raised inside a method by ``job.report()`` and its like."""

    code = Code.CANCELLED
    reason = "CANCELLED"
    description: str = "the operation was cancelled"

    def __str__(self) -> str:
        return self.description


@attrs.define(eq=False)
class StatusError(LroError):
    """Any failure, put in the terms of a caller: raise it in a method to choose the error.

    ``chosen`` is the canonical code (not OK), ``message`` English text for developers,
    ``extra`` further detail messages, ``why`` the ErrorInfo reason (by default the code's name).
    """

    chosen: Code
    message: str
    extra: tuple[object, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        return self.message

    @property
    def status_code(self) -> Code:
        return self.chosen

    def details(self, domain: str) -> tuple[object, ...]:
        info = ErrorInfo(reason=self.why or self.chosen.name, domain=domain, metadata={})
        return (info, *self.extra)


@attrs.define(eq=False)
class DeclarationError(LroError):
    """A message class or method cannot be registered as it is declared."""

    code = Code.FAILED_PRECONDITION
    reason = "INVALID_DECLARATION"
    subject: str
    description: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.description}"


@attrs.define(eq=False)
class EncodingError(LroError):
    """A message cannot be packed or printed: what it is, where in it, and why."""

    code = Code.INTERNAL
    reason = "ENCODING_FAILED"
    type_name: str
    path: str
    description: str

    def __str__(self) -> str:
        where = f" field {self.path}" if self.path else ""
        return f"{self.type_name}:{where} {self.description}"


@attrs.define(eq=False)
class UnknownType(LroError):
    """A type name has no codec in the registry (spec §1.14(2))."""

    code = Code.INTERNAL
    reason = "UNKNOWN_TYPE"
    type_name: str

    def __str__(self) -> str:
        return f"the message type {self.type_name!r} is not registered"


@attrs.define(eq=False)
class MissingExtra(LroError):
    """An optional dependency is not installed: which part needs which extra."""

    code = Code.FAILED_PRECONDITION
    reason = "MISSING_EXTRA"
    part: str
    extra: str

    def __str__(self) -> str:
        return f"{self.part} needs the extra {self.extra!r}: pip install 'lro[{self.extra}]'"
