"""Operations, statuses and error bodies as JSON; enums may be numbers (spec §1.8, §1.10, §5.12)."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeVar, cast

import attrs

from lro._base.errors import InvalidArgument, LroError, got
from lro._base.status import (
    HTTP_STATUS,
    WRAPPED_TYPES,
    AnyMessage,
    Code,
    Json,
    Status,
    code_from_http,
    type_url,
)
from lro._messages.json_codec import below
from lro._messages.registry import TypeRegistry
from lro._messages.scalars import LOADERS, enum_numbers, load_bool, load_bytes, load_string
from lro._messages.schema import ANY, Field, Kind, Label, Shape
from lro._model.description import NO_DESCRIPTION, OperationDescription
from lro._model.operation import (
    BatchGetOperationsResponse,
    ListOperationsResponse,
    Operation,
    operation_of,
)


def with_enum_numbers(operation: Operation, types: TypeRegistry) -> Operation:
    """Return the operation with enum values of metadata, response and details as numbers.

    Only messages in JSON form, of registered types with a known shape, are changed. A text that is
    not a name in the field's enum stays as it is.
    """
    return with_each(operation, lambda packed: _packed(packed, types))


def with_each(operation: Operation, change: Callable[[AnyMessage], AnyMessage]) -> Operation:
    """Return the operation with its metadata, response and details changed by ``change``."""
    metadata, result = operation.metadata, operation.result
    if isinstance(result, Status):
        result = attrs.evolve(result, details=tuple(map(change, result.details)))
    elif result is not None:
        result = change(result)
    metadata = None if metadata is None else change(metadata)
    return attrs.evolve(operation, metadata=metadata, result=result)


def _packed(packed: AnyMessage, types: TypeRegistry) -> AnyMessage:
    payload = types.readable(packed).payload
    if isinstance(payload, bytes):
        return packed
    return AnyMessage(packed.type_url, _payload(payload, packed.type_name, types))


def _payload(value: Json, type_name: str, types: TypeRegistry) -> Json:
    if type_name == ANY:
        return _any(value, types)
    shape = types.codec(type_name).shape if type_name in types else None
    return value if shape is None else _message(value, shape, types)


def _any(value: Json, types: TypeRegistry) -> Json:
    if not isinstance(value, dict):
        return value
    url = value.get("@type")
    name = url.rpartition("/")[2] if isinstance(url, str) else ""
    if name == ANY:
        return {**value, "value": _any(value.get("value"), types)}
    return value if name in WRAPPED_TYPES else _payload(value, name, types)


def _message(value: Json, shape: Shape, types: TypeRegistry) -> Json:
    if not isinstance(value, dict):
        return value
    fields = shape.spellings
    return {
        key: _field(item, fields[key], types) if key in fields else item
        for key, item in value.items()
    }


def _field(value: Json, field: Field, types: TypeRegistry) -> Json:
    if field.kind is not Kind.ENUM and field.kind is not Kind.MESSAGE:
        return value
    if field.label is Label.REPEATED:
        return [_one(item, field, types) for item in value] if isinstance(value, list) else value
    if field.label is Label.MAP:
        items = value.items() if isinstance(value, dict) else ()
        return {key: _one(item, field, types) for key, item in items} or value
    return _one(value, field, types)


def _one(value: Json, field: Field, types: TypeRegistry) -> Json:
    if field.kind is Kind.ENUM:
        numbers = _numbers(cast("type[enum.Enum]", field.python))
        return numbers.get(value, value) if isinstance(value, str) else value
    if field.message_name == ANY:
        return _any(value, types)
    shape = _shape(field, types)
    return value if shape is None else _message(value, shape, types)


def _shape(field: Field, types: TypeRegistry) -> Shape | None:
    cls = field.python
    if types.knows(cls):
        return types.codec(types.name_of(cls)).shape
    return field.shape if field.below else None


@functools.cache
def _numbers(cls: type[enum.Enum]) -> Mapping[str, int]:
    number = {member: place for place, member in enum_numbers(cls).items()}
    return {name: number[member] for name, member in cls.__members__.items()}


_OPERATION_KEYS: Final = ("name", "metadata", "done", "error", "response", "description")
_STATUS_KEYS: Final = ("code", "message", "details")

T = TypeVar("T")


def operation_to_json(operation: Operation, types: TypeRegistry) -> dict[str, Json]:
    """Return the canonical JSON object of an operation.

    Raises:
        EncodingError: The metadata, the response or a detail has no JSON form.
    """
    shown: dict[str, Json] = {}
    if operation.name:
        shown["name"] = operation.name
    if operation.metadata is not None:
        shown["metadata"] = _any_to_json(operation.metadata, types)
    if operation.done:
        shown["done"] = True
    result = operation.result
    if isinstance(result, AnyMessage):
        shown["response"] = _any_to_json(result, types)
    elif result is not None:
        shown["error"] = status_to_json(result, types)
    if operation.description.state:
        shown["description"] = types.dump(operation.description)
    return shown


def operation_from_json(value: Json, types: TypeRegistry, *, strict: bool = False) -> Operation:
    """Read an operation; unknown fields and types are refused if ``strict``, otherwise ignored.

    ``description`` is a field of this library. A value that is no description is refused if
    ``strict``, otherwise ignored.

    Raises:
        InvalidArgument: The value is not an operation; ``field`` is the path of the error.
    """
    if strict or type(value) is not dict:
        value = _checked_object(value, _OPERATION_KEYS, strict)
    get = value.get
    metadata, error, response = get("metadata"), get("error"), get("response")
    if error is not None and response is not None:
        raise InvalidArgument("response", "must not be set beside error")
    packed: AnyMessage | None = None
    result: AnyMessage | Status | None = None
    at = "metadata"
    try:
        if metadata is not None:
            packed = types.from_json(metadata, strict=strict)
        at = "response"
        if response is not None:
            result = types.from_json(response, strict=strict)
        at = "error"
        if error is not None:
            result = status_from_json(error, types, strict=strict)
        at = "name"
        name = get(at, "")
        if type(name) is not str or not name.isascii():
            name = "" if name is None else load_string(name)
        at = "done"
        done = get(at, False)
        if type(done) is not bool:
            done = False if done is None else load_bool(done)
    except InvalidArgument as exc:
        raise below(at, exc) from None
    if (description := get("description")) is None:
        return operation_of(name, packed, done, result)
    full = _description(description, types, strict)
    return Operation(name=name, metadata=packed, done=done, result=result, description=full)


def _description(value: Json, types: TypeRegistry, strict: bool) -> OperationDescription:
    try:
        return types.load(value, OperationDescription, strict=strict)
    except InvalidArgument as exc:
        if strict:
            raise below("description", exc) from None
        return NO_DESCRIPTION  # a foreign server may use this name for a different field


def page_to_json(page: ListOperationsResponse, types: TypeRegistry) -> dict[str, Json]:
    """Return the JSON object of a page of operations."""
    shown: dict[str, Json] = {}
    if page.operations:
        shown["operations"] = [operation_to_json(one, types) for one in page.operations]
    if page.next_page_token:
        shown["nextPageToken"] = page.next_page_token
    return shown


def page_from_json(value: Json, types: TypeRegistry) -> ListOperationsResponse:
    """Read a page of operations, and ignore unknown fields.

    Raises:
        InvalidArgument: The value is not a page.
    """
    fields = _fields(value, ("operations", "nextPageToken", "next_page_token"), strict=False)
    if fields.keys() >= {"nextPageToken", "next_page_token"}:
        raise InvalidArgument("next_page_token", "is given twice, in both spellings")
    token = fields.get("nextPageToken", fields.get("next_page_token", ""))
    return ListOperationsResponse(_operations(fields, types), load_string(token))


def batch_to_json(batch: BatchGetOperationsResponse, types: TypeRegistry) -> dict[str, Json]:
    """Return the JSON object of a BatchGet response, which always has both lists (spec §3.11)."""
    return {
        "operations": [operation_to_json(one, types) for one in batch.operations],
        "missing": list(batch.missing),
    }


def batch_from_json(value: Json, types: TypeRegistry) -> BatchGetOperationsResponse:
    """Read a BatchGet response, and ignore unknown fields.

    Raises:
        InvalidArgument: The value is not a BatchGet response.
    """
    fields = _fields(value, ("operations", "missing"), strict=False)
    missing = tuple(load_string(name) for name in _list("missing", fields))
    return BatchGetOperationsResponse(_operations(fields, types), missing)


def status_to_json(status: Status, types: TypeRegistry) -> dict[str, Json]:
    """Return the JSON object of a status; ``code`` is a number."""
    shown: dict[str, Json] = {}
    if status.code:
        shown["code"] = int(status.code)
    if status.message:
        shown["message"] = status.message
    if status.details:
        shown["details"] = [_any_to_json(detail, types) for detail in status.details]
    return shown


def status_from_json(value: Json, types: TypeRegistry, *, strict: bool = False) -> Status:
    """Read a status; details of unknown types are kept unchanged, or refused if ``strict``.

    Raises:
        InvalidArgument: The value is not a status.
    """
    fields = _fields(value, _STATUS_KEYS, strict)
    details = _list("details", fields)
    return Status(
        code=_at("code", fields, _load_code) or 0,
        message=_at("message", fields, load_string) or "",
        details=tuple(types.from_json(detail, strict=strict) for detail in details),
    )


def error_body(status: Status, types: TypeRegistry, http: int | None = None) -> dict[str, Json]:
    """Return the body of an error reply (spec §5.12); ``http`` overrides the status of the code."""
    code = Code.of(status.code)
    error: dict[str, Json] = {
        "code": http or code.http,
        "message": status.message,
        "status": code.name,
    }
    if status.details:
        error["details"] = [_any_to_json(detail, types) for detail in status.details]
    return {"error": error}


_PHRASES: Final = {one.value: one.phrase.lower() for one in HTTPStatus}


def status_from_error_body(http: int, body: Json, types: TypeRegistry) -> Status:
    """Read the status of an error reply (spec §11.8); ``body`` is None for a body without JSON."""
    error = error_fields(http, body) or {"message": _words(_unwrapped(body))}
    name, text, details = error.get("status"), error.get("message"), error.get("details")
    code = Code.__members__.get(name, Code.OK) if isinstance(name, str) else Code.OK
    return Status(
        code or code_from_http(http),  # OK is not the code of an error
        text if isinstance(text, str) else f"the server answered HTTP {http}",
        tuple(_readable(details, types)) if isinstance(details, list) else (),
    )


def error_fields(http: int, body: Json) -> Mapping[str, Json] | None:
    """Return ``status``, ``message`` and ``details`` of an error reply's body (spec §11.8).

    These forms are read: the body of spec §5.12, alone or in a list; a text, or a text and a code;
    a ``google.rpc.Status``, also under ``error``; an error of Connect. Return None for any other
    body. A text that only repeats the phrase of the HTTP status is ignored, because Spring sends it
    for any path.
    """
    body = _unwrapped(body)
    error = body.get("error")
    if isinstance(error, dict):
        named = str(error.get("status")) in Code.__members__
        code = Code.OK if named else _counting_code(http, error)
        return {**error, "status": code.name} if code else error
    # Other APIs also have error numbers in ``code``, but these rarely agree with the HTTP status.
    if code := _counting_code(http, body):
        return {**body, "status": code.name, "message": _words(body)}
    says = isinstance(error, str) and error.lower() != _PHRASES.get(http)
    return {"message": _words(body)} if says else None


def _counting_code(http: int, fields: dict[str, Json]) -> Code:
    # Returns the canonical code in ``code`` if it fits the HTTP status, otherwise OK.
    number, code = fields.get("code"), Code.OK
    if isinstance(number, str):  # Connect writes the names of codes in lower case
        name = "CANCELLED" if number == "canceled" else number.upper()
        code = Code.__members__.get(name, Code.OK)
    elif type(number) is int and number in HTTP_STATUS:
        code = Code(number)
    return code if code.http == http else Code.OK


def _unwrapped(body: Json) -> dict[str, Json]:
    # Returns the object of an error body, which some servers wrap in a list; otherwise {}.
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body if isinstance(body, dict) else {}


_WORDS: Final = ("error", "error_description", "title", "message", "Message", "msg", "detail")
"""Keys for texts in errors of OAuth, problem details (RFC 9457), AWS, Twirp and other APIs."""


def _words(body: dict[str, Json]) -> str | None:
    # Returns the distinct texts of an error body without an envelope; None if there are none.
    found = [text for key in _WORDS if isinstance(text := body.get(key), str) and text]
    return ": ".join(dict.fromkeys(found)) or None


def _readable(details: list[Json], types: TypeRegistry) -> list[AnyMessage]:
    found = []
    for detail in details:
        try:
            found.append(_detail_of_connect(detail) or types.from_json(detail))
        except LroError:  # a foreign server's detail must not hide its error
            continue
    return found


def _detail_of_connect(detail: Json) -> AnyMessage | None:
    if not isinstance(detail, dict) or "@type" in detail:
        return None
    name, value = detail.get("type"), detail.get("value")
    if not isinstance(name, str) or not isinstance(value, str):
        return None
    return AnyMessage(type_url(name), load_bytes(value))


def _any_to_json(packed: AnyMessage, types: TypeRegistry) -> Json:
    payload = packed.payload
    if isinstance(payload, dict) and _plain_url(packed.type_url):
        return {"@type": packed.type_url, **payload}
    return types.to_json(packed)


@functools.lru_cache(maxsize=1024)
def _plain_url(url: str) -> bool:
    return url != "" and url.rpartition("/")[2] not in WRAPPED_TYPES


def _operations(fields: dict[str, Json], types: TypeRegistry) -> tuple[Operation, ...]:
    return tuple(operation_from_json(item, types) for item in _list("operations", fields))


def _list(key: str, fields: dict[str, Json]) -> list[Json]:
    listed = fields.get(key, [])
    if not isinstance(listed, list):
        raise InvalidArgument(key, f"must be a list, got {got(listed)}")
    return listed


def _fields(value: Json, known: tuple[str, ...], strict: bool) -> dict[str, Json]:
    given = _checked_object(value, known, strict)
    return {key: item for key, item in given.items() if item is not None}


def _checked_object(value: Json, known: tuple[str, ...], strict: bool) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise InvalidArgument("", f"must be an object, got {got(value)}")
    if strict:
        for key in value:
            if key not in known:
                raise InvalidArgument(key, "is not a field of this message")
    return value


def _at(key: str, fields: dict[str, Json], load: Callable[[Json], T]) -> T | None:
    if key not in fields:
        return None
    try:
        return load(fields[key])
    except InvalidArgument as exc:
        raise below(key, exc) from None


def _load_code(value: Json) -> int:
    return cast(int, LOADERS[Kind.INT32](value))
