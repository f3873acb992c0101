"""The credentials of a client: headers, a token or an auth, and the server that gets them."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

import httpx

from lro import Code, DeclarationError, Status
from lro.errors import check_keywords
from lro_client._errors import CallError
from lro_client._flow.steps import Call

if TYPE_CHECKING:
    import httpx2

    Auth: TypeAlias = (
        httpx.Auth
        | httpx2.Auth
        | tuple[str, str]
        | Callable[[httpx.Request], httpx.Request]
        | Callable[[httpx2.Request], httpx2.Request]
    )


class _CommonSendOptions(TypedDict, total=False):
    headers: Mapping[str, str] | None
    auth: Auth | None


class SendOptions(_CommonSendOptions, total=False):
    """Options that a blocking client sends with each request: see :class:`lro_client.Client`."""

    token: str | Callable[[], str] | None


class AsyncSendOptions(_CommonSendOptions, total=False):
    """Options that an async client sends with each request: see :class:`lro_client.AsyncClient`."""

    token: str | Callable[[], str | Awaitable[str]] | None


_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?", re.ASCII)
_BEARER: Final = re.compile(r"[!-~]+", re.ASCII)
_OWN_HEADERS: Final = ("accept-encoding", "content-length", "content-type", "transfer-encoding")
"""Headers that belong to the body of a request or a reply, so only the transport can set them."""


class Credentials:
    """The headers, the token and the auth of a client. Only the client's own server gets them.

    ``options`` has them, and ``where`` names what takes them. ``base_url`` is the address of the
    client, and ``http`` is the HTTP client that was passed, or None. ``awaits`` is true if the
    token may be the result of a coroutine.

    Raises:
        DeclarationError: An option is not valid, or two options authenticate the calls. The message
            shows no value of an option.
        TypeError: There is no such option.
    """

    def __init__(
        self, where: str, options: Mapping[str, Any], base_url: str, http: Any, *, awaits: bool
    ) -> None:
        check_keywords(where, options, SendOptions)
        headers, token, auth = (options.get(name) for name in ("headers", "token", "auth"))
        self.headers = _checked_headers(headers)
        """The headers of each request, with the token if it does not change."""
        self.auth = auth
        """Authenticates each request, or None."""
        self.any: bool = bool(self.headers) or token is not None or auth is not None
        """True if requests get more than the HTTP client itself would send."""
        address = httpx.URL(base_url if "://" in base_url else str(getattr(http, "base_url", "")))
        self._origin = origin_of(address)
        self._within = f"{base_url.rstrip('/')}/", "/"
        _check_auth(auth, http)
        _check_one(token, auth, self.headers, http, address)
        self._token: Callable[[], object] | None = None
        if isinstance(token, str):
            self.headers["authorization"] = _bearer(token)
        elif token is not None:
            _check_token_function(token, awaits=awaits)
            self._token = token

    def signed(self, call: Call, asked: dict[str, Any]) -> dict[str, Any]:
        """Return a request with the token that the token function returns now.

        Raises:
            DeclarationError: The request is for another server, or the token is not valid.
            CallError: The token function could not reach the server that it asks.
        """
        token = self._function_for(asked["url"])
        if token is None:
            return asked
        with _reaching(call):
            found = token()
        return _with_bearer(asked, found)

    async def asigned(self, call: Call, asked: dict[str, Any]) -> dict[str, Any]:
        """Return a request with the current token, as :meth:`signed` does, and await the token."""
        token = self._function_for(asked["url"])
        if token is None:
            return asked
        with _reaching(call):
            found = token()
            if isinstance(found, Awaitable):
                found = await found
        return _with_bearer(asked, found)

    def _function_for(self, url: str) -> Callable[[], object] | None:
        """Check that the client's own server is called, and return the token function, if any."""
        if not url.startswith(self._within) and _origin_in(url) != self._origin:
            wanted = "must be on the server of base_url, the only one that gets the credentials"
            raise DeclarationError("target", wanted)
        return self._token


def refuse_credentials(options: Mapping[str, Any]) -> None:
    """Refuse headers, a token or an auth beside a transport.

    Raises:
        DeclarationError: ``options`` has one of them.
    """
    for name in SendOptions.__optional_keys__:
        if options.get(name) is not None:
            text = (
                "goes with a URL or http=, not with transport=: pass it to the transport itself"
                " (a gRPC transport takes metadata=, a local transport takes caller=)"
            )
            raise DeclarationError(name, text)


def origin_of(url: Any) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL of httpx or httpx2."""
    return url.scheme, url.host, url.port


def _origin_in(url: str) -> tuple[str, str, int | None] | None:
    """Return the scheme, host and port of a URL; None if it is not valid."""
    try:
        return origin_of(httpx.URL(url))
    except httpx.InvalidURL:
        return None


def _checked_headers(headers: object) -> dict[str, str]:
    """Return headers with names in lower case.

    Raises:
        DeclarationError: The headers are not a mapping of names to values that HTTP allows.
    """
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        wanted = 'must be a mapping of names to texts, such as {"x-team": "films"}'
        raise DeclarationError("headers", f"{wanted}, got an object of {type(headers).__name__}")
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
            raise DeclarationError("headers", f"has a name that HTTP does not allow: {name!r:.80}")
        if name.lower() in _OWN_HEADERS:
            raise DeclarationError("headers", f"must not have {name}, which the client sets")
        if not (isinstance(value, str) and _HEADER_VALUE.fullmatch(value)):
            wanted = "must be a text of printable ASCII, with no white space around it"
            raise DeclarationError("headers", f"the value of {name} {wanted}")
        found[name.lower()] = value
    return found


def _check_one(
    token: object, auth: object, headers: Mapping[str, str], http: object, address: httpx.URL
) -> None:
    """Check that one option at most authenticates the calls."""
    ways = {
        "token": token is not None,
        "auth": auth is not None,
        "the authorization in headers": "authorization" in headers,
    }
    own = [way for way, given in ways.items() if given]
    other = {
        "the auth of the HTTP client": getattr(http, "auth", None) is not None,
        "the user in base_url": bool(address.userinfo),
    }
    every = [*own, *(way for way, given in other.items() if given)]
    if own and len(every) > 1:
        first, second, *_ = every
        raise DeclarationError(first, f"and {second} exclude each other: give one of them")


def _check_auth(auth: object, http: object) -> None:
    fine = isinstance(auth, httpx.Auth | tuple) or callable(auth)
    fine = fine or (http is not None and hasattr(auth, "auth_flow"))  # httpx2 has its own Auth
    if auth is not None and (not fine or isinstance(auth, type)):
        wanted = "must be an httpx.Auth, a pair of user and password, or a function of the request"
        text = f"{wanted}, got an object of {type(auth).__name__}"
        if hasattr(auth, "before_request"):  # a method of google-auth's credentials
            text += "; wrap google-auth's credentials: lro_client.google.GoogleAuth(...)"
        raise DeclarationError("auth", text)


def _check_token_function(token: object, *, awaits: bool) -> None:
    """Check a function that returns tokens."""
    wanted = "must be a text, or a function without arguments that returns one"
    if not callable(token) or isinstance(token, type):
        raise DeclarationError("token", f"{wanted}, got an object of {type(token).__name__}")
    coroutine = inspect.iscoroutinefunction(token) or inspect.iscoroutinefunction(
        getattr(token, "__call__", None)  # noqa: B004  # an object whose call is a coroutine
    )
    if coroutine and not awaits:
        raise DeclarationError("token", f"{wanted}, got a coroutine function: use AsyncClient")


def _bearer(token: object) -> str:
    """Return the value of the header for a token.

    Raises:
        DeclarationError: The token is not a text of the characters that tokens have.
    """
    if not isinstance(token, str):
        if inspect.iscoroutine(token):
            token.close()  # otherwise Python would warn that nobody awaited it
        raise DeclarationError("token", f"must be a text, got an object of {type(token).__name__}")
    if not _BEARER.fullmatch(token):
        text = (
            "must be printable ASCII without spaces: leave out 'Bearer ' and the newline at the end"
        )
        raise DeclarationError("token", text)
    return f"Bearer {token}"


def _with_bearer(asked: dict[str, Any], token: object) -> dict[str, Any]:
    return {**asked, "headers": {"authorization": _bearer(token), **asked.get("headers", {})}}


def _is_network_error(exc: Exception) -> bool:
    names = {cls.__name__ for cls in type(exc).__mro__}
    return isinstance(exc, OSError) or "RequestError" in names  # of httpx and httpx2


@contextlib.contextmanager
def _reaching(call: Call) -> Iterator[None]:
    """Raise a CallError that a retry can help if the token function reaches no server."""
    try:
        yield
    except Exception as exc:
        if _is_network_error(exc):
            status = Status(Code.UNAVAILABLE, f"no token could be fetched: {type(exc).__name__}")
            raise CallError(call.verb, status, passing=True) from exc
        raise
