"""What edges over HTTP share: requests, who calls, how much is read, how errors are told."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import attrs

from lro._base.arguments import check_count, check_instance
from lro._base.errors import RequestTooLarge
from lro._engine.hooks import Hook
from lro._engine.service import Service
from lro._http.origins import check_site, trusted
from lro._http.responses import HttpReply, error_reply
from lro._http.steps import Exchange, Steps, drive, identify

DEFAULT_MAX_BODY: Final = 1024 * 1024

Authenticate = Callable[[Mapping[str, str]], str | Awaitable[str | None] | None]
"""The application's say on who is calling: request headers, names in lower case -> caller.

Return None for a caller without a name, who is told apart from nobody else without one. Raise
:class:`lro.errors.Unauthenticated` to refuse. Anything else that is returned or raised is a
mistake: the call ends with INTERNAL, and the log says what it was. Under ASGI a plain function is
called in a thread, and a coroutine function is awaited; WSGI refuses coroutine functions.
"""


def _as_method(text: str) -> str:
    return text if text.isascii() else text.encode("ascii", "replace").decode("ascii")


def _lower(text: str) -> str:
    return text.lower()


@attrs.frozen(kw_only=True)
class HttpRequest:
    """A request as it stands on the wire: raw path and query, header names in lower case.

    A method is ASCII; what is not becomes a question mark, which no method has. A header that is
    given several times is one list, its values joined by commas. ``scheme`` is that of the
    connection, ``http`` or ``https``, as far as the server knows it: behind a proxy that ends TLS,
    what the proxy says and the server believes.
    """

    method: str = attrs.field(converter=_as_method)
    path: str
    query: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    scheme: str = attrs.field(default="http", converter=_lower)


class Edge(abc.ABC):
    """What edges share: who calls, from which sites, how much is read, how errors are told.

    Without ``authenticate`` no caller has a name. That is refused where the service has
    ``owner_only``, and the log warns of it where the service has ``authorize``.
    """

    def __init__(
        self,
        service: Service,
        *,
        authenticate: Authenticate | None = None,
        trusted_origins: Collection[str] = (),
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
    ) -> None:
        check_instance("service", service, Service, "a Service")
        check_count("max_body", max_body)
        check_count("poll_seconds", poll_seconds)
        self.service = service
        self.max_body = max_body
        service.access.check_named(type(self).__name__, authenticate)
        self._hook = None if authenticate is None else Hook("authenticate", authenticate)
        self._trusted_origins = trusted(trusted_origins)
        self._poll_seconds = poll_seconds

    def check_plain(self, where: str) -> None:
        """Do nothing if ``where``, which has no event loop, can ask the hooks of this edge.

        Raises:
            DeclarationError: ``authenticate``, or ``authorize`` of the service, is a coroutine
                function.
        """
        if self._hook is not None:
            self._hook.check_plain(where)
        self.service.access.check_plain(where)

    @abc.abstractmethod
    def knows(self, method: str, path: str) -> bool:
        """Whether this edge is what answers a raw path; it then answers with errors too."""
        ...

    def exchange(self, request: HttpRequest) -> Exchange:
        """Answer a request; every failure becomes an error reply."""
        try:
            reply = yield from self._answer(request)
        except Exception as exc:
            return self.refusal(request, exc)
        return reply.headless if request.method == "HEAD" else reply

    def refusal(self, request: HttpRequest, error: Exception) -> HttpReply:
        """The reply to a request that failed."""
        service, asked = self.service, f"{request.method} {request.path}"
        reply = error_reply(error, service.types, service.domain, asked=asked)
        return reply.headless if request.method == "HEAD" else reply

    def at_once(self, request: HttpRequest) -> HttpReply | None:  # noqa: ARG002
        """The reply to a request for which nothing can block; None: take :meth:`exchange`."""
        return None

    def handle(self, request: HttpRequest) -> HttpReply:
        """Answer a request in this thread, which cannot stream: Watch is UNIMPLEMENTED here."""
        reply = drive(self.exchange(request), self.service)
        assert isinstance(reply, HttpReply)  # only what is followed is streamed
        return reply

    @abc.abstractmethod
    def _answer(self, request: HttpRequest) -> Exchange: ...

    def _caller(self, request: HttpRequest) -> Steps[str]:
        return identify(self._hook, request.headers)

    def _check_site(self, request: HttpRequest) -> None:
        check_site(request.method, request.headers, request.scheme, self._trusted_origins)

    def _check_size(self, request: HttpRequest) -> None:
        if len(request.body) > self.max_body:
            raise RequestTooLarge("body", f"must have at most {self.max_body} bytes")
