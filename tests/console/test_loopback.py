"""A console without authentication answers only callers on its own machine."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import httpx
import pytest

from lro import asgi, wsgi
from lro.console import ConsoleEdge, is_loopback_host
from tests.console.serving import SECURE, SERVERS, authenticate, console, counting
from tests.http.servers import HOST, environ_of_wsgiref, uvicorn_serving
from tests.integrations.counting import ANN

ALL = ("/", "/session", "/tally", "/v1/operations")


ELSEWHERE: list[tuple[dict[str, str], str]] = [
    ({"host": "console.example.com"}, "for the host 'console.example.com'"),
    ({"host": "127.0.0.1.evil.example:80"}, "for the host"),
    ({"host": "192.0.2.7"}, "for the host"),
    ({"host": "localhost.evil.example"}, "for the host"),
    ({"host": "127.0.0.1:x"}, "for the host"),
    ({"x-forwarded-for": "192.0.2.7"}, "192.0.2.7"),  # uvicorn takes it as the peer's address
    ({"x-forwarded-host": "localhost"}, "sends x-forwarded-host"),
    ({"forwarded": "for=127.0.0.1"}, "sends forwarded"),
    ({"via": "1.1 proxy"}, "sends via"),
    ({"x-real-ip": "127.0.0.1"}, "sends x-real-ip"),
    ({"origin": "http://evil.example"}, "from a page of 'http://evil.example'"),
    ({"origin": "null"}, "from a page of 'null'"),
]


@pytest.mark.parametrize("kind", SERVERS)
def test_call_that_may_come_from_another_machine_is_refused(kind: str) -> None:
    with console(kind) as client:
        for headers, why in ELSEWHERE:
            if kind == "waitress" and any("forwarded" in name for name in headers):
                # waitress drops such headers unless it trusts the proxy: send another Host instead.
                headers, why = {**headers, "host": "console.example.com"}, "for the host"
            elif "x-forwarded-for" in headers and kind != "uvicorn":
                why = "sends x-forwarded-for"
            for path in ALL:
                refused = client.get(path, headers=headers)
                assert refused.status_code == 403
                message = refused.json()["error"]["message"]
                assert why in message
                assert "authenticate=" in message
                assert SECURE.items() <= dict(refused.headers).items()


def test_call_from_this_machine_is_answered(kind: str) -> None:
    """Every name and loopback address of this machine is accepted as Host."""
    with console(kind) as client:
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8"):
            headers = {"host": host, "origin": f"http://{host}"}
            assert client.get("/session", headers=headers).status_code == 200


def test_authenticate_hook_allows_callers_of_other_machines(kind: str) -> None:
    """With an authenticate hook, callers on other machines are allowed, even anonymous ones."""
    away = {"host": "console.example.com", "x-forwarded-for": "192.0.2.7"}
    with console(kind, authenticate=authenticate) as client:
        assert client.get("/", headers=away).status_code == 200
        assert client.get("/session", headers=away).status_code == 401
        assert client.get("/session", headers=away | ANN).status_code == 200
    with console(kind, authenticate=lambda headers: None) as client:
        assert client.get("/session", headers=away).json()["caller"] == ""


def test_caller_on_a_unix_socket_does_not_count_as_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller on a Unix socket is refused, because it may be a proxy without proxy headers."""
    made, line = counting(), socket.socket(socket.AF_UNIX)
    monkeypatch.setattr("tests.http.servers.listening", lambda _: line)
    with tempfile.TemporaryDirectory() as folder, made.service:
        path = str(Path(folder) / "console.sock")
        line.bind(path)
        line.listen()
        transport = httpx.HTTPTransport(uds=path)
        with (
            uvicorn_serving(asgi.EdgeApp(ConsoleEdge(made.service))),
            httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client,
        ):
            refused = client.get("/session")
    assert refused.status_code == 403
    assert "an unknown address" in refused.text


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("192.0.2.7", 403), ("", 403)],
)
def test_remote_addr_decides_under_wsgi(peer: str, status: int) -> None:
    """Under WSGI, a call is local if the server sets REMOTE_ADDR to a loopback address."""
    made = counting()
    app = wsgi.EdgeApp(ConsoleEdge(made.service))
    environ = environ_of_wsgiref("GET", "/session", "Host: localhost")
    seen = []
    app({**environ, "REMOTE_ADDR": peer}, lambda line, headers: seen.append(line))
    made.service.close()
    assert seen[0].startswith(str(status))


def test_loopback_hosts_are_recognised() -> None:
    """A Host header that cannot be parsed does not count as loopback."""
    assert is_loopback_host(f"{HOST}:80")
    assert not is_loopback_host("")
    assert not is_loopback_host("[::1")
    assert not is_loopback_host("a:b:c")
