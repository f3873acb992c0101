"""Metadata fields that every service spells the same way, filled in by the library (spec §9.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from lro._any import Any, Json
from lro._record import Record
from lro._shapes import TIMESTAMP, Kind, Shape
from lro._times import datetime_text

_TIMES: Final = ("create_time", "start_time", "end_time", "expire_time")
_CANCEL_FLAGS: Final = ("cancel_requested", "requested_cancellation")


@attrs.frozen
class Conventions:
    """Which conventional fields a metadata type has: attribute of the record -> JSON name."""

    times: Mapping[str, str]
    cancel_flag: str = ""

    @classmethod
    def of(cls, shape: Shape | None) -> Conventions:
        """Read them off a shape; fields of other types are not touched."""
        fields = {field.name: field for field in shape.fields} if shape else {}
        times: dict[str, str] = {
            name: fields[name].json_name
            for name in _TIMES
            if name in fields and fields[name].message_name == TIMESTAMP
        }
        flags = [
            fields[name].json_name
            for name in _CANCEL_FLAGS
            if name in fields and fields[name].kind is Kind.BOOL
        ]
        return cls(times, flags[0] if flags else "")

    def stamp(self, record: Record) -> Any | None:
        """The record's metadata with what the record knows; what the work said itself stays."""
        packed = record.metadata
        if packed is None or not isinstance(packed.payload, dict):
            return packed
        added: dict[str, Json] = {}
        for name, key in self.times.items():
            moment = getattr(record, name)
            if moment is not None and key not in packed.payload:
                added[key] = datetime_text(moment)
        if self.cancel_flag and record.cancel_requested:
            added[self.cancel_flag] = True
        if not added or added.items() <= packed.payload.items():
            return packed
        return Any(packed.type_url, {**packed.payload, **added})
