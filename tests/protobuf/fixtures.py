"""Registries of the messages in the test vectors, as attrs and as protobuf classes."""

from __future__ import annotations

import base64
import enum

from google.protobuf import descriptor_pb2, text_format

from lro import TypeRegistry
from lro.protobuf import register_file_set
from tests.filters.messages import Book, ExportMetadata, ExportResponse, ImportMetadata
from tests.messages.scalars_message import Scalars
from tests.vector_files import vectors

FILE_SET = base64.b64decode(vectors("fixtures")["descriptor_set"])


class Color(enum.IntEnum):
    UNSPECIFIED = 0
    RED = 1
    CRIMSON = 1
    BLUE = -5


def of_attrs() -> TypeRegistry:
    """Return a registry of the vectors' messages as attrs classes."""
    return TypeRegistry(ExportMetadata, ExportResponse, ImportMetadata, Book, Scalars)


def of_protobuf() -> TypeRegistry:
    """Return a registry of the vectors' messages as classes made from their descriptors."""
    types = TypeRegistry()
    register_file_set(types, FILE_SET)
    return types


def file_set(text: str) -> bytes:
    """Serialize a ``FileDescriptorSet`` that is given in text format."""
    return text_format.Parse(text, descriptor_pb2.FileDescriptorSet()).SerializeToString()
