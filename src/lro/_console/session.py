"""The facts of a service that the page needs before it reads operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Final

from lro import Service
from lro.http import MethodSpec, ValueType, type_of_field
from lro.types import Duration, Field, Json, Kind, Label, Shape
from lro.wire import datetime_text, duration_text

_DEPTH: Final = 4
_MAX_FIELDS: Final = 100

_WORDS: Final = {
    ValueType.TEXT: "text",
    ValueType.BOOL: "bool",
    ValueType.ENUM: "enum",
    ValueType.TIMESTAMP: "timestamp",
    ValueType.DURATION: "duration",
    ValueType.OPAQUE: "bytes",
    ValueType.MESSAGE: "message",
    ValueType.STRUCT: "struct",
    ValueType.DYNAMIC: "value",
    ValueType.SINGLE: "float",
    ValueType.DOUBLE: "float",
    ValueType.INTEGER: "int",
}


def methods_json(service: Service, paused: Mapping[str, datetime]) -> Json:
    """Return the methods of a service, with their types, options, and fields for filters.

    ``paused`` maps the name of each paused method to the time at which it was paused.
    """
    return [
        _method(service, spec, paused.get(spec.full_name)) for spec in service.edges.specs.values()
    ]


def _method(service: Service, spec: MethodSpec, paused: datetime | None) -> Json:
    options, most = spec.options, spec.options.concurrency
    each = "" if options.concurrency_key is None else " for each key"
    shapes = {
        "metadata": service.types.codec(spec.info.metadata_type).shape,
        "response": service.types.codec(spec.info.response_type).shape,
    }
    # The depth is limited, because messages that contain their own type have millions of paths.
    paths = chain.from_iterable(_fields(name, shape, _DEPTH) for name, shape in shapes.items())
    return {
        "name": spec.full_name,
        "request": service.types.name_of(spec.request),
        "response": spec.info.response_type,
        "metadata": spec.info.metadata_type,
        "path": options.path or None,
        "concurrency": most if most is None else f"{most}{each}",
        "rate": None if options.rate is None else f"{_rate(options.rate)}{each}",
        "timeLimit": None if options.time_limit is None else _span(options.time_limit),
        "keepFor": _span(spec.keep_for),
        "attempts": 1 if options.retry is None else options.retry.attempts,
        "begins": "at most once" if options.at_most_once else "at least once",
        "paused": None if paused is None else datetime_text(paused),
        "fields": list(islice(paths, _MAX_FIELDS)),
    }


def _rate(rate: tuple[int, timedelta]) -> str:
    return f"{rate[0]} in {_span(rate[1])}"


def _span(span: timedelta) -> str:
    return duration_text(Duration.from_timedelta(span))


def _fields(path: str, shape: Shape | None, depth: int) -> Iterator[Json]:
    """Yield the paths of fields and nested fields that filters accept, with their types."""
    for field in shape.fields if shape is not None else ():
        kind = type_of_field(field)
        below = f"{path}.{field.name}"
        if kind is ValueType.MESSAGE and field.label is not Label.MAP:
            if depth:
                yield from _fields(below, _shape(field), depth - 1)
            continue
        many = {Label.REPEATED: "list of ", Label.MAP: "map of "}.get(field.label, "")
        yield {"path": below, "type": many + _WORDS[kind]}


def _shape(field: Field) -> Shape | None:
    return field.shape if field.kind is Kind.MESSAGE and field.below is not None else None
