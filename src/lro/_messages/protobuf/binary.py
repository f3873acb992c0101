"""Converts messages between JSON and binary form, by descriptors (spec §1.7, §1.10)."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import attrs
from google.longrunning import operations_proto_pb2
from google.protobuf import (
    any_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from lro._base.errors import DeclarationError, InvalidArgument, UnknownType, got
from lro._base.status import WRAPPED_TYPES, Json
from lro._messages.json_text import MAX_VALUES, dumps, dumps_bounded, reread
from lro._messages.protobuf.files import ProtoFiles
from lro._messages.protobuf.reading import ProtoReader, fields_of, shape_of_descriptor
from lro._messages.scalars import LOADERS, dump_plain_int
from lro._messages.schema import Kind, Label, Shape

T = TypeVar("T")

STANDARD: Final = tuple(
    module.DESCRIPTOR
    for module in (
        any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2,
        status_pb2, error_details_pb2, operations_proto_pb2,
    )
)  # fmt: skip
"""The files of the messages that are always registered."""

_ANY: Final = any_pb2.Any.DESCRIPTOR.full_name
_VALUES: Final = frozenset(
    one.DESCRIPTOR.full_name for one in (struct_pb2.Value, struct_pb2.ListValue, struct_pb2.Struct)
)
_EXACT: Final = 2**53
"""Up to this number, every whole number is exact as a double."""

_KEPT: Final = 1024
_KEPT_BYTES: Final = 4096


class Binary:
    """The binary form of the messages of one registry.

    ``classes`` are the protobuf classes. ``shapes`` maps full names to the shapes of all other
    classes. ``names`` maps classes to full names, and ``renamed`` maps aliases to current names.

    Raises:
        DeclarationError: Proto cannot express one of the classes.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape | None],
        names: Mapping[type, str],
        classes: Iterable[type],
        renamed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._renamed = renamed
        self.pool: DescriptorPool = DescriptorPool()
        self._files: dict[bytes, tuple[str, ...]] = {}
        self._taken: set[str] = set()
        self._symbols: dict[str, str] = {}
        """The file of each top-level declaration, by full name."""
        self.known: dict[str, str] = {}
        """The file of each message whose descriptor comes from an existing file, by full name."""
        self._classes: dict[str, type[Message]] = {}
        for file in STANDARD:
            self._add(file)
        for cls in classes:
            descriptor = cast(Descriptor, cast("type[Message]", cls).DESCRIPTOR)
            self._add(descriptor.file)
        own = {n: shape for n, shape in shapes.items() if shape and n not in self.known}
        files = ProtoFiles(own, self.known, names)
        self.names: Mapping[type, str] = files.names
        """The full names of the classes in ``names``, and of further classes in their fields."""
        for said in files:
            self._put(said)
        self._plain_ints = {
            name: frozenset(field.json_name for field in shape.fields if field.as_number)
            for name, shape in files.shapes.items()
        }
        """The JSON names of the fields that are plain ints, by full name of their message."""
        self._written: dict[tuple[str, bytes, bool], bytes] = {}
        self._strict = ProtoReader(self.message_class, strict=True)
        self._lenient = ProtoReader(self.message_class, strict=False)

    def message_class(self, full_name: str) -> type[Message]:
        """Return the protobuf class of a message by its full name or an alias.

        Raises:
            UnknownType: There is no message of this name.
        """
        found = self._classes.get(full_name)
        if found is None:
            try:
                present = self._renamed.get(full_name, full_name)
                descriptor = self.pool.FindMessageTypeByName(present)
            except (KeyError, TypeError):  # TypeError: the name is not a text
                raise UnknownType(full_name) from None
            if descriptor.GetOptions().map_entry:
                raise UnknownType(full_name)
            found = GetMessageClass(descriptor)
            self._classes[full_name] = found
        return found

    def descriptor(self, full_name: str) -> Descriptor:
        """Return the descriptor of a message.

        Raises:
            UnknownType: There is no message of this name.
        """
        return cast(Descriptor, self.message_class(full_name).DESCRIPTOR)

    def to_binary(self, full_name: str, value: Json) -> bytes:
        """Return the deterministic binary form of a message in JSON (spec §1.7(7)).

        Raises:
            UnknownType: There is no message of this name.
            InvalidArgument: The value is not a valid message of this type.
        """
        # A message from a peer may have unknown fields.
        return serialized(self.read(self.message_class(full_name), value, strict=False))

    def read(self, cls: type[Message], value: Json, *, strict: bool) -> Message:
        """Read a message from JSON; unknown fields are refused if ``strict``, otherwise dropped.

        Raises:
            InvalidArgument: The value is not a valid message; ``field`` is the path of the error.
        """
        return (self._strict if strict else self._lenient).read(cls, value)

    def to_json(self, full_name: str, payload: bytes, *, with_empty: bool = False) -> Json:
        """Return the canonical JSON value of a message in binary form.

        ``with_empty`` includes empty lists and maps, and implicit fields that are zero.

        Raises:
            UnknownType: There is no message of this name.
            InvalidArgument: The bytes are not a valid message of this type, or have no JSON form.
        """
        key = (full_name, payload, with_empty)
        text = self._written.get(key)
        if text is None:
            message = parsed(self.message_class(full_name), payload)
            value = json_of(message, pool=self.pool, with_empty=with_empty)
            value = self._whole_numbers(value, cast(Descriptor, message.DESCRIPTOR))
            # Some mappings that protobuf returns are not dicts.
            text = _or_invalid(lambda: dumps_bounded(reread(dumps(value).decode())))
            if len(payload) <= _KEPT_BYTES:
                if len(self._written) >= _KEPT:
                    self._written = {}  # replaced, not cleared: other threads may use the old dict
                self._written[key] = text
        return reread(text.decode())  # each call returns a new value, because callers may change it

    def _whole_numbers(self, value: Any, descriptor: Descriptor) -> Any:
        # Whole numbers in a Value are written as 1, not 1.0, and plain ints as numbers.
        name = descriptor.full_name
        if name in _VALUES:
            return _whole(value)
        if name == _ANY and value:
            inner = self.descriptor(value["@type"].rpartition("/")[2])
            if inner.full_name in WRAPPED_TYPES:
                return {**value, "value": self._whole_numbers(value["value"], inner)}
            return self._whole_numbers(value, inner)
        if not isinstance(value, dict) or name in WRAPPED_TYPES:
            return value
        plain_ints = self._plain_ints.get(name, frozenset())
        for said in fields_of(descriptor):
            below, key = said.value.message_type, said.field.json_name
            if key not in value or (below is None and key not in plain_ints):
                continue
            given: Any = value[key]
            read: Callable[[Any], Json] = _plain_int
            if below is not None:
                read = functools.partial(self._whole_numbers, descriptor=below)
            if said.label is Label.REPEATED:
                value[key] = [read(one) for one in given]
            elif said.label is Label.MAP:
                value[key] = {at: read(one) for at, one in given.items()}
            else:
                value[key] = read(given)
        return value

    def _add(self, file: FileDescriptor) -> tuple[str, ...]:
        # Adds the declarations of a file and its imports, and returns the files that contain them.
        # A declaration that another file already has is left out: ``protoc`` and ``buf`` include
        # the imports of an API in its descriptor set, so two sets may have editions of one file.
        found = self._files.get(file.serialized_pb)
        if found is not None:
            return found
        said = FileDescriptorProto.FromString(file.serialized_pb)
        homes = self._leave_out_known(said)
        if homes and not any(map(len, _declared(said))):
            found = tuple(dict.fromkeys(homes))
        else:
            self._add_new(said, [self._add(one) for one in file.dependencies], homes)
            found = (said.name,)
        self._files[file.serialized_pb] = found
        for name in names_in(file.message_types_by_name.values()):
            self.known.setdefault(name, said.name)
        return found

    def _add_new(
        self, said: FileDescriptorProto, imported: list[tuple[str, ...]], homes: list[str]
    ) -> None:
        public = {name for at in said.public_dependency for name in imported[at]}
        names = list(dict.fromkeys([*chain.from_iterable(imported), *homes]))
        said.dependency[:] = names
        said.public_dependency[:] = [at for at, name in enumerate(names) if name in public]
        said.ClearField("weak_dependency")
        while said.name in self._taken:  # another file has this name
            said.name = f"other/{said.name}"
        self._taken.add(said.name)
        self._put(said)
        for declared in _declared(said):
            self._symbols.update((_full_name(said, one), said.name) for one in declared)

    def _leave_out_known(self, said: FileDescriptorProto) -> list[str]:
        # Removes declarations that other files also have, and returns the names of these files.
        homes = []
        for declared in _declared(said):
            for at in reversed(range(len(declared))):
                home = self._symbols.get(_full_name(said, declared[at]))
                if home is not None:
                    homes.append(home)
                    del declared[at]
        return homes

    def _put(self, said: FileDescriptorProto) -> None:
        try:
            self.pool.AddSerializedFile(said.SerializeToString())
        except TypeError as exc:  # the protobuf library raises TypeError for any fault
            raise DeclarationError(said.name, f"is not a valid proto file: {exc}") from exc


def _plain_int(digits: Json) -> Json:
    return dump_plain_int(LOADERS[Kind.INT64](digits))


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return value if value == 0 and math.copysign(1, value) < 0 else int(value)
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value


def _declared(said: FileDescriptorProto) -> tuple[Any, ...]:
    return said.message_type, said.enum_type, said.service, said.extension


def _full_name(said: FileDescriptorProto, one: Any) -> str:
    return ".".join(filter(None, (said.package, one.name)))


def names_in(descriptors: Iterable[Descriptor]) -> list[str]:
    # Returns the full names of messages and nested messages, except map entries.
    found = []
    for descriptor in descriptors:
        if not descriptor.GetOptions().map_entry:
            found += [descriptor.full_name, *names_in(descriptor.nested_types)]
    return found


def parsed(cls: type[Message], payload: bytes) -> Message:
    """Parse a message in binary form.

    Raises:
        InvalidArgument: The bytes are not a valid message of this type.
    """
    try:
        return cls.FromString(payload)
    except DecodeError as exc:
        text = f"{len(payload)} bytes are not a {cls.DESCRIPTOR.full_name} in binary form"
        raise InvalidArgument("", text) from exc


_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_OF_FIELD: Final = {_VARINT: 1, _FIXED64: 1, _SIZED: 3, _FIXED32: 1}
_OF_UNKNOWN: Final = 3
_WIDTHS: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_STRING: 0,
    FieldDescriptor.TYPE_BYTES: 0,
}
"""The fewest bytes that a value takes in a packed field; 0 for types that cannot be packed."""


def check_values(payload: bytes, descriptor: Any, most: int = MAX_VALUES) -> None:
    """Refuse a binary message with more than ``most`` values (by default the limit of JSON).

    ``descriptor`` describes the message. A message or a text counts as three values, because in
    JSON it counts as two and its comma as one. The payload of an Any is not counted.

    Raises:
        InvalidArgument: The message has more values.
    """
    if len(payload) * _OF_UNKNOWN // 2 <= most:  # the shortest field has two bytes
        return
    with contextlib.suppress(IndexError, KeyError):  # invalid bytes; the parser raises the error
        if any(count > most for count in _count_values(payload, descriptor)):
            raise InvalidArgument("", f"it holds more than {most} values")


def _count_values(payload: bytes, descriptor: Any) -> Iterator[int]:
    count, waiting = 0, [(0, len(payload), descriptor)]
    while waiting:
        at, end, message = waiting.pop()
        known = message.fields_by_number
        while at < end:
            tag, at = _varint(payload, at)
            field, wire = known.get(tag >> 3), tag & 7
            count += _OF_UNKNOWN if field is None else _OF_FIELD[wire]
            if wire == _VARINT:
                _, at = _varint(payload, at)
            elif wire == _SIZED:
                size, at = _varint(payload, at)
                inner, at = at, at + size
                if field is not None and field.message_type is not None:
                    waiting += [(at, end, message), (inner, min(at, end), field.message_type)]
                    yield count
                    break
                if field is not None and (width := _WIDTHS.get(field.type, 1)):
                    count += size // width
            else:
                at += 8 if wire == _FIXED64 else 4
            yield count


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    # Returns a varint and the index after it.
    found = payload[at]
    if found < 0x80:
        return found, at + 1
    found, shift = found & 0x7F, 7
    while True:
        at += 1
        byte = payload[at]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at + 1
        shift += 7


def serialized(message: Message) -> bytes:
    """Return the deterministic binary form (spec §1.7(7)).

    Raises:
        InvalidArgument: The message cannot be written.
    """
    try:
        return bytes(message.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as exc:
        raise InvalidArgument("", str(exc)) from exc


def json_of(
    message: Message, *, pool: DescriptorPool | None = None, with_empty: bool = False
) -> Json:
    """Return the canonical JSON value of a message (spec §1.8(1)), with zeros if ``with_empty``.

    Raises:
        InvalidArgument: The message has no JSON form.
    """
    return _or_invalid(
        lambda: json_format.MessageToDict(
            message, descriptor_pool=pool, always_print_fields_with_no_presence=with_empty
        )
    )


_WRONG: Final = (
    *(json_format.Error, DecodeError, RecursionError),
    *(ValueError, TypeError, OverflowError, AttributeError),
)
"""Errors that the protobuf library raises for messages without a JSON form."""


def _or_invalid(action: Callable[[], T]) -> T:
    try:
        return action()
    except _WRONG as exc:
        raise InvalidArgument("", str(exc)) from exc


@attrs.frozen
class ProtobufCodec:
    """Packs messages in binary form, so unknown fields survive."""

    python: type[Message]
    binary: Callable[[], Binary]

    @property
    def shape(self) -> Shape | None:
        """The fields of the descriptor; None for well-known types."""
        descriptor = cast(Descriptor, self.python.DESCRIPTOR)
        if descriptor.full_name in WRAPPED_TYPES:
            return None
        return shape_of_descriptor(descriptor)

    def dump(self, message: Any) -> Json | bytes:
        """Return the deterministic binary form."""
        if not isinstance(message, self.python):
            raise InvalidArgument("", f"must be a {self.python.__name__}, got {got(message)}")
        return serialized(message)

    def amend(
        self, payload: bytes, unless_set: Mapping[str, Json], always: Mapping[str, Json]
    ) -> bytes:
        """Set fields as :class:`Amending` says; return the same bytes if no value changes."""
        try:
            message = parsed(self.python, payload)
        except InvalidArgument:  # the reader of the payload gets the same error
            return payload
        before = serialized(message)
        names = {field.json_name: field.name for field in message.DESCRIPTOR.fields}
        new = {key: value for key, value in unless_set.items() if not message.HasField(names[key])}
        for key in always:
            message.ClearField(names[key])
        added: dict[str, Json] = {**new, **always}
        message.MergeFrom(self.binary().read(self.python, added, strict=True))
        after = serialized(message)
        return payload if after == before else after

    def load(self, payload: Json | bytes, *, strict: bool) -> Any:
        """Read a message from JSON or binary form."""
        if isinstance(payload, bytes):
            return parsed(self.python, payload)
        return self.binary().read(self.python, payload, strict=strict)


@attrs.frozen
class ProtoPlusCodec:
    """The codec of a proto-plus class, which wraps the messages of a protobuf class."""

    python: Any
    inner: ProtobufCodec

    @property
    def shape(self) -> Shape | None:
        """The fields of the descriptor."""
        return self.inner.shape

    def dump(self, message: Any) -> Json | bytes:
        """Return the deterministic binary form."""
        if not isinstance(message, self.python):
            raise InvalidArgument("", f"must be a {self.python.__name__}, got {got(message)}")
        return self.inner.dump(self.python.pb(message))

    def amend(
        self, payload: bytes, unless_set: Mapping[str, Json], always: Mapping[str, Json]
    ) -> bytes:
        """Do the same as :meth:`ProtobufCodec.amend`."""
        return self.inner.amend(payload, unless_set, always)

    def load(self, payload: Json | bytes, *, strict: bool) -> Any:
        """Read a message from JSON or binary form."""
        return self.python.wrap(self.inner.load(payload, strict=strict))


REQUEST_ID: Final = 2046
VALIDATE_ONLY: Final = 2047
"""The field numbers of the options: the two highest numbers whose tag takes two bytes."""


@attrs.frozen
class StartOptions:
    """Options of a start: a request id (or empty), and whether to validate only."""

    request_id: str = ""
    validate_only: bool = False


def add_fields(message: DescriptorProto) -> Sequence[FieldDescriptorProto]:
    """Add the option fields whose names a request message lacks; return the added fields."""
    own = {field.name for field in message.field}
    for name, (json_name, number, kind) in _FIELDS.items():
        if name not in own:
            field = message.field.add(name=name, json_name=json_name, number=number, type=kind)
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
    return [field for field in message.field if field.name in _FIELDS.keys() - own]


def write_options(options: StartOptions) -> bytes:
    """Return these options as bytes to append to a request in binary form."""
    made = _MESSAGE()
    for name in _FIELDS:
        setattr(made, name, getattr(options, name))
    return serialized(made)


def read_options(request: bytes) -> StartOptions:
    """Read the options from a request in binary form.

    Raises:
        InvalidArgument: The bytes are not a valid message.
    """
    found = parsed(_MESSAGE, request)
    return StartOptions(**{name: getattr(found, name) for name in _FIELDS})


_FIELDS: Final = {
    "request_id": ("requestId", REQUEST_ID, FieldDescriptorProto.TYPE_STRING),
    "validate_only": ("validateOnly", VALIDATE_ONLY, FieldDescriptorProto.TYPE_BOOL),
}


def _options_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="lro/start_options.proto", package="lro", syntax="proto3")
    add_fields(file.message_type.add(name="StartOptions"))
    return file


_POOL: Final = DescriptorPool()
_POOL.AddSerializedFile(_options_file().SerializeToString())
_MESSAGE: Final = GetMessageClass(_POOL.FindMessageTypeByName("lro.StartOptions"))
