"""Google's credentials for calls over HTTP. Needs the extra ``google``."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import httpx

from lro.errors import MissingExtra
from lro_client.transports._own_clients import client_of

try:
    import google.auth
    from google.auth import exceptions
    from google.auth.credentials import TokenState
except ImportError as _exc:
    raise MissingExtra("authentication by google-auth", "google") from _exc

if TYPE_CHECKING:
    _Auth = httpx.Auth
else:
    try:  # httpx2's clients accept only instances of httpx2's Auth class
        import httpx2

        class _Auth(httpx.Auth, httpx2.Auth):
            pass
    except ImportError:
        _Auth = httpx.Auth

__all__ = ["CLOUD_PLATFORM", "GoogleAuth", "default_auth"]

CLOUD_PLATFORM: Final = "https://www.googleapis.com/auth/cloud-platform"
"""The scope of all Google services."""

TOKEN_SECONDS: Final = 30.0
"""Timeout in seconds of a call for a token, unless the credentials set another timeout."""

UNAUTHENTICATED: Final = 401


@attrs.frozen
class TokenReply:
    """A reply of a token endpoint, as google-auth reads it."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class HttpxRequest:
    """Makes google-auth's token calls with an ``httpx.Client`` instead of the package ``requests``.

    google-auth calls such an object a ``Request``.
    """

    def __init__(self, http: httpx.Client | None = None) -> None:
        self._http = http
        self._lock = threading.Lock()

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> TokenReply:
        """Call a token endpoint.

        Raises:
            google.auth.exceptions.TransportError: The endpoint could not be reached.
        """
        try:
            reply = self._client().request(
                method, url, content=body, headers=headers, timeout=timeout or TOKEN_SECONDS
            )
        except Exception as exc:  # errors of httpx, of httpx2, or of their transports
            raise _transport_error(exc) from exc
        return TokenReply(reply.status_code, reply.headers, reply.content)

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._http is None:
                self._http = client_of()
            return self._http


class GoogleAuth(_Auth):
    """Authentication with google-auth credentials, for blocking and async ``httpx`` clients.

    ``httpx2`` clients accept it too. A token is fetched when it is needed, by one thread at a time,
    and the fetch never blocks an event loop. After a reply with 401, the call is made again with a
    new token. The credentials' quota project is sent too. ``request`` is the object with which
    google-auth calls token endpoints.

    If a token endpoint cannot be reached, an ``httpx.ConnectError`` is raised, and this library's
    clients retry the call. Permanent failures raise google-auth's own ``GoogleAuthError``.
    """

    def __init__(self, credentials: Any, *, request: Any = None) -> None:
        self.credentials = credentials
        self._request = request or HttpxRequest()
        self._lock = threading.Lock()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._turns = weakref.WeakKeyDictionary()

    def sync_auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        """Authenticate a blocking request, as ``httpx.Auth`` specifies."""
        request.read()  # the request may have to be sent twice
        if not self._apply(request):
            self._fetch(request)
        token = self.credentials.token
        response = yield request
        if response.status_code == UNAUTHENTICATED and token is not None:
            self._fetch(request, instead_of=token)
            yield request

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        """Authenticate on an event loop. A thread fetches the token."""
        await request.aread()
        if not self._apply(request):
            await self._afetch(request)
        token = self.credentials.token
        response = yield request
        if response.status_code == UNAUTHENTICATED and token is not None:
            await self._afetch(request, instead_of=token)
            yield request

    def _apply(self, request: Any, instead_of: str | None = None) -> bool:
        """Add the current token to a request, or return False if a new token is needed."""
        credentials = self.credentials
        good = credentials.token_state is TokenState.FRESH and credentials.token != instead_of
        if good:
            headers: dict[str, str] = {}
            credentials.apply(headers)
            request.headers.update(headers)
        return good

    def _fetch(self, request: Any, instead_of: str | None = None) -> None:
        with self._lock:
            if self._apply(request, instead_of):
                return  # another thread has fetched a token in the meantime
            headers: dict[str, str] = {}
            try:
                if instead_of is not None and self.credentials.token == instead_of:
                    self.credentials.refresh(self._request)
                url = str(request.url)
                self.credentials.before_request(self._request, request.method, url, headers)
            except exceptions.GoogleAuthError as exc:
                if isinstance(exc, exceptions.TransportError) or exc.retryable:
                    raise httpx.ConnectError(f"no token could be fetched: {exc}") from exc
                raise
            request.headers.update(headers)

    async def _afetch(self, request: Any, instead_of: str | None = None) -> None:
        # Only one task at a time uses a thread. Hundreds of waiting tasks would occupy all threads.
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            if not self._apply(request, instead_of):
                await asyncio.to_thread(self._fetch, request, instead_of)


def _transport_error(exc: Exception) -> Exception:
    make: Any = exceptions.TransportError  # some releases of google-auth have no types for it
    found: Exception = make(exc)
    return found


def default_auth(
    scopes: Sequence[str] = (CLOUD_PLATFORM,), *, quota_project: str | None = None
) -> GoogleAuth:
    """Return authentication with this machine's credentials, found by ``google.auth.default``.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: The machine has no credentials.
    """
    request: Any = HttpxRequest()
    credentials, _ = google.auth.default(
        scopes=list(scopes), request=request, quota_project_id=quota_project
    )
    return GoogleAuth(credentials, request=request)
