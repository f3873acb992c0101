"""The file ``lro/v1/lro.proto`` and its messages, which modules made by protoc import.

The message is that of :class:`lro.OperationMetadata`. If you generate a module from ``lro.proto``
yourself, Python cannot find it, because it looks in the package ``lro`` of this library. Needs the
extra ``protobuf``.
"""

from __future__ import annotations

import importlib

from lro._messages.registry import TypeRegistry
from lro._messages.wellknown import OperationMetadata as _OperationMetadata
from lro.errors import MissingExtra

try:
    from google.protobuf import descriptor_pool
    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.message import Message
    from google.protobuf.message_factory import GetMessageClass
except ImportError as _exc:
    raise MissingExtra("the module of lro/v1/lro.proto", "protobuf") from _exc

__all__ = ["DESCRIPTOR", "OperationMetadata"]

_types = TypeRegistry()
_file = _types.binary.descriptor(_types.name_of(_OperationMetadata)).file
for _needed in _file.dependencies:  # as in protoc's modules: the import declares the file
    importlib.import_module(_needed.name.removesuffix(".proto").replace("/", ".") + "_pb2")

DESCRIPTOR: FileDescriptor = descriptor_pool.Default().AddSerializedFile(_file.serialized_pb)
OperationMetadata: type[Message] = GetMessageClass(
    DESCRIPTOR.message_types_by_name["OperationMetadata"]
)
