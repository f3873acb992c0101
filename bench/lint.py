"""A set with a thousand long-running methods, linted and compared; against merely parsing it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from bench.measure import Figure, Sample, compare
from lro.lint import breaking, lint
from lro.lint._descriptors import DescriptorSet
from lro.lint._lint import examine

FILES = 50
METHODS = 20  # per file
FIELDS = 10  # per message


def run() -> Iterator[Figure]:
    good, bad = made("Response"), made("Result")
    parsed = DescriptorSet(bad)
    thousand = FILES * METHODS
    assert lint(good) == breaking(good, good) == []
    assert len(lint(bad)) == len(breaking(good, bad)) == thousand
    parse = seconds(lambda: FileDescriptorSet.FromString(bad))
    pairs = (
        ("lint 1,000 methods without a finding", lambda: lint(good), None),
        ("lint 1,000 methods with one each", lambda: lint(bad), None),
        ("the same, of a set that is loaded", lambda: examine(parsed), 1000),
        ("compare 1,000 methods that have changed", lambda: breaking(good, bad), None),
    )
    for what, work, target in pairs:
        yield compare(
            what, seconds(work), parse, scale=1e3, unit="ms", target=target, absolute=True
        )


def made(ending: str) -> bytes:
    """Return a descriptor set in which each response has its method's name plus ``ending``."""
    files = FileDescriptorSet()
    files.file.add().ParseFromString(operations_pb2.DESCRIPTOR.serialized_pb)
    for number in range(FILES):
        fill(files.file.add(), number, ending)
    return files.SerializeToString()


def fill(file: FileDescriptorProto, number: int, ending: str) -> None:
    """Fill a file with a service, and with three messages for each of its methods."""
    file.name, file.package = f"bench/s{number}.proto", f"bench.s{number}"
    file.dependency.append("google/longrunning/operations.proto")
    service = file.service.add(name="Service")
    for index in range(METHODS):
        names = f"Do{index}Request", f"Do{index}{ending}", f"Do{index}Metadata"
        for name in names:
            message = file.message_type.add(name=name)
            for field in range(FIELDS):
                message.field.add(name=f"field_{field}", number=field + 1, type=9, label=1)
        rpc = service.method.add(name=f"Do{index}", output_type=".google.longrunning.Operation")
        rpc.input_type = f".{file.package}.{names[0]}"
        extensions: Any = rpc.options.Extensions
        info = extensions[operations_pb2.operation_info]
        info.response_type, info.metadata_type = names[1:]


def seconds(work: Callable[[], object]) -> Sample:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return once
