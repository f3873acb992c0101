"""The type registry: message types by full name, and their codecs (spec §1.14)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, runtime_checkable

import attrs

from lro._base.arguments import (
    check,
    check_class,
    check_function,
    check_instance,
    check_text,
    contained,
)
from lro._base.by_fields import ByFields
from lro._base.errors import (
    DeclarationError,
    EncodingError,
    InvalidArgument,
    LroError,
    MissingExtra,
    UnknownType,
)
from lro._base.status import (
    DETAIL_TYPES,
    WRAPPED_TYPES,
    AnyMessage,
    Code,
    FieldViolation,
    HelpLink,
    Json,
    PreconditionViolation,
    QuotaViolation,
    Status,
    declared_aliases,
    declared_name,
    type_url,
)
from lro._messages.json_codec import JsonCodec
from lro._messages.json_text import MAX_MESSAGE_DEPTH, deeper_than, plain_copy
from lro._messages.schema import Field, Label, Shape, check_full_name
from lro._messages.shapes import is_message_class, no_message, shape_of
from lro._messages.times import Duration, Timestamp
from lro._messages.wellknown import (
    MESSAGES,
    Empty,
    OperationMetadata,
    dump_any,
    dump_json,
    load_any,
)

if TYPE_CHECKING:
    from lro._messages.protobuf.binary import Binary


class Codec(Protocol):
    """Packs and reads messages of one class. Write a codec to support a further message library."""

    @property
    def python(self) -> type:
        """The message class."""
        ...

    @property
    def shape(self) -> Shape | None:
        """The fields of the class, which filters may name; None if the fields are unknown."""
        ...

    def dump(self, message: Any) -> Json | bytes:
        """Return the payload of a message.

        Raises:
            InvalidArgument: A field has a value that its type does not allow.
        """
        ...

    def load(self, payload: Json | bytes, *, strict: bool) -> Any:
        """Read a message; unknown fields are refused if ``strict``, otherwise dropped.

        Raises:
            InvalidArgument: The payload is not a valid message.
        """
        ...


@runtime_checkable
class Amending(Protocol):
    """A codec that can set fields of a message without losing unknown fields."""

    def amend(
        self, payload: bytes, unless_set: Mapping[str, Json], always: Mapping[str, Json]
    ) -> bytes:
        """Return a payload in binary form with fields set; the mappings have JSON names and values.

        ``unless_set`` has the values of fields that are set only if the message does not have them,
        ``always`` the values that replace those of the message.
        """
        ...


CodecFactory = Callable[[type], "Codec | None"]
"""Returns the codec of a class, or None for a class that the factory does not support."""


@attrs.frozen(slots=False, eq=False, repr=False)
class ClassCodec(ByFields):
    """The codec of a message class: it reads and writes ProtoJSON by the shape of the class."""

    python: type
    strict: JsonCodec
    lenient: JsonCodec
    draft: JsonCodec
    open_ended: bool
    misses_empty: bool = False
    """True if the class requires a list or map field, which proto3 cannot express."""

    @property
    def shape(self) -> Shape | None:
        """The fields; None for well-known types with a special JSON form."""
        return None if self.python in MESSAGES else shape_of(self.python)

    @functools.cached_property
    def write(self) -> Callable[[object], Json]:
        """Writes a message as a JSON value."""
        return self.strict.writer(self.python)

    @functools.cached_property
    def read(self) -> Callable[[Json], Any]:
        """Reads a message from a JSON value, and ignores unknown fields."""
        return self.lenient.reader(self.python)

    @functools.cached_property
    def write_draft(self) -> Callable[[object], Json]:
        """Writes a message as a JSON value that shares plain containers with the message."""
        return self.draft.writer(self.python)

    def payload(self, message: object) -> Json | None:
        """Return the JSON of a message; None if it is not plain data, or is nested too deeply."""
        try:
            drafted = self.write_draft(message)
        except (InvalidArgument, RecursionError):
            return None
        if not isinstance(drafted, (dict, list)):
            return None
        return plain_copy(drafted, MAX_MESSAGE_DEPTH)

    def dump(self, message: Any) -> Json | bytes:
        """Write a message as a JSON value."""
        return self.write(message)

    def load(self, payload: Json | bytes, *, strict: bool) -> Any:
        """Read a message from a JSON value."""
        if isinstance(payload, bytes):
            raise InvalidArgument("", "is in binary form, which this type is not read from")
        return self.strict.load(payload, self.python) if strict else self.read(payload)


@functools.cache
def open_ended(cls: type) -> bool:
    """Return True if messages of this class can nest to any depth: by JSON, Any or recursion."""
    return cls is AnyMessage or _any_field(cls, _holds_anything, loops=True)


@functools.cache
def misses_empty(cls: type) -> bool:
    """Return True if this class, or a class in its fields, has a required list or map."""
    return cls is not AnyMessage and _any_field(cls, _misses_empty, loops=False)


def _holds_anything(field: Field) -> bool:
    return field.python in (object, dict, AnyMessage)


def _misses_empty(field: Field) -> bool:
    return field.explicit and field.label in (Label.REPEATED, Label.MAP)


def _any_field(
    cls: type, test: Callable[[Field], bool], *, loops: bool, above: tuple[type, ...] = ()
) -> bool:
    # Returns True if ``test`` is true for a field of the class or of a class in its fields. Also
    # returns True if ``loops`` and one of the classes contains itself.
    for field in shape_of(cls).fields:
        inner = field.python
        if test(field) or (loops and inner in (*above, cls)):
            return True
        if inner is AnyMessage or inner in (*above, cls) or not is_message_class(inner):
            continue
        if _any_field(inner, test, loops=loops, above=(*above, cls)):
            return True
    return False


def protobuf_class(cls: type) -> Any:
    """Return a protobuf class itself, or the class that a proto-plus class wraps, or None."""
    named = {f"{one.__module__}.{one.__qualname__}" for one in cls.__mro__}
    if "google.protobuf.message.Message" in named:
        return cls
    return cls.pb() if PROTO_PLUS in named else None  # type: ignore[attr-defined]  # of proto-plus


def protobuf_name(cls: type) -> str | None:
    """Return the full name of a class of protobuf or proto-plus; None for any other class."""
    found = protobuf_class(cls)
    if found is None:
        return None
    name: str = found.DESCRIPTOR.full_name
    return name


PROTO_PLUS: Final = "proto.message.Message"


def full_name(cls: type) -> str | None:
    """Return the full name that a class declares or has in its descriptor, or None."""
    return declared_name(cls) or protobuf_name(cls)


def payload_of(codec: Codec, message: object) -> Json | bytes:
    """Return the payload of a message as JSON or bytes, ready to be stored or sent.

    Raises:
        InvalidArgument: A field has a value that its type does not allow, or the message is
            nested too deeply.
    """
    payload: Json | bytes = None
    try:
        if isinstance(codec, ClassCodec):
            if not codec.open_ended:
                return codec.write(message)
            if (payload := codec.payload(message)) is not None:
                return payload
        payload = codec.dump(message)
        if isinstance(payload, bytes):
            return payload
        if not isinstance(codec, ClassCodec):
            payload = dump_json(payload)  # the codec may return values that JSON lacks
        too_deep = deeper_than(payload, MAX_MESSAGE_DEPTH)
    except RecursionError:
        too_deep = True
    if too_deep:
        raise InvalidArgument("", f"is nested deeper than {MAX_MESSAGE_DEPTH} levels")
    return payload


M = TypeVar("M")


class TypeRegistry:
    """Message classes by full name. Well-known types and error details are always registered.

    Message classes are attrs classes, dataclasses, pydantic models, msgspec Structs, TypedDicts,
    and classes of protobuf and proto-plus (with the extra ``protobuf``). ``factories`` make codecs
    for classes of other libraries, and are asked before the built-in factories.

    Raises:
        DeclarationError: A class or a factory is not usable.
    """

    def __init__(self, *classes: type, factories: Iterable[CodecFactory] = ()) -> None:
        self._strict = JsonCodec(strict=True, check_any=self.checked, show_any=self._shown)
        self._lenient = JsonCodec(strict=False, check_any=self.checked, show_any=self._shown)
        self._complete = JsonCodec(
            strict=False, complete=True, check_any=self.checked, show_any=self._shown
        )
        self._draft = JsonCodec(
            strict=True, check_any=self.checked, show_any=self._shown, draft=True
        )
        several = isinstance(factories, Iterable) and not isinstance(factories, (str, bytes))
        check("factories", factories, "several functions, in a tuple or list", fine=several)
        factories = tuple(factories)
        for factory in factories:
            check_function("factories", factory)
        self._factories = (*factories, self._class_codec, self._protobuf_codec)
        self._codecs: dict[str, Codec] = {}
        self._names: dict[type, str] = {}
        self._renamed: dict[str, str] = {}
        """The current names of types, by alias."""
        self._of_class: dict[type, Codec] = {}
        self._binary: tuple[int, Binary] | None = None
        self._generation = 0
        self._plain: dict[type, tuple[str, ClassCodec]] = {}
        """Type URL and codec, for classes whose messages need no check of depth."""
        self._by_url: dict[str, Codec] = {}
        """Codecs by type URL, for types whose fields stand beside ``@type`` in an Any."""
        self._wrapped: dict[str, Codec] = {}
        """Codecs by type URL, for types whose JSON form stands under ``value`` in an Any."""
        for cls in (*MESSAGES, *DETAIL_TYPES, OperationMetadata, *classes):
            self.register(cls)

    def register(self, cls: type, full_name: str | None = None) -> str:
        """Register a message class under the name that it declares, otherwise under ``full_name``.

        Returns:
            The full name.

        Raises:
            DeclarationError: The class has no name, is registered under another name, or has a
                field that no message can have; or its name or an alias belongs to another class.
        """
        check_class("cls", cls)
        if full_name is not None:
            check_text("full_name", full_name)
        known = self._names.get(cls)
        name = declared_name(cls) or protobuf_name(cls) or full_name or known
        if name is None:
            if not is_message_class(cls):
                self._make_codec(cls)  # raises an error if ``cls`` is not a message class
            raise DeclarationError(cls.__qualname__, "has no full name; decorate it: @lro.message")
        check_full_name(name)
        if known == name:
            return name
        if known is not None:
            raise DeclarationError(cls.__qualname__, f"is registered as {known}, not as {name}")
        taken = self._codecs.get(name)
        # A message that is always registered shares its name with its protobuf class, and any
        # protobuf class shares its name with the proto-plus class around it.
        if taken is not None and not _same_message(taken.python, cls, name):
            raise DeclarationError(name, f"is the name of {taken.python!r} already")
        aliases = declared_aliases(cls)
        self._check_aliases(name, aliases)
        codec = self._of_class[cls] = self._make_codec(cls)
        self._codecs.setdefault(name, codec)
        self._renamed.update(dict.fromkeys(aliases, name))
        self._names[cls] = name
        # Changed after the classes: a new generation means that the binary form must be made again.
        self._generation += 1
        if isinstance(codec, ClassCodec) and not codec.open_ended:
            self._plain[cls] = (type_url(name), codec)
        if name in WRAPPED_TYPES:
            self._wrapped.setdefault(type_url(name), codec)
        elif name != declared_name(Empty):
            self._by_url.update({type_url(one): codec for one in aliases})
            self._by_url.setdefault(type_url(name), codec)
        return name

    def _check_aliases(self, name: str, aliases: Iterable[str]) -> None:
        if name in self._renamed:
            text = f"is an alias of {self._renamed[name]}: take it out of the aliases there"
            raise DeclarationError(name, f"{text}, or register one of the two classes only")
        for alias in aliases:
            if alias in self._codecs:
                text = f"is the name of {self._codecs[alias].python!r}"
                text += f", so it cannot be an alias of {name}"
                raise DeclarationError(
                    alias, f"{text}: leave it out, or do not register that class"
                )
            if (other := self._renamed.get(alias, name)) != name:
                text = f"is an alias of {other} already, so it cannot be an alias of {name}"
                raise DeclarationError(alias, f"{text}: give it to one of them")

    def __contains__(self, full_name: object) -> bool:
        return full_name in self._codecs or full_name in self._renamed

    def aliases_of(self, full_name: str) -> Sequence[str]:
        """Return the names that a type had in earlier releases."""
        return [alias for alias, name in list(self._renamed.items()) if name == full_name]

    def present_name(self, full_name: str) -> str:
        """Return the current name for an alias; return any other name unchanged."""
        return self._renamed.get(full_name, full_name)

    def knows(self, cls: type) -> bool:
        """Return True if this class is registered."""
        return cls in self._names

    def codec(self, full_name: str) -> Codec:
        """Return the codec of a type by its name or an alias.

        Raises:
            UnknownType: No such type is registered.
        """
        try:
            return self._codecs[self._renamed.get(full_name, full_name)]
        except KeyError:
            raise UnknownType(full_name) from None

    def name_of(self, cls: type) -> str:
        """Return the full name of a registered class.

        Raises:
            UnknownType: The class is not registered.
        """
        try:
            return self._names[cls]
        except KeyError:
            raise UnknownType(cls.__qualname__) from None

    def pack(self, message: object, cls: type | None = None) -> AnyMessage:
        """Pack a message of a registered class; an Any is returned unchanged.

        ``cls`` is the message's class, by default its type. ``cls`` is needed for a TypedDict,
        whose messages are dicts.

        Raises:
            UnknownType: The class is not registered.
            EncodingError: The message cannot be encoded; the error names the field.
        """
        known = self._plain.get(message.__class__ if cls is None else cls)
        if known is not None:
            url, codec = known
            try:
                payload = codec.write(message)
            except InvalidArgument as exc:
                raise EncodingError(url.rpartition("/")[2], exc.field, exc.description) from exc
            packed = object.__new__(AnyMessage)  # as in ``_any_of``, without its call
            _SET_TYPE_URL(packed, url)
            _SET_PAYLOAD(packed, payload)
            return packed
        return self._pack(message, cls)

    def _pack(self, message: object, cls: type | None) -> AnyMessage:
        if isinstance(message, AnyMessage):
            return message
        if isinstance(message, timedelta):
            message = Duration.from_timedelta(message)
        elif isinstance(message, datetime):
            message = _timestamp(message)
        cls = type(message) if cls is None else cls
        name = self.name_of(cls)
        try:
            return AnyMessage(type_url(name), payload_of(self._of_class[cls], message))
        except InvalidArgument as exc:
            raise EncodingError(name, exc.field, exc.description) from exc

    def unpack(self, packed: AnyMessage, cls: type[M], *, strict: bool = False) -> M:
        """Return the message in an Any, as an instance of ``cls``.

        Raises:
            InvalidArgument: The Any has another type, or its payload is not a valid message.
            UnknownType: ``cls`` is not registered.
        """
        if type(packed) is AnyMessage and type(packed.type_url) is str and not strict:
            url, payload = packed.type_url, packed.payload
            codec = self._by_url.get(url) or self._wrapped.get(url)
            if type(codec) is ClassCodec and codec.python is cls and not isinstance(payload, bytes):
                message: M = codec.read(payload)
                return message
        name = self.name_of(cls)
        self._check_type(packed, name)
        return cast(M, self._load(self._of_class[cls], name, packed.payload, strict=strict))

    def unpack_request(self, packed: AnyMessage, cls: type[M]) -> M:
        """Return the message in a stored request, for a method that is about to act on it.

        Unknown fields are dropped, as by :meth:`unpack`. Unknown enum values and missing required
        fields are refused, because without them the method would act on a different request.

        Raises:
            InvalidArgument, UnknownType: As for :meth:`unpack`.
        """
        if not isinstance(self._of_class.get(cls), ClassCodec) or isinstance(packed.payload, bytes):
            return self.unpack(packed, cls)
        self._check_type(packed, self.name_of(cls))
        return cast(M, self._complete.load(packed.payload, cls))

    def unpack_any(self, packed: AnyMessage, *, strict: bool = False) -> object:
        """Return the message in an Any of any registered type.

        Raises:
            UnknownType: The type of the Any is not registered.
            InvalidArgument: The payload is not a valid message of its type.
        """
        name = packed.type_name
        return self._load(self.codec(name), name, packed.payload, strict=strict)

    def checked(self, packed: AnyMessage) -> AnyMessage:
        """Return the Any with its payload validated and in canonical form (spec §1.10(4)).

        Raises:
            InvalidArgument: The type is not registered, or the payload is not a valid message.
        """
        try:
            codec = self.codec(packed.type_name)
        except UnknownType as exc:
            raise InvalidArgument("@type", str(exc)) from None
        found = self._load(codec, packed.type_name, packed.payload, strict=True)
        return AnyMessage(packed.type_url, codec.dump(found))

    def to_json(self, packed: AnyMessage) -> Json:
        """Return the JSON form of an Any, with its ``@type``.

        Raises:
            EncodingError: The Any has no JSON form.
        """
        try:
            return self._shown(packed)
        except InvalidArgument as exc:
            raise EncodingError(packed.type_name, exc.field, exc.description) from exc

    def from_json(self, value: Json, *, strict: bool = False) -> AnyMessage:
        """Read the JSON form of an Any; ``strict`` also validates the payload.

        Raises:
            InvalidArgument: The value is not an Any.
        """
        if type(value) is dict and not strict:
            url = value.get("@type")
            if type(url) is str and url in self._by_url:
                payload = value.copy()
                del payload["@type"]
                return _any_of(url, payload)
            if type(url) is str and url in self._wrapped and "value" in value:
                return _any_of(url, value["value"])
        found = load_any(value, strict=strict)
        return self.checked(found) if strict and not found.empty else found

    def load(self, value: Json, cls: type[M], *, strict: bool = True) -> M:
        """Read a message of any message class, registered or not, from its JSON value.

        Raises:
            InvalidArgument: The value is not a valid message of this class.
        """
        codec = self._of_class.get(cls)
        if codec is not None:
            return cast(M, codec.load(value, strict=strict))
        return cast(M, (self._strict if strict else self._lenient).load(value, cls))

    def loader(self, cls: type[M]) -> Callable[[Json], M]:
        """Return strict :meth:`load` for one class."""
        codec = self._of_class.get(cls)
        if codec is None or type(codec) is ClassCodec:
            return self._strict.reader(cls)
        return functools.partial(codec.load, strict=True)

    def dump(self, message: object, cls: type | None = None) -> Json:
        """Write any message as a JSON value, without ``@type``; ``cls`` is as for :meth:`pack`.

        Raises:
            EncodingError: The message cannot be encoded.
        """
        cls = type(message) if cls is None else cls
        codec = self._of_class.get(cls)
        try:
            if codec is None:
                return self._strict.dump(message, cls)
            shown = payload_of(codec, message)
            if isinstance(shown, bytes):
                return self.binary.to_json(self._names[cls], shown)
            return shown
        except (UnknownType, MissingExtra):  # the codec of an application made a binary payload
            raise EncodingError(cls.__qualname__, "", "has no JSON form") from None
        except InvalidArgument as exc:
            raise EncodingError(cls.__qualname__, exc.field, exc.description) from exc

    @property
    def binary(self) -> Binary:
        """The binary form of the registered messages, by descriptors.

        Raises:
            MissingExtra: The protobuf library is not installed.
            DeclarationError: A registered class has something that proto cannot express.
        """
        found = self._binary
        if found is not None and found[0] == self._generation:
            return found[1]
        try:
            from lro._messages.protobuf.binary import Binary
        except ImportError as exc:
            raise MissingExtra("the binary form of messages", "protobuf") from exc
        generation = self._generation
        codecs, classes = self._codecs.copy(), self._of_class.copy()
        theirs = [cls for cls in classes if protobuf_name(cls) is not None]
        shapes = {name: codec.shape for name, codec in codecs.items() if codec.python not in theirs}
        made = Binary(
            shapes,
            self._names.copy(),
            [protobuf_class(cls) for cls in theirs],
            self._renamed.copy(),
        )
        self._binary = (generation, made)
        return made

    def binary_payload(self, packed: AnyMessage) -> bytes:
        """Return the payload of an Any in binary form (spec §1.7(7)); bytes stay as they are.

        Raises:
            UnknownType: The payload is a JSON value, and the type is not registered.
            EncodingError: The payload has no binary form.
            MissingExtra, DeclarationError: As for :attr:`binary`.
        """
        if isinstance(packed.payload, bytes):
            return packed.payload
        name = packed.type_name
        try:
            return b"" if packed.empty else self.binary.to_binary(name, packed.payload)
        except InvalidArgument as exc:
            raise EncodingError(name, exc.field, exc.description) from exc

    def json_payload(self, packed: AnyMessage) -> Json:
        """Return the payload of an Any as a JSON value; a JSON value stays as it is.

        Raises:
            UnknownType: The payload is in binary form, and the type is not registered.
            InvalidArgument: The bytes are not a valid message of the type, or have no JSON form.
            MissingExtra, DeclarationError: As for :attr:`binary`.
        """
        if not isinstance(packed.payload, bytes):
            return packed.payload
        self.codec(packed.type_name)
        return self.binary.to_json(packed.type_name, packed.payload)

    def status_of(self, error: LroError, domain: str) -> Status:
        """Return the status of an error for a caller, with its details (spec §6.3).

        The error's class may be defined by the application. Only this method runs code of that
        class, and runs it once. Errors that this code raises propagate, except errors that would
        stop a server, such as SystemExit.

        Raises:
            DeclarationError: The error's ``status_code`` is not a Code.
            HookFailed: Code of the error's class raised an exception that would stop a server.
            EncodingError, UnknownType: A detail cannot be packed.
        """
        code, text, details = contained(f"the error {type(error).__name__}", _said, error, domain)
        check_instance("status_code", code, Code, "a Code")
        return Status(int(code), text, tuple(self.pack(detail) for detail in details))

    def details_of(self, status: Status) -> tuple[object, ...]:
        """Return the details of a status as messages; unreadable details stay packed."""
        return tuple(self._unpacked(detail) for detail in status.details)

    def _unpacked(self, packed: AnyMessage) -> object:
        try:
            return self.unpack_any(packed)
        except LroError:  # unknown data is not an error
            return packed

    def readable(self, packed: AnyMessage) -> AnyMessage:
        """Return the Any with a binary payload converted to JSON, if it can be read."""
        if not isinstance(packed.payload, bytes):
            return packed
        try:
            return AnyMessage(packed.type_url, self.json_payload(packed))
        except LroError:
            return packed

    def _shown(self, packed: AnyMessage) -> Json:
        if (
            isinstance(packed, AnyMessage)
            and isinstance(packed.payload, bytes)
            and not packed.empty
        ):
            # If the payload is not converted, ``dump_any`` raises an error for it.
            with contextlib.suppress(UnknownType, MissingExtra):
                packed = AnyMessage(packed.type_url, self.json_payload(packed))
        return dump_any(packed)

    def _check_type(self, packed: AnyMessage, name: str) -> None:
        if self.present_name(packed.type_name) != name:
            found = packed.type_name or "nothing"
            raise InvalidArgument("@type", f"must be {name}, got {found}")

    def _load(self, codec: Codec, name: str, payload: Json | bytes, *, strict: bool) -> object:
        if isinstance(payload, bytes) and isinstance(codec, ClassCodec):
            payload = self.binary.to_json(name, payload, with_empty=strict and codec.misses_empty)
        return codec.load(payload, strict=strict)

    def _protobuf_codec(self, cls: type) -> Codec | None:
        found = protobuf_class(cls)
        if found is None:
            return None
        from lro._messages.protobuf.binary import ProtobufCodec, ProtoPlusCodec

        codec = ProtobufCodec(found, lambda: self.binary)
        return codec if found is cls else ProtoPlusCodec(cls, codec)

    def _class_codec(self, cls: type) -> Codec | None:
        if cls not in MESSAGES and not is_message_class(cls):
            return None
        # ``open_ended`` and ``misses_empty`` raise an error for an unsupported field, even in
        # nested classes.
        return ClassCodec(
            cls, self._strict, self._lenient, self._draft, open_ended(cls), misses_empty(cls)
        )

    def _make_codec(self, cls: type) -> Codec:
        for factory in self._factories:
            codec = factory(cls)
            if codec is not None:
                return codec
        raise DeclarationError(cls.__qualname__, no_message(cls))


def _same_message(taken: type, cls: type, name: str) -> bool:
    found = protobuf_class(cls)
    if found is None:
        return False
    if taken in _ALWAYS:
        return bool(found.DESCRIPTOR.full_name == name)
    return protobuf_class(taken) is found


_ALWAYS: Final = frozenset((*MESSAGES, *DETAIL_TYPES))


def _said(error: LroError, domain: str) -> tuple[Code, str, tuple[object, ...]]:
    details = tuple(_sayable(detail) for detail in error.details(domain))
    return error.status_code, _sayable(str(error)), details


_SAYABLE: Final[tuple[type[attrs.AttrsInstance], ...]] = (
    *DETAIL_TYPES,
    FieldViolation,
    HelpLink,
    PreconditionViolation,
    QuotaViolation,
)
"""The classes of error details that this library defines, and the message classes in them."""


def _sayable(said: Any) -> Any:
    # Replaces lone surrogates: file names may have them, but replies must not (spec §1.9). Details
    # of the application's classes stay unchanged.
    if isinstance(said, str):
        return str.encode(said, "utf-8", "backslashreplace").decode()
    if isinstance(said, tuple):
        return tuple(map(_sayable, said))
    if isinstance(said, dict):
        return {_sayable(key): _sayable(value) for key, value in said.items()}
    if isinstance(said, _SAYABLE):
        return type(said)(**_sayable(attrs.asdict(said, recurse=False)))
    return said


_SET_TYPE_URL: Final = vars(AnyMessage)["type_url"].__set__
_SET_PAYLOAD: Final = vars(AnyMessage)["payload"].__set__


def _any_of(url: str, payload: Json) -> AnyMessage:
    # Faster than the constructor, in which attrs sets each field of a frozen class by its name.
    made = object.__new__(AnyMessage)
    _SET_TYPE_URL(made, url)
    _SET_PAYLOAD(made, payload)
    return made


def _timestamp(moment: datetime) -> Timestamp:
    try:
        return Timestamp.from_datetime(moment)
    except ValueError as exc:
        raise EncodingError("google.protobuf.Timestamp", "", str(exc)) from None
