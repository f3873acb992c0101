"""The error details of ``google.rpc`` that every reply may carry (spec §6.3)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import attrs

from lro._base.any import named

PACKAGE = "google.rpc."


@named(PACKAGE + "ErrorInfo")
@attrs.frozen
class ErrorInfo:
    """Why, for machines: a stable reason within a domain, and the facts of the message."""

    reason: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@named(PACKAGE + "RetryInfo")
@attrs.frozen
class RetryInfo:
    """How long to wait before asking again."""

    retry_delay: timedelta | None = None


@named(PACKAGE + "BadRequest.FieldViolation")
@attrs.frozen
class FieldViolation:
    """One wrong field: its path in proto spelling, and what is wrong with it."""

    field: str = ""
    description: str = ""
    reason: str = ""
    localized_message: LocalizedMessage | None = None


@named(PACKAGE + "BadRequest")
@attrs.frozen
class BadRequest:
    """Which fields of the request are wrong."""

    field_violations: tuple[FieldViolation, ...] = ()


@named(PACKAGE + "ResourceInfo")
@attrs.frozen
class ResourceInfo:
    """Which resource the error is about."""

    resource_type: str = ""
    resource_name: str = ""
    owner: str = ""
    description: str = ""


@named(PACKAGE + "PreconditionFailure.Violation")
@attrs.frozen
class PreconditionViolation:
    """One condition that did not hold."""

    type: str = ""
    subject: str = ""
    description: str = ""


@named(PACKAGE + "PreconditionFailure")
@attrs.frozen
class PreconditionFailure:
    """Which conditions did not hold."""

    violations: tuple[PreconditionViolation, ...] = ()


@named(PACKAGE + "Help.Link")
@attrs.frozen
class HelpLink:
    """One link and what is behind it."""

    description: str = ""
    url: str = ""


@named(PACKAGE + "Help")
@attrs.frozen
class Help:
    """Where to read more."""

    links: tuple[HelpLink, ...] = ()


@named(PACKAGE + "LocalizedMessage")
@attrs.frozen
class LocalizedMessage:
    """A message for people, in the language of ``locale``."""

    locale: str = ""
    message: str = ""


@named(PACKAGE + "DebugInfo")
@attrs.frozen
class DebugInfo:
    """Traces for developers; never sent by this library, read from others."""

    stack_entries: tuple[str, ...] = ()
    detail: str = ""


@named(PACKAGE + "QuotaFailure.Violation")
@attrs.frozen
class QuotaViolation:
    """One quota that was exceeded."""

    subject: str = ""
    description: str = ""


@named(PACKAGE + "QuotaFailure")
@attrs.frozen
class QuotaFailure:
    """Which quotas were exceeded."""

    violations: tuple[QuotaViolation, ...] = ()


@named(PACKAGE + "RequestInfo")
@attrs.frozen
class RequestInfo:
    """What identifies the request in the server's logs."""

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
"""Always registered (spec §1.14(2))."""
