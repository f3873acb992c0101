"""How commands find the server, the credentials and the operation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("rich")


from lro_client._tokens import Token
from lro_client.cli._terminal import Exit
from tests.cli.asking import Asked, Lro, over
from tests.client import sockets
from tests.client.messages import ResizeResponse
from tests.client.real_service import PATH, Harness

SECRET = "s3cret-token"


def test_headers_are_sent(call: Lro, asked: Asked) -> None:
    call("list", "--header", "X-One: 1", "--header", "x-two:a: b", "--header", "x-none:")
    _, headers = asked.requests[-1]
    assert [headers[name] for name in ("x-one", "x-two", "x-none")] == ["1", "a: b", ""]


def test_one_credential_is_sent(
    call: Lro, asked: Asked, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token file or a header overrides LRO_TOKEN. A file and a header together are refused."""

    def sent(*options: str) -> str | None:
        call("list", *options)
        return asked.requests[-1][1].get("authorization")

    assert sent() is None
    for text in (SECRET, f"Bearer {SECRET}", f"bearer  {SECRET}\n"):  # with or without the scheme
        monkeypatch.setenv("LRO_TOKEN", text)
        assert sent() == f"Bearer {SECRET}"
        (here / "token").write_text(text.replace(SECRET, "other"), encoding="utf-8")
        assert sent("--token-file", "token") == "Bearer other"
    assert sent("--header", "authorization: Basic YTpi") == "Basic YTpi"
    call("list", "--token-file", "gone", status=Exit.MISUSED)
    both = ("--header", "Authorization: Basic YTpi", "--token-file", "token")
    assert "either --token-file or --header" in call("list", *both, status=Exit.MISUSED).err
    monkeypatch.setenv("LRO_TOKEN", f"{SECRET}\nX-More: 1")
    said = call("list", status=Exit.MISUSED).err
    assert ("no bearer token" in said, SECRET in said) == (True, False)


def test_token_is_not_sent_to_another_server(
    call: Lro, asked: Asked, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LRO_TOKEN is sent only to the server that ``--server`` or LRO_SERVER names."""
    name = over(harness, ResizeResponse())
    monkeypatch.setenv("LRO_TOKEN", SECRET)

    def sends(*named: str) -> bool:
        call("get", *named, status=0)
        return "authorization" in asked.requests[-1][1]

    assert sends(f"{asked.url}/v1/{name}", name)
    monkeypatch.setenv("LRO_SERVER", "https://api.example.com")
    assert not sends(f"{asked.url}/v1/{name}")
    monkeypatch.delenv("LRO_SERVER")
    assert not sends(f"{asked.url}/v1/{name}")
    assert sends(name, "--server", asked.url)


def test_operations_may_be_below_another_prefix(call: Lro, asked: Asked) -> None:
    """``--prefix`` replaces ``/v1`` in paths. The URL of an operation may have its own prefix."""
    call("get", "projects/p/operations/a", "--prefix", "/compute/v1beta")
    call("cancel", "operations/a", "--prefix", "/")
    call("wait", f"{asked.url}/compute/v1/operations/a", "--prefix", "compute/v1")
    paths = [path for path, _ in asked.requests]
    assert paths[:2] == ["GET /compute/v1beta/projects/p/operations/a", "POST /operations/a:cancel"]
    assert paths[2].startswith("GET /compute/v1/operations/a")
    call("get", f"{asked.url}/below/v1/operations/a")
    assert asked.requests[-1][0] == "GET /below/v1/operations/a"


def test_url_of_an_operation_gives_server_and_name(
    call: Lro, asked: Asked, harness: Harness
) -> None:
    """``get`` accepts the URL or the path of an operation instead of its name."""
    name = over(harness, ResizeResponse())
    for given in (
        f"{asked.url}/v1/{name}",
        f"/v1/{name}",
        f"{asked.url}/v1/{name[:-1]}%{ord(name[-1]):x}",
    ):
        assert call("get", "--json", given).json[0]["name"] == name


def test_url_in_messages_has_no_control_characters(call: Lro) -> None:
    """Control characters in the URL of a token are escaped in messages."""
    token = Token(name="operations/a", server="http://127.0.0.1:1/\x9b\u202e\u200b").text
    said = call("get", token, status=Exit.CALL_FAILED).err
    assert said.endswith("(asked was http://127.0.0.1:1/\\x9b\\u202e\\u200b)\n")


def test_token_gives_the_server(
    call: Lro, asked: Asked, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token names the server; ``--server`` overrides that server, but LRO_SERVER does not."""
    name = over(harness, ResizeResponse())
    token = Token(name=name, server=asked.url).text
    monkeypatch.setenv("LRO_SERVER", "http://127.0.0.1:1")
    assert call("get", token, "--json").json[0]["name"] == name
    call("get", token, "--server", "http://127.0.0.1:1", status=Exit.CALL_FAILED)
    call("get", Token(name=name).text, "--server", asked.url, status=0)
    call("get", token, f"/v1/{name}", "--server", asked.url, status=0)
    printed = call("get", token, "--json").out
    assert call("get", printed, "--server", asked.url, "--json").json[0]["name"] == name
    found = call("get", token, "http://127.0.0.1:1/v1/operations/b", status=Exit.MISUSED)
    assert "operations of 2 servers" in found.err


def test_redirect_or_proxy_page_is_a_failed_call(call: Lro) -> None:
    """A redirect, HTML page or invalid JSON in place of an operation is a failed call."""
    for head, body in (
        ("302 Found\r\nLocation: http://127.0.0.1:1/", ""),
        ("200 OK", "<h1>Welcome</h1>"),
        ("200 OK", json.dumps({"name": 5})),
        ("403 Forbidden", json.dumps({"error": {"status": "PERMISSION_DENIED", "message": "no"}})),
    ):
        with sockets.serving(sockets.answering(head, body)) as url:
            found = call("get", "operations/a", "--server", url)
            assert (found.status, found.out) == (Exit.CALL_FAILED, "")
            assert found.err.count("\n") == 1
    with sockets.serving(sockets.turning_pages) as url:
        for command in ("watch", "list"):
            options = ("--timeout", "200ms", "--server", url)
            call(command, "--filter", "done = true", *options, status=Exit.CALL_FAILED)


def test_proxy_of_the_environment_is_used_or_named_as_unusable(
    call: Lro, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's proxy and NO_PROXY are obeyed. A proxy that cannot be used is an error."""
    with sockets.refusing() as port:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,fd00::/8")
        call("list")
        monkeypatch.setenv("ALL_PROXY", "ftp://user:secret@host")
        said = call("list", status=Exit.MISUSED).err
    assert said.startswith("Error: ALL_PROXY: names a proxy that cannot be used: ")
    assert (said.count("\n"), "secret" in said) == (1, False)


SERVER = "a server is http://HOST"
HEADER = "'Name: value'"
SEGMENT = "a segment is '.', '..', or empty"
SPAN = "is not a span such as 90, 1.5s, 10m or 2h"
NO_HOSTS = ("x:port", "[::1", "xn--/", "a\x1b/")
MISUSED: list[tuple[list[str], str]] = [
    *((["list", "--server", url], SERVER) for url in ("localhost:8000", "ftp://x", "http://")),
    (["list", "--server", "grpc://localhost"], "needs a port"),
    *((["list", "--server", f"http://{one}"], "is not a URL") for one in NO_HOSTS),
    *((["list", "--header", one], HEADER) for one in ("X-One", f"X One: {SECRET}", ": 1")),
    (["list", "--header", f"X-One: {SECRET}ä"], HEADER),
    *((["list", "--limit", one], "--limit") for one in ("0", str(2**63))),
    *((["list", one], one) for one in ("../users", "projects//p")),
    (["watch", "--filter", "done = true", "--parent", "a/.."], "a/.."),
    (["watch", "--filter", "done = true", "--limit", "0"], "--limit"),
    (["watch"], "give either names or --filter"),
    (["watch", "operations/a", "--filter", "done = true"], "give either names or --filter"),
    (["start", "/v1/../users"], "/v1/../users"),
    (["start", "/v1/%2e%2e/users?a=1"], "users"),
    (["start", "http://localhost/v1/./users"], "/v1/./users"),
    (["start", "http://[::1/v1/a"], "is not a URL"),
    (["start", PATH, "{"], "message: is not JSON"),
    (["start", PATH, "[1]"], "must be a JSON object, got [1]"),
    (["start", PATH, "@gone"], "gone: cannot be read: No such file"),
    (["start", PATH, "@\0"], "cannot be read"),
    (["start", PATH, "{}", "--watch", "--wait"], "--wait"),
    (["get", "operations/a", "--prefix", "/{a"], "no segment begins at character 1"),
    (["get", "http://localhost/v2/operations/a"], "has no '/v1/' before the name"),
    (["list", "--server", f"http://user:{SECRET}@localhost"], "not in the URL"),
    (["list", "--server", f"http://user:{SECRET}@["], "not in the URL"),
    (["start", f"http://user:{SECRET}@localhost/v1/a"], "not in the URL"),
    (["get", "grpc://ipv6:[::1]:1@localhost:2/operations/a"], "not in the URL"),
    (["get", '{"lro": 1, "name": "a", "server": " http://x"}'], "is not a URL"),
    (["cancel", "operations/a", "http://x/v1/operations/b"], "operations of 2 servers"),
    *((["get", one], "token") for one in ("{}", '{"name": 5}', "{not json")),
    (["get", '{"name": ' + "[" * 60_000], "token"),
    *((["get", one], "names no operation") for one in ('{"lro": 1}', "", "http://localhost/v1/")),
    *((["get", f"http://{one}"], "is not a URL") for one in ("[::1", "xn--/v1/operations/a")),
    (["get", "../admin/users/1"], "'../admin/users/1' is not a name"),
    *((["get", f"operations/{one}"], SEGMENT) for one in ("./a", "/a", "a/")),
    (["get", "/v1/../admin/users/1"], "'../admin/users/1' is not a name"),
    (["get", "http://localhost/v1/../users/1"], "'../users/1' is not a name"),
    (["get", "http://localhost/v1/%2e%2e%2fusers/1"], "'../users/1' is not a name"),
    (["get", "http://localhost/a/%2E./v1/operations/a"], "a server with a segment '.' or '..'"),
    (["get", "grpc://localhost:1/../a"], "'../a' is not a name"),
    (["get", '{"lro": 1, "name": "../admin/users/1"}'], "in the name '../admin/users/1'"),
    (["get", '{"lro": 1, "name": "a", "server": "http://x/.."}'], "a segment '.' or '..'"),
    (["get", '{"lro": 1, "name": "a//b"}'], "'a//b' is not a name"),
    (["get", '{"name": "../a"}'], "'../a' is not a name"),
    (["get", "--a\x9b\u202e\nError: b"], "No such option"),
    (["lint", "/a\u200b\x1b[2J\nError: b"], "cannot be read"),
    *((["wait", "operations/a", "--timeout", one], SPAN) for one in ("soon", "-1", "1e3", "")),
    *((["wait", "operations/a", "--timeout", one], SPAN) for one in ("5 m", "0", "0.0s")),
]


def test_unusable_server_ends_with_a_sentence(call: Lro, asked: Asked) -> None:
    """Wrong arguments cause one error without secrets or control characters, and no request."""
    wrong = []
    for arguments, expected in MISUSED:
        found = call(*arguments)
        said = " ".join(found.err.split())
        sentences = sum(line.startswith("Error: ") for line in found.err.splitlines())
        if (found.status, sentences, expected in said, SECRET in said) != (2, 1, True, False):
            wrong.append((arguments, found))
        assert said.isprintable(), arguments
    assert wrong == []
    assert asked.requests == []


def test_command_without_a_server_says_how_to_name_one(
    call: Lro, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server, the error names ``--server`` and LRO_SERVER."""
    monkeypatch.delenv("LRO_SERVER")
    said = call("list", status=Exit.MISUSED).err
    assert "no server is known: give --server URL, or set LRO_SERVER" in said
