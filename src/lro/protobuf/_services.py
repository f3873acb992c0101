"""A service as proto files: messages and methods as descriptors, and their source (spec §8.1)."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Final

from google.api import field_info_pb2, resource_pb2
from google.api.field_behavior_pb2 import FieldBehavior
from google.longrunning import operations_proto_pb2 as longrunning
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from lro._base.errors import InvalidArgument, got
from lro._engine.method_spec import MethodSpec
from lro._engine.service import Service
from lro._engine.service_options import DEFAULT_DOMAIN
from lro._messages.protobuf.binary import STANDARD, add_fields, names_in
from lro._messages.protobuf.files import HOW_TO_MAKE_A_SET, ProtoFiles, with_imports
from lro._messages.protobuf.options import (
    API_FILES,
    DEFAULT_HOST,
    FIELD_BEHAVIOR,
    FIELD_INFO,
    HTTP,
    OPERATION_INFO,
)
from lro._messages.registry import TypeRegistry
from lro._messages.schema import Field, Label, Shape, json_name
from lro._model.method_names import MethodName
from lro.protobuf._comments import comments_of


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


_ANNOTATIONS, _CLIENT, _BEHAVIOR, _INFO = API_FILES
_LONGRUNNING: Final = longrunning.DESCRIPTOR


def descriptor_set(service: Service) -> bytes:
    """The ``FileDescriptorSet`` of a service, each file behind all that it imports.

    Raises:
        DeclarationError: A message class says what proto cannot say.
    """
    files = [*_own_files(service)]
    binary = service.types.binary
    needed = {imported for file in files for imported in file.dependency}
    for spec in service.edges.specs.values():
        classes = (spec.request, spec.response, spec.metadata)
        names = map(service.types.name_of, classes)
        needed |= {binary.known[name] for name in names if name in binary.known}
    # Not those of this service: they stand at the end.
    needed -= {*(file.name for file in API_FILES), *(file.name for file in files)}
    imported = [*API_FILES, *map(binary.pool.FindFileByName, sorted(needed))]
    whole = FileDescriptorSet(file=[*with_imports(imported).values(), *files])
    return bytes(whole.SerializeToString(deterministic=True))


def proto_sources(service: Service) -> dict[str, str]:
    """The text of each proto file of a service, by its name; those of Google are only imported.

    Raises:
        DeclarationError: A message class says what proto cannot say.
    """
    files = _own_files(service)
    comments = comments_of(service, files)
    return {file.name: source(file, comments) for file in files}


def _own_files(service: Service) -> ProtoFiles:
    binary = service.types.binary
    specs = service.edges.specs.values()
    shapes: dict[str, Shape] = {}
    for spec in specs:
        for cls in (spec.request, spec.response, spec.metadata):
            name = service.types.name_of(cls)
            shape = service.types.codec(name).shape
            if name not in binary.known and shape is not None:
                shapes[name] = shape
    files = ProtoFiles(shapes, binary.known, binary.names)
    for spec in specs:
        if _is_there(spec, binary.pool):
            continue
        request = service.types.name_of(spec.request)
        if request in shapes:
            add_fields(files.message(request))
        _add_method(files, spec, request, service.domain)
    _add_behavior(files, service)
    for file in files:
        _add_languages(file)
    return files


def _add_behavior(files: ProtoFiles, service: Service) -> None:
    """Say which fields of requests are needed, and that callers send no metadata."""
    asked: set[str] = set()
    for spec in service.edges.specs.values():
        request = service.types.name_of(spec.request)
        asked |= files.within(request)
        for field in files.message(request).field if request in files.shapes else ():
            if field.name == "request_id" and field.type == FieldDescriptorProto.TYPE_STRING:
                field.options.Extensions[FIELD_INFO].format = field_info_pb2.FieldInfo.UUID4
                _import(files.file(files.message_package(request)), _INFO.name)
    for name in asked:
        needed = {field.name for field in files.shapes[name].fields if _is_needed(field)}
        _say_behavior(files, name, needed, FieldBehavior.REQUIRED, FieldBehavior.OPTIONAL)
    shown = {service.types.name_of(spec.metadata) for spec in service.edges.specs.values()}
    for name in shown & files.shapes.keys() - asked:
        _say_behavior(files, name, (), FieldBehavior.REQUIRED, FieldBehavior.OUTPUT_ONLY)


def _is_needed(field: Field) -> bool:
    # Every other field that is missing has a value all the same, if only its zero.
    return field.required and field.label is Label.OPTIONAL and not field.nullable


def _say_behavior(
    files: ProtoFiles, name: str, chosen: Container[str], of_those: int, of_others: int
) -> None:
    fields = files.message(name).field
    for field in fields:
        behavior = of_those if field.name in chosen else of_others
        field.options.Extensions[FIELD_BEHAVIOR].append(behavior)
    if fields:
        _import(files.file(files.message_package(name)), _BEHAVIOR.name)


def _import(file: FileDescriptorProto, *names: str) -> None:
    for name in names:
        if name != file.name and name not in file.dependency:
            file.dependency.append(name)


def _add_languages(file: FileDescriptorProto) -> None:
    """Where generated code of Go and Java stands: a directory, or package, of the same name."""
    folder, _, stem = file.name.removesuffix(".proto").rpartition("/")
    words = [word[:1].upper() + word[1:] for word in stem.split("_")]
    file.options.go_package = f"{folder or stem};{(file.package or stem).replace('.', '')}pb"
    file.options.java_multiple_files = True
    file.options.java_outer_classname = f"{''.join(words)}Proto"
    file.options.java_package = f"com.{file.package}" if file.package else f"com.{stem}"


def _is_there(spec: MethodSpec, pool: DescriptorPool) -> bool:
    # The file of its messages may have the service, as the author of that file would have it.
    name = MethodName.parse(spec.full_name)
    service = f"{name.package}.{name.service}" if name.package else name.service
    try:
        return name.name in pool.FindServiceByName(service).methods_by_name
    except KeyError:
        return False


def _add_method(files: ProtoFiles, spec: MethodSpec, request: str, domain: str) -> None:
    name = MethodName.parse(spec.full_name)
    file = files.file(name.package)
    service = next((one for one in file.service if one.name == name.service), None)
    if service is None:
        service = file.service.add(name=name.service)
        if domain != DEFAULT_DOMAIN:
            service.options.Extensions[DEFAULT_HOST] = domain
            _import(file, _CLIENT.name)
    method = service.method.add(
        name=name.name,
        input_type=f".{request}",
        output_type=f".{longrunning.Operation.DESCRIPTOR.full_name}",
    )
    info = method.options.Extensions[OPERATION_INFO]
    info.response_type = _shortest(spec.info.response_type, name.package)
    info.metadata_type = _shortest(spec.info.metadata_type, name.package)
    rule = method.options.Extensions[HTTP]
    setattr(rule, spec.rule.method.lower(), spec.path)
    rule.body = spec.rule.body
    _import(file, _ANNOTATIONS.name, _LONGRUNNING.name)
    for type_name in (request, spec.info.response_type, spec.info.metadata_type):
        _import(file, files.file_of(type_name))


def _shortest(type_name: str, package: str) -> str:
    # A type of the method's own package is written without it (spec §8.3).
    inside = type_name.removeprefix(f"{package}.") if package else type_name
    return inside if "." not in inside else type_name


_INDENT: Final = "  "
_SCALARS: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}


def source(file: FileDescriptorProto, comments: Mapping[str, str]) -> str:
    """The text, with everything in it that the descriptors say, and comments by full name."""
    return _Printer(file, comments).text()


class _Printer:
    def __init__(self, file: FileDescriptorProto, comments: Mapping[str, str]) -> None:
        self._file = file
        self._comments = comments
        self._inside = f".{file.package}." if file.package else "."
        # What a name that does not begin with a dot might be taken for.
        self._near = {*file.package.split(".")[1:], *_names(file.message_type)}
        self._near |= {enum.name for enum in file.enum_type}

    def text(self) -> str:
        file = self._file
        parts = [[f'syntax = "{file.syntax}";']]
        if file.package:
            parts.append([f"package {file.package};"])
        if file.dependency:
            parts.append([f'import "{name}";' for name in sorted(file.dependency)])
        parts.append([*_file_options(file)])
        parts += [[*self._service(service)] for service in file.service]
        parts += [[*self._message(message, file.package)] for message in file.message_type]
        parts += [[*self._enum(enum, file.package)] for enum in file.enum_type]
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def _comment(self, full_name: str) -> Iterator[str]:
        for line in self._comments.get(full_name, "").splitlines():
            yield f"// {line}".rstrip()

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        scope = _full_name(self._file.package, service.name)

        def lines() -> Iterator[str]:
            host = service.options.Extensions[DEFAULT_HOST]
            if host:
                yield f'option ({self._known(".google.api.default_host")}) = "{host}";'
            for number, method in enumerate(service.method):
                if number or host:
                    yield ""
                yield from self._comment(_full_name(scope, method.name))
                yield from self._method(method)

        yield from self._comment(scope)
        yield from _block(f"service {service.name}", lines())

    def _method(self, method: MethodDescriptorProto) -> Iterator[str]:
        def options() -> Iterator[str]:
            rule = method.options.Extensions[HTTP]
            method_name = rule.WhichOneof("pattern")
            said = [f'{method_name}: "{getattr(rule, method_name)}"']
            if rule.body:
                said.append(f'body: "{rule.body}"')
            yield from _option(self._known(".google.api.http"), *said)
            info = method.options.Extensions[OPERATION_INFO]
            yield from _option(
                self._known(".google.longrunning.operation_info"),
                f'response_type: "{info.response_type}"',
                f'metadata_type: "{info.metadata_type}"',
            )

        taken, given = self._known(method.input_type), self._known(method.output_type)
        yield from _block(f"rpc {method.name}({taken}) returns ({given})", options())

    def _message(self, message: DescriptorProto, scope: str) -> Iterator[str]:
        name = _full_name(scope, message.name)
        maps = {f".{name}.{one.name}": one for one in message.nested_type if one.options.map_entry}

        def lines() -> Iterator[str]:
            for field in message.field:
                yield from self._comment(_full_name(name, field.name))
                yield from self._field(field, maps)
            for nested in message.nested_type:
                if not nested.options.map_entry:
                    yield from self._message(nested, name)
            for enum in message.enum_type:
                yield from self._enum(enum, name)

        yield from self._comment(name)
        yield from _block(f"message {message.name}", lines())

    def _enum(self, enum: EnumDescriptorProto, scope: str) -> Iterator[str]:
        name = _full_name(scope, enum.name)

        def lines() -> Iterator[str]:
            if enum.options.allow_alias:
                yield "option allow_alias = true;"
            for value in enum.value:
                yield from self._comment(_full_name(name, value.name))
                yield f"{value.name} = {value.number};"

        yield from self._comment(name)
        yield from _block(f"enum {enum.name}", lines())

    def _field(
        self, field: FieldDescriptorProto, maps: Mapping[str, DescriptorProto]
    ) -> Iterator[str]:
        entry = maps.get(field.type_name)
        if entry is not None:
            key, value = entry.field
            said = f"map<{self._type(key)}, {self._type(value)}>"
        elif field.label == FieldDescriptorProto.LABEL_REPEATED:
            said = f"repeated {self._type(field)}"
        else:
            said = f"optional {self._type(field)}" if field.proto3_optional else self._type(field)
        head, options = f"{said} {field.name} = {field.number}", self._field_options(field)
        if len(options) < 2:
            yield f"{head} [{options[0]}];" if options else f"{head};"
            return
        yield f"{head} ["
        *others, last = options
        yield from (f"{_INDENT}{option}," for option in others)
        yield f"{_INDENT}{last}"
        yield "];"

    def _field_options(self, field: FieldDescriptorProto) -> list[str]:
        options = field.options.Extensions
        own_name = field.json_name and field.json_name != json_name(field.name)
        said = [f"json_name = {json.dumps(field.json_name)}"] if own_name else []
        said += [
            f"({self._known('.google.api.field_behavior')}) = {FieldBehavior.Name(one)}"
            for one in options[FIELD_BEHAVIOR]
        ]
        if options[FIELD_INFO].format:
            name = field_info_pb2.FieldInfo.Format.Name(options[FIELD_INFO].format)
            said.append(f"({self._known('.google.api.field_info')}).format = {name}")
        return said

    def _type(self, field: FieldDescriptorProto) -> str:
        return self._known(field.type_name) if field.type_name else _SCALARS[field.type]

    def _known(self, name: str) -> str:
        if name.startswith(self._inside):
            short = name.removeprefix(self._inside)
            nested = _names(one for top in self._file.message_type for one in top.nested_type)
            return name if short.partition(".")[0] in nested else short
        first = name.split(".")[1]
        return name if first in self._near else name[1:]


def _full_name(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _file_options(file: FileDescriptorProto) -> Iterator[str]:
    options = file.options
    yield f'option go_package = "{options.go_package}";'
    yield f"option java_multiple_files = {str(options.java_multiple_files).lower()};"
    yield f'option java_outer_classname = "{options.java_outer_classname}";'
    yield f'option java_package = "{options.java_package}";'


def _names(messages: Iterable[DescriptorProto]) -> Iterator[str]:
    for message in messages:
        yield message.name
        yield from (enum.name for enum in message.enum_type)
        yield from _names(message.nested_type)


def _block(head: str, lines: Iterator[str]) -> Iterator[str]:
    inside = [f"{_INDENT}{line}" if line else line for line in lines]
    if not inside:
        yield f"{head} {{}}"
        return
    yield f"{head} {{"
    yield from inside
    yield "}"


def _option(name: str, *lines: str) -> Iterator[str]:
    *block, last = _block(f"option ({name}) =", iter(lines))
    yield from block
    yield f"{last};"
