"""One message as a class of every kind, and what its fields may hold."""

from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NotRequired

import attrs
import msgspec
import pydantic
from hypothesis import strategies as st
from typing_extensions import TypedDict

import lro


class Stage(enum.Enum):
    WAITING = "waiting"
    COPYING = "copying"


@attrs.frozen
class AttrsStep:
    name: str = ""
    tries: lro.Int32 = 0
    note: str | None = None


@attrs.frozen
class AttrsExport:
    step_count: int = 0
    small: lro.Int32 = 0
    big: lro.types.UInt64 = 0
    share: float = 0.0
    single: lro.types.Float = 0.0
    ok: bool = False
    title: str = ""
    raw: bytes = b""
    stage: Stage = Stage.WAITING
    took: timedelta | None = None
    create_time: datetime | None = None
    copies: lro.Int32 | None = None
    tags: list[str] = attrs.field(factory=list)
    steps: list[AttrsStep] = attrs.field(factory=list)
    labels: dict[str, int] = attrs.field(factory=dict)
    by_stage: dict[int, AttrsStep] = attrs.field(factory=dict)
    first: AttrsStep | None = None
    free: dict[str, Any] = attrs.field(factory=dict)


@dataclasses.dataclass
class DataStep:
    name: str = ""
    tries: lro.Int32 = 0
    note: str | None = None


@dataclasses.dataclass
class DataExport:
    step_count: int = 0
    small: lro.Int32 = 0
    big: lro.types.UInt64 = 0
    share: float = 0.0
    single: lro.types.Float = 0.0
    ok: bool = False
    title: str = ""
    raw: bytes = b""
    stage: Stage = Stage.WAITING
    took: timedelta | None = None
    create_time: datetime | None = None
    copies: lro.Int32 | None = None
    tags: list[str] = dataclasses.field(default_factory=list)
    steps: list[DataStep] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    by_stage: dict[int, DataStep] = dataclasses.field(default_factory=dict)
    first: DataStep | None = None
    free: dict[str, Any] = dataclasses.field(default_factory=dict)


class ModelStep(pydantic.BaseModel):
    name: str = ""
    tries: lro.Int32 = 0
    note: str | None = None


class ModelExport(pydantic.BaseModel):
    step_count: int = 0
    small: lro.Int32 = 0
    big: lro.types.UInt64 = 0
    share: float = 0.0
    single: lro.types.Float = 0.0
    ok: bool = False
    title: str = ""
    raw: bytes = b""
    stage: Stage = Stage.WAITING
    took: timedelta | None = None
    create_time: datetime | None = None
    copies: lro.Int32 | None = None
    tags: list[str] = []
    steps: list[ModelStep] = []
    labels: dict[str, int] = {}
    by_stage: dict[int, ModelStep] = {}
    first: ModelStep | None = None
    free: dict[str, Any] = {}


class StructStep(msgspec.Struct):
    name: str = ""
    tries: lro.Int32 = 0
    note: str | None = None


class StructExport(msgspec.Struct):
    step_count: int = 0
    small: lro.Int32 = 0
    big: lro.types.UInt64 = 0
    share: float = 0.0
    single: lro.types.Float = 0.0
    ok: bool = False
    title: str = ""
    raw: bytes = b""
    stage: Stage = Stage.WAITING
    took: timedelta | None = None
    create_time: datetime | None = None
    copies: lro.Int32 | None = None
    tags: list[str] = []
    steps: list[StructStep] = []
    labels: dict[str, int] = {}
    by_stage: dict[int, StructStep] = {}
    first: StructStep | None = None
    free: dict[str, Any] = {}


class DictStep(TypedDict):
    name: str
    tries: lro.Int32
    note: NotRequired[str]


class DictExport(TypedDict):
    step_count: int
    small: lro.Int32
    big: lro.types.UInt64
    share: float
    single: lro.types.Float
    ok: bool
    title: str
    raw: bytes
    stage: Stage
    took: NotRequired[timedelta]
    create_time: NotRequired[datetime]
    copies: NotRequired[lro.Int32]
    tags: list[str]
    steps: list[DictStep]
    labels: dict[str, int]
    by_stage: dict[int, DictStep]
    first: NotRequired[DictStep]
    free: dict[str, Any]


PAIRS: dict[str, tuple[Any, Any]] = {
    "attrs": (AttrsExport, AttrsStep),
    "dataclass": (DataExport, DataStep),
    "pydantic": (ModelExport, ModelStep),
    "msgspec": (StructExport, StructStep),
    "TypedDict": (DictExport, DictStep),
}
"""The class of the message, and that of the message in it."""

STEP = "twins.v1.Step"
EXPORT = "twins.v1.Export"


def registry(kind: str) -> lro.TypeRegistry:
    """A registry that knows the classes of one kind, under the same names."""
    types = lro.TypeRegistry()
    export, step = PAIRS[kind]
    types.register(step, STEP)
    types.register(export, EXPORT)
    return types


def made(kind: str, values: dict[str, Any]) -> Any:
    """The message of one kind with these values, whose inner messages are dicts of theirs."""
    export, step = PAIRS[kind]
    inner = {**values}
    if "first" in values:
        inner["first"] = step(**values["first"])
    for name in ("steps", "by_stage"):
        found = values[name]
        inner[name] = (
            [step(**one) for one in found]
            if isinstance(found, list)
            else {key: step(**one) for key, one in found.items()}
        )
    return export(**inner)


def _some(**fields: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return fields


_texts = st.text(st.characters(codec="utf-8"), max_size=5)
_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_moments = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))]),
)
_steps = st.fixed_dictionaries(_some(name=_texts, tries=_int32), optional=_some(note=_texts))
_json = st.recursive(
    st.booleans() | st.none() | _texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda one: st.lists(one, max_size=2) | st.dictionaries(_texts, one, max_size=2),
    max_leaves=4,
)

values = st.fixed_dictionaries(
    _some(
        step_count=_int64,
        small=_int32,
        big=st.integers(0, 2**64 - 1),
        share=st.floats(allow_nan=False),
        single=st.floats(width=32, allow_nan=False),
        ok=st.booleans(),
        title=_texts,
        raw=st.binary(max_size=5),
        stage=st.sampled_from(Stage),
        tags=st.lists(_texts, max_size=2),
        steps=st.lists(_steps, max_size=2),
        labels=st.dictionaries(_texts, _int64, max_size=2),
        by_stage=st.dictionaries(_int64, _steps, max_size=2),
        free=st.dictionaries(_texts, _json, max_size=2),
    ),
    optional=_some(
        took=st.timedeltas(timedelta(days=-1000), timedelta(days=1000)),
        create_time=_moments,
        copies=_int32,
        first=_steps,
    ),
)
"""Values of the fields, those of messages as dicts."""
