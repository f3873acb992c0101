"""Canonical codes, ``google.rpc.Status`` with its details, and packed messages (spec §1.3, §6)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

import attrs

from lro._base.by_fields import ByFields

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value as the standard library reads it."""

T = TypeVar("T")

TYPE_URL_PREFIX: Final = "type.googleapis.com/"

WRAPPED_TYPES: Final = frozenset(
    "google.protobuf." + name
    for name in (
        "Any", "Duration", "Timestamp", "FieldMask", "Struct", "Value", "ListValue",
        "BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value",
        "StringValue", "UInt32Value", "UInt64Value",
    )
)  # fmt: skip
"""Types whose JSON form is under the key ``value`` inside an Any (spec §1.10(1))."""


UNKNOWN: Final = "lro.unknown"


def unknown_fields() -> bytes:
    """Return the attrs attribute that keeps a message's unknown fields in binary form.

    Peers with a newer release of the message send such fields. They are written back (spec
    §1.7(5)).
    """
    found: bytes = attrs.field(default=b"", kw_only=True, repr=False, metadata={UNKNOWN: True})
    return found


def named(full_name: str, aliases: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Set the full name of a message class of this library; :func:`lro.message` also checks it."""

    def name_it(cls: type[T]) -> type[T]:
        cls.__lro_name__ = full_name  # type: ignore[attr-defined]  # a mark, like __slots__
        cls.__lro_aliases__ = aliases  # type: ignore[attr-defined]
        return cls

    return name_it


@named("google.protobuf.Any")
@attrs.frozen(repr=False)
class AnyMessage(ByFields):
    """A packed message of any type (``google.protobuf.Any``).

    The payload keeps the form in which it arrived: a JSON value (an object for ordinary messages,
    the bare JSON form for the types of spec §1.10(1)) or the bytes of the binary form. A
    :class:`lro.TypeRegistry` converts payloads. Equality compares the stored form.
    """

    type_url: str = ""
    payload: Json | bytes = attrs.field(factory=dict, eq=True, hash=False)

    @property
    def type_name(self) -> str:
        """The full name of the message type: the text after the last ``/`` (spec §1.14(1))."""
        return self.type_url.rpartition("/")[2] if "/" in self.type_url else ""

    @property
    def empty(self) -> bool:
        """True if there is no type and no payload."""
        return not self.type_url and not self.payload


def type_url(full_name: str) -> str:
    """Return the type URL of a newly packed message of this type (spec §1.14(1))."""
    return TYPE_URL_PREFIX + full_name


def declared_name(cls: type) -> str | None:
    """Return the full name that :func:`named` gave to exactly this class, or None."""
    name = cls.__dict__.get("__lro_name__")
    return name if isinstance(name, str) else None


def declared_aliases(cls: type) -> tuple[str, ...]:
    """Return the earlier names of exactly this class, as given to :func:`named`."""
    aliases: tuple[str, ...] = cls.__dict__.get("__lro_aliases__", ())
    return aliases


PACKAGE = "google.rpc."


@named(PACKAGE + "ErrorInfo")
@attrs.frozen(eq=False, repr=False)
class ErrorInfo(ByFields):
    """The machine-readable cause: a stable reason within a domain, and the facts."""

    reason: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@named(PACKAGE + "RetryInfo")
@attrs.frozen(eq=False, repr=False)
class RetryInfo(ByFields):
    """The time to wait before the next try."""

    retry_delay: timedelta | None = None


@named(PACKAGE + "BadRequest.FieldViolation")
@attrs.frozen(eq=False, repr=False)
class FieldViolation(ByFields):
    """One wrong field: its path in proto spelling, and the error."""

    field: str = ""
    description: str = ""
    reason: str = ""
    localized_message: LocalizedMessage | None = None


@named(PACKAGE + "BadRequest")
@attrs.frozen(eq=False, repr=False)
class BadRequest(ByFields):
    """The wrong fields of the request."""

    field_violations: tuple[FieldViolation, ...] = ()


@named(PACKAGE + "ResourceInfo")
@attrs.frozen(eq=False, repr=False)
class ResourceInfo(ByFields):
    """The resource that the error is about."""

    resource_type: str = ""
    resource_name: str = ""
    owner: str = ""
    description: str = ""


@named(PACKAGE + "PreconditionFailure.Violation")
@attrs.frozen(eq=False, repr=False)
class PreconditionViolation(ByFields):
    """One condition that did not hold."""

    type: str = ""
    subject: str = ""
    description: str = ""


@named(PACKAGE + "PreconditionFailure")
@attrs.frozen(eq=False, repr=False)
class PreconditionFailure(ByFields):
    """The conditions that did not hold."""

    violations: tuple[PreconditionViolation, ...] = ()


@named(PACKAGE + "Help.Link")
@attrs.frozen(eq=False, repr=False)
class HelpLink(ByFields):
    """One link, with a description."""

    description: str = ""
    url: str = ""


@named(PACKAGE + "Help")
@attrs.frozen(eq=False, repr=False)
class Help(ByFields):
    """Links to documentation."""

    links: tuple[HelpLink, ...] = ()


@named(PACKAGE + "LocalizedMessage")
@attrs.frozen(eq=False, repr=False)
class LocalizedMessage(ByFields):
    """A message for people, in the language of ``locale``."""

    locale: str = ""
    message: str = ""


@named(PACKAGE + "DebugInfo")
@attrs.frozen(eq=False, repr=False)
class DebugInfo(ByFields):
    """Traces for developers, which this library reads but never sends."""

    stack_entries: tuple[str, ...] = ()
    detail: str = ""


@named(PACKAGE + "QuotaFailure.Violation")
@attrs.frozen(eq=False, repr=False)
class QuotaViolation(ByFields):
    """One quota that was exceeded."""

    subject: str = ""
    description: str = ""


@named(PACKAGE + "QuotaFailure")
@attrs.frozen(eq=False, repr=False)
class QuotaFailure(ByFields):
    """The quotas that were exceeded."""

    violations: tuple[QuotaViolation, ...] = ()


@named(PACKAGE + "RequestInfo")
@attrs.frozen(eq=False, repr=False)
class RequestInfo(ByFields):
    """The identity of the request in the server's logs."""

    request_id: str = ""
    serving_data: str = ""


DETAIL_TYPES: tuple[type, ...] = (
    ErrorInfo,
    RetryInfo,
    BadRequest,
    ResourceInfo,
    PreconditionFailure,
    Help,
    LocalizedMessage,
    DebugInfo,
    QuotaFailure,
    RequestInfo,
)
"""The types of error details that are always registered (spec §1.14(2))."""


class Code(enum.IntEnum):
    """The seventeen canonical codes (``google.rpc.Code``)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def of(cls, number: int) -> Code:
        """Return the code with this number; UNKNOWN for an unlisted number (spec §6.1)."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN

    @property
    def http(self) -> int:
        """The HTTP status of a reply with this code (spec §5.11)."""
        return HTTP_STATUS[self]


HTTP_STATUS: Final[Mapping[Code, int]] = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}

_FROM_HTTP: Final[Mapping[int, Code]] = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    405: Code.UNIMPLEMENTED,
    408: Code.DEADLINE_EXCEEDED,
    409: Code.ABORTED,
    412: Code.FAILED_PRECONDITION,
    413: Code.INVALID_ARGUMENT,
    415: Code.INVALID_ARGUMENT,
    416: Code.OUT_OF_RANGE,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    500: Code.INTERNAL,
    501: Code.UNIMPLEMENTED,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


def code_from_http(http_status: int) -> Code:
    """Return the code of an error reply whose body has no code (spec §11.8(2))."""
    if http_status in _FROM_HTTP:
        return _FROM_HTTP[http_status]
    if 400 <= http_status < 500:
        return Code.FAILED_PRECONDITION
    if 500 <= http_status < 600:
        return Code.INTERNAL
    return Code.UNKNOWN


@attrs.frozen(repr=False)
class Status(ByFields):
    """``google.rpc.Status``: the cause of a failure.

    ``code`` is a number of :class:`Code` (unlisted numbers are kept), ``message`` an English text
    for developers, and ``details`` are packed messages.
    """

    code: int = 0
    message: str = ""
    details: tuple[AnyMessage, ...] = ()
    unknown: bytes = unknown_fields()
