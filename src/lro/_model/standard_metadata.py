"""Metadata fields that every service spells the same way, filled in by the library (spec §9.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from lro._base.any import Any, Json, type_url
from lro._base.errors import InvalidArgument
from lro._messages.codecs import Amending, Codec
from lro._messages.schema import TIMESTAMP, Kind, Shape
from lro._messages.times import datetime_text
from lro._model.record import Record

_TIMES: Final = ("create_time", "start_time", "end_time", "expire_time")
_CANCEL_FLAGS: Final = ("cancel_requested", "requested_cancellation")


@attrs.frozen
class StandardMetadata:
    """Which conventional fields a metadata type has: attribute of the record -> JSON name.

    ``first`` is a message of that type in which nothing is said. It becomes the metadata of an
    operation that has none when the operation is asked to stop, so that its flag can show that.
    """

    times: Mapping[str, str]
    cancel_flag: str = ""
    first: Any | None = None

    @classmethod
    def of(
        cls, shape: Shape | None, codec: Codec | None = None, type_name: str = ""
    ) -> StandardMetadata:
        """Read them off a shape; fields of other types are not touched.

        ``first`` is made with the codec, and only where there is a flag and the type allows an
        empty message.
        """
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
        first = _empty(codec, type_name) if flags and codec is not None else None
        return cls(times, flags[0] if flags else "", first)

    def stamp(self, record: Record, codec: Codec | None = None) -> Any | None:
        """The record's metadata with what the record knows; times that the work said itself stay.

        What is in binary form is changed by ``codec``, if that can.
        """
        packed = record.metadata
        if packed is None and record.cancel_requested:
            packed = self.first
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


def _empty(codec: Codec, type_name: str) -> Any | None:
    payload: dict[str, Json] | bytes = b"" if isinstance(codec, Amending) else {}
    try:
        codec.load(payload, strict=False)
    except InvalidArgument:  # a field is required
        return None
    return Any(type_url(type_name), payload)
