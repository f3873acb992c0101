"""The type registry: full names of message types and how each is packed (spec §1.14)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any as Anything
from typing import Final, Protocol, TypeVar, cast

import attrs

from lro._any import Any, Json, declared_name, type_url
from lro._codec import JsonCodec
from lro._details import DETAIL_TYPES
from lro._errors import InvalidArgument, LroError
from lro._faults import DeclarationError, EncodingError, UnknownType
from lro._jsontext import MAX_MESSAGE_DEPTH, deeper_than
from lro._shapes import Shape, is_message_class, open_ended, shape_of
from lro._status import Status
from lro._times import Duration, Timestamp
from lro._wellknown import MESSAGES, dump_any, dump_json, load_any

M = TypeVar("M")

_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)


class Codec(Protocol):
    """How one message class is packed. Write one for a class of a library we do not know."""

    @property
    def python(self) -> type:
        """The message class."""
        ...

    @property
    def shape(self) -> Shape | None:
        """The fields, for filters; None if they cannot be told."""
        ...

    def dump(self, message: Anything) -> Json | bytes:
        """The payload of a message.

        Raises:
            InvalidArgument: A field holds what its type does not allow.
        """
        ...

    def load(self, payload: Json | bytes, *, strict: bool) -> Anything:
        """The message of a payload; unknown fields are refused if ``strict``, else dropped.

        Raises:
            InvalidArgument: The payload says no such message.
        """
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
    def read(self) -> Callable[[Json], Anything]:
        """JSON value -> message, ignoring what is unknown."""
        return self.lenient.reader(self.python)

    def dump(self, message: Anything) -> Json | bytes:
        """The JSON value of a message."""
        return self.write(message)

    def load(self, payload: Json | bytes, *, strict: bool) -> Anything:
        """The message of a JSON value."""
        if isinstance(payload, bytes):
            raise InvalidArgument("", "is in binary form, which this type is not read from")
        return self.strict.load(payload, self.python) if strict else self.read(payload)


class TypeRegistry:
    """Full name <-> message class. The well-known types and error details are always there.

    ``factories`` make codecs for classes of other libraries (pydantic, msgspec, ...), asked before
    the built-in one for attrs classes and dataclasses.
    """

    def __init__(self, *classes: type, factories: Iterable[CodecFactory] = ()) -> None:
        self._strict = JsonCodec(strict=True, check_any=self.checked)
        self._lenient = JsonCodec(strict=False, check_any=self.checked)
        self._factories = (*factories, self._class_codec)
        self._codecs: dict[str, Codec] = {}
        self._names: dict[type, str] = {}
        self._plain: dict[type, tuple[str, ClassCodec]] = {}
        """Type URL and codec of the classes that need no look at how deep a message is."""
        for cls in (*MESSAGES, *DETAIL_TYPES, *classes):
            self.register(cls)

    def register(self, cls: type, full_name: str | None = None) -> str:
        """Make a message class known, under the name it declares or the one given.

        Returns:
            The full name.

        Raises:
            DeclarationError: The class has no name, another name already, or a field that no
                message can have; or the name belongs to another class.
        """
        known = self._names.get(cls)
        name = declared_name(cls) or full_name or known
        if name is None:
            raise DeclarationError(cls.__qualname__, "has no full name; decorate it: @lro.message")
        if not _FULL_NAME.fullmatch(name):
            raise DeclarationError(name, "is not a full name such as acme.images.v1.ResizeRequest")
        if known == name:
            return name
        if known is not None:
            raise DeclarationError(cls.__qualname__, f"is registered as {known}, not as {name}")
        if name in self._codecs:
            raise DeclarationError(name, f"is the name of {self._codecs[name].python!r} already")
        codec = self._codecs[name] = self._make_codec(cls)
        self._names[cls] = name
        if isinstance(codec, ClassCodec) and not codec.open_ended:
            self._plain[cls] = (type_url(name), codec)
        return name

    def __contains__(self, full_name: object) -> bool:
        return full_name in self._codecs

    def knows(self, cls: type) -> bool:
        """Whether this class is registered."""
        return cls in self._names

    def codec(self, full_name: str) -> Codec:
        """The codec of a type.

        Raises:
            UnknownType: No such type is registered.
        """
        try:
            return self._codecs[full_name]
        except KeyError:
            raise UnknownType(full_name) from None

    def name_of(self, cls: type) -> str:
        """The full name of a registered class.

        Raises:
            UnknownType: The class is not registered.
        """
        try:
            return self._names[cls]
        except KeyError:
            raise UnknownType(cls.__qualname__) from None

    def pack(self, message: object) -> Any:
        """Pack a message of a registered class; an Any is passed through.

        Raises:
            UnknownType: Its class is not registered.
            EncodingError: It cannot be encoded; the error names the field.
        """
        known = self._plain.get(message.__class__)
        if known is not None:
            url, codec = known
            try:
                return Any(url, codec.write(message))
            except InvalidArgument as exc:
                raise EncodingError(url.rpartition("/")[2], exc.field, exc.description) from exc
        return self._pack(message)

    def _pack(self, message: object) -> Any:
        if isinstance(message, Any):
            return message
        if isinstance(message, timedelta):
            message = Duration.from_timedelta(message)
        elif isinstance(message, datetime):
            message = _timestamp(message)
        name = self.name_of(type(message))
        try:
            return Any(type_url(name), _payload(self._codecs[name], message))
        except InvalidArgument as exc:
            raise EncodingError(name, exc.field, exc.description) from exc

    def unpack(self, packed: Any, cls: type[M], *, strict: bool = False) -> M:
        """The message inside, as an instance of ``cls``.

        Raises:
            InvalidArgument: The Any holds another type, or its payload does not fit.
            UnknownType: ``cls`` is not registered.
        """
        known = self._plain.get(cls)
        if known is not None and not strict and packed.type_url == known[0]:
            return cast(M, known[1].load(packed.payload, strict=False))
        name = self.name_of(cls)
        if packed.type_name != name:
            found = packed.type_name or "nothing"
            raise InvalidArgument("@type", f"must be {name}, got {found}")
        return cast(M, self._codecs[name].load(packed.payload, strict=strict))

    def unpack_any(self, packed: Any, *, strict: bool = False) -> object:
        """The message inside, of whatever registered type it is.

        Raises:
            UnknownType: Its type is not registered.
            InvalidArgument: Its payload does not fit the type.
        """
        return self.codec(packed.type_name).load(packed.payload, strict=strict)

    def checked(self, packed: Any) -> Any:
        """The same Any with its payload validated, in canonical form (spec §1.10(4)).

        Raises:
            InvalidArgument: Its type is not registered, or its payload does not fit.
        """
        try:
            codec = self.codec(packed.type_name)
        except UnknownType as exc:
            raise InvalidArgument("@type", str(exc)) from None
        return Any(packed.type_url, codec.dump(codec.load(packed.payload, strict=True)))

    def to_json(self, packed: Any) -> Json:
        """The JSON form of an Any, ``@type`` and all.

        Raises:
            EncodingError: It cannot be printed.
        """
        try:
            return dump_any(packed)
        except InvalidArgument as exc:
            raise EncodingError(packed.type_name, exc.field, exc.description) from exc

    def from_json(self, value: Json, *, strict: bool = False) -> Any:
        """Read the JSON form of an Any; ``strict`` also validates the payload.

        Raises:
            InvalidArgument: It is none.
        """
        found = load_any(value, strict=strict)
        return self.checked(found) if strict and not found.empty else found

    def load(self, value: Json, cls: type[M], *, strict: bool = True) -> M:
        """A message of any attrs class or dataclass from its JSON value, named or not.

        Raises:
            InvalidArgument: The value says no such message.
        """
        codec = self._codecs.get(self._names.get(cls, ""))
        if codec is not None:
            return cast(M, codec.load(value, strict=strict))
        return cast(M, (self._strict if strict else self._lenient).load(value, cls))

    def dump(self, message: object) -> Json:
        """The JSON value of any message, without a type.

        Raises:
            EncodingError: It cannot be encoded.
        """
        codec = self._codecs.get(self._names.get(type(message), ""))
        try:
            shown = _payload(codec, message) if codec is not None else self._strict.dump(message)
        except InvalidArgument as exc:
            raise EncodingError(type(message).__qualname__, exc.field, exc.description) from exc
        if isinstance(shown, bytes):
            raise EncodingError(type(message).__qualname__, "", "has no JSON form")
        return shown

    def status_of(self, error: LroError, domain: str) -> Status:
        """The status that tells a caller of an error, details and all (spec §6.3)."""
        details = tuple(self.pack(detail) for detail in error.details(domain))
        text = str(error).encode("utf-8", "backslashreplace").decode()
        return Status(int(error.status_code), text, details)

    def _class_codec(self, cls: type) -> Codec | None:
        if cls not in MESSAGES and not is_message_class(cls):
            return None
        # A field that no message can have is refused here, in the classes below this one too.
        return ClassCodec(cls, self._strict, self._lenient, open_ended(cls))

    def _make_codec(self, cls: type) -> Codec:
        for factory in self._factories:
            codec = factory(cls)
            if codec is not None:
                return codec
        raise DeclarationError(
            cls.__qualname__, "is neither an attrs class nor a dataclass; give a codec factory"
        )


def _payload(codec: Codec, message: object) -> Json | bytes:
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


def _timestamp(moment: datetime) -> Timestamp:
    try:
        return Timestamp.from_datetime(moment)
    except ValueError as exc:
        raise EncodingError("google.protobuf.Timestamp", "", str(exc)) from None
