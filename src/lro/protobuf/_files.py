"""Message types from files of descriptors, as ``protoc --descriptor_set_out`` writes them."""

from __future__ import annotations

from types import ModuleType

from google.api import resource_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from lro._base.errors import InvalidArgument, got
from lro._messages.protobuf.binary import STANDARD, names_in
from lro._messages.protobuf.files import HOW_TO_MAKE_A_SET, with_imports
from lro._messages.registry import TypeRegistry


def register_file_set(types: TypeRegistry, file_set: bytes | FileDescriptorSet) -> tuple[str, ...]:
    """Register every message of a ``FileDescriptorSet``, or of its bytes (spec §1.14(2)).

    Those that are registered already stay what they are. Imports of what the ``google.protobuf``,
    ``google.rpc`` and ``google.longrunning`` packages have need not be in the set, and neither do
    those of the annotations of ``google.api``.

    Returns:
        The full names that are new.

    Raises:
        InvalidArgument: It is not such a set or holds no file, or something that it imports is
            missing.
    """
    files = [*_parsed(file_set).file]
    if not files:
        raise InvalidArgument("", f"holds no file; {HOW_TO_MAKE_A_SET}")
    pool = _Pool(files)
    new = []
    for file in files:
        for name in names_in(pool.file(file.name).message_types_by_name.values()):
            if name not in types:
                types.register(GetMessageClass(pool.pool.FindMessageTypeByName(name)))
                new.append(name)
    return tuple(new)


def _parsed(file_set: object) -> FileDescriptorSet:
    if isinstance(file_set, FileDescriptorSet):
        return file_set
    if not isinstance(file_set, bytes):
        wanted = "must be a FileDescriptorSet, or its bytes"
        raise InvalidArgument("", f"{wanted}, got {got(file_set)}")
    try:
        return FileDescriptorSet.FromString(file_set)
    except DecodeError as exc:
        text = f"{len(file_set)} bytes are no google.protobuf.FileDescriptorSet"
        raise InvalidArgument("", f"{text}; {HOW_TO_MAKE_A_SET}") from exc


def register_module(types: TypeRegistry, module: ModuleType) -> tuple[str, ...]:
    """Register every message of a module that ``protoc`` has generated (``..._pb2``).

    Those that are registered already stay what they are.

    Returns:
        The full names that are new.

    Raises:
        InvalidArgument: It is not such a module.
    """
    file = getattr(module, "DESCRIPTOR", None)
    if not isinstance(file, FileDescriptor):
        raise InvalidArgument("", f"{module.__name__} is no module that protoc has generated")
    new = []
    for name in names_in(file.message_types_by_name.values()):
        if name not in types:
            types.register(GetMessageClass(file.pool.FindMessageTypeByName(name)))
            new.append(name)
    return tuple(new)


class _Pool:
    """Adds files behind those that they import, in whatever order the set has them."""

    def __init__(self, files: list[FileDescriptorProto]) -> None:
        self.pool = DescriptorPool()
        self._texts = with_imports((*STANDARD, resource_pb2.DESCRIPTOR)) | {
            file.name: file for file in files
        }
        self._done: set[str] = set()

    def file(self, name: str, *, of: str = "") -> FileDescriptor:
        self._add(name, of)
        return self.pool.FindFileByName(name)

    def _add(self, name: str, of: str) -> None:
        if name in self._done:
            return
        self._done.add(name)
        file = self._texts.get(name)
        if file is None:
            wanted = f"{of} imports {name}, which the set has not"
            raise InvalidArgument("", f"{wanted}; {HOW_TO_MAKE_A_SET}")
        for imported in file.dependency:
            self._add(imported, name)
        try:
            self.pool.AddSerializedFile(file.SerializeToString())
        except TypeError as exc:  # what the protobuf library raises for whatever is wrong
            raise InvalidArgument("", f"{name}: {exc}") from exc
