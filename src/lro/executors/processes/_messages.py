"""The messages between a process and its child: JSON texts; nothing is pickled."""

from __future__ import annotations

import base64
import enum
from typing import Any, Final, TypeAlias, TypeVar

import attrs
from cattrs import Converter
from cattrs.strategies import configure_tagged_union

from lro._base.errors import Cancelled, DeadlineExceeded, LeaseLost, LroError, Unavailable
from lro._base.status import AnyMessage, Status
from lro._engine.job import Failure
from lro._messages.json_text import dumps, reread
from lro.executors.processes._function_reference import FunctionReference

M = TypeVar("M")


class StopReason(enum.Enum):
    """Why work must stop."""

    ASKED = "asked"
    """A caller requested the stop, or the service is closing and releases the work."""
    OVERDUE = "overdue"
    """The time limit of the method has passed."""

    def error(self) -> Cancelled | DeadlineExceeded:
        """Return the error that the function of this work raises."""
        if self is StopReason.ASKED:
            return Cancelled()
        return DeadlineExceeded("the time limit of the method is over")


@attrs.frozen(kw_only=True)
class RunFunction:
    """Run this function until ``stop_at`` by the monotonic clock; None means no time limit.

    ``trace_context`` is the trace context of the attempt, in the form of ``Record.trace_context``.
    """

    reference: FunctionReference
    name: str
    attempt: int
    caller: str
    domain: str
    request: AnyMessage
    metadata: AnyMessage | None
    stop_at: float | None
    trace_context: str = ""


@attrs.frozen
class Stop:
    """Stop the work: the function gets an exception at its next check or ``await``."""

    why: StopReason


@attrs.frozen
class RequestRefusal:
    """Why a request was refused: the name of an error, and its details."""

    error: str
    text: str
    current: int = 0


@attrs.frozen
class RequestAnswer:
    """The answer to the request with this number, with the checkpoints that it asked for."""

    number: int
    refusal: RequestRefusal | None = None
    checkpoints: dict[str, AnyMessage] = attrs.field(factory=dict)


@attrs.frozen
class Shutdown:
    """End the process: there is no more work."""


ToChild: TypeAlias = RunFunction | Stop | RequestAnswer | Shutdown


@attrs.frozen
class Ready:
    """The child has started."""


@attrs.frozen
class Report:
    """Metadata to publish; the function waits for the answer."""

    number: int
    metadata: AnyMessage


@attrs.frozen
class Keep:
    """A checkpoint to store; the function waits for the answer."""

    number: int
    key: str
    value: AnyMessage


@attrs.frozen
class LoadCheckpoints:
    """Asks for the checkpoints of earlier attempts; the function waits for the answer."""

    number: int


Request: TypeAlias = Report | Keep | LoadCheckpoints
"""A message that is answered by a :class:`RequestAnswer`."""


@attrs.frozen
class LogLine:
    """A line for the parent's log, from the logger of this name."""

    level: int
    text: str
    logger: str = "lro"


@attrs.frozen
class Done:
    """The function returned."""

    response: AnyMessage


@attrs.frozen
class Failed:
    """The function failed. Callers get this status; operators get the failure."""

    status: Status
    failure: Failure | None


@attrs.frozen
class Stopped:
    """The function ended with the error for a stop, whether or not a stop was requested."""

    why: StopReason


@attrs.frozen
class AttemptReplaced:
    """The function ended because another worker has the operation, with attempt ``current``."""

    current: int


@attrs.frozen
class FunctionNotFound:
    """The function or its classes cannot be imported.

    ``in_main`` means that the import of the main module failed.
    """

    in_main: bool = False


FinalMessage: TypeAlias = Done | Failed | Stopped | AttemptReplaced | FunctionNotFound
"""The last message of a call."""

FromChild: TypeAlias = (
    Ready | Request | LogLine | Done | Failed | Stopped | AttemptReplaced | FunctionNotFound
)


def encode(message: ToChild | FromChild) -> bytes:
    """Return the text of a message.

    Raises:
        ValueError, TypeError: JSON cannot represent the message, for example a lone surrogate.
    """
    union = ToChild if isinstance(message, ToChild) else FromChild
    return dumps(_converter.unstructure(message, union))


def from_child(text: bytes) -> FromChild:
    """Decode a message that a child has sent."""
    message: FromChild = _decode(text, FromChild)
    return message


def to_child(text: bytes) -> ToChild:
    """Decode a message that this child has received."""
    message: ToChild = _decode(text, ToChild)
    return message


def refusal(error: Exception) -> RequestRefusal:
    """Return the refusal for a child; an error unknown to children becomes UNAVAILABLE."""
    if isinstance(error, LeaseLost):
        return RequestRefusal("LeaseLost", "", error.current)
    name = type(error).__name__
    return RequestRefusal(name if name in _REFUSALS else Unavailable.__name__, str(error))


def refusal_error(refusal: RequestRefusal, name: str, attempt: int) -> LroError:
    """Return the error that a refusal stands for, in the child that runs this operation."""
    if refusal.error in _REFUSALS:
        return _REFUSALS[refusal.error](refusal.text)
    return LeaseLost(name, attempt, refusal.current)


_REFUSALS: Final = {kind.__name__: kind for kind in (Cancelled, DeadlineExceeded, Unavailable)}


def _decode(text: bytes, union: Any) -> Any:
    return _converter.structure(reread(text.decode()), union)


def _is_any(cls: object) -> bool:
    return cls is AnyMessage


def _dump_any(packed: AnyMessage) -> list[Any]:
    if isinstance(packed.payload, bytes):
        return [packed.type_url, base64.b64encode(packed.payload).decode(), "binary"]
    return [packed.type_url, packed.payload]


def _load_any(value: list[Any], _: object) -> AnyMessage:
    if len(value) == 3:
        return AnyMessage(value[0], base64.b64decode(value[1]))
    return AnyMessage(value[0], value[1])


def _make_converter() -> Converter:
    converter = Converter(detailed_validation=False)
    converter.register_unstructure_hook_func(_is_any, _dump_any)
    converter.register_structure_hook_func(_is_any, _load_any)
    converter.register_unstructure_hook(bytes, lambda value: base64.b64encode(value).decode())
    converter.register_structure_hook(bytes, lambda value, _: base64.b64decode(value))
    for union in (ToChild, FromChild):
        configure_tagged_union(union, converter, tag_name="message")
    return converter


_converter: Final = _make_converter()
