"""Google's proto files for protoc, as descriptors: not every release installs their text."""

from __future__ import annotations

from pathlib import Path

from google.api import resource_pb2
from google.longrunning import operations_proto_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import error_details_pb2

from lro._messages.protobuf.files import with_imports
from lro._messages.protobuf.options import API_FILES

MODULES = (resource_pb2, operations_proto_pb2, error_details_pb2)


def write_googleapis(folder: Path) -> str:
    """Write them, with all that they import; the option that has protoc find them."""
    found = with_imports([*API_FILES, *(module.DESCRIPTOR for module in MODULES)])
    path = folder / "googleapis.binpb"
    path.write_bytes(FileDescriptorSet(file=found.values()).SerializeToString())
    return f"--descriptor_set_in={path}"
