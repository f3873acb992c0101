"""The Operation and the messages of the interface (spec §1.1-§1.5, §1.15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import attrs

from lro._base.errors import InvalidOperationName
from lro._base.status import Any, Code, Status, named, unknown_fields
from lro._messages.schema import Int32, number
from lro._messages.times import Duration
from lro._model.names import parse_name

PACKAGE = "google.longrunning."

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Operation:
    """A long-running operation as callers see it: the five fields of spec §1.2.

    ``result`` is the one-of: a packed response, an error, or nothing. While ``done`` is false there
    is none; done without a result is a success without a value (spec §2.5).
    """

    name: str = ""
    metadata: Any | None = None
    done: bool = False
    result: Any | Status | None = None
    unknown: bytes = unknown_fields()

    @property
    def response(self) -> Any | None:
        """The packed response of a success, or None."""
        return self.result if isinstance(self.result, Any) else None

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

    name: str = attrs.field(default="", metadata=number(1))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "ListOperationsRequest")
@attrs.frozen
class ListOperationsRequest:
    """Asks for a page of the operations of one parent that match a filter."""

    name: str = attrs.field(default="", metadata=number(4))
    filter: str = attrs.field(default="", metadata=number(1))
    page_size: Int32 = attrs.field(default=0, metadata=number(2))
    page_token: str = attrs.field(default="", metadata=number(3))
    unknown: bytes = unknown_fields()


@attrs.frozen
class ListOperationsResponse:
    """A page: the operations (field 1) and, if more follow, the token for them (field 2)."""

    operations: tuple[Operation, ...] = ()
    next_page_token: str = ""
    unknown: bytes = unknown_fields()


Show: TypeAlias = Callable[[Sequence[Operation]], Iterable[T]]
"""Makes of some operations what a reply to many of them is made of.

So that the operations are let go before further ones are read, which may be very large.
"""


def as_they_are(operations: Sequence[Operation]) -> Sequence[Operation]:
    """The :data:`Show` of a reply that is made of the operations themselves."""
    return operations


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

    name: str = attrs.field(default="", metadata=number(1))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "DeleteOperationRequest")
@attrs.frozen
class DeleteOperationRequest:
    """Asks for the record of an operation to be removed."""

    name: str = attrs.field(default="", metadata=number(1))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "WaitOperationRequest")
@attrs.frozen
class WaitOperationRequest:
    """Asks for an answer when an operation is done, or when ``timeout`` is over."""

    name: str = attrs.field(default="", metadata=number(1))
    timeout: Duration | None = attrs.field(default=None, metadata=number(2))
    unknown: bytes = unknown_fields()


@named(PACKAGE + "OperationInfo")
@attrs.frozen
class OperationInfo:
    """Full names of the response and metadata types of a method (spec §1.5)."""

    response_type: str = attrs.field(default="", metadata=number(1))
    metadata_type: str = attrs.field(default="", metadata=number(2))
    unknown: bytes = unknown_fields()
