"""How one message class is packed: the protocol, and the codec of attrs classes and dataclasses."""

from __future__ import annotations

import functools
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import attrs

from lro._base.any import Any, Json
from lro._base.errors import InvalidArgument
from lro._messages.json_codec import JsonCodec
from lro._messages.json_text import MAX_MESSAGE_DEPTH, deeper_than
from lro._messages.schema import Shape, is_message_class, shape_of
from lro._messages.wellknown import MESSAGES, dump_json


class Codec(Protocol):
    """How one message class is packed. Write one for a class of a library we do not know."""

    @property
    def python(self) -> type:
        """The message class."""
        ...

    @property
    def shape(self) -> Shape | None:
        """The fields, for filters; None if they are not known."""
        ...

    def dump(self, message: typing.Any) -> Json | bytes:
        """The payload of a message.

        Raises:
            InvalidArgument: A field holds what its type does not allow.
        """
        ...

    def load(self, payload: Json | bytes, *, strict: bool) -> typing.Any:
        """The message of a payload; unknown fields are refused if ``strict``, else dropped.

        Raises:
            InvalidArgument: The payload says no such message.
        """
        ...


@runtime_checkable
class Amending(Protocol):
    """A codec that can say more in a message without losing what it does not know of it."""

    def amend(
        self, payload: bytes, unless_set: Mapping[str, Json], always: Mapping[str, Json]
    ) -> bytes:
        """The binary form with these fields, by their JSON names, set to these JSON values."""
        ...


CodecFactory = Callable[[type], "Codec | None"]
"""Gives the codec of a class, or None for a class that is not its business."""


@attrs.frozen(slots=False)
class ClassCodec:
    """The codec of an attrs class or dataclass: ProtoJSON by its shape."""

    python: type
    strict: JsonCodec
    lenient: JsonCodec
    open_ended: bool

    @property
    def shape(self) -> Shape | None:
        """The fields; None for the well-known types with a JSON form of their own."""
        return None if self.python in MESSAGES else shape_of(self.python)

    @functools.cached_property
    def write(self) -> Callable[[object], Json]:
        """Message -> JSON value."""
        return self.strict.writer(self.python)

    @functools.cached_property
    def read(self) -> Callable[[Json], typing.Any]:
        """JSON value -> message, ignoring what is unknown."""
        return self.lenient.reader(self.python)

    def dump(self, message: typing.Any) -> Json | bytes:
        """The JSON value of a message."""
        return self.write(message)

    def load(self, payload: Json | bytes, *, strict: bool) -> typing.Any:
        """The message of a JSON value."""
        if isinstance(payload, bytes):
            raise InvalidArgument("", "is in binary form, which this type is not read from")
        return self.strict.load(payload, self.python) if strict else self.read(payload)


@functools.cache
def open_ended(cls: type) -> bool:
    """Whether messages of this class can nest to any depth: they hold JSON, an Any, themselves."""
    return cls is Any or _open_ended(cls, ())


def _open_ended(cls: type, above: tuple[type, ...]) -> bool:
    for field in shape_of(cls).fields:
        inner = field.python
        if inner in (object, dict, Any) or inner in above or inner is cls:
            return True
        if is_message_class(inner) and _open_ended(inner, (*above, cls)):
            return True
    return False


def protobuf_name(cls: type) -> str | None:
    """The full name of a class of the protobuf library; None for any other."""
    library = sys.modules.get("google.protobuf.message")
    if library is None or not issubclass(cls, library.Message):
        return None
    name: str = cls.DESCRIPTOR.full_name  # type: ignore[attr-defined]  # of Message
    return name


def payload_of(codec: Codec, message: object) -> Json | bytes:
    """The payload of a message, in a form that can be kept and sent.

    Raises:
        InvalidArgument: A field holds what its type does not allow, or it is nested too deeply.
    """
    payload: Json | bytes = None
    try:
        payload = codec.dump(message)
        if isinstance(payload, bytes) or (isinstance(codec, ClassCodec) and not codec.open_ended):
            return payload
        if not isinstance(codec, ClassCodec):
            payload = dump_json(payload)  # another library may give what JSON has not
        too_deep = deeper_than(payload, MAX_MESSAGE_DEPTH)
    except RecursionError:
        too_deep = True
    if too_deep:
        raise InvalidArgument("", f"is nested deeper than {MAX_MESSAGE_DEPTH} levels")
    return payload
