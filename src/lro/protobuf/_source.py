"""A file of descriptors as the text of a ``.proto`` file, for what this library puts into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

from lro._messages.protobuf.options import HTTP, OPERATION_INFO

_INDENT: Final = "  "
_SCALARS: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}


def source(file: FileDescriptorProto) -> str:
    """The text, with everything in it that the descriptors say."""
    return _Printer(file).text()


class _Printer:
    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
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
        parts += [[*self._service(service)] for service in file.service]
        parts += [[*self._message(message, file.package)] for message in file.message_type]
        parts += [[*_enum(enum)] for enum in file.enum_type]
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        def lines() -> Iterator[str]:
            for number, method in enumerate(service.method):
                if number:
                    yield ""
                yield from self._method(method)

        yield from _block(f"service {service.name}", lines())

    def _method(self, method: MethodDescriptorProto) -> Iterator[str]:
        def options() -> Iterator[str]:
            rule = method.options.Extensions[HTTP]
            http, path = self._known(".google.api.http"), f'post: "{rule.post}"'
            yield from _option(http, path, f'body: "{rule.body}"')
            info = method.options.Extensions[OPERATION_INFO]
            yield from _option(
                self._known(".google.longrunning.operation_info"),
                f'response_type: "{info.response_type}"',
                f'metadata_type: "{info.metadata_type}"',
            )

        taken, given = self._known(method.input_type), self._known(method.output_type)
        yield from _block(f"rpc {method.name}({taken}) returns ({given})", options())

    def _message(self, message: DescriptorProto, scope: str) -> Iterator[str]:
        name = f"{scope}.{message.name}" if scope else message.name
        maps = {f".{name}.{one.name}": one for one in message.nested_type if one.options.map_entry}

        def lines() -> Iterator[str]:
            for field in message.field:
                yield self._field(field, maps)
            for nested in message.nested_type:
                if not nested.options.map_entry:
                    yield from self._message(nested, name)
            for enum in message.enum_type:
                yield from _enum(enum)

        yield from _block(f"message {message.name}", lines())

    def _field(self, field: FieldDescriptorProto, maps: Mapping[str, DescriptorProto]) -> str:
        entry = maps.get(field.type_name)
        if entry is not None:
            key, value = entry.field
            said = f"map<{self._type(key)}, {self._type(value)}>"
        elif field.label == FieldDescriptorProto.LABEL_REPEATED:
            said = f"repeated {self._type(field)}"
        else:
            said = f"optional {self._type(field)}" if field.proto3_optional else self._type(field)
        return f"{said} {field.name} = {field.number};"

    def _type(self, field: FieldDescriptorProto) -> str:
        return self._known(field.type_name) if field.type_name else _SCALARS[field.type]

    def _known(self, name: str) -> str:
        if name.startswith(self._inside):
            short = name.removeprefix(self._inside)
            nested = _names(one for top in self._file.message_type for one in top.nested_type)
            return name if short.partition(".")[0] in nested else short
        first = name.split(".")[1]
        return name if first in self._near else name[1:]


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


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    def lines() -> Iterator[str]:
        if enum.options.allow_alias:
            yield "option allow_alias = true;"
        for value in enum.value:
            yield f"{value.name} = {value.number};"

    yield from _block(f"enum {enum.name}", lines())
