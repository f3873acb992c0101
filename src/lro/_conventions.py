"""Metadata fields that every service spells the same way, filled in by the library (spec §9.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from lro._any import Any, Json
from lro._codecs import Amending, Codec
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

    def stamp(self, record: Record, codec: Codec | None = None) -> Any | None:
        """The record's metadata with what the record knows; times that the work said itself stay.

        What is in binary form is changed by ``codec``, if that can.
        """
        packed = record.metadata
        if packed is None or not (self.times or self.cancel_flag):
            return packed
        payload = packed.payload
        said = payload if isinstance(payload, dict) else {}
        times: dict[str, Json] = {
            key: datetime_text(moment)
            for name, key in self.times.items()
            if key not in said and (moment := getattr(record, name)) is not None
        }
        marks: dict[str, Json] = {}
        if self.cancel_flag and record.cancel_requested:
            marks[self.cancel_flag] = True
        if isinstance(payload, dict):
            payload = {**times, **payload, **marks}
        elif isinstance(payload, bytes) and isinstance(codec, Amending):
            payload = codec.amend(payload, times, marks)
        return packed if payload == packed.payload else Any(packed.type_url, payload)
