"""The messages between a process and its child: JSON texts, one message each, no pickle."""

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
    """Why work is to stop."""

    ASKED = "asked"
    """A caller asked, or the service is closing and gives the work back."""
    OVERDUE = "overdue"
    """The time limit of the method is over."""

    def error(self) -> Cancelled | DeadlineExceeded:
        """What the function of such work raises."""
        if self is StopReason.ASKED:
            return Cancelled()
        return DeadlineExceeded("the time limit of the method is over")


@attrs.frozen(kw_only=True)
class RunFunction:
    """Do this work. ``stop_at``: when it is overdue, in seconds of the monotonic clock, if ever.

    ``trace_context`` is that of the attempt, as in ``Record.trace_context``.
    """

    reference: FunctionReference
    name: str
    attempt: int
    domain: str
    request: AnyMessage
    metadata: AnyMessage | None
    stop_at: float | None
    trace_context: str = ""


@attrs.frozen
class Stop:
    """The work is to stop: the function learns of it when it looks, or at its next ``await``."""

    why: StopReason


@attrs.frozen
class RequestRefusal:
    """Why a request was refused: the name of an error, and its facts."""

    error: str
    text: str
    current: int = 0


@attrs.frozen
class RequestAnswer:
    """Whether the request of this number was done; the checkpoints, if it was for these."""

    number: int
    refusal: RequestRefusal | None = None
    checkpoints: dict[str, AnyMessage] = attrs.field(factory=dict)


@attrs.frozen
class Shutdown:
    """There is no more work."""


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
"""What an :class:`RequestAnswer` is given to."""


@attrs.frozen
class LogLine:
    """A line for the log of the process, by the logger of this name."""

    level: int
    text: str
    logger: str = "lro"


@attrs.frozen
class Done:
    """The function returned."""

    response: AnyMessage


@attrs.frozen
class Failed:
    """The function failed, and callers get this status; operators get the failure."""

    status: Status
    failure: Failure | None


@attrs.frozen
class Stopped:
    """The function ended because it was to stop, or as if it had been."""

    why: StopReason


@attrs.frozen
class AttemptReplaced:
    """The function ended because another worker has the operation, in this attempt."""

    current: int


@attrs.frozen
class FunctionNotFound:
    """The function, or what it needs, could not be imported; ``in_main``: the main module."""

    in_main: bool = False


FinalMessage: TypeAlias = Done | Failed | Stopped | AttemptReplaced | FunctionNotFound
"""The last message of a call."""

FromChild: TypeAlias = (
    Ready | Request | LogLine | Done | Failed | Stopped | AttemptReplaced | FunctionNotFound
)


def encode(message: ToChild | FromChild) -> bytes:
    """The text of a message.

    Raises:
        ValueError, TypeError: It holds what JSON has not, such as half a surrogate pair.
    """
    union = ToChild if isinstance(message, ToChild) else FromChild
    return dumps(_converter.unstructure(message, union))


def from_child(text: bytes) -> FromChild:
    """The message that a child sent."""
    message: FromChild = _decode(text, FromChild)
    return message


def to_child(text: bytes) -> ToChild:
    """The message that a child got."""
    message: ToChild = _decode(text, ToChild)
    return message


def refusal(error: Exception) -> RequestRefusal:
    """Why a request was refused, for the child; an error unknown there becomes UNAVAILABLE."""
    if isinstance(error, LeaseLost):
        return RequestRefusal("LeaseLost", "", error.current)
    name = type(error).__name__
    return RequestRefusal(name if name in _REFUSALS else Unavailable.__name__, str(error))


def refusal_error(refusal: RequestRefusal, name: str, attempt: int) -> LroError:
    """The same error in the child, which does the work of this name."""
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
