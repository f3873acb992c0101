"""JSON -> message -> binary -> message -> JSON, for classes of both kinds, by Hypothesis."""

from __future__ import annotations

import pytest

pytest.importorskip("google.longrunning.operations_proto_pb2")

from hypothesis import given, settings

from lro import Any
from lro._base.status import type_url
from lro.wire import dumps, loads
from tests.messages.scalars_message import METADATA, SCALARS
from tests.protobuf.fixtures import of_attrs, of_protobuf

ATTRS, PROTOBUF = of_attrs(), of_protobuf()


@settings(max_examples=50)
@given(SCALARS | METADATA)
def test_attrs_classes(message):
    """The binary form says the same message, and so does its JSON."""
    packed = ATTRS.pack(message)
    binary = Any(packed.type_url, ATTRS.binary_payload(packed))
    found = ATTRS.unpack_any(binary)
    assert loads(dumps(ATTRS.dump(found))) == loads(dumps(packed.payload))
    assert ATTRS.binary_payload(ATTRS.pack(found)) == binary.payload


@settings(max_examples=50)
@given(SCALARS | METADATA)
def test_protobuf_classes(message):
    """What an attrs class writes, the vectors' own descriptors read, and the other way round."""
    name = ATTRS.name_of(type(message))
    value = loads(dumps(ATTRS.dump(message)))
    codec = PROTOBUF.codec(name)
    read = codec.load(value, strict=True)
    packed = PROTOBUF.pack(read)
    assert packed.type_url == type_url(name)
    assert PROTOBUF.unpack(packed, type(read)) == read
    shown = PROTOBUF.dump(read)
    assert codec.load(shown, strict=True) == read
    assert PROTOBUF.dump(codec.load(shown, strict=True)) == shown
