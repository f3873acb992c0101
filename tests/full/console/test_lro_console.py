"""The command ``lro console``: its page and calls, for our own server and for a foreign one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from lro import asgi
from lro.console import page_files
from lro_client.cli import _console
from lro_client.cli._console import ConsoleProxy, LocalServer, console, local_server
from tests.console.other_server import OtherServer, other_server
from tests.console.serving import PATIENCE, SECURE, authenticate, counting
from tests.http.servers import HOST, uvicorn_serving
from tests.integrations.counting import CountRequest
from tests.services.processes import killed_at_end
from tests.waiting import until

VERBS = ["GetOperation", "ListOperations", "DeleteOperation", "CancelOperation"]
"""The verbs that every server of operations offers."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables for server and token from the environment."""
    for name in ("LRO_SERVER", "LRO_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def other() -> Iterator[OtherServer]:
    """Serve operations with a server that is written without this library."""
    with other_server() as server:
        yield server


def proxy(url: str, **options: Any) -> ConsoleProxy:
    """Return a proxy to a server, as the command makes it for its local server."""
    given: dict[str, Any] = {
        "server": url,
        "prefix": "/v1",
        "seconds": PATIENCE,
        "parents": ("",),
        "actions": ("cancel", "delete"),
        "secret": "s3cret",
    }
    return ConsoleProxy(**(given | options))


@contextlib.contextmanager
def proxied(url: str, **options: Any) -> Iterator[httpx.Client]:
    """Run the command's local server for another server; yield a client below the secret path."""
    with (
        httpx.Client() as upstream,
        local_server(proxy(url, **{"http": upstream, **options}), 0) as server,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        at = f"http://{HOST}:{server.server_port}/s3cret"
        with httpx.Client(base_url=at, timeout=PATIENCE) as client:
            yield client
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def command(*arguments: str, token: str = "") -> Iterator[tuple[httpx.Client, Any]]:
    """Run the command in a process; yield a client of its page, and the process."""
    program = "from lro_client.cli._console import console; console()"
    with killed_at_end(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "LRO_TOKEN": token, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(rf"http://{HOST}:\d+/[\w-]{{32}}/", url)
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            yield client, process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def run(*arguments: str) -> Result:
    """Run the command in this process, and interrupt it as soon as it serves."""

    def interrupt(_: LocalServer) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalServer, "serve_forever", interrupt)
        return CliRunner().invoke(console, arguments)


def raw(client: httpx.Client, line: str, *headers: str) -> str:
    """Send a raw request, and return the raw reply."""
    request = "\r\n".join([line, f"Host: {HOST}", *headers, "", ""])
    with socket.create_connection((HOST, client.base_url.port or 0)) as connection:
        connection.sendall(request.encode())
        connection.settimeout(PATIENCE)
        return connection.makefile().read()


@contextlib.contextmanager
def replying(
    status: int, *headers: tuple[bytes, bytes], body: bytes = b"{}"
) -> Iterator[httpx.Client]:
    """Serve this reply to every request, and yield a client of the local server in front."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    with uvicorn_serving(app, lifespan="off") as port, proxied(f"http://{HOST}:{port}") as client:
        yield client


def test_command_shows_a_server_that_is_not_ours() -> None:
    """The page can list, poll and cancel operations of another server, by the command's token."""
    with other_server(token="t0ken") as other:
        names = [other.add(f"operations/b{number}", percent=number) for number in range(3)]
        with command("--server", other.url, token="t0ken") as (client, _):
            assert "<html" in client.get("").text
            session = client.get("session").json()
            assert session["verbs"] == VERBS
            assert (session["watches"], session["actions"]) == (False, ["cancel", "delete"])
            assert (session["title"], session["parents"]) == (other.url, [""])
            page = client.get("v1/operations?pageSize=2").json()
            assert [one["name"] for one in page["operations"]] == names[:0:-1]
            more = client.get(f"v1/operations?pageSize=2&pageToken={page['nextPageToken']}")
            assert [one["name"] for one in more.json()["operations"]] == names[:1]
            one = client.get(f"v1/{names[1]}").json()
            assert one["metadata"]["progressPercent"] == 1
            assert client.post(f"v1/{names[1]}:cancel", json={}).json() == {}
            done = client.get(f"v1/{names[1]}").json()
            assert (done["done"], done["error"]["code"]) == (True, 1)
            assert client.delete(f"v1/{names[1]}").json() == {}
            assert names[1] not in other.operations
        assert {headers["authorization"] for _, _, headers in other.calls} == {"Bearer t0ken"}
        assert {headers["host"] for _, _, headers in other.calls} == {f"{HOST}:{other.server_port}"}


def test_errors_of_the_server_are_relayed_as_they_are(other: OtherServer) -> None:
    """JSON errors keep their status; HTML pages and password prompts are not relayed."""
    with proxied(other.url) as client:
        missing = client.get("/v1/operations/none")
        assert (missing.status_code, missing.json()["error"]["status"]) == (404, "NOT_FOUND")
        wrong = client.get("/v1/operations?filter=colour%3Dred")
        assert wrong.json()["error"]["message"] == "Invalid filter."
        unknown = client.post("/v1/operations:batchGet", json={"names": ["operations/x"]})
        assert (unknown.status_code, unknown.json()["error"]["status"]) == (404, "NOT_FOUND")
        assert "answers 404 with 'text/html': only JSON" in unknown.json()["error"]["message"]
        assert SECURE.items() <= dict(unknown.headers).items()
        assert len(missing.headers.get_list("date")) == 1  # the server's own date
        other.token = "needed"
        refused = client.get("/v1/operations")
        assert refused.status_code == 401
        assert "www-authenticate" not in refused.headers


@pytest.mark.parametrize("kind", ["text/html", "text/javascript; x=y", "image/svg+xml", ""])
def test_pages_and_scripts_of_a_server_are_not_relayed(kind: str) -> None:
    """A reply that is not JSON is not relayed, and neither are the server's cookies."""
    asked = []

    async def hostile(scope: Any, receive: Any, send: Any) -> None:
        asked.append(dict(scope["headers"]))
        headers = [(b"set-cookie", b"a=b")] + ([(b"content-type", kind.encode())] if kind else [])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"<script>alert(1)</script>"})

    with (
        uvicorn_serving(hostile, lifespan="off") as port,
        command("--server", f"http://{HOST}:{port}") as (client, _),
    ):
        for _ in range(2):
            reply = client.get("v1/operations")
            assert (reply.status_code, reply.json()["error"]["status"]) == (503, "UNAVAILABLE")
            assert "script>" not in reply.text
            assert "set-cookie" not in reply.headers
    assert all(b"cookie" not in headers for headers in asked)


def test_token_of_the_page_is_passed_on_by_a_command_without_one(other: OtherServer) -> None:
    """The page's token is sent with each call, unless the command has its own credentials."""
    other.token = "needed"
    page = {"authorization": "Bearer needed"}
    with proxied(other.url) as client:
        assert client.get("/v1/operations").status_code == 401
        assert client.get("/session").json()["token"] is False
        assert client.get("/v1/operations", headers=page).status_code == 200
        session = client.get("/session", headers=page).json()
        assert session["verbs"] == VERBS
        assert session["server"] == f"{other.url}/v1"
    with (
        httpx.Client(headers={"authorization": "Bearer own"}) as upstream,
        proxied(other.url, http=upstream) as client,
    ):
        assert client.get("/v1/operations", headers=page).status_code == 401
        assert client.get("/session", headers=page).json()["token"] is True
    assert other.calls[-1][2]["authorization"] == "Bearer own"


@pytest.mark.parametrize("token", ["", "wrong"])
def test_command_says_at_its_start_that_credentials_are_needed(
    other: OtherServer, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.token = "needed"
    monkeypatch.setenv("LRO_TOKEN", token)
    ended = run("--server", other.url, "--parent", "projects/p")
    assert ended.exit_code == 0
    assert f"{other.url} answers UNAUTHENTICATED" in ended.stderr
    assert ("give a token in the page" in ended.stderr) is not bool(token)
    assert ended.stdout.startswith(f"http://{HOST}:")
    assert [path for _, path, _ in other.calls] == ["/v1/projects/p/operations?pageSize=1"]


def test_prefix_and_parents_are_those_of_the_server() -> None:
    """Calls below ``v1`` are sent to the server's prefix; the parents are those of the command."""
    with other_server(prefix="/api/v1beta1") as other:
        name = other.add("projects/p/locations/l/operations/b1")
        arguments = ("--server", f"{other.url}/", "--prefix", "api/v1beta1")
        parents = ("--parent", "projects/p/locations/l", "--parent", "projects/q")
        with command(*arguments, *parents, "--read-only") as (client, _):
            session = client.get("session").json()
            assert session["parents"] == ["projects/p/locations/l", "projects/q"]
            assert session["actions"] == []
            listed = client.get("v1/projects/p/locations/l/operations").json()
            assert [one["name"] for one in listed["operations"]] == [name]
            for refused in (client.post(f"v1/{name}:cancel", json={}), client.delete(f"v1/{name}")):
                assert (refused.status_code, "does not" in refused.text) == (403, True)
            assert client.get(f"v1/{name}").status_code == 200
        assert {method for method, path, _ in other.calls if ":" not in path} == {"GET"}


def test_our_server_has_all_and_streams_are_relayed() -> None:
    """With our server, the page has all verbs, and each event of a stream is relayed at once."""
    made = counting()
    name = made.count.start(CountRequest(steps=-1), caller="ann").name
    app = asgi.OperationsApp(made.service, authenticate=authenticate)
    with made.service, uvicorn_serving(app) as port, httpx.Client() as upstream:
        upstream.headers["authorization"] = "Bearer a1"
        with proxied(f"http://{HOST}:{port}", http=upstream) as client:
            session = client.get("/session").json()
            assert session["watches"]
            assert "BatchGetOperations" in session["verbs"]
            with client.stream("POST", "/v1/operations:watch", json={"names": [name]}) as watched:
                assert watched.headers["content-type"] == "text/event-stream"
                lines = watched.iter_lines()
                assert next(line for line in lines if line.startswith("data:"))
                made.go.set()
                assert any('"done":true' in line for line in lines)
            full = client.post("/v1/operations:batchGet?view=FULL", json={"names": [name]})
            assert full.json()["operations"][0]["description"]["state"] == "SUCCEEDED"
            head = client.head("/v1/operations")
            assert (head.status_code, head.content) == (404, b"")


def test_page_that_leaves_a_stream_ends_it_at_the_server() -> None:
    """If the page leaves a stream, the server's stream ends at the next heartbeat."""
    made = counting()
    name = made.count.start(CountRequest(steps=-1)).name
    app = asgi.OperationsApp(made.service, heartbeat_seconds=0.05)
    with made.service, uvicorn_serving(app) as port, proxied(f"http://{HOST}:{port}") as client:
        with client.stream("GET", f"/v1/{name}:watch") as watched:
            assert next(watched.iter_lines())
            assert made.service.edges.waiters.watching == 1
        until(lambda: client.get("/v1/operations") and made.service.edges.waiters.watching == 0)
        made.go.set()


@contextlib.contextmanager
def raw_replying(reply: bytes) -> Iterator[httpx.Client]:
    """Serve these raw bytes to one request, and yield a client of the local server in front."""
    line = socket.create_server((HOST, 0))

    def serve() -> None:
        taken, _ = line.accept()
        with taken:
            taken.recv(4096)
            taken.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    with line, proxied(f"http://{HOST}:{line.getsockname()[1]}") as client:
        yield client
        thread.join()


def test_partial_reply_of_a_server_is_an_error() -> None:
    """A partial reply of the server must not look like a complete reply to the page."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100"
    with raw_replying(head + b"\r\n\r\n{") as client, pytest.raises(httpx.RemoteProtocolError):
        client.get("/v1/operations")


def test_without_the_secret_there_is_nothing(other: OtherServer) -> None:
    """A request without the secret path, as from other users of the machine, gets 404."""
    with proxied(other.url) as client:
        at = str(client.base_url).replace("s3cret", "other")
        for path in ("/session", "/v1/operations", "/", ""):
            assert httpx.get(f"{at.rstrip('/')}{path}").status_code == 404
        assert httpx.get(f"http://{client.base_url.netloc.decode()}/").status_code == 404
    assert other.calls == []


def test_page_that_disconnects_prints_nothing(
    other: OtherServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """If the page disconnects, nothing is printed to the terminal, unless a bug is the cause."""
    server_side, page = socket.socketpair()
    with httpx.Client() as upstream, local_server(proxy(other.url, http=upstream), 0) as server:
        for error in (ConnectionResetError(), ValueError("a mistake")):
            try:
                raise error
            except Exception:
                server.handle_error(server_side, (HOST, 1))
            shown = capfd.readouterr().err
            assert ("Traceback" in shown) is isinstance(error, ValueError)
    server_side.close()
    page.close()


def test_credentials_that_cannot_be_had_are_named(other: OtherServer) -> None:
    def fail(_: httpx.Request) -> httpx.Request:
        raise ValueError("they have expired")

    with httpx.Client(auth=fail) as upstream, proxied(other.url, http=upstream) as client:
        refused = client.get("/v1/operations")
    assert (refused.status_code, "they have expired" in refused.text) == (503, True)


def test_files_are_kept_by_the_browser(other: OtherServer) -> None:
    with proxied(other.url) as client:
        for path, file in page_files().items():
            reply = client.get(path)
            assert reply.content == file.content
            assert SECURE.items() <= dict(reply.headers).items()
            again = client.get(path, headers={"if-none-match": file.etag})
            assert (again.status_code, again.content) == (304, b"")
            assert client.head(path).content == b""


def test_credentials_of_google_are_sent(
    other: OtherServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    credentials = pytest.importorskip("google.oauth2.credentials")
    import google.auth

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    ended = CliRunner().invoke(console, ["--server", other.url, "--adc"])
    assert (ended.exit_code, "no Google credentials" in ended.output) == (2, True)
    made = credentials.Credentials("adc-token")
    monkeypatch.setattr(google.auth, "default", lambda **_: (made, None))
    with proxied(other.url) as client:
        assert client.get("/v1/operations").status_code == 200
    with (
        httpx.Client(auth=_console._google_auth()) as upstream,
        proxied(other.url, http=upstream) as client,
    ):
        assert client.get("/v1/operations").status_code == 200
    assert other.calls[-1][2]["authorization"] == "Bearer adc-token"


def test_unreachable_server_is_named() -> None:
    """If the server cannot be reached, the command starts nevertheless, and names the server."""
    with socket.create_server((HOST, 0)) as line:
        gone = f"http://{HOST}:{line.getsockname()[1]}"
    ended = run("--server", gone)
    assert ended.exit_code == 0
    assert f"{gone} cannot be called" in ended.stderr
    assert ended.stdout.startswith(f"http://{HOST}:")
    with proxied(gone) as client:
        refused = client.get("/v1/operations")
        assert (refused.status_code, refused.json()["error"]["status"]) == (503, "UNAVAILABLE")
        assert gone in refused.json()["error"]["message"]
        assert client.get("/session").json()["verbs"] == VERBS


def test_redirects_are_not_followed() -> None:
    """A redirect is not followed, because that would send credentials elsewhere."""
    with replying(302, (b"location", b"https://user:pw@elsewhere.example/")) as client:
        refused = client.get("/v1/operations")
    assert refused.status_code == 400
    assert "elsewhere.example" in refused.text
    assert "pw" not in refused.text


def test_headers_are_passed_on_byte_by_byte(other: OtherServer) -> None:
    with proxied(other.url) as client:
        reply = client.get("/v1/operations", headers={b"accept": b"text/\xff"})
        assert reply.status_code == 200
    assert other.calls[-1][2]["accept"] == "text/\xff"
    sent = [(b"content-type", b"application/json"), (b"retry-after", "\u20ac".encode())]
    with replying(200, *sent) as client:
        reply = client.get("/v1/operations")
    assert dict(reply.headers.raw)[b"retry-after"] == "\u20ac".encode()


def test_content_type_of_a_reply_is_not_copied() -> None:
    """A reply gets our own content type; from a list of types, browsers would use the last one."""
    with replying(200, (b"content-type", b"application/json;x=1, text/html")) as client:
        reply = client.get("/v1/operations")
    assert reply.headers["content-type"] == "application/json"


def test_reply_without_body_is_an_empty_message() -> None:
    for status, headers in ((200, [(b"content-length", b"0")]), (204, [])):
        with replying(status, *headers, body=b"") as client:
            reply = client.delete("/v1/operations/a")
        assert (reply.status_code, reply.json()) == (200, {})


def test_reply_with_two_lengths_is_not_read_as_two() -> None:
    """A reply with two lengths is relayed as one, so that no second reply can be forged."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    both = b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"2\r\n{}\r\n8\r\nHTTP/1.1\r\n0\r\n\r\n"
    with raw_replying(head + both + chunks) as client:
        reply = client.get("/v1/operations")
    assert reply.headers["connection"] == "close"
    assert "content-length" not in reply.headers


def test_pages_of_other_sites_reach_nothing(other: OtherServer) -> None:
    name = other.add("operations/b")
    with proxied(other.url) as client:
        for headers, status in (
            ({"host": "evil.example"}, 403),  # a name that an attacker resolves to this machine
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"sec-fetch-site": "same-site"}, 403),
            ({"origin": "http://evil.example"}, 403),
            ({"origin": "null"}, 403),
            ({"sec-fetch-site": "same-origin"}, 200),
            ({}, 200),
        ):
            assert "done" not in other.operations[name]
            assert client.get("/session", headers=headers).status_code == status
            assert client.get("/v1/operations", headers=headers).status_code == status
            assert client.post(f"/v1/{name}:cancel", headers=headers).status_code == status
            if status == 200:
                assert other.operations[name].pop("done")


def test_only_calls_of_the_page_are_passed_on(other: OtherServer) -> None:
    """Only calls about operations are passed on, because they get the command's credentials."""
    began = time.process_time()
    with proxied(other.url) as client:
        for asked in (
            "POST /v1/images:resize",
            "POST /v1/operations",
            "POST /v1/operations/x:resize",
            "GET /v1/users",
            "GET /v1/operations/../users",
            "GET /v1/%2e%2e/operations",
            "GET /v1/x%2f..%2fusers/operations",
            "GET /v1/users#/operations",
            "GET /v1/users#x/operations/y",
            "GET /v1/x\\..\\users/operations",
            "DELETE /v1/operations",
            "DELETE /v1/operations/x:cancel",
            "DELETE /session",
            "GET /v2/operations",
            "GET /tally",
            f"GET /v1/{'operations/' * 5000}\\",
        ):
            reply = raw(client, f"{asked.replace(' ', ' /s3cret')} HTTP/1.0")
            assert " 404 " in reply.partition("\n")[0], asked
    assert other.calls == []
    assert time.process_time() - began < 2, "a long path is matched again from each of its parts"


def test_other_requests_get_an_error_with_the_usual_headers(
    other: OtherServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """A request that the page never makes gets an error with the usual headers.

    A body that is too long, or whose length is unknown, is not read.
    """
    watch = "POST /s3cret/v1/operations:watch HTTP/1.1"
    with proxied(other.url) as client:
        for line in ("PUT /s3cret/session HTTP/1.1", "GET / x HTTP/1.1", "CONNECT x:1 HTTP/1.1"):
            reply = raw(client, line)
            assert '"this is not a request that the page makes"' in reply
            assert "content-security-policy" in reply
        for header in (
            "Content-Length: 1048577",
            "Content-Length: x",
            f"Content-Length: {'9' * 5000}",
            "Transfer-Encoding: chunked",
        ):
            assert " 400 " in raw(client, watch, header).partition("\n")[0]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no server is known"),
        (["--server", "grpc://localhost:1"], "needs a server with HTTP"),
        (["--server", "localhost"], "a server is http://HOST"),
        (["--server", "http://x", "--parent", "a/../b"], "is not a parent"),
        (["--server", "http://x", "--port", "70000"], "70000"),
        (["--server", "http://x", "--port", "{}"], "port {} cannot be used"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], text: str, other: OtherServer) -> None:
    """Wrong arguments and a port in use are refused with an error that names them."""
    port = other.server_port
    ended = run(*(one.format(port) for one in arguments))
    assert (ended.exit_code, text.format(port) in ended.output) == (2, True), ended.output


@pytest.mark.parametrize("opens", [True, False])
def test_browser_is_given_a_file_that_leads_to_the_page(
    opens: bool, other: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser opens a private file, so that the secret is not in any process's arguments."""
    seen: list[tuple[str, int]] = []

    def show(url: str) -> None:
        file = Path(url.removeprefix("file://"))
        seen.append((file.read_text(), file.parent.stat().st_mode & 0o777))

    monkeypatch.setattr("webbrowser.open", show)
    ended = run("--server", other.url, *(["--open"] if opens else []))
    assert ended.exit_code == 0, ended.output
    page = f'<meta http-equiv="refresh" content="0;url={ended.output.strip()}">'
    assert seen == ([(page, 0o700)] if opens else [])
