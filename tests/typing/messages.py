"""Types of message classes: ``lro.message`` returns the class with its own type."""

# Each expected error has an ignore comment; mypy and pyright report unused comments.
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import dataclasses
from typing import TypedDict, assert_type

import attrs
import msgspec
import pydantic
from google.cloud import redis_v1

import lro


@lro.message("acme.images.v1.ResizeRequest")
@attrs.frozen
class ResizeRequest:
    source: str = ""


@lro.message("acme.images.v1.ResizeResponse")
@dataclasses.dataclass(frozen=True)
class ResizeResponse:
    size_bytes: lro.types.Int64 = 0


@lro.message("acme.images.v1.ResizeMetadata")
@attrs.frozen(kw_only=True)
class ResizeMetadata:
    percent: lro.Int32 = 0


def classes_are_kept() -> None:
    """Constructors, fields and instances of a decorated class keep their types."""
    assert_type(ResizeRequest(source="a"), ResizeRequest)
    assert_type(ResizeRequest().source, str)
    assert_type(ResizeResponse(7), ResizeResponse)
    assert_type(ResizeResponse().size_bytes, int)
    kept: type[ResizeMetadata] = ResizeMetadata
    assert_type(kept(percent=3).percent, int)


def constructors_are_checked() -> None:
    """A wrong argument or an unknown field of a decorated class is an error."""
    ResizeRequest(source=5)  # type: ignore[arg-type]
    ResizeMetadata(3)  # type: ignore[call-arg]
    _ = ResizeRequest().sources  # type: ignore[attr-defined]


def registries_unpack_as_the_class(types: lro.TypeRegistry, packed: lro.AnyMessage) -> None:
    """A registry that reads a message as a class returns an instance of that class."""
    assert_type(types.unpack(packed, ResizeResponse), ResizeResponse)
    assert_type(types.load({}, ResizeRequest), ResizeRequest)
    assert_type(types.unpack_any(packed), object)


@lro.message("acme.images.v1.Model")
class Model(pydantic.BaseModel):
    percent: lro.Int32 = 0


@lro.message("acme.images.v1.Struct")
class Struct(msgspec.Struct):
    percent: lro.Int32 = 0


@lro.message("acme.images.v1.Keys")
class Keys(TypedDict):
    percent: lro.Int32


def classes_of_every_kind_are_kept(types: lro.TypeRegistry, packed: lro.AnyMessage) -> None:
    """Decorated pydantic models, msgspec Structs and TypedDicts keep their types."""
    assert_type(Model(percent=3).percent, int)
    assert_type(Struct(percent=3).percent, int)
    keys: Keys = {"percent": 3}
    assert_type(keys["percent"], int)
    assert_type(types.unpack(packed, Model), Model)
    assert_type(types.unpack(packed, Struct), Struct)
    assert_type(types.unpack(packed, Keys), Keys)
    assert_type(types.unpack(packed, redis_v1.Instance), redis_v1.Instance)
    assert_type(types.pack(keys, Keys), lro.AnyMessage)
    Struct(percent="x")  # type: ignore[arg-type]
