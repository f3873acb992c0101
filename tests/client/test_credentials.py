"""Headers, tokens and authentication that a client sends with its requests."""

from __future__ import annotations

import importlib
import logging
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import httpx
import pytest

import lro
from lro_client import NO_RETRY, CallError, Client, Retry
from lro_client.transports import AsyncHttpTransport, HttpTransport, LocalTransport
from lro_client.waits import wait_exponential
from tests.client.faces import AsyncFace, Clock, Face
from tests.client.messages import NAME
from tests.client.real_service import Switch

SECRET = "s3cr3t"
BODY = b'{"name": "operations/abc", "done": true}'


@attrs.define
class Recorder:
    """An ASGI application that keeps the headers of each request, and replies as it is told."""

    seen: list[dict[str, str]] = attrs.field(factory=list)
    replies: list[tuple[int, dict[str, str]]] = attrs.field(factory=list)
    """A status and headers for each of the next requests; afterwards every reply is 200."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append({key.decode(): value.decode() for key, value in scope["headers"]})
        while (await receive()).get("more_body"):
            pass
        status, headers = self.replies.pop(0) if self.replies else (200, {})
        headers = {"content-type": "application/json", **headers}
        pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": BODY})

    def sent(self, name: str) -> list[str]:
        """Return a header of each request."""
        return [headers.get(name, "") for headers in self.seen]


@pytest.fixture
def recorder(listening: tuple[Switch, str]) -> Recorder:
    made = Recorder()
    listening[0].app = made
    return made


@pytest.fixture
def url(listening: tuple[Switch, str]) -> str:
    return listening[1]


@pytest.fixture
def async_face() -> Iterator[Face]:
    made = AsyncFace()
    yield made
    made.close()


def own(face: Face, url: str, **options: Any) -> Any:
    """Make a client that makes its own HTTP client."""
    return face.own(url, **options)


def of_httpx(face: Face, url: str, **options: Any) -> Any:
    http = face.http(verify=False, follow_redirects=True)
    return face.client(url, http=http, **options)


def of_httpx2(face: Face, url: str, **options: Any) -> Any:
    httpx2 = pytest.importorskip("httpx2", reason="httpx2 is not installed")
    kind = httpx2.Client if face.name == "sync" else httpx2.AsyncClient
    made = kind(verify=False, follow_redirects=True)
    face.at_close(made.close if face.name == "sync" else made.aclose)
    return face.client(url, http=made, **options)


def of_transport(face: Face, url: str, **options: Any) -> Any:
    """Make a client of a transport; the async one is that of aiohttp."""
    more = {name: options.pop(name) for name in ("headers", "token", "auth") if name in options}
    kind: Any = HttpTransport
    if face.name == "async":
        pytest.importorskip("httpx_aiohttp", reason="httpx-aiohttp is not installed")
        kind = importlib.import_module("lro_client.transports.aiohttp").AiohttpTransport
    return face.client("", transport=kind(base_url=url, **more), **options)


Make = Callable[..., Any]
EVERY_LIBRARY = pytest.mark.parametrize("make", [own, of_httpx, of_httpx2, of_transport])


@EVERY_LIBRARY
def test_headers_and_token_are_sent_with_every_request(
    make: Make, face: Face, recorder: Recorder, url: str
) -> None:
    """Each request has the headers and the token, beside the headers that the client sets."""
    client = make(face, url, headers={"X-Team": "films"}, token=SECRET)
    client.get(NAME)
    client.get(NAME)
    client.start("/v1/images:resize", {"source": "a"})
    assert recorder.sent("x-team") == ["films"] * 3
    assert recorder.sent("authorization") == [f"Bearer {SECRET}"] * 3
    assert recorder.sent("content-type") == ["", "", "application/json"]


@EVERY_LIBRARY
def test_token_function_is_called_for_each_request(
    make: Make, face: Face, recorder: Recorder, url: str
) -> None:
    """Each request has the token that the function returns for it, also after a redirect."""
    tokens = iter("abc")
    client = make(face, url, token=lambda: next(tokens))
    client.get(NAME)
    recorder.replies.append((307, {"location": "/v1/elsewhere"}))
    client.get(NAME)
    assert recorder.sent("authorization") == ["Bearer a", "Bearer b", "Bearer c"]


@EVERY_LIBRARY
def test_async_token_function_is_awaited(
    make: Make, async_face: Face, recorder: Recorder, url: str
) -> None:
    """An async client awaits the token."""

    async def fetch() -> str:
        return SECRET

    make(async_face, url, token=fetch).get(NAME)
    assert recorder.sent("authorization") == [f"Bearer {SECRET}"]


@EVERY_LIBRARY
def test_auth_authenticates_every_request(
    make: Make, face: Face, recorder: Recorder, url: str
) -> None:
    """A pair of user and password is sent as httpx sends it."""
    client = make(face, url, auth=("ann", SECRET))
    client.get(NAME)
    client.get(NAME)
    first, second = recorder.sent("authorization")
    assert first == second == "Basic YW5uOnMzY3IzdA=="


def test_auth_object_can_repeat_a_refused_request(face: Face, recorder: Recorder, url: str) -> None:
    """An ``httpx.Auth`` sees the reply, and may send the request again."""

    class Renewing(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            response = yield request
            if response.status_code == 401:
                request.headers["authorization"] = "Bearer new"
                yield request

    recorder.replies.append((401, {}))
    own(face, url, auth=Renewing()).get(NAME)
    assert recorder.sent("authorization") == ["", "Bearer new"]


@EVERY_LIBRARY
@pytest.mark.parametrize(
    "options",
    [{"token": SECRET}, {"token": lambda: SECRET}, {"headers": {"x-key": SECRET}},
     {"auth": ("ann", SECRET)}],
    ids=["token", "function", "headers", "auth"],
)  # fmt: skip
def test_another_server_gets_nothing(
    make: Make, options: dict[str, Any], face: Face, recorder: Recorder, url: str
) -> None:
    """Neither a redirect nor the target of a start sends a request to another server."""
    other = url.replace("127.0.0.1", "localhost")
    client = make(face, url, retry=NO_RETRY, **options)
    recorder.replies.append((307, {"location": f"{other}/v1/{NAME}"}))
    with pytest.raises(CallError, match="redirects to another origin"):
        client.get(NAME)
    for there in (other, f"{url}.example", f"{url}@localhost", url.replace("http:", "https:")):
        with pytest.raises(lro.DeclarationError, match="target: must be on the server of base_url"):
            client.start(f"{there}/v1/images:resize", {})
    assert len(recorder.seen) == 1
    client.start(f"{url}/v2/images:resize", {})
    assert len(recorder.seen) == 2


def test_token_is_in_no_log_and_no_error(
    face: Face, recorder: Recorder, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The token stands in neither logs, nor representations, nor errors with their tracebacks."""
    caplog.set_level(logging.DEBUG)
    client = own(face, url, token=SECRET, headers={"x-key": SECRET}, retry=NO_RETRY)
    recorder.replies.append((401, {}))
    with pytest.raises(CallError) as caught:
        client.get(NAME)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in f"{shown}{caplog.text}{client!r}"


BAD = {
    "token with newline": ({"token": f"{SECRET}\n"}, "token: must be printable ASCII"),
    "token with its scheme": ({"token": f"Bearer {SECRET}"}, "leave out 'Bearer '"),
    "empty token": ({"token": ""}, "token: must be printable ASCII"),
    "token as bytes": ({"token": SECRET.encode()}, "token: must be a text, or a function"),
    "class as token": ({"token": str}, "token: must be a text, or a function"),
    "headers as pairs": ({"headers": [("x-key", SECRET)]}, "headers: must be a mapping of names"),
    "name of a header": ({"headers": {"x key": SECRET}}, "headers: has a name that HTTP does not"),
    "name as bytes": ({"headers": {b"x-key": SECRET}}, "headers: has a name that HTTP does not"),
    "value of a header": ({"headers": {"x-key": f"{SECRET}\r\n"}}, "the value of x-key must be"),
    "value as bytes": ({"headers": {"x-key": SECRET.encode()}}, "the value of x-key must be"),
    "encoding": ({"headers": {"Accept-Encoding": "br"}}, "must not have Accept-Encoding"),
    "length": ({"headers": {"content-length": "3"}}, "must not have content-length"),
    "auth of a text": ({"auth": SECRET}, "auth: must be an httpx.Auth"),
    "class of auth": ({"auth": httpx.BasicAuth}, "auth: must be an httpx.Auth"),
    "credentials of google-auth": (
        {"auth": SimpleNamespace(before_request=None)},
        r"wrap google-auth's credentials: lro_client.google.GoogleAuth\(...\)",
    ),
    "two ways": ({"token": SECRET, "auth": ("a", SECRET)}, "token: and auth exclude each other"),
    "two headers": (
        {"token": SECRET, "headers": {"Authorization": SECRET}},
        "token: and the authorization in headers exclude each other",
    ),
    "header and auth": (
        {"auth": ("a", SECRET), "headers": {"authorization": SECRET}},
        "auth: and the authorization in headers exclude each other",
    ),
}


@pytest.mark.parametrize(("options", "text"), BAD.values(), ids=BAD)
def test_bad_options_are_refused_without_their_values(
    options: dict[str, Any], text: str, face: Face
) -> None:
    """An option that cannot be sent is an error when the client is made, without the secret."""
    for make in (own, of_httpx):
        with pytest.raises(lro.DeclarationError, match=text) as caught:
            make(face, "http://test", **options)
        assert SECRET not in str(caught.value)


def test_credentials_of_the_http_client_or_the_url_are_not_replaced(face: Face) -> None:
    """A token beside the auth of the HTTP client, or a password in the URL, is an error."""
    http = face.http(verify=False, auth=("ann", SECRET))
    with pytest.raises(lro.DeclarationError, match="token: and the auth of the HTTP client") as one:
        face.client(http=http, token="t")
    with pytest.raises(lro.DeclarationError, match="token: and the user in base_url") as two:
        face.make(f"http://ann:{SECRET}@test", token="t")
    http = face.http(verify=False, base_url=f"http://ann:{SECRET}@test")
    with pytest.raises(lro.DeclarationError, match="auth: and the user in base_url") as three:
        face.client("", http=http, auth=("a", "b"))
    assert SECRET not in f"{one.value}{two.value}{three.value}"
    face.client(http=face.http(verify=False, auth=("ann", SECRET)), headers={"x-team": "films"})


@pytest.mark.parametrize("name", ["headers", "token", "auth"])
def test_transport_excludes_the_options(name: str, face: Face) -> None:
    """A client of a transport takes none of the options; the error says who takes them."""
    transport = HttpTransport if face.name == "sync" else AsyncHttpTransport
    value = {"headers": {"x-key": SECRET}, "token": SECRET, "auth": ("ann", SECRET)}[name]
    with pytest.raises(lro.DeclarationError, match=rf"{name}: goes with a URL .* metadata=") as no:
        face.make("", transport=transport(base_url="http://test"), **{name: value})
    assert SECRET not in str(no.value)
    with pytest.raises(TypeError, match="takes no argument 'tokens'"):
        transport(base_url="http://test", tokens=SECRET)  # type: ignore[call-arg]


def test_local_transport_excludes_a_token() -> None:
    """A local transport has a caller instead."""
    from lro.stores.memory import MemoryStore

    service = lro.Service(MemoryStore(), None, maintenance=False)
    with pytest.raises(lro.DeclarationError, match="a local transport takes caller="):
        Client(transport=LocalTransport(service), token=SECRET)


def test_coroutine_function_is_refused_by_a_blocking_client() -> None:
    """A blocking client says that only the async one can await a token."""

    class Fetch:
        async def __call__(self) -> str:
            return SECRET

    async def fetch() -> str:
        return SECRET

    for function in (fetch, Fetch()):
        with pytest.raises(lro.DeclarationError, match="coroutine function: use AsyncClient"):
            Client("http://test", token=function)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [3, None, f"{SECRET}\n", b"x"])
def test_bad_token_of_a_function_is_an_error_of_the_call(
    token: Any, face: Face, recorder: Recorder, url: str
) -> None:
    """A function that returns no valid token fails the call, without the token in the error."""
    with pytest.raises(lro.DeclarationError, match="token: must be") as caught:
        own(face, url, token=lambda: token).get(NAME)
    assert SECRET not in str(caught.value)
    assert recorder.seen == []


def test_coroutine_as_token_of_a_blocking_client_is_closed(recorder: Recorder, url: str) -> None:
    """A function that returns a coroutine fails the call, and Python has nothing to warn of."""

    async def fetch() -> str:
        return SECRET

    with (
        Client(url, token=lambda: fetch()) as client,  # type: ignore[arg-type,return-value]
        pytest.raises(lro.DeclarationError, match="token: must be a text, got an object of coro"),
    ):
        client.get(NAME)


@pytest.mark.parametrize("error", [ConnectionResetError, httpx.ConnectError])
def test_unreachable_token_endpoint_is_retried(
    error: type[Exception], face: Face, recorder: Recorder, url: str, clock: Clock
) -> None:
    """If the token function reaches no server, the call is repeated with the next token."""
    failing = [error(SECRET)]

    def fetch() -> str:
        if failing:
            raise failing.pop()
        return "t"

    retry = Retry(wait=wait_exponential(1, 2, 10), attempts=2)
    options = {"clock": clock, "sleep": face.sleeping(clock)}
    own(face, url, token=fetch, retry=retry, **options).get(NAME)
    assert recorder.sent("authorization") == ["Bearer t"]

    failing.append(error(SECRET))
    with pytest.raises(CallError, match="no token could be fetched: Conn") as caught:
        own(face, url, token=fetch, retry=NO_RETRY).get(NAME)
    assert caught.value.code is lro.Code.UNAVAILABLE
    assert SECRET not in str(caught.value)


def test_other_error_of_a_token_function_reaches_the_caller(
    face: Face, recorder: Recorder, url: str
) -> None:
    """An error that is not one of the network is raised unchanged."""

    def fetch() -> str:
        raise LookupError("no such account")

    with pytest.raises(LookupError, match="no such account"):
        own(face, url, token=fetch).get(NAME)
    assert recorder.seen == []


def test_batches_and_watches_are_authenticated(face: Face, recorder: Recorder, url: str) -> None:
    """A group, which watches or reads its operations together, sends the token too."""
    tokens = iter("abcdefghijklmnopqrstuvwxyz")
    client = own(face, url, token=lambda: next(tokens))
    handles = [face.inside(client.operation(f"operations/{n}")) for n in range(6)]
    group = client.group(handles)
    group.wait(timeout=60)
    assert len(recorder.seen) >= 2
    assert all(sent.startswith("Bearer ") for sent in recorder.sent("authorization"))
