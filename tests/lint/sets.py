"""Hand-built descriptor sets for the tests of the linter and its command."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import attrs
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

OPERATION = "google.longrunning.Operation"
BOOKS = "acme/v1/books.proto"
TYPE_STRING = FieldDescriptorProto.TYPE_STRING
TYPE_MESSAGE = FieldDescriptorProto.TYPE_MESSAGE


@attrs.frozen
class Declared:
    """A method of ``acme.v1.Books``; ``info`` has its response and metadata types, or is None."""

    name: str
    info: tuple[str, str] | None = None
    output: str = OPERATION
    request: str = "acme.v1.Request"


GOOD = Declared("Export", ("ExportResponse", "Metadata"))
BARE = Declared("Export")
MESSAGES = ("Request", "ExportResponse", "Metadata")


def proto(
    *methods: Declared,
    name: str = BOOKS,
    package: str = "acme.v1",
    imports: Iterable[str] = (),
    messages: Iterable[str] = MESSAGES,
    service: str = "Books",
) -> FileDescriptorProto:
    """Return a file with empty messages, and with a service if any methods are given."""
    file = FileDescriptorProto(name=name, package=package, dependency=imports)
    for message in messages:
        file.message_type.add(name=message)
    services = [file.service.add(name=service)] if methods else []
    for made, method in product(services, methods):
        rpc = made.method.add(
            name=method.name, input_type=f".{method.request}", output_type=f".{method.output}"
        )
        if method.info is not None:
            extensions: Any = rpc.options.Extensions
            info = extensions[operations_pb2.operation_info]
            info.SetInParent()
            info.response_type, info.metadata_type = method.info
    return file


def field(
    file: FileDescriptorProto, message: int, name: str, number: int, nested: str = ""
) -> None:
    """Add a field, whose type is a string or the message ``nested``, to the message at an index."""
    kind = TYPE_MESSAGE if nested else TYPE_STRING
    type_name = f".{nested}" if nested else None
    file.message_type[message].field.add(name=name, number=number, type=kind, type_name=type_name)


def located(file: FileDescriptorProto, line: int, column: int) -> FileDescriptorProto:
    """Return the file with source positions; its first method is at this place, counted from 0."""
    for path, span in (
        ((6, 0), (0, 0, 9)),
        ((6, 0, 2, 0, 1), (9, 9, 9)),
        ((6, 0, 2, 0), (line, column, 30)),
    ):
        file.source_code_info.location.add(path=path, span=span)
    return file


def packed(*files: FileDescriptorProto) -> bytes:
    """Return a serialized descriptor set of the files."""
    return FileDescriptorSet(file=files).SerializeToString()


def empty_file() -> FileDescriptorProto:
    """Return the file descriptor of google/protobuf/empty.proto."""
    return FileDescriptorProto.FromString(empty_pb2.DESCRIPTOR.serialized_pb)


def interface_file() -> FileDescriptorProto:
    """Return the file descriptor of google/longrunning/operations.proto."""
    return FileDescriptorProto.FromString(operations_pb2.DESCRIPTOR.serialized_pb)
