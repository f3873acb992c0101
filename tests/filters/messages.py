"""The messages of the specification's test vectors as attrs classes, and records of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from lro import AnyMessage, Int32, Status, TypeRegistry, message
from lro._filters.types import MessageType
from lro.types import BoolValue, FieldMask, Float, Int32Value, Int64, StringValue, UInt64


class Stage(enum.Enum):
    STAGE_UNSPECIFIED = 0
    QUEUED = 1
    COPYING = 2
    VERIFYING = 3
    FINISHED = 4


@message("google.rpc.Status")
@attrs.frozen
class Warning:
    code: Int32 = 0
    message: str = ""
    details: tuple[AnyMessage, ...] = ()


@message("lrofix.v1.Step")
@attrs.frozen
class Step:
    name: str = ""
    attempts: Int32 = 0
    ok: bool = False
    took: timedelta | None = None
    notes: tuple[str, ...] = ()
    stage: Stage = Stage.STAGE_UNSPECIFIED


@message("lrofix.v1.ExportMetadata.Window")
@attrs.frozen
class Window:
    start_time: datetime | None = None
    span: timedelta | None = None


@message("lrofix.v1.ExportMetadata")
@attrs.frozen
class ExportMetadata:
    """Metadata of an export. Filters treat the members of its one-of as optional fields."""

    create_time: datetime | None = None
    end_time: datetime | None = None
    target: str = ""
    verb: str = ""
    status_detail: str = ""
    cancel_requested: bool = False
    api_version: str = ""
    progress_percent: Int32 = 0
    stage: Stage = Stage.STAGE_UNSPECIFIED
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    steps: tuple[Step, ...] = ()
    elapsed: timedelta | None = None
    rate: float = 0.0
    bytes_done: Int64 = 0
    extra: Mapping[str, object] | None = None
    warning: Warning | None = None
    note: StringValue | None = None
    retries: Int32Value | None = None
    checksum: bytes = b""
    counters: Mapping[str, Int64] = attrs.field(factory=dict)
    shard_names: Mapping[Int32, str] = attrs.field(factory=dict)
    step_index: Mapping[str, Step] = attrs.field(factory=dict)
    priority: Int32 | None = None
    current_step: Step | None = None
    shards: tuple[Int32, ...] = ()
    history: tuple[Stage, ...] = ()
    quota: UInt64 = 0
    ratio: Float = 0.0
    uri: str | None = None
    snapshot_id: Int64 | None = None
    window: Window | None = None
    changed: FieldMask | None = None
    payload: AnyMessage | None = None
    dry_run: BoolValue | None = None


@message("lrofix.v1.ImportMetadata")
@attrs.frozen
class ImportMetadata:
    create_time: datetime | None = None
    target: str = ""
    stage: str = ""
    rows_read: Int32 = 0
    priority: str = ""
    tags: tuple[str, ...] = ()


@message("lrofix.v1.ExportResponse")
@attrs.frozen
class ExportResponse:
    output_uri: str = ""
    row_count: Int64 = 0
    files: tuple[str, ...] = ()
    rows_per_shard: Mapping[str, Int32] = attrs.field(factory=dict)


@message("lrofix.v1.Book")
@attrs.frozen
class Book:
    name: str = ""
    title: str = ""
    page_count: Int32 = 0
    authors: tuple[str, ...] = ()
    available: bool = False
    publish_time: datetime | None = None


REGISTRY = TypeRegistry(ExportMetadata, ImportMetadata, ExportResponse, Book)


def url(full_name: str) -> str:
    """Return the type URL of a message."""
    return f"type.googleapis.com/{full_name}"


def types(names: Sequence[str], registry: TypeRegistry = REGISTRY) -> list[MessageType]:
    """Return the types with these full names, as a service passes them to a filter."""
    return [
        MessageType(name, registry.codec(name).shape if name in registry else None)
        for name in names
    ]


START = datetime(2024, 1, 1, tzinfo=UTC)


@attrs.frozen(kw_only=True)
class Row:
    """The smallest record that a filter can match."""

    name: str = "operations/a"
    done: bool = False
    error: Status | None = None
    metadata: AnyMessage | None = None
    response: AnyMessage | None = None
    create_time: datetime = START
    end_time: datetime | None = None
    cancel_requested: bool = False
    waits: bool = False
    method: str = "acme.v1.Data.Copy"

    @property
    def state(self) -> str:
        """The operation's state, derived as in spec §2.1."""
        if not self.done:
            return "IN_PROGRESS"
        if self.error is None:
            return "SUCCEEDED"
        return "CANCELLED" if self.error.code == 1 else "FAILED"


def row(record: dict[str, object]) -> Row:
    """Convert a record of filter_eval.json."""
    operation = record["operation"]
    assert isinstance(operation, dict)
    error = operation.get("error")
    end = record.get("end_time")
    return Row(
        name=operation["name"],
        done=operation.get("done", False),
        error=error and Status(error["code"], error["message"], _packed(error, "details")),
        metadata=next(iter(_packed(operation, "metadata")), None),
        response=next(iter(_packed(operation, "response")), None),
        create_time=datetime.fromisoformat(str(record["create_time"])),
        end_time=datetime.fromisoformat(str(end)) if end else None,
        cancel_requested=bool(record["cancel_requested"]),
    )


def _packed(value: dict[str, object], key: str) -> tuple[AnyMessage, ...]:
    found = value.get(key, [])
    return tuple(
        REGISTRY.from_json(each) for each in (found if isinstance(found, list) else [found])
    )
