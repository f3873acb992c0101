"""Query parameters of the verbs over HTTP (spec §5.8, §1.6(2))."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from lro._base.errors import (
    InvalidPageSize,
    MalformedRequest,
    PartialSuccessNotSupported,
)
from lro._model.http_rules import percent_decode

MAX_QUERY: Final = 128 * 1024
"""Longest raw query that is read, in characters.

A filter has at most 8192 code points (spec §7.16), which are at most twelve characters each when
they are escaped.
"""
MAX_PARAMETERS: Final = 100
"""Most parameters of a query, the empty ones included."""

_PARTIAL: Final = "return_partial_success"

_IGNORED: Final = frozenset(
    {"key", "$key", "prettyPrint", "$prettyPrint", "quotaUser", "$quotaUser"}
)
_ENUM_NUMBERS: Final[Mapping[str, bool]] = {"json": False, "json;enum-encoding=int": True}
"""The values of ``alt`` that are taken, and whether enum values then print as numbers."""

_PAGE_SIZE: Final = re.compile(r"(-?)0*([0-9]{1,10})")  # bounded: int() refuses very long texts
_INT32: Final = range(-(2**31), 2**31)


@attrs.frozen
class Query:
    """The content of a query: the request's fields by proto name, and the wish for enum numbers.

    ``enum_numbers`` is true for ``alt=json;enum-encoding=int``, which generated clients send:
    enum values in messages should then print as numbers.
    """

    fields: Mapping[str, str | int]
    enum_numbers: bool = False


NO_QUERY: Final = Query(MappingProxyType({}))
"""The content of an empty query."""


def parse_query(rpc: str, query: str) -> Query:
    """Read the raw query of a call, without the question mark.

    An RPC other than ListOperations has no field in its query.

    Raises:
        MalformedRequest: An escape is malformed, a parameter is unknown or given twice, or the
            query is too long.
        InvalidPageSize: The page size is not an int32.
        PartialSuccessNotSupported: ``returnPartialSuccess=true`` (spec §1.6(2)).
    """
    if len(query) > MAX_QUERY:
        raise MalformedRequest("query", f"must have at most {MAX_QUERY} characters")
    if query.count("&") >= MAX_PARAMETERS:
        raise MalformedRequest("query", f"must have at most {MAX_PARAMETERS} parameters")
    fields: dict[str, str | int] = {}
    enum_numbers = False
    for piece in filter(None, query.split("&")):
        name, _, value = (_decode(text) for text in piece.partition("="))
        if name in ("alt", "$alt"):
            enum_numbers |= _read_alt(value)
        elif name not in _IGNORED:
            field = _field(rpc, name)
            if field in fields:
                raise MalformedRequest(field, "is given twice")
            fields[field] = _READERS[field](value)
    if fields.pop(_PARTIAL, False):
        raise PartialSuccessNotSupported
    return Query(fields, enum_numbers)


def _decode(text: str) -> str:
    """As HTML forms are decoded (spec §5.8(2))."""
    return percent_decode(text.replace("+", " "), "query")


def _field(rpc: str, name: str) -> str:
    if name == "name":
        raise MalformedRequest("name", "is given by the path, not by the query")
    spellings = _SPELLINGS.get(rpc, {})
    if name not in spellings:
        known = f"it knows {', '.join(spellings)}" if spellings else "it knows none"
        raise MalformedRequest("query", f"{rpc} has no parameter {name[:80]!r}, {known}")
    return spellings[name]


def _read_alt(value: str) -> bool:
    if value not in _ENUM_NUMBERS:
        raise MalformedRequest("alt", f"{value[:80]!r} is not offered, only json is")
    return _ENUM_NUMBERS[value]


def _read_page_size(value: str) -> int:
    found = _PAGE_SIZE.fullmatch(value)
    if found is None or int(found[1] + found[2]) not in _INT32:
        raise InvalidPageSize("page_size", f"{value[:80]!r} is no 32-bit integer")
    return int(found[1] + found[2])


def _read_partial(value: str) -> bool:
    if value not in ("true", "false"):
        raise MalformedRequest(_PARTIAL, f"{value[:80]!r} is neither true nor false")
    return value == "true"


_READERS: Final[Mapping[str, Callable[[str], str | int]]] = {
    "filter": str,
    "page_size": _read_page_size,
    "page_token": str,
    _PARTIAL: _read_partial,
}

_SPELLINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "ListOperations": {
        "filter": "filter",
        "pageSize": "page_size",
        "page_size": "page_size",
        "pageToken": "page_token",
        "page_token": "page_token",
        "returnPartialSuccess": _PARTIAL,
        _PARTIAL: _PARTIAL,
    }
}
"""By RPC: the JSON and the proto name of each field that its query may give."""
