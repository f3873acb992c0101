"""Progress is read from metadata of any kind. No metadata that a server sends raises an error."""

from __future__ import annotations

import dataclasses
import enum
import math
import unicodedata
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro_client.progress import Progress, create_time_of, progress_of


class Step(enum.Enum):
    STEP_UNSPECIFIED = 0
    READING = 1


@attrs.frozen
class Report:
    progress_percent: int | None = None
    progress: object = None
    done_units: int | None = None
    total_units: int | None = None
    state: Step = Step.STEP_UNSPECIFIED
    message: str = ""


@dataclasses.dataclass
class Counted:
    items_done: int = 0
    items_total: int = 0


UNSEEN = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories of control characters, surrogates and line separators."""

INSIDE = {"estimatedWork": "200", "completedWork": "50", "message": "copying"}
GOOGLE = {
    "createTime": "2030-01-02T03:04:05Z",
    "target": "projects/p/clusters/c",
    "verb": "create",
    "requestedCancellation": False,
}
URL = "type.googleapis.com/acme.Report"

READ: dict[str, list[tuple[Any, Progress | None]]] = {
    "percentages count to 100, also as texts": [
        ({name: value}, Progress(0.4))
        for name in ("progressPercent", "progress_percent", "progressPercentage", "percent")
        for value in (40, 40.0, "40")
    ]
    + [({name: 40}, Progress(0.4)) for name in ("percentComplete", "percentDone")],
    "an int is a percentage, a float a share up to 1": [
        (Report(progress=value), Progress(fraction))
        for value, fraction in (
            *((40, 0.4), (0.4, 0.4), (1, 0.01), (1.0, 1.0), (40.0, 0.4), ("40", 0.4), ("0.4", 0.4)),
        )
    ],
    "a field that is called a fraction is one": [({"fractionComplete": 1}, Progress(1.0))],
    "units done of all units": [
        ({done: "3", total: "4"}, Progress(0.75, 3, 4))
        for done, total in (
            *(("done", "total"), ("completed", "total"), ("processedCount", "totalCount")),
            *(("done_units", "total_units"), ("itemsDone", "itemsTotal")),
            ("completedWork", "estimatedWork"),
        )
    ],
    "canonical JSON has no zeros": [
        ({"itemsTotal": 4}, Progress(0.0, 0, 4)),
        ({"total": 4, "itemsDone": 3}, Progress(None, 3)),
    ],
    "attributes of classes": [
        (Report(done_units=1, total_units=2), Progress(0.5, 1, 2)),
        (Counted(1, 5), Progress(0.2, 1, 5)),
        (Report(state=Step.READING), Progress(message="READING")),
        (Report(), None),
    ],
    "a percentage comes first": [({"percent": 10, "done": 1, "total": 2}, Progress(0.1, 1, 2))],
    "a message of its own, as Google has it": [
        case
        for name in ("progress", "progressWorkDocuments", "progress_work_bytes")
        for case in (
            ({name: INSIDE}, Progress(0.25, 50, 200, "copying")),
            ({name: {"percent": 5}, "message": "outer"}, Progress(0.05, message="outer")),
            ({name: {}}, None),
        )
    ]
    + [({"progressEntities": INSIDE}, Progress(0.25, 50, 200, "copying"))],
    "the most informative text, on one line": [
        ({"state": "RUNNING", "stage": "", "currentStep": 3}, Progress(message="RUNNING")),
        (
            {"statusDetail": " a\x1b[31m\n b\x9b\ud800\u202e ", "state": "RUNNING"},
            Progress(message="a [31m b"),
        ),
    ],
    "Google's metadata, a wish to cancel with it": [
        (GOOGLE, Progress(message="create projects/p/clusters/c")),
        (
            {**GOOGLE, "requestedCancellation": True, "statusDetail": "Draining"},
            Progress(message="Draining, cancelling"),
        ),
        ({"cancel_requested": True}, Progress(message="cancelling")),
    ],
    "what is no number from 0 on": [
        case
        for value in (-1, math.nan, math.inf, "abc", True, "", None, [], {}, "1e999")
        for case in (
            ({"percent": value}, None),
            ({"percent": value, "done": 1, "total": 2}, Progress(0.5, 1, 2)),
            ({"progress": value}, None),
        )
    ],
    "more than all is all": [
        ({"percent": 250}, Progress(1.0)),
        ({"done": 7, "total": 5}, Progress(1.0, 7, 5)),
        ({"done": 7, "total": 0}, Progress(None, 7)),
        ({"done": 10**400}, None),
        ({"done": -7, "total": 5}, None),
    ],
    "metadata without fields": [
        (odd, None) for odd in (None, "percent", b"", 3, [], (), object(), lro.AnyMessage())
    ],
    "JSON inside an Any or a Struct, and no bytes": [
        (lro.AnyMessage(URL, {"percent": 3}), Progress(0.03)),
        (lro.Struct({"percent": 3}), Progress(0.03)),
        (lro.AnyMessage(URL, b"\x08\x03"), None),
    ],
}


@pytest.mark.parametrize("cases", READ.values(), ids=READ)
def test_fraction_and_message_are_read_from_metadata(
    cases: list[tuple[Any, Progress | None]],
) -> None:
    assert [(found, progress_of(found)) for found, _ in cases] == cases
    assert progress_of(lro.AnyMessage(URL, b"\x08\x03"), lro.TypeRegistry()) is None


def test_recursive_metadata_is_read_to_a_limit() -> None:
    """Metadata that contains itself is read to a limited depth."""
    endless: dict[str, Any] = {}
    endless["progress"] = endless
    assert progress_of(endless) is None


@pytest.mark.parametrize(
    "found",
    [
        {"createTime": "2030-01-02T03:04:05.678901234+01:00"},
        {"start_time": lro.Timestamp(1893549845, 678901234)},
        {"create_time": datetime(2030, 1, 2, 2, 4, 5, 678901, tzinfo=UTC)},
    ],
)
def test_start_time_is_read_from_any_type(found: object) -> None:
    """The start time is read from a text, a Timestamp or a datetime."""
    assert create_time_of(found) == datetime(2030, 1, 2, 2, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.parametrize(
    "found",
    [None, 3, {}, {"createTime": "soon"}, {"createTime": 5}, {"create_time": datetime(2030, 1, 2)}],
)
def test_unreadable_start_time_is_none(found: object) -> None:
    """The start time is None if it is missing or cannot be read."""
    assert create_time_of(found) is None


def test_metadata_property_that_raises_is_ignored() -> None:
    """If a property of an application's class raises an error, the property counts as missing."""

    class Broken:
        @property
        def percent(self) -> int:
            raise RuntimeError

        create_time = percent

    assert progress_of(Broken()) is None
    assert create_time_of(Broken()) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["progress", "percent", "done", "total", "state", "createTime", "verb"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@settings(max_examples=40)
@given(JSON)
def test_progress_is_within_bounds_or_unknown(found: Any) -> None:
    """For any JSON, the fraction is from 0 to 1 or None, and no count is negative."""
    read = progress_of(found) or Progress()
    create_time_of(found)
    assert read.fraction is None or 0 <= read.fraction <= 1
    assert read.done is None or read.done >= 0
    assert read.total is None or read.total > 0
    assert {unicodedata.category(letter) for letter in read.message} & UNSEEN == set()


def test_progress_is_read_from_protobuf() -> None:
    """Unset fields of protobuf messages count as missing, and enums are shown by name."""
    pytest.importorskip("google.longrunning.operations_pb2")
    from google.protobuf import descriptor_pb2, struct_pb2
    from google.protobuf.timestamp_pb2 import Timestamp

    field = descriptor_pb2.FieldDescriptorProto
    made = descriptor_pb2.FileDescriptorProto(name="p.proto", package="acme", syntax="proto3")
    made.dependency.append(Timestamp.DESCRIPTOR.file.name)
    states = made.enum_type.add(name="State")
    for number, name in enumerate(["STATE_UNSPECIFIED", "COPYING"]):
        states.value.add(name=name, number=number)
    inner = made.message_type.add(name="Work")
    for number, name in enumerate(["estimated_work", "completed_work"], 1):
        inner.field.add(name=name, number=number, type=field.TYPE_INT64, label=1)
    outer = made.message_type.add(name="Meta")
    for number, (name, kind) in enumerate(
        [("progress_documents", ".acme.Work"), ("create_time", ".google.protobuf.Timestamp")], 1
    ):
        outer.field.add(name=name, number=number, type=field.TYPE_MESSAGE, type_name=kind, label=1)
    outer.field.add(name="state", number=3, type=field.TYPE_ENUM, type_name=".acme.State", label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[made])
    types = lro.TypeRegistry()
    from lro.protobuf import register_file_set

    register_file_set(types, files.SerializeToString())
    meta = types.codec("acme.Meta").python
    assert progress_of(meta()) is None
    message = meta(state=1, progress_documents={"estimated_work": 4, "completed_work": 1})
    assert progress_of(message) == Progress(0.25, 1, 4, "COPYING")
    message.create_time.FromSeconds(60)
    assert create_time_of(message) == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    packed = types.pack(message)
    assert isinstance(packed.payload, bytes)
    assert progress_of(packed, types) == Progress(0.25, 1, 4, "COPYING")
    assert progress_of(meta(state=7)) is None
    assert progress_of(struct_pb2.Struct()) is None
