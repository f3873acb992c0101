"""JSON of an operation with metadata and response, both ways; against hand-written code."""

from __future__ import annotations

import timeit
from collections.abc import Iterator
from datetime import UTC, datetime

import attrs

import lro
import lro.wire
from bench.measure import Figure, compare
from lro.wire import dumps, loads

TIMES = 2000


@lro.message("bench.v1.Meta")
@attrs.frozen
class Meta:
    create_time: datetime | None = None
    verb: str = ""
    progress_percent: lro.Int32 = 0
    cancel_requested: bool = False


@lro.message("bench.v1.BookResponse")
@attrs.frozen
class BookResponse:
    name: str = ""
    title: str = ""
    pages: lro.Int32 = 0
    tags: tuple[str, ...] = ()


@lro.message("bench.v1.TableResponse")
@attrs.frozen
class TableResponse:
    data: dict[str, object] = attrs.field(factory=dict)


TYPES = lro.TypeRegistry(Meta, BookResponse, TableResponse)
META = Meta(datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "export", 40)
BOOK = BookResponse("books/1", "On waiting", 321, ("a", "b", "c"))
TABLE = TableResponse({"rows": [{"id": n, "label": f"row {n}", "on": True} for n in range(1000)]})
PREFIX = "type.googleapis.com/"


def encode() -> bytes:
    operation = lro.Operation(
        name="operations/abc", metadata=TYPES.pack(META), done=True, result=TYPES.pack(BOOK)
    )
    return dumps(lro.wire.operation_to_json(operation, TYPES))


def encode_by_hand() -> bytes:
    when = META.create_time
    assert when is not None
    metadata: dict[str, lro.types.Json] = {"@type": PREFIX + "bench.v1.Meta"}
    metadata["createTime"] = when.isoformat()[:-6] + "Z"
    if META.verb:
        metadata["verb"] = META.verb
    if META.progress_percent:
        metadata["progressPercent"] = META.progress_percent
    if META.cancel_requested:
        metadata["cancelRequested"] = True
    response: dict[str, lro.types.Json] = {"@type": PREFIX + "bench.v1.BookResponse"}
    if BOOK.name:
        response["name"] = BOOK.name
    if BOOK.title:
        response["title"] = BOOK.title
    if BOOK.pages:
        response["pages"] = BOOK.pages
    if BOOK.tags:
        response["tags"] = list(BOOK.tags)
    return dumps(
        {"name": "operations/abc", "metadata": metadata, "done": True, "response": response}
    )


TEXT = encode()


def decode() -> tuple[Meta, BookResponse]:
    operation = lro.wire.operation_from_json(loads(TEXT), TYPES)
    assert operation.metadata is not None
    assert operation.response is not None
    return TYPES.unpack(operation.metadata, Meta), TYPES.unpack(operation.response, BookResponse)


def decode_by_hand() -> tuple[Meta, BookResponse]:
    value: dict[str, dict[str, str]] = loads(TEXT)  # type: ignore[assignment]
    metadata, response = value["metadata"], value["response"]
    if metadata["@type"].rpartition("/")[2] != "bench.v1.Meta":
        raise ValueError
    if response["@type"].rpartition("/")[2] != "bench.v1.BookResponse":
        raise ValueError
    return (
        Meta(
            datetime.fromisoformat(metadata["createTime"]),
            metadata.get("verb", ""),
            metadata.get("progressPercent", 0),  # type: ignore[arg-type]
            metadata.get("cancelRequested", False),  # type: ignore[arg-type]
        ),
        BookResponse(
            response.get("name", ""),
            response.get("title", ""),
            response.get("pages", 0),  # type: ignore[arg-type]
            tuple(response.get("tags", ())),
        ),
    )


def run() -> Iterator[Figure]:
    assert encode() == encode_by_hand()
    assert decode() == decode_by_hand() == (META, BOOK)
    yield compare("encode an operation", timed(encode), timed(encode_by_hand), target=1.8)
    yield compare("decode an operation", timed(decode), timed(decode_by_hand), target=1.8)
    large = lambda: dumps(TYPES.to_json(TYPES.pack(TABLE)))  # noqa: E731
    text = timed(lambda: dumps(TABLE.data), 50)  # type: ignore[arg-type]
    yield compare("encode 1,000 plain dicts", timed(large, 50), text, target=4)


def timed(function: object, times: int = TIMES):  # type: ignore[no-untyped-def]
    return lambda: timeit.timeit(function, number=times) / times  # type: ignore[arg-type]
