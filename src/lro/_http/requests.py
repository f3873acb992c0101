"""Requests of the HTTP edge: raw paths, queries, bodies, origins, and the header ``Prefer``.

See spec §5.8, §5.9, §1.6, and RFC 7240 for ``Prefer``.

A raw path begins below the mount point of an application. An origin is the site of a page, as the
browser reports it; see ``docs/explanation/security.md``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import attrs

from lro._base.arguments import check, check_texts
from lro._base.errors import (
    CrossSiteRequest,
    InvalidArgument,
    InvalidPageSize,
    InvalidRequestId,
    InvalidTimeout,
    MalformedRequest,
    PartialSuccessNotSupported,
    UnsupportedMediaType,
    got,
)
from lro._base.status import Json
from lro._messages.json_text import dumps, loads_strict
from lro._messages.registry import TypeRegistry
from lro._messages.schema import Shape, json_name
from lro._messages.shapes import shape_of
from lro._model.description import View, check_view
from lro._model.http_rules import MAX_PATH, percent_decode
from lro._model.operation import (
    BatchGetOperationsRequest,
    CancelOperationRequest,
    RerunOperationRequest,
    WaitOperationRequest,
    normal_request_id,
    parse_names,
)

_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
_SAFE: Final = "/:@!$&'()*+,;=-._~"


def wire_text(data: bytes) -> str:
    """Decode the bytes of a request line; bytes that are not UTF-8 become lone surrogates.

    The readers of paths and queries refuse lone surrogates (spec §5.3(3)).
    """
    return data.decode("utf-8", "surrogateescape")


def raw_form(raw: str, decoded: str) -> str:
    """Return the raw form of a path: ``raw`` if it matches ``decoded``, else encode ``decoded``.

    The raw and the decoded path differ if a proxy or middleware rewrote one of the two, or if
    the server passes no raw path. Servers decode bytes that are not UTF-8 in two ways, and a match
    by either way counts. A path too long for any route is returned unchanged.
    """
    longest = max(raw, decoded, key=len)
    if len(longest) > MAX_PATH:
        return longest
    if raw and decoded in (unquote(raw, errors=how) for how in ("surrogateescape", "replace")):
        return raw
    # ``decoded`` may have lone surrogates, which the readers of paths refuse.
    return quote(decoded, safe=_SAFE, errors="surrogatepass")


def mount_path(decoded: str) -> str:
    """Encode the decoded path of a mount point, without a slash at its end.

    The result begins with exactly one slash: after two, a browser would expect a host name.
    """
    path = decoded.strip("/")
    return quote(f"/{path}", safe=_SAFE, errors="surrogateescape") if path else ""


def checked_prefix(path: object, such_as: str = "/console") -> str:
    """Check a path prefix, such as that of the console; return it without a slash at the end.

    Raises:
        DeclarationError: The path is neither empty nor plain, such as ``/console``.
    """
    fine = isinstance(path, str) and (not path or _PREFIX.fullmatch(path) is not None)
    check("path", path, f"a path such as {such_as!r}, without escapes", fine=fine)
    return str(path).rstrip("/")


def strip_mount(path: str, mount: str) -> str | None:
    """Return the part of a raw path below a (decoded) mount point; None for other paths.

    For the mount point itself, return ``/``. A mount point ends at a segment boundary.
    """
    if not mount:
        return path
    if len(path) > MAX_PATH:
        return None
    end = -1
    while end < len(path):
        end = path.find("/", end + 1)
        end = len(path) if end < 0 else end
        seen = unquote(path[:end], errors="surrogateescape")
        if seen == mount:
            return path[end:] or "/"
        if len(seen) > len(mount):
            break
    return None


MAX_QUERY: Final = 128 * 1024
"""Maximum length of a raw query, in characters.

A filter has at most 8192 code points (spec §7.16), each of at most twelve characters when escaped.
"""
MAX_PARAMETERS: Final = 100
"""Maximum number of parameters of a query, including empty ones."""

_PARTIAL: Final = "return_partial_success"

_IGNORED: Final = frozenset(
    {"key", "$key", "prettyPrint", "$prettyPrint", "quotaUser", "$quotaUser"}
)
_ENUM_NUMBERS: Final[Mapping[str, bool]] = {"json": False, "json;enum-encoding=int": True}
"""The valid values of ``alt``; True if enum values are then printed as numbers."""

# The length is bounded, because int() refuses very long texts.
_PAGE_SIZE: Final = re.compile(r"(-?)0*([0-9]{1,10})")
_INT32: Final = range(-(2**31), 2**31)


@attrs.frozen
class Query:
    """The content of a query: the request's fields by proto name, and how to print the reply.

    ``enum_numbers`` is true for ``alt=json;enum-encoding=int``, which generated clients send:
    enum values in messages are then printed as numbers.
    """

    fields: Mapping[str, str | int]
    enum_numbers: bool = False
    view: View = "BASIC"


NO_QUERY: Final = Query(MappingProxyType({}))
"""The content of an empty query."""


def parse_query(rpc: str, query: str) -> Query:
    """Read the raw query of a call, without the question mark.

    Only ListOperations has query fields other than the view.

    Raises:
        MalformedRequest: An escape is malformed, a parameter is unknown or given twice, the view is
            neither BASIC nor FULL, or the query is too long.
        InvalidPageSize: The page size is not an int32.
        PartialSuccessNotSupported: ``returnPartialSuccess=true`` (spec §1.6(2)).
    """
    parameters, enum_numbers = read_parameters(query)
    fields: dict[str, str | int] = {}
    for name, value in parameters:
        field = _field(rpc, name)
        if field in fields:
            raise MalformedRequest(field, "is given twice")
        fields[field] = _READERS[field](value)
    if fields.pop(_PARTIAL, False):
        raise PartialSuccessNotSupported
    view: Any = fields.pop("view", "BASIC")
    return Query(fields, enum_numbers, view)


def read_parameters(query: str) -> tuple[list[tuple[str, str]], bool]:
    """Return the field parameters of a raw query, and True if enums are to be printed as numbers.

    Raises:
        MalformedRequest: An escape is malformed, or the query is too long.
    """
    if len(query) > MAX_QUERY:
        raise MalformedRequest("query", f"must have at most {MAX_QUERY} characters")
    if query.count("&") >= MAX_PARAMETERS:
        raise MalformedRequest("query", f"must have at most {MAX_PARAMETERS} parameters")
    parameters: list[tuple[str, str]] = []
    enum_numbers = False
    for piece in filter(None, query.split("&")):
        name, _, value = (_decode(text) for text in piece.partition("="))
        if name in ("alt", "$alt"):
            enum_numbers |= _read_alt(value)
        elif name not in _IGNORED:
            parameters.append((name, value))
    return parameters, enum_numbers


def _decode(text: str) -> str:
    # HTML forms write a space as "+" (spec §5.8(2)).
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
        raise InvalidPageSize("page_size", f"{value[:80]!r} is not a 32-bit integer")
    return int(found[1] + found[2])


def _read_partial(value: str) -> bool:
    if value not in ("true", "false"):
        raise MalformedRequest(_PARTIAL, f"{value[:80]!r} is neither true nor false")
    return value == "true"


def _read_view(value: str) -> str:
    value = value or "BASIC"  # an empty value means that the view is not set (AIP-157)
    try:
        check_view(value)
    except InvalidArgument as exc:
        raise MalformedRequest(exc.field, exc.description) from None
    return value


_READERS: Final[Mapping[str, Callable[[str], str | int]]] = {
    "filter": str,
    "view": _read_view,
    "page_size": _read_page_size,
    "page_token": str,
    _PARTIAL: _read_partial,
}

_SPELLINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "GetOperation": {"view": "view"},
    "BatchGetOperations": {"view": "view"},
    "ListOperations": {
        "view": "view",
        "filter": "filter",
        "pageSize": "page_size",
        "page_size": "page_size",
        "pageToken": "page_token",
        "page_token": "page_token",
        "returnPartialSuccess": _PARTIAL,
        _PARTIAL: _PARTIAL,
    },
}
"""The JSON and proto names of the fields that a query may have, by RPC."""


T = TypeVar("T", str, bool)

MAX_CONTENT_TYPE: Final = 200
"""Maximum length of Content-Type, in characters (spec §5.9(6))."""

MANY_BYTES: Final = 64 * 1024
"""Size, in bytes, from which a body is read in a thread instead of on an event loop."""

_Request = CancelOperationRequest | RerunOperationRequest | WaitOperationRequest
_REQUESTS: Final[dict[str, type[_Request]]] = {
    "CancelOperation": CancelOperationRequest,
    "RerunOperation": RerunOperationRequest,
    "WaitOperation": WaitOperationRequest,
}
for _cls in (CancelOperationRequest, RerunOperationRequest, WaitOperationRequest):
    shape_of(_cls)  # the shape is cached now, not at the first request
_PARAMETER: Final = re.compile(r';[ \t]*([^\s;="]+)=("(?:[^"\\]|\\.)*"|[^;"]*)')
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_WANTED: Final[dict[type, str]] = {str: "text", bool: "true or false"}


@functools.lru_cache(maxsize=64)
def media_type(content_type: str) -> tuple[str, str]:
    """Return the media type of a Content-Type header and its charset ("" for none), in lower case.

    Raises:
        UnsupportedMediaType: The header is longer than :data:`MAX_CONTENT_TYPE`.
    """
    if len(content_type) > MAX_CONTENT_TYPE:
        why = f"must have at most {MAX_CONTENT_TYPE} characters, got {len(content_type)}"
        raise UnsupportedMediaType("Content-Type", why)
    kind = content_type.partition(";")[0].strip().lower()
    for name, value in _PARAMETER.findall(content_type):
        if name.lower() == "charset":
            return kind, value.strip(' \t"').lower()
    return kind, ""


def check_unread(headers: Mapping[str, str]) -> None:
    """Refuse an empty body if the headers show that other code has already read its bytes.

    Middleware that reads forms consumes the body. Without this check, every field would have its
    default, instead of the value that the caller sent. A multipart body is never empty, because it
    has a boundary.

    Raises:
        UnsupportedMediaType: The body was read, and the media type is not JSON.
        MalformedRequest: The body was read, and the media type is JSON or missing.
    """
    length, content_type = headers.get("content-length", ""), headers.get("content-type", "")
    if length.strip("0") or content_type.lower().startswith("multipart/"):
        _check_json(content_type)
        raise MalformedRequest("body", f"has 0 of the {length} bytes of Content-Length")


@functools.lru_cache(maxsize=64)
def _check_json(content_type: str) -> None:
    kind, charset = media_type(content_type)
    if content_type and (kind != "application/json" or charset not in ("", "utf-8", "utf8")):
        wanted = "must be application/json in UTF-8"
        raise UnsupportedMediaType("Content-Type", f"{wanted}, got {content_type[:100]!r}")


def read_object(content_type: str | None, body: bytes) -> dict[str, Json]:
    """Return the JSON object of a body; an empty or blank body is ``{}``.

    An empty Content-Type is treated as missing: in WSGI, the two look alike.

    Raises:
        UnsupportedMediaType: The header names a type other than JSON in UTF-8, or is too long.
        MalformedRequest: The body is not a JSON object.
    """
    if not body or body.isspace():
        media_type(content_type or "")
        return {}
    _check_json(content_type or "")
    value = read_json(body)
    if not isinstance(value, dict):
        raise MalformedRequest("body", "must be a JSON object")
    return value


def read_json(body: bytes) -> Json:
    """Return the JSON value of a body.

    Raises:
        MalformedRequest: The body is not JSON in UTF-8, or has an unpaired surrogate.
    """
    try:
        value = loads_strict(body)
    except UnicodeDecodeError:
        raise MalformedRequest("body", "is not UTF-8") from None
    except ValueError as exc:
        raise MalformedRequest("body", f"is not JSON: {exc}") from None
    if body.find(b"\\u") >= 0 and _SURROGATE.search(body):
        # Fields refuse unpaired surrogates (spec §1.9). Refuse them in keys and in Structs, too,
        # because a text with one can be neither stored nor quoted in an error.
        try:
            dumps(value)
        except UnicodeEncodeError:
            raise MalformedRequest("body", "has an unpaired surrogate") from None
    return value


def read_request(
    rpc: str, path_name: str, content_type: str | None, body: bytes, types: TypeRegistry
) -> _Request:
    """Read the request of ``:cancel``, ``:rerun`` or ``:wait`` from the body and the path's name.

    Raises:
        UnsupportedMediaType, MalformedRequest: As for :func:`read_object`; or a field is unknown or
            of the wrong type, or the name differs from the name in the path.
        InvalidTimeout: The timeout is not a duration.
    """
    fields = read_object(content_type, body)
    try:
        request: _Request = types.load(fields, _REQUESTS[rpc])
    except InvalidArgument as exc:
        refusal = InvalidTimeout if exc.field == "timeout" else MalformedRequest
        raise refusal(exc.field, exc.description) from None
    if request.name not in ("", path_name):
        raise MalformedRequest("name", f"must be that of the path, {path_name!r}")
    return attrs.evolve(request, name=path_name)


def read_names(
    parent: str, content_type: str | None, body: bytes, types: TypeRegistry
) -> tuple[str, ...]:
    """Return the names that ``:batchGet`` or ``:watch`` asks for, each once (spec §3.11).

    All names must have the parent that the path names, because a proxy may authorize by the path.

    Raises:
        UnsupportedMediaType, MalformedRequest: As for :func:`read_object`; or a field is unknown or
            of the wrong type, or the list of names is empty or too long.
        InvalidOperationName, InvalidParent: A name is malformed, or its parent is not ``parent``.
    """
    fields = read_object(content_type, body)
    try:
        request = types.load(fields, BatchGetOperationsRequest)
    except InvalidArgument as exc:
        raise MalformedRequest(exc.field, exc.description) from None
    return parse_names(request.names, parent)


def take_field(
    fields: dict[str, Json], name: str, kind: type[T], default: T, shape: Shape | None
) -> T:
    """Remove a field of the library from a body, and return its value, or ``default`` without one.

    ``name`` is the proto name; the body may have the JSON name instead. The field stays in the body
    if the message's ``shape`` also has it (``request_id``, AIP-155).

    Raises:
        InvalidArgument: The field is of the wrong type.
    """
    spelling = _json_name(name)
    if spelling not in fields and name not in fields:
        return default
    key = spelling if fields.get(spelling) is not None else name
    value = fields.get(key)
    if shape is None or name not in shape.spellings:
        for taken in {spelling, key}:
            fields.pop(taken, None)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise InvalidArgument(name, f"must be {_WANTED[kind]}, got {got(value)}")
    return value


def keyed_request_id(headers: Mapping[str, str], request_id: str, *, only_uuid: bool) -> str:
    """Return the request id of a start: ``request_id``, or the header's (spec §9.2(6)).

    Raises:
        InvalidRequestId: The header is not a valid request id, or differs from ``request_id``.
    """
    text = headers.get("idempotency-key")
    if text is None:
        return request_id
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':  # a string of RFC 8941, as the draft has it
        text = text[1:-1]
    try:
        key = normal_request_id(text, only_uuid=only_uuid)
    except InvalidRequestId as exc:
        raise InvalidRequestId("Idempotency-Key", exc.description) from None
    if request_id and normal_request_id(request_id) != key:
        why = f"must be that of the header Idempotency-Key, {got(text)}, got {got(request_id)}"
        raise InvalidRequestId("request_id", why)
    return key


_json_name: Final = functools.cache(json_name)  # only two names are ever converted

CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""The HTTP methods that may change something, which need :func:`check_site`."""

MAX_ORIGIN: Final = 300
"""Maximum length of an origin: a host name has at most 253 characters."""

_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_SAME_SITE: Final = frozenset({"same-origin", "none"})


def read_origin(text: str) -> tuple[str, str] | None:
    """Return the scheme and authority of an origin, in lower case and without a default port.

    Return None for ``null``, for several origins, and for an origin with a path or a user.
    """
    found = _ORIGIN.fullmatch(text.lower()) if len(text) <= MAX_ORIGIN else None
    if found is None:
        return None
    scheme, host, port = found["scheme"], found["host"], found["port"]
    default = port is None or port == _DEFAULT_PORTS.get(scheme)
    return scheme, host if default else f"{host}:{port}"


def trusted(trusted_origins: Collection[str]) -> frozenset[tuple[str, str]]:
    """Read the origins that an application trusts, by :func:`read_origin`.

    Raises:
        DeclarationError: A text is not an origin, ``scheme://host`` or ``scheme://host:port``.
    """
    check_texts("trusted_origins", trusted_origins)
    found = set()
    for text in trusted_origins:
        wanted = "origins such as 'https://app.example.com', without a path"
        if text == "*":
            wanted += ", each by its name ('*' would let every site in)"
        origin = read_origin(text)
        check("trusted_origins", text, wanted, fine=origin is not None)
        assert origin is not None
        found.add(origin)
    return frozenset(found)


def check_site(
    headers: Mapping[str, str], scheme: str, trusted_origins: frozenset[tuple[str, str]]
) -> None:
    """Refuse a call by a page of another site, unless that site is trusted.

    Call this function for methods in ``CHANGING``. ``scheme`` is the connection's scheme as known
    to the server. Only browsers send ``Sec-Fetch-Site`` or ``Origin``, so calls of other programs
    pass.

    Raises:
        CrossSiteRequest: The page belongs to another site, which is not trusted.
    """
    site, text = headers.get("sec-fetch-site"), headers.get("origin")
    if site in _SAME_SITE or (site is None and text is None):
        return
    origin = read_origin(text or "")
    if origin in trusted_origins:
        return
    # Browsers send Sec-Fetch-Site only to https and localhost; old browsers never send it.
    host = headers.get("host", "")
    if site is None and origin is not None and _is_own(origin, scheme.lower(), host):
        return
    raise CrossSiteRequest(text or "")


def _is_own(origin: tuple[str, str], scheme: str, host: str) -> bool:
    theirs = origin[0]
    # Behind a proxy that terminates TLS, the server sees http although the page has https. Such a
    # page is as safe as a page of the server itself. A page with http is never accepted by a server
    # with https, because anyone who controls the caller's network could have written the page.
    if theirs != scheme and (theirs, scheme) != ("https", "http"):
        return False
    return read_origin(f"{theirs}://{host}") == origin


_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+\-.^_`|~]++"
_WORD: Final = rf'(?:{_TOKEN}|"(?:[^"\\]|\\.)*+")'
_PAIR: Final = rf"{_TOKEN}(?:[ \t]*+=[ \t]*+{_WORD})?+"
_PREFERENCE: Final = re.compile(
    rf"({_TOKEN})(?:[ \t]*+=[ \t]*+({_WORD}))?+[ \t]*+(?:;[ \t]*+(?:{_PAIR})?+[ \t]*+)*+", re.DOTALL
)
"""Matches a preference with its parameters; all parameters are ignored (RFC 7240 §2)."""
_ELEMENT: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*+"?+)++', re.DOTALL)
"""Matches an element of a list; the element may have commas in quotes."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SECONDS: Final = re.compile(r"(?=[0-9])0*+([0-9]{0,9})[0-9]*+", re.ASCII)


@attrs.frozen
class Preferences:
    """The preferences for the reply to a start.

    ``wait`` is the maximum time to wait for the end of the operation, in seconds, or None without
    this preference. ``respond_async`` is true if the caller prefers a reply before that end.
    """

    wait: int | None = None
    respond_async: bool = False


NO_PREFERENCES: Final = Preferences()


def read_preferences(header: str) -> Preferences:
    """Read the header ``Prefer``; repeated headers are joined by commas.

    Names are case-insensitive. If a preference is repeated, the first one applies. Malformed and
    unknown preferences are ignored (RFC 7240 §2).
    """
    found: dict[str, str] = {}
    for element in _ELEMENT.findall(header):
        matched = _PREFERENCE.fullmatch(element.strip(" \t"))
        if matched is not None:
            found.setdefault(matched[1].lower(), _word(matched[2] or ""))
    return Preferences(_seconds(found.get("wait", "")), found.get("respond-async") == "")


def _word(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1]) if text.startswith('"') else text


def _seconds(text: str) -> int | None:
    found = _SECONDS.fullmatch(text)  # nine digits exceed every limit of a wait
    return None if found is None else int(found[1] or 0)
