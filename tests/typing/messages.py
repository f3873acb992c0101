"""Types of message classes: ``lro.message`` keeps the class what it is."""

# An error that is expected is ignored; mypy and pyright both complain if it does not come.
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import dataclasses
from typing import assert_type

import attrs

import lro


@lro.message("acme.images.v1.ResizeRequest")
@attrs.frozen
class ResizeRequest:
    source: str = ""


@lro.message("acme.images.v1.ResizeResponse")
@dataclasses.dataclass(frozen=True)
class ResizeResponse:
    size_bytes: lro.Int64 = 0


@lro.message("acme.images.v1.ResizeMetadata")
@attrs.frozen(kw_only=True)
class ResizeMetadata:
    percent: lro.Int32 = 0


def classes_are_kept() -> None:
    """Constructors, fields and instances are those of the class as it was written."""
    assert_type(ResizeRequest(source="a"), ResizeRequest)
    assert_type(ResizeRequest().source, str)
    assert_type(ResizeResponse(7), ResizeResponse)
    assert_type(ResizeResponse().size_bytes, int)
    kept: type[ResizeMetadata] = ResizeMetadata
    assert_type(kept(percent=3).percent, int)


def constructors_are_checked() -> None:
    """A wrong argument is an error, and so is a field that there is none of."""
    ResizeRequest(source=5)  # type: ignore[arg-type]
    ResizeMetadata(3)  # type: ignore[call-arg]
    _ = ResizeRequest().sources  # type: ignore[attr-defined]


def registries_unpack_as_the_class(types: lro.TypeRegistry, packed: lro.Any) -> None:
    """What is asked for by its class is an instance of it."""
    assert_type(types.unpack(packed, ResizeResponse), ResizeResponse)
    assert_type(types.load({}, ResizeRequest), ResizeRequest)
    assert_type(types.unpack_any(packed), object)
