"""Protobuf beside attrs: messages of the interface, files of descriptors. Needs ``protobuf``."""

from lro._faults import MissingExtra

try:
    import google.longrunning.operations_pb2
    import google.protobuf as _protobuf  # noqa: F401
except ImportError as exc:
    raise MissingExtra("protobuf messages", "protobuf") from exc

from lro.protobuf._files import register_file_set
from lro.protobuf._messages import (
    from_proto,
    operation_from_proto,
    operation_to_proto,
    status_from_proto,
    status_to_proto,
    to_proto,
)

__all__ = [
    "from_proto",
    "operation_from_proto",
    "operation_to_proto",
    "register_file_set",
    "status_from_proto",
    "status_to_proto",
    "to_proto",
]
