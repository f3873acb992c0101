"""Indexed metadata paths of a service, and the keys that records have for them.

A key is a hash of the value at the end of a path. The process that writes the metadata also makes
the key, so a database can find records without reading messages. A record has a key for every path
of its service. If a key is missing, the writer did not know the path, and any value is possible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from lro._base.errors import DeclarationError, InvalidFilter, UnknownType
from lro._base.status import AnyMessage, Json
from lro._filters.prefilter import ABSENT, key_value
from lro._messages.registry import TypeRegistry
from lro._model.operation import Record

if TYPE_CHECKING:
    from lro._filters.paths import Indexable, Step
    from lro._messages.schema import Shape

CALLER: Final = "caller"
"""The key of a record's caller, for services with ``owner_only``."""


class Indexes:
    """The indexed paths of a service. If no path is declared, records get no keys."""

    def __init__(self, types: TypeRegistry) -> None:
        self._types = types
        self._paths: Mapping[str, tuple[str, str]] = {}
        """The path and the JSON name of its first field, by key.

        Replaced, not changed, because other threads read the mapping while a method is declared.
        """
        self._callers = False
        self.declared: bool = False
        """True if records have keys."""
        self._places: dict[str, Mapping[str, Indexable]] = {}

    @property
    def keys(self) -> frozenset[str]:
        """The names of all keys."""
        return frozenset(self._paths) | ({CALLER} if self._callers else frozenset())

    def declare_caller(self) -> None:
        """Add a key for the name of the caller."""
        self._callers = self.declared = True

    def declare(self, path: str, type_name: str, shape: Shape | None) -> None:
        """Add a key for the value at a path of the metadata of this type.

        Raises:
            DeclarationError: The type has no such path, or the path does not lead to one value.
        """
        from lro._filters.paths import indexable
        from lro._filters.types import MessageType

        try:
            place = indexable(path, MessageType(type_name, shape))
        except InvalidFilter as exc:
            text = f"cannot be an index of {type_name}: {exc.description}"
            raise DeclarationError(f"indexed_paths={path!r}", text) from None
        self._paths = {**self._paths, place.key: (path, place.names[0])}
        self._places = {}
        self.declared = True

    def of(self, type_name: str, steps: tuple[Step, ...]) -> Indexable | None:
        """Return the index of the value at the end of these steps in a metadata type, or None."""
        for place in self._of_type(type_name).values():
            if place.steps == steps:
                return place
        return None

    def mark(self, record: Record) -> Record:
        """Return the record with the keys of its metadata and caller."""
        if not self.declared:
            # Keys that another process made may not match the new metadata.
            return record if record.keys is None else record.with_keys(None)
        return record.with_keys(json.dumps(dict(self._keys_of(record)), separators=(",", ":")))

    def _keys_of(self, record: Record) -> Iterator[tuple[str, str]]:
        if self._callers:
            yield CALLER, key_value(record.caller)
        if record.metadata is None:
            yield from ((key, ABSENT) for key in self._paths)
            return
        packed = self._types.readable(record.metadata)
        if not isinstance(packed.payload, bytes) and packed.type_name in self._types:
            yield from self._keys_in(packed, packed.payload, born=record.metadata)
        # Make no keys for an unknown type: a process that knows the type may find values.

    def _keys_in(
        self, packed: AnyMessage, payload: Json, *, born: AnyMessage
    ) -> Iterator[tuple[str, str]]:
        # Makes no key for a value that only a later release may find.
        places = self._of_type(packed.type_name)
        for key, place in places.items():
            value = place.value_in(payload)
            if value is not None:
                yield key, value
        others = {key: head for key, (_, head) in self._paths.items() if key not in places}
        if others and (packed is born or self._types.binary_payload(packed) == born.payload):
            found = payload if isinstance(payload, dict) else {}
            yield from ((key, ABSENT) for key, head in others.items() if head not in found)

    def _of_type(self, type_name: str) -> Mapping[str, Indexable]:
        known = self._places.get(type_name)
        if known is None:
            places = self._places
            known = dict(self._found_in(type_name))
            places[type_name] = known  # if a path was declared meanwhile, this dict is discarded
        return known

    def _found_in(self, type_name: str) -> Iterator[tuple[str, Indexable]]:
        from lro._filters.paths import indexable
        from lro._filters.types import MessageType

        try:
            shape = self._types.codec(type_name).shape
        except UnknownType:
            return
        for key, (path, _) in self._paths.items():
            try:
                place = indexable(path, MessageType(type_name, shape))
            except InvalidFilter:
                continue
            if place.key == key:  # with another key, the field has another kind in this type
                yield key, place
