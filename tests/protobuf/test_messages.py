"""Round trips of random messages through protobuf, and checks of large messages."""

from __future__ import annotations

import pytest
from google.api.distribution_pb2 import Distribution
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.duration_pb2 import Duration as DurationProto
from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.struct_pb2 import ListValue
from google.rpc.status_pb2 import Status as StatusProto
from hypothesis import given, settings
from hypothesis import strategies as st

from lro import AnyMessage, InvalidArgument, Operation, Status, TypeRegistry
from lro._base.status import type_url
from lro.protobuf import check_values, from_proto, to_proto
from lro.wire import GetOperationRequest, ListOperationsResponse, dumps, loads
from tests.messages.scalars_message import METADATA, SCALARS
from tests.protobuf.fixtures import of_attrs, of_protobuf

TYPES = TypeRegistry()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
UNKNOWN = st.sampled_from([b"", b"\x98\x06\x01", b"\xa2\x06\x02hi"])
ANY = st.builds(AnyMessage, st.just("x/a.B"), st.binary(max_size=5)) | st.just(AnyMessage())
STATUS = st.builds(
    Status,
    st.integers(-(2**31), 2**31 - 1),
    TEXT,
    st.lists(ANY, max_size=2).map(tuple),
    unknown=UNKNOWN,
)
OPERATION = st.builds(
    Operation,
    name=TEXT,
    metadata=st.none() | ANY,
    done=st.booleans(),
    result=st.none() | ANY | STATUS,
    unknown=UNKNOWN,
)
PAGE = st.builds(
    ListOperationsResponse, st.lists(OPERATION, max_size=2).map(tuple), TEXT, unknown=UNKNOWN
)


@given(STATUS | OPERATION | PAGE)
def test_unknown_fields_survive_a_round_trip(message):
    """A message with unknown fields is read back from protobuf unchanged."""
    proto = to_proto(message, TYPES)
    again = from_proto(type(proto).FromString(proto.SerializeToString()))
    assert again == message


def test_any_of_well_known_type_is_read_alike_where_its_protobuf_class_is_registered():
    both = TypeRegistry(DurationProto, Empty)
    for name, value in (("Duration", "1s"), ("Empty", {})):
        shown = {"@type": f"type.googleapis.com/google.protobuf.{name}", "value": value}
        packed = both.from_json(shown)
        assert packed == TYPES.from_json(shown) == AnyMessage(shown["@type"], value)


@pytest.mark.parametrize("wrong", [5, TypeRegistry, AnyMessage()])
def test_other_objects_are_refused_as_messages(wrong):
    """An object that is not a message of google.longrunning raises InvalidArgument."""
    with pytest.raises(InvalidArgument, match=r"must be a message of google\.longrunning"):
        to_proto(wrong, TYPES)


def test_messages_of_other_packages_are_not_read():
    with pytest.raises(InvalidArgument, match=r"got google\.protobuf\.Empty"):
        from_proto(Empty())
    with pytest.raises(InvalidArgument):
        to_proto(GetOperationRequest("\ud800"), TYPES)
    assert from_proto(StatusProto(code=5)) == Status(5)
    assert from_proto(pb.GetOperationRequest(name="x")) == GetOperationRequest("x")


ATTRS, PROTOBUF = of_attrs(), of_protobuf()


@settings(max_examples=50)
@given(SCALARS | METADATA)
def test_attrs_class_has_equal_json_and_binary_forms(message):
    """A message of an attrs class has the same values in binary form and in JSON."""
    packed = ATTRS.pack(message)
    binary = AnyMessage(packed.type_url, ATTRS.binary_payload(packed))
    found = ATTRS.unpack_any(binary)
    assert loads(dumps(ATTRS.dump(found))) == loads(dumps(packed.payload))
    assert ATTRS.binary_payload(ATTRS.pack(found)) == binary.payload


@settings(max_examples=50)
@given(SCALARS | METADATA)
def test_protobuf_class_reads_and_writes_the_json_of_its_attrs_class(message):
    """A protobuf class reads the JSON of an attrs class and writes JSON of the same message."""
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


def sized(number: int, content: bytes) -> bytes:
    """Return the binary form of a length-delimited field."""
    value = b""
    size = len(content)
    while size > 0x7F:
        value, size = value + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + value + bytes([size]) + content


BOUNDS = Distribution.BucketOptions.Explicit
MANY = {
    "operations": (pb.ListOperationsResponse, lambda: b"\x0a\x00" * 700_000),
    "details": (pb.Operation, lambda: sized(4, b"\x1a\x00" * 700_000)),
    "unknown fields": (pb.Operation, lambda: b"\x98\x06\x01" * 700_000),
    "inner messages": (ListValue, lambda: b"\x0a\x02\x08\x00" * 700_000),
    "texts": (FieldMask, lambda: b"\x0a\x01a" * 700_000),
    "numbers": (Distribution, lambda: sized(7, bytes(2_100_000))),
}
FEW = {
    "a long text": (FieldMask, lambda: sized(1, b"H" * 4_000_000)),
    "fractions": (BOUNDS, lambda: sized(1, bytes(8 * 1_900_000))),
    "a payload": (pb.Operation, lambda: sized(5, sized(2, b"\x0a\x00" * 700_000))),
    "no message": (pb.Operation, lambda: sized(4, b"\x1a\x80" * 700_000)),
    "a group": (pb.Operation, lambda: b"\x0b" * 2_000_000),
    "cut": (pb.ListOperationsResponse, lambda: sized(1, sized(1, b"H" * 2_000_000))[:-9]),
}


@pytest.mark.parametrize(("cls", "make"), MANY.values(), ids=MANY)
def test_message_of_very_many_values_is_refused(cls, make):
    """A message of too many values, each 100 bytes in memory, is refused before parsing."""
    with pytest.raises(InvalidArgument, match="more than 2000000 values"):
        check_values(make(), cls.DESCRIPTOR)


@pytest.mark.parametrize(("cls", "make"), FEW.values(), ids=FEW)
def test_large_message_of_few_values_is_accepted(cls, make):
    """A large message of few values passes, and so do invalid bytes and the bytes of an Any."""
    check_values(make(), cls.DESCRIPTOR)
