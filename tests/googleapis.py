"""Google's proto files as descriptors for protoc, as some releases of its packages lack sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from google.api import annotations_pb2, client_pb2, field_behavior_pb2, field_info_pb2, resource_pb2
from google.longrunning import operations_proto_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import error_details_pb2

MODULES: Final[Any] = (
    *(annotations_pb2, client_pb2, field_behavior_pb2, field_info_pb2, resource_pb2),
    *(operations_proto_pb2, error_details_pb2),
)


def write_googleapis(folder: Path) -> str:
    """Write the descriptors, each after its imports; return the protoc option that reads them."""
    found = FileDescriptorSet()
    seen: set[str] = set()

    def add(file: Any) -> None:
        if file.name not in seen:
            seen.add(file.name)
            for imported in file.dependencies:
                add(imported)
            found.file.add().ParseFromString(file.serialized_pb)

    for module in MODULES:
        add(module.DESCRIPTOR)
    path = folder / "googleapis.binpb"
    path.write_bytes(found.SerializeToString())
    return f"--descriptor_set_in={path}"
