"""Files of descriptors with all that they import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto

HOW_TO_MAKE_A_SET: Final = (
    "make one by protoc --include_imports --descriptor_set_out=FILE, or by buf build -o FILE"
)


def with_imports(files: Iterable[FileDescriptor]) -> dict[str, FileDescriptorProto]:
    """These files and all that they import, by name, each behind its own imports."""
    found: dict[str, FileDescriptorProto] = {}

    def add(file: FileDescriptor) -> None:
        if file.name not in found:
            for imported in file.dependencies:
                add(imported)
            found[file.name] = FileDescriptorProto.FromString(file.serialized_pb)

    for file in files:
        add(file)
    return found
