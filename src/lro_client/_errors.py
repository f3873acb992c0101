"""Errors of three kinds: the operation failed, a call failed, or a timeout expired (spec §11.7)."""

from __future__ import annotations

import copy
import functools
import re
from typing import Final

from lro import AnyMessage, Code, DeclarationError, Operation, Status, TypeRegistry
from lro.types import ErrorInfo

UNTRUSTED: Final = re.compile(
    "CERTIFICATE_VERIFY_FAILED"  # perhaps an attack
    "|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE"  # a port without TLS
)
"""Matches the message of a failure to connect that a retry cannot cure."""


def check(name: str, value: object, wanted: str, *, fine: bool) -> None:
    """Raise an error about the argument ``name`` unless ``fine`` is true.

    Raises:
        DeclarationError: ``fine`` is false. The message shows the wanted and the given value.
    """
    if not fine:
        raise DeclarationError(name, f"must be {wanted}, got {value!r:.200}")


class ClientError(Exception):
    """Base class of all errors of this package."""


class CallError(ClientError):
    """A call failed. The operation itself may be fine.

    ``status`` is the reason, ``verb`` is the name of the RPC, and ``http_status`` is the status of
    the HTTP reply, or None without a reply. ``retry_after`` is the number of seconds that the
    server asked the client to wait. ``passing`` is true for a failure of the transport, which a
    retry may cure.
    """

    def __init__(
        self,
        verb: str,
        status: Status,
        http_status: int | None = None,
        retry_after: float | None = None,
        passing: bool = False,
    ) -> None:
        super().__init__(verb, status, http_status, retry_after, passing)
        self.verb = verb
        self.status = status
        self.http_status = http_status
        self.retry_after = retry_after
        self.passing = passing

    @property
    def code(self) -> Code:
        """The canonical code of the failure."""
        return Code.of(self.status.code)

    def details(self, types: TypeRegistry | None = None) -> tuple[object, ...]:
        """Return the details as messages. Details of unknown types stay packed."""
        return decoded(self.status, types)

    def __str__(self) -> str:
        return f"{self.verb} failed with {self.code.name}: {self.status.message}"


def again(error: Exception) -> Exception:
    """Copy an error for another waiter to raise, so that each waiter has its own traceback.

    If an exception of another library cannot be copied, return the exception itself.
    """
    try:
        return copy.copy(error)
    except Exception:
        return error


def unreadable(
    verb: str, why: str, http_status: int | None = None, *, passing: bool = False
) -> UnreadableReply:
    """Return the error for a reply that cannot be read."""
    return UnreadableReply(verb, Status(Code.UNKNOWN, why), http_status, passing=passing)


def empty_reply(verb: str, what: str, http_status: int | None = None) -> UnreadableReply:
    """Return the error for a reply without content. ``what`` describes the reply."""
    status = Status(Code.UNKNOWN, f"the reply says nothing: it is {what}")
    return UnreadableReply(verb, status, http_status, passing=True, empty=True)


def spoilt_reply(verb: str, why: str) -> UnreadableReply:
    """Return the error for a reply that cannot be decompressed."""
    status = Status(Code.UNKNOWN, f"the reply cannot be unpacked: {why}")
    return UnreadableReply(verb, status, passing=True, spoilt=True)


def too_late(verb: str, seconds: float) -> CallError:
    """Return the error for a call whose budget ended before the reply was complete."""
    text = f"no complete answer within {seconds:.3g} s"
    return CallError(verb, Status(Code.DEADLINE_EXCEEDED, text), passing=True)


def too_many_bytes(error: CallError) -> bool:
    """Return True if a server refused a batch because its operations are too large together."""
    if error.code is not Code.RESOURCE_EXHAUSTED:
        return False
    infos = (detail for detail in error.details() if isinstance(detail, ErrorInfo))
    return any(info.reason == "BATCH_TOO_LARGE" for info in infos)


class OperationGone(CallError):
    """The operation was deleted or has expired while the client waited for it (spec §11.5(5))."""


class PathNotServed(CallError):
    """The server serves nothing at the path of the call. The operation may still exist.

    Check the base URL and the routes of the client, and where the server is mounted.
    """


class UnreadableReply(CallError):
    """The server's reply is not valid for the call, or too large.

    The code is UNKNOWN. If ``passing`` is true, a retry can help (spec §11.5(2)): the reply was cut
    off, was ``empty``, or was ``spoilt``, which means that it cannot be decompressed.
    """

    def __init__(
        self,
        verb: str,
        status: Status,
        http_status: int | None = None,
        retry_after: float | None = None,
        passing: bool = False,
        empty: bool = False,
        spoilt: bool = False,
    ) -> None:
        super().__init__(verb, status, http_status, retry_after, passing)
        self.args: tuple[object, ...] = (*self.args, empty, spoilt)
        self.empty = empty
        self.spoilt = spoilt


class OperationFailed(ClientError):
    """The operation ended with an error, which is ``operation.error``."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        self.operation = operation

    @property
    def status(self) -> Status:
        """The error of the operation."""
        return self.operation.error or Status(Code.UNKNOWN)

    @property
    def code(self) -> Code:
        """The canonical code of the error, or UNKNOWN for 0 and unknown numbers (spec §11.7)."""
        return Code.of(self.status.code or Code.UNKNOWN)

    def details(self, types: TypeRegistry | None = None) -> tuple[object, ...]:
        """Return the details as messages. Details of unknown types stay packed."""
        return decoded(self.status, types)

    def __str__(self) -> str:
        name = self.operation.name or "the operation"
        return f"{name} ended with {self.code.name}: {self.status.message}"


class OperationCancelled(OperationFailed):
    """The operation was cancelled."""


class PollTimeout(ClientError):
    """The timeout expired before the operation ended. The operation continues. You can wait again.

    ``name`` is the operation's name, and ``timeout`` is in seconds. ``polls`` is the number of
    replies and failures. ``operation`` is the last known state, and ``last_error`` is the error of
    a poll that failed after that state was read.
    """

    def __init__(
        self,
        name: str,
        timeout: float,
        polls: int,
        operation: Operation | None = None,
        last_error: CallError | None = None,
    ) -> None:
        super().__init__(name, timeout, polls, operation, last_error)
        self.name = name
        self.timeout = timeout
        self.polls = polls
        self.operation = operation
        self.last_error = last_error

    def __str__(self) -> str:
        seen = "" if self.last_error is None else f"; the last poll failed: {self.last_error}"
        polls = "1 poll" if self.polls == 1 else f"{self.polls} polls"
        return f"{self.name} was not done within {self.timeout:g} s and {polls}{seen}"


class GroupTimeout(PollTimeout):
    """The timeout of a group expired. ``pending`` names the operations that are not done.

    ``timeout`` is the timeout of the group. The other fields describe the first of the pending
    operations.
    """

    def __init__(
        self,
        pending: tuple[str, ...],
        timeout: float,
        polls: int,
        operation: Operation | None = None,
        last_error: CallError | None = None,
    ) -> None:
        super().__init__(pending[0], timeout, polls, operation, last_error)
        self.args: tuple[object, ...] = (pending, *self.args[1:])
        self.pending = pending

    def __str__(self) -> str:
        count = len(self.pending)
        many = "1 operation is" if count == 1 else f"{count} operations are"
        return f"{many} not done; {super().__str__()}"


class DecodingError(ClientError):
    """A message is not of the declared class. ``packed`` is the original message (spec §11.6)."""

    def __init__(self, name: str, description: str, packed: AnyMessage | None = None) -> None:
        super().__init__(name, description, packed)
        self.name = name
        self.description = description
        self.packed = packed

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


def decoded(status: Status, types: TypeRegistry | None = None) -> tuple[object, ...]:
    """Return the details of a status as messages. Unreadable details stay packed."""
    return (types or _details_alone()).details_of(status)


@functools.cache
def _details_alone() -> TypeRegistry:
    return TypeRegistry()  # made at the first use, because imports must be quick
