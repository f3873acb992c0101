"""A packed message: a type's name and its payload, kept as it came (spec §1.10, §1.14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

import attrs

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value as the standard library reads it."""

T = TypeVar("T")

TYPE_URL_PREFIX: Final = "type.googleapis.com/"

WRAPPED_TYPES: Final = frozenset(
    "google.protobuf." + name
    for name in (
        "Any", "Duration", "Timestamp", "FieldMask", "Struct", "Value", "ListValue",
        "BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value",
        "StringValue", "UInt32Value", "UInt64Value",
    )
)  # fmt: skip
"""Types whose JSON form inside an Any stands under ``value`` (spec §1.10(1))."""


UNKNOWN: Final = "lro.unknown"


def unknown_fields() -> bytes:
    """The attribute of a message that carries unknown fields in binary form.

    They come from peers with a newer revision, and are written back (spec §1.7(5)).
    """
    found: bytes = attrs.field(default=b"", kw_only=True, repr=False, metadata={UNKNOWN: True})
    return found


def named(full_name: str) -> Callable[[type[T]], type[T]]:
    """Give a message class of this library its full name; :func:`lro.message` also checks it."""

    def name_it(cls: type[T]) -> type[T]:
        cls.__lro_name__ = full_name  # type: ignore[attr-defined]  # a mark, like __slots__
        return cls

    return name_it


@named("google.protobuf.Any")
@attrs.frozen
class Any:
    """A message of some type, packed.

    The payload stays in the form in which it came: a JSON value (an object for ordinary messages,
    the bare JSON form for the types of spec §1.10(1)) or the bytes of the binary form. It is
    converted only on request, through a :class:`lro.TypeRegistry`. Equality compares the stored
    form.
    """

    type_url: str = ""
    payload: Json | bytes = attrs.field(factory=dict, eq=True, hash=False)

    @property
    def type_name(self) -> str:
        """The full name of the message type: all after the last ``/`` (spec §1.14(1))."""
        return self.type_url.rpartition("/")[2] if "/" in self.type_url else ""

    @property
    def empty(self) -> bool:
        """True for the Any that packs nothing at all: no type, no payload."""
        return not self.type_url and not self.payload


def type_url(full_name: str) -> str:
    """The type URL that a newly packed message of this type gets (spec §1.14(1))."""
    return TYPE_URL_PREFIX + full_name


def declared_name(cls: type) -> str | None:
    """The full name given by :func:`named` to this very class, or None."""
    name = cls.__dict__.get("__lro_name__")
    return name if isinstance(name, str) else None
