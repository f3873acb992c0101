"""Descriptor sets: methods, messages, imports, and the resolution of type names (spec §8.3).

The linter builds no descriptor pool, because the set may lack imports or be invalid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from itertools import takewhile
from typing import Any, Final

import attrs
from google.api import field_behavior_pb2
from google.api.resource_pb2 import resource
from google.longrunning.operations_pb2 import operation_info
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    MethodOptions,
)
from google.protobuf.message import DecodeError

from lro.errors import InvalidArgument
from lro.protobuf import HOW_TO_MAKE_A_SET
from lro.types import MethodName, OperationInfo

OPERATION: Final = "google.longrunning.Operation"
_OPERATION_INFO: Final[Any] = operation_info  # Any, because the module may lack stubs
_RESOURCE: Final[Any] = resource
_BEHAVIOR: Final[Any] = field_behavior_pb2.field_behavior
_REQUIRED: Final[Any] = field_behavior_pb2.REQUIRED
_INTERFACE: Final = "google.longrunning.Operations."
"""The prefix of the verbs over operations, which are not long-running methods themselves."""
_SERVICE: Final = FileDescriptorProto.SERVICE_FIELD_NUMBER
_NEAREST: Final = 3
"""Number of similar file names in the error for an unknown file."""
_METHOD: Final = 2  # ServiceDescriptorProto.method, in the path of a method's location


@attrs.frozen(kw_only=True)
class MethodDescriptor:
    """A method of a service; ``info`` has the type names as they are written in the file."""

    name: MethodName
    file: str
    path: tuple[int, ...]
    request: str
    output: str
    streaming: bool
    info: OperationInfo | None

    @property
    def returns_operation(self) -> bool:
        """True for a long-running method."""
        return self.output == OPERATION


class DescriptorSet:
    """The files of a set by name, and an index of their messages; errors call the set ``named``.

    Raises:
        InvalidArgument: The bytes are not a FileDescriptorSet, or the set has no file, or two files
            with the same name differ.
    """

    def __init__(self, descriptor_set: bytes, named: str = "descriptor_set") -> None:
        try:
            self._files = _by_name(FileDescriptorSet.FromString(descriptor_set).file, named)
            self._messages = _messages(self._files.values())
            self._rpcs = {name: list(_rpcs(file)) for name, file in self._files.items()}
        except (DecodeError, UnicodeDecodeError) as exc:
            found = f"{len(descriptor_set)} bytes that are not a FileDescriptorSet: {exc}"
            raise InvalidArgument(named, f"{found}; {HOW_TO_MAKE_A_SET}") from exc
        if not self._files:
            wanted = "holds no file; was it made from the right sources?"
            raise InvalidArgument(named, f"{wanted} If it is not a set, {HOW_TO_MAKE_A_SET}")
        self._named = named
        self._seen: dict[str, frozenset[str]] = {}
        self._places: dict[str, dict[tuple[int, ...], tuple[int, int]]] = {}

    def rpcs(self, field: str, targets: Collection[str] | None) -> list[MethodDescriptor]:
        """Return the methods of the files in ``targets``, by default of all files.

        Raises:
            InvalidArgument: The set has no such file; the error names ``field``.
        """
        for name in targets or ():
            if name not in self._files:
                have = sorted(name for name, rpcs in self._rpcs.items() if rpcs)
                near = get_close_matches(name, have, n=_NEAREST, cutoff=0.0)
                nearest = f"the nearest of {len(have)} with services: {', '.join(near)}"
                why = nearest if near else "none has services"
                raise InvalidArgument(field, f"no file {name!r} in the set; {why}")
        chosen = self._files if targets is None else dict.fromkeys(targets)
        rpcs = (rpc for name in chosen for rpc in self._rpcs[name])
        return [rpc for rpc in rpcs if not str(rpc.name).startswith(_INTERFACE)]

    def homes(self, message: str) -> Collection[str]:
        """Return the files that declare a message; empty if no file of the set declares it."""
        return self._messages.get(message, {})

    def fields(self, message: str) -> Mapping[str, tuple[int, str]]:
        """Return each field's number and type name (or ``""``); empty if the message is unknown.

        Raises:
            InvalidArgument: A name is not valid UTF-8.
        """
        found = next(iter(self._messages.get(message, {}).values()), DescriptorProto())
        try:
            return {
                _text(field.name): (field.number, _type_name(field.type_name))
                for field in found.field
            }
        except UnicodeDecodeError as exc:
            raise InvalidArgument(self._named, f"{message}: a field is named by {exc}") from exc

    def required(self, message: str) -> Collection[str]:
        """Return the names of the fields that have the field behavior REQUIRED."""
        found = next(iter(self._messages.get(message, {}).values()), DescriptorProto())
        needed = [one for one in found.field if _REQUIRED in one.options.Extensions[_BEHAVIOR]]
        return [_text(one.name) for one in needed]

    def is_resource(self, message: str) -> bool:
        """Return True if the message has the option ``google.api.resource``."""
        found = self._messages.get(message, {}).values()
        return any(one.options.HasExtension(_RESOURCE) for one in found)

    def visible(self, file: str) -> frozenset[str]:
        """Return a file, its imports, and their public imports (spec §8.3(2))."""
        if file not in self._seen:
            seen, waiting = {file}, list(self._files[file].dependency)
            while waiting:
                name = waiting.pop()
                if name not in seen:
                    seen.add(name)
                    waiting += self._public(name)
            self._seen[file] = frozenset(seen)
        return self._seen[file]

    def _public(self, file: str) -> Iterator[str]:
        found = self._files.get(file)
        if found is not None:
            for index in found.public_dependency:
                if 0 <= index < len(found.dependency):
                    yield found.dependency[index]

    def ending_in(self, name: str, package: str) -> str:
        """Return the message whose full name ends in a dot and ``name``, or "".

        If there are several such messages, return the one in the package closest to ``package``.
        """
        parts = package.split(".")

        def distance(full_name: str) -> tuple[int, int, str]:
            found = full_name.split(".")
            pairs = zip(parts, found, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            return -shared, len(found), full_name

        alike = self._by_last_part.get(name.rpartition(".")[2], ())
        ending = [full_name for full_name in alike if full_name.endswith(f".{name}")]
        return min(ending, key=distance, default="")

    @cached_property
    def _by_last_part(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for full_name in self._messages:
            found.setdefault(full_name.rpartition(".")[2], []).append(full_name)
        return found

    def place(self, rpc: MethodDescriptor) -> tuple[int | None, int | None]:
        """Return the line and column of a method, from 1; None without source information."""
        if rpc.file not in self._places:
            self._places[rpc.file] = {
                tuple(location.path): (location.span[0] + 1, location.span[1] + 1)
                for location in self._files[rpc.file].source_code_info.location
                if len(location.path) == len(rpc.path) and len(location.span) >= 2
            }
        return self._places[rpc.file].get(rpc.path, (None, None))


def _by_name(files: Collection[FileDescriptorProto], named: str) -> dict[str, FileDescriptorProto]:
    found: dict[str, FileDescriptorProto] = {}
    for file in files:
        if not all(map(_text, (file.name, *file.dependency))):
            raise InvalidArgument(named, "holds or imports a file without a name")
        if file.name not in found:
            found[file.name] = file
        elif _declared(file) != _declared(found[file.name]):
            wanted = "two different files of this name; check one set at a time"
            raise InvalidArgument(named, f"{file.name}: {wanted}")
    return found


def _declared(file: FileDescriptorProto) -> bytes:
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("source_code_info")
    declared: bytes = copy.SerializeToString(deterministic=True)
    return declared


def _messages(files: Collection[FileDescriptorProto]) -> dict[str, dict[str, DescriptorProto]]:
    """Index messages by full name and file. In a valid set, only one file declares a name."""
    found: dict[str, dict[str, DescriptorProto]] = {}
    for file in files:
        prefix = _text(file.package) + "." if file.package else ""
        waiting = [(prefix + _text(message.name), message) for message in file.message_type]
        while waiting:
            name, message = waiting.pop()
            found.setdefault(name, {})[file.name] = message
            waiting += [(f"{name}.{_text(inner.name)}", inner) for inner in message.nested_type]
    return found


def _rpcs(file: FileDescriptorProto) -> Iterator[MethodDescriptor]:
    for index, service in enumerate(file.service):
        for number, method in enumerate(service.method):
            yield MethodDescriptor(
                name=MethodName(*map(_text, (file.package, service.name, method.name))),
                file=file.name,
                path=(_SERVICE, index, _METHOD, number),
                request=_type_name(method.input_type),
                output=_type_name(method.output_type),
                streaming=method.server_streaming,
                info=_info(method),
            )


def _text(value: str | bytes) -> str:
    """Decode a text of the set, which protobuf returns as bytes if it is not valid UTF-8."""
    return value if isinstance(value, str) else value.decode()


def _type_name(value: str | bytes) -> str:
    return _text(value).removeprefix(".")


def _info(method: MethodDescriptorProto) -> OperationInfo | None:
    options: MethodOptions = method.options
    if not options.HasExtension(_OPERATION_INFO):
        return None
    found = options.Extensions[_OPERATION_INFO]
    return OperationInfo(found.response_type, found.metadata_type)


FOUND: Final = ""
MISSING: Final = "missing"
NOT_IMPORTED: Final = "not-imported"
NOT_QUALIFIED: Final = "not-qualified"
UNRESOLVED: Final = "unresolved"


@attrs.frozen
class Resolution:
    """A type name as written, its problem if any, and the message that it refers to.

    ``problem`` is the end of a finding's code. ``full_name`` is the name of the message; with a
    problem, it is the name of the message that was probably meant, or "".
    """

    written: str
    problem: str
    full_name: str = ""

    @property
    def resolved(self) -> str:
        """The full name of the type, or "" if the name has a problem."""
        return "" if self.problem else self.full_name

    @property
    def compared(self) -> str:
        """The name that :func:`lro.lint.breaking` compares (spec §8.5).

        This is the full name, even if the import is missing, or, for an unknown type, the written
        name.
        """
        if self.problem in (FOUND, NOT_IMPORTED):
            return self.full_name
        return self.written.removeprefix(".")


def resolve(files: DescriptorSet, rpc: MethodDescriptor, written: str) -> Resolution:
    """Find the message to which this name in the options of ``rpc`` refers."""
    if not written:
        return Resolution(written, MISSING)
    candidates = candidates_for(rpc, written)
    visible = files.visible(rpc.file)
    homes = {name: files.homes(name) for name in candidates}
    for name, declared_in in homes.items():
        if not visible.isdisjoint(declared_in):
            return Resolution(written, FOUND, name)
    for name, declared_in in homes.items():
        if declared_in:
            return Resolution(written, NOT_IMPORTED, name)
    meant = "" if written.startswith(".") else files.ending_in(written, rpc.name.package)
    return Resolution(written, NOT_QUALIFIED if meant else UNRESOLVED, meant)


def candidates_for(rpc: MethodDescriptor, written: str) -> list[str]:
    """Return the full names to look up for a written name, in order (spec §8.3(1))."""
    if written.startswith("."):
        return [written[1:]]
    package = rpc.name.package
    inside = f"{package}.{written}" if package else written
    return [written, inside] if "." in written else [inside]
