"""Converts messages and services to protobuf and back. Needs the extra ``protobuf``."""

from lro._base.errors import MissingExtra

try:
    import google.longrunning.operations_proto_pb2  # noqa: F401  # needs both packages
except ImportError as _exc:
    raise MissingExtra("protobuf messages", "protobuf") from _exc

from lro._messages.protobuf.binary import (
    StartOptions,
    check_values,
    parsed,
    read_options,
    write_options,
)
from lro._messages.protobuf.files import HOW_TO_MAKE_A_SET
from lro.protobuf._messages import (
    from_proto,
    operation_from_proto,
    operation_to_proto,
    status_from_proto,
    status_to_proto,
    to_proto,
)
from lro.protobuf._services import descriptor_set, proto_sources, register_file_set, register_module

__all__ = [
    "HOW_TO_MAKE_A_SET",
    "StartOptions",
    "check_values",
    "descriptor_set",
    "from_proto",
    "operation_from_proto",
    "operation_to_proto",
    "parsed",
    "proto_sources",
    "read_options",
    "register_file_set",
    "register_module",
    "status_from_proto",
    "status_to_proto",
    "to_proto",
    "write_options",
]
