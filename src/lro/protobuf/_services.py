"""A service as proto files: its messages, and its methods with their types (spec §1.5, §8.1)."""

from __future__ import annotations

from typing import Final

from google.api import annotations_pb2
from google.longrunning import operations_proto_pb2 as longrunning
from google.protobuf.descriptor_pb2 import (
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool

from lro._engine.method_spec import MethodSpec
from lro._engine.service import Service
from lro._messages.protobuf.files import ProtoFiles, with_imports
from lro._messages.protobuf.options import HTTP, OPERATION_INFO
from lro._messages.protobuf.starts import add_fields
from lro._messages.schema import Shape
from lro._model.method_names import MethodName
from lro.protobuf._source import source

_ANNOTATIONS: Final = annotations_pb2.DESCRIPTOR
_LONGRUNNING: Final = longrunning.DESCRIPTOR


def descriptor_set(service: Service) -> bytes:
    """The ``FileDescriptorSet`` of a service, each file behind all that it imports.

    Raises:
        DeclarationError: A message class says what proto cannot say.
    """
    files = [*_own_files(service)]
    binary = service.types.binary
    needed = {imported for file in files for imported in file.dependency}
    for spec in service.specs.values():
        classes = (spec.request, spec.response, spec.metadata)
        names = map(service.types.name_of, classes)
        needed |= {binary.known[name] for name in names if name in binary.known}
    # Not those of this service: they stand at the end.
    needed -= {_ANNOTATIONS.name, *(file.name for file in files)}
    imported = [_ANNOTATIONS, *map(binary.pool.FindFileByName, sorted(needed))]
    whole = FileDescriptorSet(file=[*with_imports(imported).values(), *files])
    return bytes(whole.SerializeToString(deterministic=True))


def proto_sources(service: Service) -> dict[str, str]:
    """The text of each proto file of a service, by its name; those of Google are only imported.

    Raises:
        DeclarationError: A message class says what proto cannot say.
    """
    return {file.name: source(file) for file in _own_files(service)}


def _own_files(service: Service) -> ProtoFiles:
    binary = service.types.binary
    specs = service.specs.values()
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
        _add_method(files, spec, request)
    return files


def _is_there(spec: MethodSpec, pool: DescriptorPool) -> bool:
    # The file of its messages may have the service, as whoever wrote that would have it.
    name = MethodName.parse(spec.full_name)
    service = f"{name.package}.{name.service}" if name.package else name.service
    try:
        return name.name in pool.FindServiceByName(service).methods_by_name
    except KeyError:
        return False


def _add_method(files: ProtoFiles, spec: MethodSpec, request: str) -> None:
    name = MethodName.parse(spec.full_name)
    file = files.file(name.package)
    service = next((one for one in file.service if one.name == name.service), None)
    service = service or file.service.add(name=name.service)
    method = service.method.add(
        name=name.name,
        input_type=f".{request}",
        output_type=f".{longrunning.Operation.DESCRIPTOR.full_name}",
    )
    info = method.options.Extensions[OPERATION_INFO]
    info.response_type = _shortest(spec.info.response_type, name.package)
    info.metadata_type = _shortest(spec.info.metadata_type, name.package)
    rule = method.options.Extensions[HTTP]
    rule.post, rule.body = spec.path, "*"
    needed = [_ANNOTATIONS.name, _LONGRUNNING.name]
    for type_name in (request, spec.info.response_type, spec.info.metadata_type):
        needed.append(files.file_of(type_name))
    for imported in needed:
        if imported != file.name and imported not in file.dependency:
            file.dependency.append(imported)


def _shortest(type_name: str, package: str) -> str:
    # A type of the method's own package is written without it (spec §8.3).
    inside = type_name.removeprefix(f"{package}.") if package else type_name
    return inside if "." not in inside else type_name
