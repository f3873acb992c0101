"""Turns message classes into proto files, as descriptors (spec §1.7, §1.14).

Each package has one file. A class without a declared name gets its class name, in the package of
the first message that has it as a field. An enum is declared beside the messages of its package. If
the package already has the name of the enum or of one of its values, the enum is nested in a
message of its own, because these names must be unique in a scope of proto.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from lro._base.errors import DeclarationError
from lro._base.status import declared_name
from lro._messages.scalars import enum_numbers
from lro._messages.schema import Field, Kind, Label, Shape, simple_name
from lro._messages.shapes import shape_of

_TYPES: Final = {
    Kind.STRING: FieldDescriptorProto.TYPE_STRING,
    Kind.BYTES: FieldDescriptorProto.TYPE_BYTES,
    Kind.BOOL: FieldDescriptorProto.TYPE_BOOL,
    Kind.INT32: FieldDescriptorProto.TYPE_INT32,
    Kind.INT64: FieldDescriptorProto.TYPE_INT64,
    Kind.UINT32: FieldDescriptorProto.TYPE_UINT32,
    Kind.UINT64: FieldDescriptorProto.TYPE_UINT64,
    Kind.FLOAT: FieldDescriptorProto.TYPE_FLOAT,
    Kind.DOUBLE: FieldDescriptorProto.TYPE_DOUBLE,
    Kind.ENUM: FieldDescriptorProto.TYPE_ENUM,
    Kind.MESSAGE: FieldDescriptorProto.TYPE_MESSAGE,
}


_VERSION: Final = re.compile(r"v[0-9]+((alpha|beta|p[0-9]+)[a-z0-9]*)?")


def file_name(package: str) -> str:
    """Return the file of a package's messages, such as ``acme/images/v1/images.proto``."""
    parts = list(filter(None, package.split(".")))
    named = [part for part in parts if not _VERSION.fullmatch(part)]
    return "/".join([*parts, f"{named[-1] if named else 'messages'}.proto"])


@attrs.frozen
class _Place:
    """A declaration's location: its package, and its path in the package (dots mean nesting)."""

    package: str
    path: str

    @property
    def full_name(self) -> str:
        return f"{self.package}.{self.path}" if self.package else self.path


class ProtoFiles:
    """The proto files of message classes and of the classes in their fields.

    ``shapes`` has the shapes of the named classes, and ``names`` the full names of classes.
    ``known`` has the file of each message that already has a descriptor in another file.

    Raises:
        DeclarationError: Proto cannot express one of the classes.
    """

    def __init__(
        self, shapes: Mapping[str, Shape], known: Mapping[str, str], names: Mapping[type, str]
    ) -> None:
        self._known = known
        self._taken_names = frozenset(known.values())
        self._names = {**names}
        self._shapes = {**shapes}
        self._enums: dict[type[enum.Enum], _Place] = {}
        self._taken: dict[str, set[str]] = {}
        self._files: dict[str, FileDescriptorProto] = {}
        self._messages: dict[str, DescriptorProto] = {}
        for name in shapes:
            self._gather(name)
        for name in sorted(self._shapes, key=lambda name: (name.count("."), name)):
            self._declare(name)
        for name, shape in self._shapes.items():
            self._fill(name, shape)

    def __iter__(self) -> Iterator[FileDescriptorProto]:
        """Yield the files, each after its imports.

        Raises:
            DeclarationError: Two packages import each other.
        """
        done: set[str] = set()
        for name in sorted(self._files):
            yield from self._in_order(name, done, ())

    @property
    def names(self) -> Mapping[type, str]:
        """The full names of the named classes, and of further classes in their fields."""
        return self._names

    @property
    def enum_names(self) -> Mapping[type, str]:
        """The full names of the enums in fields."""
        return {cls: place.full_name for cls, place in self._enums.items()}

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all messages in these files, by full name."""
        return self._shapes

    def within(self, full_name: str) -> set[str]:
        """Return the names of a message and of all messages in these files that it contains."""
        found: set[str] = set()
        left = [full_name]
        while left:
            name = left.pop()
            if name in self._shapes and name not in found:
                found.add(name)
                fields = self._shapes[name].fields
                left += [self._name(field) for field in fields if field.kind is Kind.MESSAGE]
        return found

    def message(self, full_name: str) -> DescriptorProto:
        """Return the descriptor of a message, which can be changed."""
        return self._messages[full_name]

    def file_of(self, full_name: str) -> str:
        """Return the name of a message's file."""
        return self._known.get(full_name) or self._file_name(self.message_package(full_name))

    def file(self, package: str) -> FileDescriptorProto:
        """Return the file of a package, which can be changed."""
        name = self._file_name(package)
        if name not in self._files:
            self._files[name] = FileDescriptorProto(name=name, package=package, syntax="proto3")
        return self._files[name]

    def _file_name(self, package: str) -> str:
        name = file_name(package)
        if name not in self._taken_names:  # no file that protoc compiled has this name
            return name
        return name.removesuffix(".proto") + "_lro.proto"

    def _in_order(
        self, name: str, done: set[str], above: tuple[str, ...]
    ) -> Iterator[FileDescriptorProto]:
        if name in above:
            raise DeclarationError(self._files[name].package, "imports itself through others")
        if name in done or name not in self._files:
            return
        for imported in self._files[name].dependency:
            yield from self._in_order(imported, done, (*above, name))
        done.add(name)
        yield self._files[name]

    # -- names --------------------------------------------------------------------------------

    def _gather(self, name: str) -> None:
        for field in self._shapes[name].fields:
            cls = field.python
            if field.kind is not Kind.MESSAGE or field.message_name in self._known:
                continue
            inner = self._names.get(cls) or declared_name(cls)
            if inner is None:
                inner = _Place(self.message_package(name), simple_name(cls)).full_name
            self._names[cls] = inner
            if inner in self._known:
                continue
            if inner not in self._shapes:
                self._shapes[inner] = shape_of(cls)
                self._gather(inner)
            elif self._shapes[inner].python is not cls:
                raise DeclarationError(f"{name}.{field.name}", f"{inner} names another class")

    def message_package(self, name: str) -> str:
        """Return the package of a message."""
        package = name.rpartition(".")[0]
        while _is_message(package):  # the prefix is the enclosing message, not a package
            package = package.rpartition(".")[0]
        return package

    # -- descriptors --------------------------------------------------------------------------

    def _declare(self, name: str) -> None:
        outer, _, simple = name.rpartition(".")
        if _is_message(outer):
            if outer not in self._messages:
                self._declare(outer)
            made = self._messages[outer].nested_type.add(name=simple)
        else:
            made = self.file(outer).message_type.add(name=simple)
            self._taken.setdefault(outer, set()).add(simple)
        self._messages[name] = made

    def _fill(self, name: str, shape: Shape) -> None:
        made, package = self._messages[name], self.message_package(name)
        for field in shape.fields:
            said = made.field.add(name=field.name, json_name=field.json_name, number=field.number)
            said.label = FieldDescriptorProto.LABEL_OPTIONAL
            if field.label is Label.MAP:
                self._map(name, field, said, package)
                continue
            self._type(field, said, package)
            if field.label is Label.REPEATED:
                said.label = FieldDescriptorProto.LABEL_REPEATED
            elif field.label is Label.OPTIONAL and field.kind is not Kind.MESSAGE:
                said.proto3_optional = True
        for said in made.field:  # synthetic one-ofs must follow all other one-ofs
            if said.proto3_optional:
                said.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{said.name}")

    def _map(self, name: str, field: Field, said: FieldDescriptorProto, package: str) -> None:
        simple = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        entry = self._messages[name].nested_type.add(name=simple)
        entry.options.map_entry = True
        key = entry.field.add(name="key", json_name="key", number=1)
        key.type = _TYPES[field.key_kind or Kind.STRING]
        value = entry.field.add(name="value", json_name="value", number=2)
        self._type(field, value, package)
        key.label = value.label = FieldDescriptorProto.LABEL_OPTIONAL
        said.label = FieldDescriptorProto.LABEL_REPEATED
        said.type, said.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{name}.{simple}"

    def _type(self, field: Field, said: FieldDescriptorProto, package: str) -> None:
        said.type = _TYPES[field.kind]
        if field.kind is Kind.ENUM:
            place = self._enum(field.python, package)
            said.type_name = f".{place.full_name}"
            self._import(package, self._file_name(place.package))
        elif field.kind is Kind.MESSAGE:
            name = self._name(field)
            said.type_name = f".{name}"
            self._import(package, self.file_of(name))

    def _name(self, field: Field) -> str:
        return field.message_name or self._names[field.python]

    def _import(self, package: str, imported: str) -> None:
        file = self.file(package)
        if imported != file.name and imported not in file.dependency:
            file.dependency.append(imported)

    # -- enums --------------------------------------------------------------------------------

    def _enum(self, cls: type[enum.Enum], package: str) -> _Place:
        if cls in self._enums:
            return self._enums[cls]
        file, taken = self.file(package), self._taken.setdefault(package, set())
        names = {cls.__name__, *cls.__members__}
        if names.isdisjoint(taken):
            taken |= names
            place, made = _Place(package, cls.__name__), file.enum_type.add(name=cls.__name__)
        else:
            holder = f"{cls.__name__}Enum"
            if holder in taken:
                raise DeclarationError(cls.__qualname__, f"{package}.{holder} already exists")
            taken.add(holder)
            outer = file.message_type.add(name=holder)
            place = _Place(package, f"{holder}.{cls.__name__}")
            made = outer.enum_type.add(name=cls.__name__)
        _fill_enum(made, cls)
        self._enums[cls] = place
        return place


def _is_message(name: str) -> bool:
    # Packages are in lower case. A look-up of registered messages would instead depend on the order
    # of registration.
    return name.rpartition(".")[2][:1].isupper()


def _fill_enum(made: EnumDescriptorProto, cls: type[enum.Enum]) -> None:
    numbers = {member: number for number, member in enum_numbers(cls).items()}
    for name, member in cls.__members__.items():
        made.value.add(name=name, number=numbers[member])
    if len(cls.__members__) != len(numbers):
        made.options.allow_alias = True


HOW_TO_MAKE_A_SET: Final = (
    "make one by protoc --include_imports --descriptor_set_out=FILE, or by buf build -o FILE"
)


def with_imports(files: Iterable[FileDescriptor]) -> dict[str, FileDescriptorProto]:
    """Return these files and all their imports by name, each after its own imports."""
    found: dict[str, FileDescriptorProto] = {}

    def add(file: FileDescriptor) -> None:
        if file.name not in found:
            for imported in file.dependencies:
                add(imported)
            found[file.name] = FileDescriptorProto.FromString(file.serialized_pb)

    for file in files:
        add(file)
    return found
