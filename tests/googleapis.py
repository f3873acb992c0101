"""Google's proto files for protoc, as descriptors: not every release installs their text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from google.api import annotations_pb2, resource_pb2
from google.longrunning import operations_proto_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import error_details_pb2

FILES = (annotations_pb2, resource_pb2, operations_proto_pb2, error_details_pb2)


def write_googleapis(folder: Path) -> str:
    """Write them, with all that they import; the option that has protoc find them."""
    found: dict[str, FileDescriptorProto] = {}

    def add(files: Iterable[FileDescriptor]) -> None:
        for file in files:
            if file.name not in found:
                add(file.dependencies)
                found[file.name] = FileDescriptorProto.FromString(file.serialized_pb)

    add(module.DESCRIPTOR for module in FILES)
    path = folder / "googleapis.binpb"
    path.write_bytes(FileDescriptorSet(file=found.values()).SerializeToString())
    return f"--descriptor_set_in={path}"
