"""Convert calls to HTTP requests, and responses to replies and errors (spec §5, §11.8, §11.10)."""

from __future__ import annotations

import codecs
import email.utils
import functools
import json
import re
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC
from typing import Any, Final, Generic, TypeVar, cast
from urllib.parse import urlsplit

import attrs

from lro import (
    AnyMessage,
    Code,
    DeclarationError,
    InvalidArgument,
    LroError,
    Operation,
    Status,
    TypeRegistry,
)
from lro.errors import RouteNotFound
from lro.types import ByFields, ErrorInfo, Json, RetryInfo
from lro.wire import (
    BatchGetOperationsResponse,
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    RerunOperationRequest,
    Template,
    WaitOperationRequest,
    code_from_http,
    dumps,
    error_fields,
    loads,
    operation_from_json,
    page_from_json,
    status_from_error_body,
)
from lro_client._addresses import public_address
from lro_client._arguments import check_request_id, check_segments
from lro_client._errors import (
    UNTRUSTED,
    CallError,
    PathNotServed,
    check,
    decoded,
    empty_reply,
    spoilt_reply,
    unreadable,
)
from lro_client._flow.single import check_operation
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    Call,
    Reply,
    Request,
    StartRequest,
    WatchOperationsRequest,
)

_BESIDE: Final = {"request_id": "requestId", "validate_only": "validateOnly"}
"""JSON names, by Python name, of the options sent in a start's message (spec §9.1, §9.7)."""

_ENDINGS: Final = {
    "get": "",
    "list": "",
    "delete": "",
    "cancel": ":cancel",
    "wait": ":wait",
    "batch": ":batchGet",
    "watch": ":watch",
    "rerun": ":rerun",
}
"""The ending of each verb's path (spec §5.4)."""

_MAX_KNOWN_PATHS: Final = 256
"""Maximum number of cached paths. Every poll of an operation uses the same path."""

_OF_PARENTS: Final = frozenset({"list", "batch", "watch"})


_OfMany: typing.TypeAlias = BatchGetOperationsRequest | WatchOperationsRequest
_VERBS_OF_MANY: Final[Mapping[type[_OfMany], str]] = {
    BatchGetOperationsRequest: "batch",
    WatchOperationsRequest: "watch",
}


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Routes(ByFields):
    """The paths of verbs, as ``google.api.http`` rules. ``name`` is the operation or its parent.

    By default any name is served below ``/v1``, as on this library's servers and on Google's. Paths
    that are not set get the prefix of the first path that is set, in the order of the fields: with
    ``get="/v1beta/{name=**}"`` all paths are below ``/v1beta``. Services differ in how they bind
    WaitOperation (spec §4.10). ``wait_method`` is the HTTP method of the call. The timeout is sent
    in a JSON body if ``wait_body`` is true, otherwise in the query string, as GET requires.

    Raises:
        DeclarationError: A path is not a string.
    """

    get: str = ""
    list: str = ""
    delete: str = ""
    cancel: str = ""
    wait: str = ""
    batch: str = ""
    watch: str = ""
    rerun: str = ""
    wait_method: str = "POST"
    wait_body: bool = True

    def __attrs_post_init__(self) -> None:
        for name in (*_ENDINGS, "wait_method"):
            path = getattr(self, name)
            check(name, path, "a text", fine=isinstance(path, str))
        given = [path for path in (getattr(self, verb) for verb in _ENDINGS) if path]
        prefix = given[0].partition("{")[0].rstrip("/") if given else "/v1"
        for verb, ending in _ENDINGS.items():
            if not getattr(self, verb):
                # The names of collections themselves end with "operations", so the prefix must not.
                base = prefix.removesuffix("/operations") if verb in _OF_PARENTS else prefix
                object.__setattr__(self, verb, f"{base}/{{name=**}}{ending}")

    @classmethod
    def below(cls, prefix: str) -> Routes:
        """Return the default paths with a prefix such as ``/api/v1`` in place of ``/v1``.

        Raises:
            InvalidArgument: The prefix does not begin with a slash.
        """
        if not prefix.startswith("/"):
            raise InvalidArgument("prefix", f"must begin with a slash, got {prefix!r:.80}")
        return cls(get=f"{prefix.rstrip('/')}/{{name=**}}")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HttpCall:
    """A call as an HTTP request, for any HTTP library."""

    method: str
    url: str
    params: Mapping[str, str | int] = attrs.field(factory=dict)
    body: bytes | None = None


class _NoPlace(Exception):
    """Raised for a name that has a segment such as ``..``, which would change the path."""


class Encoder:
    """Turns calls into HTTP requests. ``base_url`` is put before all paths, even of starts.

    ``address`` is that of the server, even if the HTTP client adds it.
    """

    def __init__(self, routes: Routes, types: TypeRegistry, base_url: str, address: str) -> None:
        self._routes = routes
        self._templates = {verb: Template.parse(getattr(routes, verb)) for verb in _ENDINGS}
        self._types = types
        self._base = base_url.rstrip("/")
        self._is_google = is_google(address)
        self._path = functools.lru_cache(maxsize=_MAX_KNOWN_PATHS)(self._expand)

    def encode(self, call: Call) -> HttpCall:
        """Return the HTTP request of a call.

        Raises:
            DeclarationError: A name does not fit its path, or the message cannot be encoded.
            UnreadableReply: The server returned an operation name that no path can contain.
        """
        try:
            asked = self._encode(call.request)
            if call.view != "BASIC":
                asked = attrs.evolve(asked, params={**asked.params, "view": call.view})
        except DeclarationError:
            raise
        except _NoPlace as exc:  # the caller's names were checked, so the server sent this name
            text = f"the server gave a name that has no place in a path: {exc}"
            raise unreadable(call.verb, text) from None
        except InvalidArgument as exc:
            raise DeclarationError(exc.field, exc.description) from exc
        except LroError as exc:
            raise DeclarationError("message", str(exc)) from exc
        except (TypeError, ValueError) as exc:
            raise DeclarationError("message", f"has no JSON: {exc}") from exc
        return asked

    def _encode(self, request: Request) -> HttpCall:
        if isinstance(request, GetOperationRequest):
            return HttpCall(method="GET", url=self._path("get", request.name))
        if isinstance(request, StartRequest):
            return self._start(request)
        if isinstance(request, ListOperationsRequest):
            shown: dict[str, str | int] = {
                "filter": request.filter,
                "pageSize": request.page_size,
                "pageToken": request.page_token,
            }
            params = {key: value for key, value in shown.items() if value}
            path = self._listed(request.name)
            return HttpCall(method="GET", url=path, params=params)
        if isinstance(request, WaitOperationRequest):
            return self._wait(request)
        if isinstance(request, _OfMany):
            verb = _VERBS_OF_MANY[type(request)]
            body = dumps({"names": list(request.names)})
            return HttpCall(method="POST", url=self._path(verb, request.collection), body=body)
        if isinstance(request, CancelOperationRequest):
            return HttpCall(method="POST", url=self._path("cancel", request.name), body=b"{}")
        if isinstance(request, RerunOperationRequest):
            body = dumps({"requestId": request.request_id} if request.request_id else {})
            return HttpCall(method="POST", url=self._path("rerun", request.name), body=body)
        if isinstance(request, DeleteOperationRequest):
            return HttpCall(method="DELETE", url=self._path("delete", request.name))
        typing.assert_never(request)

    def _expand(self, verb: str, name: str) -> str:
        if not name:  # the template's ``**`` would accept "" as zero segments
            raise InvalidArgument("name", "must not be empty")
        try:
            check_segments("name", name)
        except DeclarationError as exc:
            raise _NoPlace(str(exc)) from None
        return self._base + self._templates[verb].expand({"name": name})

    def _listed(self, name: str) -> str:
        try:
            return self._path("list", _collection(name))
        except InvalidArgument:
            parent = name.removesuffix("/operations")
            try:  # a rule such as "/v1/{name=projects/*}/operations" needs only the parent
                return self._path("list", parent)
            except InvalidArgument:
                pass
            raise

    def _wait(self, request: WaitOperationRequest) -> HttpCall:
        path, method = self._path("wait", request.name), self._routes.wait_method
        fields = cast("dict[str, Json]", self._types.dump(attrs.evolve(request, name="")))
        if self._routes.wait_body:
            return HttpCall(method=method, url=path, body=dumps(fields))
        return HttpCall(method=method, url=path, params={k: str(v) for k, v in fields.items()})

    def _start(self, request: StartRequest) -> HttpCall:
        message = request.message
        if isinstance(message, AnyMessage):
            message = self._types.readable(message).payload
        if isinstance(message, Mapping):
            json.dumps(message, allow_nan=False)  # refuses NaN, which faster encoders write as null
            message = dict(message)
        body = message if isinstance(message, dict) else self._types.dump(message)
        if not isinstance(body, dict):
            raise InvalidArgument("message", f"must be an object in JSON, got {body!r:.80}")
        for name, json_name in _BESIDE.items():
            if value := getattr(request, name):
                body = {key: one for key, one in body.items() if key != name} | {json_name: value}
        target = request.target
        if target.startswith("//") or not target.startswith(("/", "http://", "https://")):
            wanted = "must begin with a slash, or be a whole URL"
            raise InvalidArgument("target", f"{wanted}, got {target!r:.200}")
        url = self._base + target if target.startswith("/") else target
        if is_google(url) if "://" in url else self._is_google:
            check_request_id(request.request_id, only_uuid=True)
        return HttpCall(method="POST", url=url, body=dumps(body))


def is_google(url: str) -> bool:
    """Return True for an address of a service of Google, whose request ids are UUIDs (AIP-155)."""
    host = urlsplit(url).hostname or ""
    return host.endswith(".googleapis.com")


def _collection(name: str) -> str:
    segments = name.split("/") if name else []
    whole = len(segments) % 2 == 1 and segments[-1] == "operations"
    return name if whole else "/".join((*segments, "operations"))


E = TypeVar("E")

MAX_EVENT: Final = 32 * 1024 * 1024
"""Maximum size of an event in bytes."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event is larger than :data:`MAX_EVENT`."""


class Events(Generic[E]):
    """Parses the chunks of a stream of server-sent events.

    ``read`` turns the type and the data of an event into a result, or None to skip the event.
    """

    def __init__(self, read: Callable[[str, bytes], E | None]) -> None:
        self._read = read
        self._rest = bytearray()
        self._kind = ""
        self._data: list[bytes] = []
        self._size = 0
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[E]:
        """Yield the events that this chunk completes.

        Raises:
            EventTooLarge: An event is longer than :data:`MAX_EVENT` bytes.
        """
        self._rest += chunk
        if b"\n" not in chunk and b"\r" not in chunk:
            self._check()
            return
        # A carriage return at the end may be the first half of a line ending.
        whole, held = bytes(self._rest), b""
        if whole.endswith(b"\r"):
            whole, held = whole[:-1], b"\r"
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = bytearray(rest + held)
        if lines and not self._begun:  # a byte order mark is not part of the first field name
            self._begun, lines[0] = True, lines[0].removeprefix(_BYTE_ORDER_MARK)
        for line in lines:
            if line:
                self._line(line)
            elif (event := self._end()) is not None:
                yield event
        self._check()

    def _check(self) -> None:
        if len(self._rest) + self._size > MAX_EVENT:
            raise EventTooLarge(f"an event is larger than {MAX_EVENT} bytes")

    def _line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1  # an empty line uses memory too
        elif field == b"event":
            self._kind = value.decode("utf-8", "replace")

    def _end(self) -> E | None:
        kind, data = self._kind, self._data
        self._kind, self._data, self._size = "", [], 0
        return self._read(kind, b"\n".join(data)) if data else None


@functools.cache
def _unfinished() -> re.Pattern[str]:
    """Match the end of a JSON text that was cut off within a token, or between tokens."""
    return re.compile(
        r"""
        | -                                         # cut off within a number
        | (?<=[0-9]) (?: \. | \.?[0-9]*[eE][+-]? )
        | t (?:r u?)? | f (?:a (?:l s?)?)? | n (?:u l?)?
        | " (?: [^"\\]++ | \\. )*+ \\?              # within a string
        | (?<=\\) u [0-9a-fA-F]{0,4}                # within an escape in a string
        """,
        re.VERBOSE | re.DOTALL,
    )


def is_truncated(content: bytes) -> bool:
    """Return True if the bytes are the beginning of a JSON text that was cut off.

    Return False if no further bytes could complete them to valid JSON in UTF-8.
    """
    try:
        # An incremental decoder accepts a character that is cut off at the end.
        text = codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError:
        return False
    try:
        loads(text)
    except json.JSONDecodeError as exc:
        return _unfinished().fullmatch(text, exc.pos) is not None
    except ValueError:  # too many digits or values, or too deep
        return False
    return False


_WITHOUT_CONTENT: Final = frozenset({204, 205})
_PASSING_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_SECONDS: Final = re.compile(r"[0-9]+", re.ASCII)
_MAX_PAUSE_SECONDS: Final = 1e9
"""Upper bound of a pause. It exceeds any real pause, but is short enough for a clock's sleep."""

_FAILURES: Final = (
    ("InvalidURL", Code.INVALID_ARGUMENT, False),
    ("UnsupportedProtocol", Code.INVALID_ARGUMENT, False),
    ("LocalProtocolError", Code.INVALID_ARGUMENT, False),
    # A cookie kept by the client, or a host name, cannot be encoded.
    ("UnicodeError", Code.INVALID_ARGUMENT, False),
    ("HTTPStatusError", Code.UNKNOWN, False),  # with a status below 400: a redirect
    ("TooManyRedirects", Code.UNKNOWN, False),
    ("ConnectTimeout", Code.UNAVAILABLE, True),
    ("TimeoutException", Code.DEADLINE_EXCEEDED, True),
    ("RequestError", Code.UNAVAILABLE, True),  # all other errors: the connection failed or was lost
    ("SSLError", Code.UNAVAILABLE, True),  # httpx's async reads raise it unwrapped
    ("ConnectionError", Code.UNAVAILABLE, True),
)
"""Exception names, each with its code, and True if a retry can help. The first match is used.

Names are compared instead of classes, because httpx2 has its own classes with the same names.
"""


_CONNECTING: Final = frozenset({"ConnectError", "ConnectTimeout", "ProxyError"})
_REFUSED: Final = re.compile(r"\A(4\d\d)[ ,]")
"""Matches the HTTP status in the message of httpx or aiohttp if a proxy refused to connect."""

_ELSEWHERE: Final = (
    "look at the name, the client's base URL and routes, and where the server is mounted"
)


class HttpCoder:
    """Converts calls to HTTP requests, and responses to replies, for blocking and async clients.

    ``base_url`` is put before the paths of verbs, and before targets of starts that are paths.
    ``address`` is the server's, even if the HTTP client adds it. ``now`` is the local clock, which
    is needed for dates in Retry-After.
    """

    def __init__(
        self,
        routes: Routes,
        types: TypeRegistry,
        *,
        base_url: str = "",
        address: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.encode = Encoder(routes, types, base_url, address).encode
        self._types = types
        self._now = now

    def decode(self, call: Call, response: Any, content: bytes) -> Reply:
        """Return the reply of an HTTP response.

        Raises:
            CallError: The response is an error, or not a valid reply to the call.
        """
        status: int = response.status_code
        headers: Mapping[str, str] = response.headers
        retry_after = self._retry_after(headers)
        if not 200 <= status < 300:
            raise self._error(call, response, content, retry_after)
        if isinstance(call.request, (DeleteOperationRequest, CancelOperationRequest)):
            return Reply(None, retry_after)
        return Reply(self._message(call, status, content), retry_after)

    def raise_failure(self, call: Call, exc: Any, address: Callable[[], str]) -> None:
        """Raise the error of a call that failed with an exception of httpx or the event parser.

        Do nothing for another exception. The error names the address that was called, which
        ``address()`` returns.
        """
        if isinstance(exc, EventTooLarge):
            raise unreadable(call.verb, str(exc)) from exc
        names = [cls.__name__ for cls in type(exc).__mro__]
        if "DecodingError" in names:  # the body is damaged, or its encoding is mislabelled
            raise spoilt_reply(call.verb, f"{exc} ({address()})") from exc
        if "HTTPStatusError" in names and exc.response.status_code >= 400:
            raise self._raised(call, exc.response) from exc
        if (meaning := _meaning(names, str(exc))) is not None:
            said = _said(exc)
            text = f"{names[0]}: {said}" if said else names[0]
            status = Status(meaning[0], f"{text} ({address()})")
            # A traceback would also show the messages of causes, which may contain secrets.
            cause = exc if said == str(exc) else None
            raise CallError(call.verb, status, passing=meaning[1]) from cause

    def _message(
        self, call: Call, status: int, content: bytes
    ) -> Operation | ListOperationsResponse | BatchGetOperationsResponse:
        if status in _WITHOUT_CONTENT:  # a retry cannot help
            raise unreadable(call.verb, f"HTTP {status} says nothing of an operation", status)
        if not content.strip():
            raise empty_reply(call.verb, "an empty body", status)
        try:
            value = loads(content)
        except ValueError as exc:
            text, cut = f"the reply is not JSON: {exc}", is_truncated(content)
            raise unreadable(call.verb, text, status, passing=cut) from None
        try:
            if isinstance(call.request, ListOperationsRequest):
                return page_from_json(value, self._types)
            if isinstance(call.request, BatchGetOperationsRequest):
                return self._batch(call.request, value)
            operation = operation_from_json(value, self._types)
        except LroError as exc:
            text = f"the reply is not what was asked for: {exc}"
            raise unreadable(call.verb, text, status) from exc
        check_operation(call, operation, status)
        return operation

    def _batch(self, request: BatchGetOperationsRequest, value: Json) -> BatchGetOperationsResponse:
        fields = value if isinstance(value, dict) else {}
        listed, missing = fields.get("operations", []), fields.get("missing", [])
        if fields is not value or not isinstance(listed, list) or not isinstance(missing, list):
            raise InvalidArgument("operations", "must be a list, beside a list of missing names")
        listed_names = {str(one.get("name")) for one in listed if isinstance(one, dict)}
        absent = set(request.names).difference(listed_names, map(str, missing))
        if absent:  # a wait for an operation that is never reported would not end
            raise InvalidArgument(
                "operations", f"must have {min(absent)!r:.200}, unless 'missing' has it"
            )
        if request.ended:  # decoding operations in progress would take most of the time
            listed = [one for one in listed if isinstance(one, dict) and _matters(one)]
        found = tuple(operation_from_json(one, self._types) for one in listed)
        gone = tuple(name for name in missing if isinstance(name, str))
        return BatchGetOperationsResponse(found, gone)

    def streams(self, response: Any) -> bool:
        """Return True if a response is a stream of events."""
        kind: str = response.headers.get("content-type", "")
        return response.status_code == 200 and kind.lower().startswith("text/event-stream")

    def events(self, call: Call) -> Events[Operation | str]:
        """Return a parser from a stream's chunks to operations and names of missing operations.

        The parser raises a CallError for an event that is not valid for the call.
        """
        return Events(lambda kind, data: self._event(call, kind, data))

    def _event(self, call: Call, kind: str, data: bytes) -> Operation | str | None:
        if kind not in ("operation", "missing"):
            return None
        try:
            value = loads(data)
            fields = value if isinstance(value, dict) else {}
            if kind == "missing":
                return str(fields["name"])
            wanted = call.request
            ended = isinstance(wanted, WatchOperationsRequest) and wanted.ended
            name = fields.get("name")
            if ended and isinstance(name, str) and not _matters(fields):
                return Operation(name=name)  # no listener needs the metadata, so drop it
            return operation_from_json(value, self._types)
        except (ValueError, KeyError, LroError) as exc:
            text = f"an event is not what was asked for: {exc}"
            raise unreadable(call.verb, text) from exc

    def no_stream(self, call: Call, response: Any, content: bytes) -> CallError:
        """Return the error of a call whose reply is not a stream."""
        status = response.status_code
        if not 200 <= status < 300:
            return self._error(call, response, content, self._retry_after(response.headers))
        text = "the reply is no stream of events"
        return CallError(call.verb, Status(Code.UNIMPLEMENTED, text), status)

    def _error(
        self, call: Call, response: Any, content: bytes, retry_after: float | None
    ) -> CallError:
        http: int = response.status_code
        try:
            body = loads(content)
        except ValueError:
            body = None
        status = status_from_error_body(http, body, self._types)
        where = f"{response.request.method} {public_address(str(response.url))}"
        words = f"; it said: {status.message}"
        if status.message == status_from_error_body(http, None, self._types).message:
            # The reply has no message; it may come from a server that was called by mistake.
            words = ""
            status = attrs.evolve(status, message=f"{status.message} to {where}")
        for detail in decoded(status):
            if isinstance(detail, RetryInfo) and detail.retry_delay is not None:
                asked = min(detail.retry_delay.total_seconds(), _MAX_PAUSE_SECONDS)
                retry_after = max(retry_after or 0.0, asked)
        said = error_fields(http, body)
        # An error page of a proxy or of a framework's router says nothing about the operation.
        if status.code == Code.NOT_FOUND and (said is None or _lacks_route(status)):
            text = f"nothing is served at {where}: {_ELSEWHERE}{words}"
            status = attrs.evolve(status, message=text)
            return PathNotServed(call.verb, status, http, retry_after)
        # A body without a google.rpc.Status came from a proxy, whose failures are temporary.
        named = said is not None and str(said.get("status")) in Code.__members__
        passing = http in _PASSING_STATUS and not named
        return CallError(call.verb, status, http, retry_after, passing=passing)

    def _raised(self, call: Call, response: Any) -> CallError:
        """Return the error for a reply for which a client's hook raised ``HTTPStatusError``."""
        content = b""
        with suppress(RuntimeError):  # the body was closed before any hook read it
            content = response.content
        return self._error(call, response, content, self._retry_after(response.headers))

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        text = headers.get("retry-after", "").strip()
        if _SECONDS.fullmatch(text):
            return min(float(text), _MAX_PAUSE_SECONDS)
        moment = _moment(text) if text else None
        if moment is None:
            return None
        now = _moment(headers.get("date", ""))
        return min(moment - (self._now() if now is None else now), _MAX_PAUSE_SECONDS)


def _matters(operation: dict[str, Json]) -> bool:
    """Return True if an operation must be decoded for a caller that only needs ended operations.

    An operation that has an error but is not done must be decoded too, so that its wait fails.
    """
    return bool(operation.get("done") or operation.get("error"))


def _meaning(names: list[str], text: str) -> tuple[Code, bool] | None:
    """Return the code of an exception by its class names, and True if a retry can help."""
    if not _CONNECTING.isdisjoint(names):
        if UNTRUSTED.search(text):
            return Code.FAILED_PRECONDITION, False
        if found := _REFUSED.match(text):
            return code_from_http(int(found[1])), False
    return next(((code, passing) for name, code, passing in _FAILURES if name in names), None)


def _said(exc: Exception) -> str:
    """Return the message of an exception, without secrets."""
    if "header value" in str(exc):  # h11 and httpx show the whole value, which may be a token
        return "a header has a forbidden character, such as the newline at the end of a file"
    return str(exc)


def _moment(text: str) -> float | None:
    try:
        found = email.utils.parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _lacks_route(status: Status) -> bool:
    """Return True if NOT_FOUND means that the path, not the operation, does not exist."""
    return any(
        isinstance(detail, ErrorInfo) and detail.reason == RouteNotFound.reason
        for detail in decoded(status)
    )
