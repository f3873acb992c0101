"""Reads protobuf messages from JSON values (spec §1.8 to §1.14).

Protobuf classes use the same field readers as attrs classes. So both kinds of classes accept and
refuse the same JSON, with the same path in the error.
"""

from __future__ import annotations

import enum
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import attrs
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from lro._base.errors import InvalidArgument, UnknownType
from lro._base.status import WRAPPED_TYPES, Json
from lro._messages.json_codec import DROP, Row, labelled, object_loader
from lro._messages.scalars import LOADERS, Loader, enum_loader
from lro._messages.schema import (
    ANY,
    STRUCT,
    VALUE,
    Field,
    Kind,
    Label,
    Shape,
    Violations,
    raise_all,
)
from lro._messages.wellknown import MESSAGES, SPECIAL, ListValue, Struct, Value, load_any

_KINDS: Final = {
    FieldDescriptor.TYPE_DOUBLE: Kind.DOUBLE,
    FieldDescriptor.TYPE_FLOAT: Kind.FLOAT,
    FieldDescriptor.TYPE_INT64: Kind.INT64,
    FieldDescriptor.TYPE_SINT64: Kind.INT64,
    FieldDescriptor.TYPE_SFIXED64: Kind.INT64,
    FieldDescriptor.TYPE_UINT64: Kind.UINT64,
    FieldDescriptor.TYPE_FIXED64: Kind.UINT64,
    FieldDescriptor.TYPE_INT32: Kind.INT32,
    FieldDescriptor.TYPE_SINT32: Kind.INT32,
    FieldDescriptor.TYPE_SFIXED32: Kind.INT32,
    FieldDescriptor.TYPE_UINT32: Kind.UINT32,
    FieldDescriptor.TYPE_FIXED32: Kind.UINT32,
    FieldDescriptor.TYPE_BOOL: Kind.BOOL,
    FieldDescriptor.TYPE_STRING: Kind.STRING,
    FieldDescriptor.TYPE_BYTES: Kind.BYTES,
    FieldDescriptor.TYPE_ENUM: Kind.ENUM,
    FieldDescriptor.TYPE_MESSAGE: Kind.MESSAGE,
    FieldDescriptor.TYPE_GROUP: Kind.MESSAGE,
}
_ZERO: Final = {Kind.STRING: "", Kind.BYTES: b"", Kind.BOOL: False, Kind.FLOAT: 0.0}


NULL_VALUE: Final = "google.protobuf.NullValue"


@attrs.frozen
class ProtoField:
    """A field of a descriptor; ``value`` describes one value (in a list or map, one element)."""

    field: FieldDescriptor
    value: FieldDescriptor
    label: Label
    key_kind: Kind | None = None

    @property
    def kind(self) -> Kind:
        """The kind of one value of the field."""
        return _KINDS[self.value.type]

    @property
    def null_ok(self) -> bool:
        """True if JSON's null is a value of the field (spec §1.8(3))."""
        named = self.value.message_type or self.value.enum_type
        return named is not None and named.full_name in (VALUE, NULL_VALUE)


def fields_of(descriptor: Descriptor) -> list[ProtoField]:
    """Return the fields of a message, in declared order."""
    return list(map(_described, descriptor.fields))


def _described(field: FieldDescriptor) -> ProtoField:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return ProtoField(field, entry["value"], Label.MAP, _KINDS[entry["key"].type])
    if _is_repeated(field):
        return ProtoField(field, field, Label.REPEATED)
    return ProtoField(field, field, Label.OPTIONAL if field.has_presence else Label.IMPLICIT)


def _is_repeated(field: typing.Any) -> bool:
    known: bool | None = getattr(field, "is_repeated", None)
    # Older versions of protobuf have only the label, and newer ones will have none.
    return field.label == FieldDescriptor.LABEL_REPEATED if known is None else known


@functools.cache
def shape_of_descriptor(descriptor: Descriptor) -> Shape:
    """Return the shape of a message; its fields are in declared order."""
    cls: Any = GetMessageClass(descriptor)
    return Shape(cls, tuple(map(_field, fields_of(descriptor))))


def _field(said: ProtoField) -> Field:
    field, kind = said.field, said.kind
    python: Any = None
    zero: object = _ZERO.get(kind, 0)
    if kind is Kind.ENUM:
        python = _enum(said.value.enum_type)
        zero = next(iter(python))
    message = said.value.message_type
    return Field(
        name=field.name,
        json_name=field.json_name,
        number=field.number,
        label=said.label,
        kind=kind,
        python=python if message is None else GetMessageClass(message),
        key_kind=said.key_kind,
        message_name=None if message is None else message.full_name,
        zero=None if kind is Kind.MESSAGE else zero,
        below=None if message is None else lambda: shape_of_descriptor(message),
    )


@functools.cache
def _enum(descriptor: EnumDescriptor) -> Any:
    values = [(value.name, value.number) for value in descriptor.values]
    return enum.IntEnum(descriptor.name, values)


_LIST_VALUE: Final = "google.protobuf.ListValue"
_SPECIAL: Final[Mapping[str, Loader]] = {
    f"google.protobuf.{cls.__name__}": SPECIAL[cls][0] for cls in MESSAGES if cls in SPECIAL
}
"""Readers that return Python values, for well-known types with a special JSON form."""
_INT32: Final = range(-(2**31), 2**31)


class ProtoReader:
    """Reads messages from JSON values; if ``strict``, refuses unknown fields and enum names.

    ``message_class`` returns the class of the message in an Any by its full name.
    """

    def __init__(self, message_class: Callable[[str], type[Message]], *, strict: bool) -> None:
        self._message_class = message_class
        self._strict = strict
        self._loaders: dict[Descriptor, Loader] = {}

    def read(self, cls: type[Message], value: Json) -> Message:
        """Read a message of this class from a JSON value.

        Raises:
            InvalidArgument: The value is not a valid message; ``field`` is the path of the error.
        """
        try:
            message: typing.Any = self._loader(cast(Descriptor, cls.DESCRIPTOR))(value)
        except (RecursionError, DecodeError, EncodeError):
            # Merging messages uses the binary form, which has its own limit of depth.
            raise InvalidArgument("", "is nested too deeply for the binary form") from None
        if not message.IsInitialized():  # only a proto2 message can lack a required field
            raise InvalidArgument(message.FindInitializationErrors()[0], "is required")
        found: Message = message
        return found

    def _loader(self, descriptor: Descriptor) -> Loader:
        found = self._loaders.get(descriptor)
        if found is None:
            found = self._loaders[descriptor] = self._made(descriptor)
        return found

    def _made(self, descriptor: Descriptor) -> Loader:
        cls, name = GetMessageClass(descriptor), descriptor.full_name
        if name == ANY:
            return lambda value: self._read_any(cls, value)
        if name in WRAPPED_TYPES:
            load, put = _SPECIAL[name], _PUT.get(name, _put_fields)

            def special(value: Json) -> Message:
                message = cls()
                put(message, load(value))
                return message

            return special
        return object_loader(
            descriptor.name, lambda: self._rows(descriptor), _maker(cls), strict=self._strict
        )

    def _read_any(self, cls: type[Message], value: Json) -> Message:
        packed = load_any(value, strict=self._strict)
        if packed.empty:
            return cls()
        try:
            inner = self._message_class(packed.type_name)
        except UnknownType as exc:
            raise InvalidArgument("@type", str(exc)) from None
        message = self.read(inner, cast(Json, packed.payload))
        made: typing.Any = cls
        found: Message = made(
            type_url=packed.type_url, value=message.SerializeToString(deterministic=True)
        )
        return found

    # -- fields -------------------------------------------------------------------------------

    def _rows(self, descriptor: Descriptor) -> Callable[[str], Row | None]:
        fields = [(one.field, self._row(one)) for one in fields_of(descriptor)]
        by_name = {field.name: row for field, row in fields}
        # The JSON name comes last and wins, because it is the name that is written.
        rows = {**by_name, **{field.json_name: row for field, row in fields}}
        if not descriptor.is_extendable:
            return rows.get

        def find(key: str) -> Row | None:
            row = rows.get(key)
            return self._extension(descriptor, key) if row is None else row

        return find

    def _row(self, said: ProtoField) -> Row:
        label = said.label
        whole = labelled(self._one(said.value), label, said.key_kind, said.null_ok)
        return said.field.name, whole, said.null_ok and label is Label.OPTIONAL

    def _one(self, value: FieldDescriptor) -> Loader:
        kind = ProtoField(value, value, Label.IMPLICIT).kind
        if kind is Kind.ENUM:
            enum_type = cast(EnumDescriptor, value.enum_type)
            return _enum_loader(enum_type, None if self._strict else DROP)
        if kind is Kind.MESSAGE:
            return self._loader(cast(Descriptor, value.message_type))
        return LOADERS[kind]

    def _extension(self, descriptor: Descriptor, key: str) -> Row | None:
        field = _extension(descriptor, key)
        if field is None:
            return None
        label = Label.OPTIONAL if field.has_presence else Label.REPEATED
        _, read, null_ok = self._row(ProtoField(field, field, label))
        return key, read, null_ok


def _maker(cls: type[Message]) -> Callable[[dict[str, object], Violations], Message]:
    make: typing.Any = cls
    descriptor = cast(Descriptor, cls.DESCRIPTOR)
    one_ofs = [
        frozenset(field.name for field in one.fields)
        for one in descriptor.oneofs
        if len(one.fields) > 1
    ]

    def checked(known: dict[str, object], wrong: Violations) -> Message:
        raise_all(wrong)
        for one_of in one_ofs:
            given = [name for name in known if name in one_of]
            if len(given) > 1:
                raise InvalidArgument(given[1], f"cannot be set together with {given[0]}")
        if descriptor.is_extendable:
            return _with_extensions(make(), descriptor, known)
        made: Message = make(**known)
        return made

    return checked


def _extension(descriptor: Descriptor, key: str) -> FieldDescriptor | None:
    """Return the extension for the JSON key ``[its.full.name]``, or None."""
    if key[:1] != "[" or key[-1:] != "]" or not key.isascii():
        return None
    try:
        found = descriptor.file.pool.FindExtensionByName(key[1:-1])
    except KeyError:
        return None
    return found if found.containing_type is descriptor else None


def _with_extensions(
    message: Message, descriptor: Descriptor, known: Mapping[str, object]
) -> Message:
    extensions: typing.Any = message.Extensions
    own = {}
    for name, value in known.items():
        field = _extension(descriptor, name)
        if field is None:
            own[name] = value
        elif not field.has_presence:
            extensions[field].extend(value)
        elif field.message_type is not None:
            extensions[field].SetInParent()
            extensions[field].MergeFrom(value)
        else:
            extensions[field] = value
    make: typing.Any = type(message)
    message.MergeFrom(make(**own))
    return message


def _enum_loader(descriptor: EnumDescriptor, unknown: object) -> Loader:
    names = {value.name: value.number for value in descriptor.values}
    known = set(names.values()) if descriptor.is_closed else _INT32
    load = enum_loader(names, lambda number: number if number in known else None, unknown)
    if descriptor.full_name == NULL_VALUE:
        return lambda value: 0 if value is None else load(value)
    return load


# -- well-known types: Python values put into messages --------------------------------------------


def _put_fields(message: typing.Any, found: typing.Any) -> None:
    for field in attrs.fields(type(found)):
        value = getattr(found, field.name)
        if isinstance(value, tuple):
            getattr(message, field.name).extend(value)
        else:
            setattr(message, field.name, value)


def _put_struct(message: typing.Any, found: Struct) -> None:
    message.update(found.fields)


def _put_list(message: typing.Any, found: ListValue) -> None:
    message.extend(found.values)


def _put_value(message: typing.Any, found: Value) -> None:
    # Only ``extend`` of a list accepts values of all types.
    fields = message.DESCRIPTOR.fields_by_name
    holder: typing.Any = GetMessageClass(fields["list_value"].message_type)()
    holder.extend([found.value])
    message.CopyFrom(holder.values[0])


_PUT: Final[Mapping[str, Callable[[typing.Any, typing.Any], None]]] = {
    STRUCT: _put_struct,
    VALUE: _put_value,
    _LIST_VALUE: _put_list,
}
