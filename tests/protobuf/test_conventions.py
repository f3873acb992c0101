"""The library sets times and the cancel flag in protobuf metadata, which is binary."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lro import AnyMessage, Service, TypeRegistry
from lro.executors.inline import InlineExecutor
from lro.protobuf import register_file_set
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.wire import ListOperationsRequest
from tests.protobuf.fixtures import file_set

TIMES = ("create_time", "start_time", "end_time", "expire_time")
A_TIME = 'type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp"'
KINDS = [*((name, A_TIME) for name in TIMES)]
KINDS += [("cancel_requested", "type: TYPE_BOOL"), ("text", "type: TYPE_STRING")]
FIELDS = (
    f'field {{ name: "{name}" number: {n} {kind} }}' for n, (name, kind) in enumerate(KINDS, 1)
)
KEPT_FILE = f"""
file {{
  name: "kept.proto" package: "acme.v1" syntax: "proto3"
  dependency: "google/protobuf/timestamp.proto"
  message_type {{ name: "Kept" {" ".join(FIELDS)} }}
}}
"""

TYPES = TypeRegistry()
register_file_set(TYPES, file_set(KEPT_FILE))
KEPT = TYPES.codec("acme.v1.Kept").python
UNKNOWN = b"\xba\x3e\x03abc"
"""The bytes of field 999, which the message class does not have."""


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def service(clock):
    with Service(MemoryStore(clock), InlineExecutor(), types=TYPES, maintenance=False) as made:
        made.declare("acme.v1.Kept.Keep", request=KEPT, response=KEPT, metadata=KEPT)
        yield made


def seen(service, name):
    return KEPT.FromString(service.get(name).metadata.payload)


def test_times_and_cancel_flag_are_filled_in(service, clock):
    """Protobuf metadata gets a record's times and cancel flag, like attrs metadata (spec §9.6)."""
    began = clock()
    name = service.start("acme.v1.Kept.Keep", KEPT(), metadata=KEPT(text="a")).name
    assert seen(service, name).create_time.ToDatetime(began.tzinfo) == began
    assert not seen(service, name).HasField("expire_time")
    clock.advance(seconds=5)
    service.cancel(name)
    assert seen(service, name).cancel_requested
    service.reporter(name).complete(KEPT())
    found = seen(service, name)
    assert found.end_time.ToDatetime(began.tzinfo) == clock()
    assert found.expire_time.ToDatetime(began.tzinfo) == clock() + timedelta(days=30)
    assert found.text == "a"
    wanted = ListOperationsRequest(filter='metadata.expire_time > "2030-01-01T00:00:00Z"')
    assert [operation.name for operation in service.list(wanted).operations] == [name]


def test_fields_set_by_the_work_are_kept(service):
    """If the work reports times, unknown fields or invalid bytes, the metadata keeps them."""
    name = service.start("acme.v1.Kept.Keep", KEPT()).name
    said = KEPT(text="b")
    said.create_time.FromSeconds(7)
    reporter = service.reporter(name)
    url = "type.googleapis.com/acme.v1.Kept"
    assert reporter.report(AnyMessage(url, said.SerializeToString() + UNKNOWN))
    found = service.get(name).metadata.payload
    assert found == said.SerializeToString() + UNKNOWN
    assert reporter.report(AnyMessage(url, b"\xff"))
    assert service.get(name).metadata.payload == b"\xff"
    assert reporter.complete(KEPT(), metadata=AnyMessage(url, UNKNOWN))
    assert seen(service, name).HasField("expire_time")
    assert service.get(name).metadata.payload.endswith(UNKNOWN)


def test_cancel_of_an_operation_without_metadata_shows_the_flag(service):
    """A cancel of an operation without metadata makes metadata with the cancel flag (spec §2.6)."""
    name = service.start("acme.v1.Kept.Keep", KEPT()).name
    service.cancel(name)
    assert seen(service, name).cancel_requested
    assert seen(service, name).HasField("create_time")
