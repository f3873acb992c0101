"""The message of a start: its text, and over gRPC its class, which descriptors tell."""

from __future__ import annotations

import sys

from lro import InvalidArgument, Struct
from lro.types import Json
from lro.wire import loads
from lro_client.cli._connection import Link, read_file


def read_message(given: str) -> dict[str, Json]:
    """The JSON object of an argument: its text, ``@file``, or ``-`` for standard input.

    Raises:
        InvalidArgument: It cannot be read, or is no JSON object.
    """
    named, text = "message", given.encode("utf-8", "surrogateescape")
    if given == "-":
        if sys.stdin is None:
            raise InvalidArgument("-", "standard input is closed")
        named, text = "standard input", sys.stdin.buffer.read()
    elif given.startswith("@"):
        named, text = given[1:], read_file(given[1:])
    try:
        found = loads(text)
    except ValueError as exc:
        raise InvalidArgument(named, f"is not JSON: {exc}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(named, f"must be a JSON object, got {found!r:.80}")
    return found


def message_for(link: Link, target: str, fields: dict[str, Json]) -> object:
    """The message that a start sends.

    Raises:
        InvalidArgument: Over gRPC: no descriptors, no such method in them, or no such message.
    """
    if not link.grpc:
        return Struct(fields)
    if not link.descriptors:
        wanted = "needs --descriptors FILE over gRPC, to know the message of the method"
        raise InvalidArgument("start", wanted)
    name = _request_type(link.descriptors, target)
    try:
        return link.types.codec(name).load(fields, strict=True)
    except InvalidArgument as exc:
        raise InvalidArgument(f"message {name}", str(exc)) from None


def _request_type(descriptors: bytes, target: str) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # needs an extra, as all of gRPC

    wanted = target.strip("/").replace("/", ".")
    for file in FileDescriptorSet.FromString(descriptors).file:
        for service in file.service:
            for method in service.method:
                full = ".".join(filter(None, (file.package, service.name, method.name)))
                if full == wanted:
                    return method.input_type.lstrip(".")
    raise InvalidArgument(target, "is no method of the services in --descriptors")
