"""The options of a start in binary form, beside its request: its id, and whether it only checks.

In JSON these are fields beside those of the request (spec §9.1, §9.7). In binary form they are
fields of the request message too, with numbers that a message class does not get by itself. A class
which has such a field of its own goes by that.
"""

from __future__ import annotations

from typing import Final

import attrs
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from lro._messages.protobuf.binary import parsed, serialized

REQUEST_ID: Final = 2046
VALIDATE_ONLY: Final = 2047
"""Field numbers: the highest that take two bytes."""


@attrs.frozen
class StartOptions:
    """The request id (a UUID, or empty), and whether everything is checked and nothing started."""

    request_id: str = ""
    validate_only: bool = False


def add_fields(message: DescriptorProto) -> None:
    """Give a request message these fields, as far as it has none of these names."""
    own = {field.name for field in message.field}
    for name, (json_name, number, kind) in _FIELDS.items():
        if name not in own:
            field = message.field.add(name=name, json_name=json_name, number=number, type=kind)
            field.label = FieldDescriptorProto.LABEL_OPTIONAL


def write_options(options: StartOptions) -> bytes:
    """The bytes that follow a request in binary form to carry these options."""
    made = _MESSAGE()
    for name in _FIELDS:
        setattr(made, name, getattr(options, name))
    return serialized(made)


def read_options(request: bytes) -> StartOptions:
    """Read the options from a request in binary form.

    Raises:
        InvalidArgument: The bytes are not a message.
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
