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
    try:  # its clients take only what is of its own class
        import httpx2

        class _Auth(httpx.Auth, httpx2.Auth):
            pass
    except ImportError:
        _Auth = httpx.Auth

__all__ = ["CLOUD_PLATFORM", "GoogleAuth", "default_auth"]

CLOUD_PLATFORM: Final = "https://www.googleapis.com/auth/cloud-platform"
"""The scope of all Google services."""

TOKEN_SECONDS: Final = 30.0
"""Maximum wait for a token, unless the credentials say otherwise."""

UNAUTHENTICATED: Final = 401


@attrs.frozen
class TokenReply:
    """A reply of a token endpoint, as google-auth reads it."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class HttpxRequest:
    """google-auth's own calls, for tokens, by an ``httpx.Client``; ``requests`` is not needed.

    It is what google-auth calls a ``Request``.
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
            google.auth.exceptions.TransportError: It could not be reached.
        """
        try:
            reply = self._client().request(
                method, url, content=body, headers=headers, timeout=timeout or TOKEN_SECONDS
            )
        except Exception as exc:  # httpx's errors, or httpx2's, or those of their transports
            raise _transport_error(exc) from exc
        return TokenReply(reply.status_code, reply.headers, reply.content)

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._http is None:
                self._http = client_of()
            return self._http


class GoogleAuth(_Auth):
    """Authentication by credentials of google-auth, for ``httpx`` clients of both kinds.

    ``httpx2`` takes it too. Tokens are fetched when they are needed, by one thread or task at a
    time, and never by an event loop; a call that answers 401 is made once more with a new one. The
    credentials' quota project is sent. ``request`` is how google-auth calls token endpoints.

    That an endpoint cannot be reached is an ``httpx.ConnectError``, which clients retry; what does
    not pass is google-auth's own ``GoogleAuthError``.
    """

    def __init__(self, credentials: Any, *, request: Any = None) -> None:
        self.credentials = credentials
        self._request = request or HttpxRequest()
        self._lock = threading.Lock()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._turns = weakref.WeakKeyDictionary()

    def sync_auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        """See ``httpx.Auth``."""
        request.read()  # it may have to be sent twice
        if not self._apply(request):
            self._fetch(request)
        token = self.credentials.token
        response = yield request
        if response.status_code == UNAUTHENTICATED and token is not None:
            self._fetch(request, instead_of=token)
            yield request

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        """Authenticate on an event loop; a thread fetches the token."""
        await request.aread()
        if not self._apply(request):
            await self._afetch(request)
        token = self.credentials.token
        response = yield request
        if response.status_code == UNAUTHENTICATED and token is not None:
            await self._afetch(request, instead_of=token)
            yield request

    def _apply(self, request: Any, instead_of: str | None = None) -> bool:
        """Use the token that is there, if that is a good one."""
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
                return  # another thread has fetched it in the meantime
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
        # One task at a time goes to a thread: hundreds that wait would take all threads there are.
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
    """Authentication by the credentials of this machine, as ``google.auth.default`` finds them.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: It has none.
    """
    request: Any = HttpxRequest()
    credentials, _ = google.auth.default(
        scopes=list(scopes), request=request, quota_project_id=quota_project
    )
    return GoogleAuth(credentials, request=request)
