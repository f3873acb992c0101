"""The shape of a protobuf message, for filters and for readers of its JSON value."""

from __future__ import annotations

import enum
import functools
from typing import Any, Final

import attrs
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from lro._messages.schema import VALUE, Field, Kind, Label, Shape

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
    """A field of a descriptor; ``value`` is the field of one value: of an element, of a map's."""

    field: FieldDescriptor
    value: FieldDescriptor
    label: Label
    key_kind: Kind | None = None

    @property
    def kind(self) -> Kind:
        """The type of one value."""
        return _KINDS[self.value.type]

    @property
    def null_ok(self) -> bool:
        """Whether JSON's null is a value of it (spec §1.8(3))."""
        named = self.value.message_type or self.value.enum_type
        return named is not None and named.full_name in (VALUE, NULL_VALUE)


def fields_of(descriptor: Descriptor) -> list[ProtoField]:
    """The fields of a message, in declared order."""
    said = DescriptorProto()  # has labels in every version of the library
    descriptor.CopyToProto(said)
    repeated = FieldDescriptorProto.LABEL_REPEATED
    many = [field.label == repeated for field in said.field]
    return list(map(_described, descriptor.fields, many))


def _described(field: FieldDescriptor, many: bool) -> ProtoField:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return ProtoField(field, entry["value"], Label.MAP, _KINDS[entry["key"].type])
    if many:
        return ProtoField(field, field, Label.REPEATED)
    return ProtoField(field, field, Label.OPTIONAL if field.has_presence else Label.IMPLICIT)


@functools.cache
def shape_of_descriptor(descriptor: Descriptor) -> Shape:
    """The fields of a message, in declared order."""
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
