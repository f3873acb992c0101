"""HTTP with google-auth credentials: a token is fetched when needed, once for all callers."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
import respx

import lro
from lro_client import CallError, Polling
from tests.client.faces import URL, Face
from tests.client.messages import NAME, reply, succeeded

pytest.importorskip("google.auth", reason="the extra google is not installed")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import exceptions
from google.auth.credentials import AnonymousCredentials
from google.oauth2 import credentials as user_credentials
from google.oauth2 import service_account

from lro_client.google import CLOUD_PLATFORM, GoogleAuth, HttpxRequest, default_auth

TOKENS = "https://oauth2.test/token"
GET = f"/v1/{NAME}"


@pytest.fixture(scope="module")
def account() -> dict[str, str]:
    """The key file of a made-up service account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "test",
        "client_email": "robot@test.iam.gserviceaccount.com",
        "token_uri": TOKENS,
        "private_key": text.decode(),
        "private_key_id": "1",
    }


class Endpoint:
    """A token endpoint that issues numbered tokens, which are valid for ``seconds``."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.seconds = 3600
        self.trouble: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert self.gate.wait(120)
        self.asked.append(parse_qs(request.content.decode()))
        if self.trouble:
            trouble = self.trouble.pop()
            if isinstance(trouble, Exception):
                raise trouble
            return httpx.Response(trouble, json={"error": "invalid_grant"})
        body = {"access_token": f"t{len(self.asked)}", "expires_in": self.seconds}
        return httpx.Response(200, json=body)


@pytest.fixture
def token_endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def http(token_endpoint: Endpoint) -> Iterator[httpx.Client]:
    with httpx.Client(transport=httpx.MockTransport(token_endpoint)) as made:
        yield made


@pytest.fixture
def auth(account: dict[str, str], http: httpx.Client) -> GoogleAuth:
    credentials: Any = service_account.Credentials.from_service_account_info(
        account, scopes=[CLOUD_PLATFORM], quota_project_id="billed"
    )
    return GoogleAuth(credentials, request=HttpxRequest(http))


def client(face: Face, auth: GoogleAuth, **options: Any) -> Any:
    return face.client(http=face.http(verify=False, auth=auth), **options)


def sent(route: respx.Route) -> list[str]:
    """Return the Authorization headers of the calls to a route."""
    return [call.request.headers["authorization"] for call in route.calls]


def test_token_is_fetched_once_until_it_nearly_expires(
    face: Face, auth: GoogleAuth, token_endpoint: Endpoint, server: respx.Router
) -> None:
    """Calls send the same token, and the quota project, until the token has nearly expired."""
    route = server.get(GET).mock(return_value=reply(succeeded()))
    calls = client(face, auth)
    for _ in range(3):
        calls.get(NAME)
    assert sent(route) == ["Bearer t1"] * 3
    assert route.calls.last.request.headers["x-goog-user-project"] == "billed"
    (asked,) = token_endpoint.asked
    assert asked["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    auth.credentials.token = None
    token_endpoint.seconds = 60
    calls.get(NAME)
    calls.get(NAME)
    assert sent(route)[3:] == ["Bearer t2", "Bearer t3"]


def test_refused_token_is_replaced_and_the_request_sent_again(
    face: Face, auth: GoogleAuth, token_endpoint: Endpoint, server: respx.Router
) -> None:
    """After a 401 the request is sent once more, with a new token and the same body."""
    answers = [reply({}), reply({}, 401)]
    route = server.post(f"{GET}:cancel").mock(side_effect=lambda _: answers.pop())
    client(face, auth).cancel(NAME)
    assert sent(route) == ["Bearer t1", "Bearer t2"]
    assert [call.request.content for call in route.calls] == [b"{}", b"{}"]

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a piece"

    answers += [reply({}), reply({}, 401)]
    body = pieces() if face.name == "async" else iter([b"a piece"])
    http = face.http(verify=False, auth=auth)
    assert face.run(lambda: http.post(f"{URL}{GET}:cancel", content=body)).status_code == 200
    assert [call.request.content for call in route.calls[2:]] == [b"a piece"] * 2
    refusing = server.get(GET).mock(return_value=reply({}, 401))
    with pytest.raises(CallError) as caught:  # the caller gets the second 401
        client(face, auth).get(NAME)
    assert caught.value.code is lro.Code.UNAUTHENTICATED
    assert sent(refusing) == ["Bearer t3", "Bearer t4"]


def test_many_calls_fetch_one_token(
    face: Face, auth: GoogleAuth, token_endpoint: Endpoint, server: respx.Router
) -> None:
    """While one thread or task fetches a token, other threads or tasks wait for the same token."""
    route = server.get(GET).mock(return_value=reply(succeeded()))
    calls = client(face, auth)
    getting = [lambda: calls.get(NAME)] * 20
    if face.name == "async":
        face.run(lambda: asyncio.gather(*[calls.target.get(NAME) for _ in getting]))
    else:
        face.together(getting)
    assert sent(route) == ["Bearer t1"] * 20
    assert len(token_endpoint.asked) == 1


def test_token_that_another_thread_has_replaced_is_not_fetched_again(
    auth: GoogleAuth, token_endpoint: Endpoint, server: respx.Router
) -> None:
    """If another thread has already replaced the refused token, the new token is used."""
    ready = threading.Barrier(5)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] == "Bearer t1":
            ready.wait(120)
            return reply({}, 401)
        return reply(succeeded())

    server.get(GET).mock(side_effect=answer)
    with httpx.Client(auth=auth, verify=False, base_url="http://test") as http:
        next(auth.sync_auth_flow(httpx.Request("GET", "http://test")))
        with ThreadPoolExecutor(5) as threads:
            found = list(threads.map(lambda _: http.get(GET).status_code, range(5)))
    assert found == [200] * 5
    assert len(token_endpoint.asked) == 2


def test_token_is_fetched_without_blocking_the_loop(
    auth: GoogleAuth, token_endpoint: Endpoint, server: respx.Router
) -> None:
    """Other tasks run on the event loop while a token is fetched in a thread."""
    server.get(GET).mock(return_value=reply(succeeded()))
    token_endpoint.gate.clear()

    async def main() -> int:
        async with httpx.AsyncClient(auth=auth, verify=False) as http:
            calling = asyncio.create_task(http.get(f"http://test{GET}"))
            for _ in range(3):
                await asyncio.sleep(0)
            token_endpoint.gate.set()  # lets the fetching thread continue
            return (await calling).status_code

    assert asyncio.run(main()) == 200


def test_wait_survives_an_outage_of_the_token_endpoint(
    face: Face, auth: GoogleAuth, token_endpoint: Endpoint, server: respx.Router, clock: Any
) -> None:
    """A wait continues after an outage of the token endpoint, as after an outage of the server."""
    server.get(GET).mock(return_value=reply(succeeded()))
    token_endpoint.trouble = [httpx.ConnectTimeout("no answer")] * 4
    calls = client(face, auth, clock=clock, polling=Polling(wait_first=False))
    assert calls.operation(NAME, response=lro.Empty, metadata=lro.Empty).wait().done
    assert len(token_endpoint.asked) > 4


def test_refused_credentials_raise_the_error_of_google_auth(
    face: Face, auth: GoogleAuth, token_endpoint: Endpoint, server: respx.Router
) -> None:
    """If a retry cannot help, the caller gets google-auth's own exception."""
    token_endpoint.trouble = [400]
    with pytest.raises(exceptions.RefreshError, match="invalid_grant"):
        client(face, auth).get(NAME)


@pytest.mark.parametrize(
    ("make", "sent", "error"),
    [
        (
            lambda: user_credentials.Credentials(token="mine"),
            "Bearer mine",
            exceptions.RefreshError,
        ),
        (AnonymousCredentials, None, CallError),  # some services and emulators need no token
    ],
)
def test_token_given_by_hand_is_not_replaced_after_a_401(
    make: Any, sent: str | None, error: type[Exception], face: Face, server: respx.Router
) -> None:
    """The client uses a fixed token, but cannot replace it after a 401."""
    answers = [reply({}, 401), reply(succeeded())]
    route = server.get(GET).mock(side_effect=lambda _: answers.pop())
    calls = client(face, GoogleAuth(make()))
    assert calls.get(NAME).done
    with pytest.raises(error):
        calls.get(NAME)
    assert [call.request.headers.get("authorization") for call in route.calls] == [sent] * 2


def test_default_credentials_of_the_machine_are_used(
    account: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    auth = default_auth(quota_project="billed")
    assert auth.credentials.service_account_email == account["client_email"]
    assert auth.credentials.scopes == [CLOUD_PLATFORM]
    assert auth.credentials.quota_project_id == "billed"


def test_bare_credentials_of_google_auth_are_refused_with_the_class_that_wraps_them(
    face: Face,
) -> None:
    bare = user_credentials.Credentials("SECRET")  # type: ignore[no-untyped-call]  # google-auth
    with pytest.raises(lro.DeclarationError, match=r"lro_client\.google\.GoogleAuth\(") as caught:
        face.client(auth=bare)
    assert "SECRET" not in str(caught.value)


def test_missing_google_auth_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without google-auth, the import raises MissingExtra, which names the extra ``google``."""
    monkeypatch.delitem(sys.modules, "lro_client.google")
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(lro.errors.MissingExtra, match="'google'"):
        __import__("lro_client.google")
