"""The transport: the addresses that it connects to, and misbehaving receivers and name servers."""

from __future__ import annotations

import base64
import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lro._webhooks.transport import WebhookReply, WebhookTransport, system_addresses
from tests.client.sockets import Behaviour, closing_later, serving
from tests.services.ports import free_port
from tests.webhooks import receivers
from tests.webhooks.certificates import contexts
from tests.webhooks.receivers import Reply, loopback, receiver

HOST = "hooks.example.test"
SHORT_SECONDS = 0.3
"""The timeout, in seconds, of requests to servers that never reply."""

MakeTransport = Callable[..., WebhookTransport]


@pytest.fixture
def transport() -> Iterator[MakeTransport]:
    """Return a factory of transports, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(timeout: float = receivers.PATIENCE, **options: object) -> WebhookTransport:
            options = {"allow_private": True, **options}
            made = WebhookTransport(timeout=timeout, **options)  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        yield make


def test_request_has_its_headers_body_and_host(transport: MakeTransport) -> None:
    with receiver() as good:
        url = f"http://{HOST}:{good.port}/a%20b?c=d"
        reply = transport(resolve=loopback).send(url, {"X-One": "1"}, b'{"a":1}')
        got = good.next()
    assert reply == WebhookReply(204)
    assert got.path == "/a%20b?c=d"
    assert got.body == b'{"a":1}'
    assert got.headers["host"] == f"{HOST}:{good.port}"
    assert got.headers["x-one"] == "1"


def test_connection_is_reused(transport: MakeTransport) -> None:
    with receiver() as good:
        asked = 0

        def resolve(host: str, port: int) -> Sequence[str]:
            nonlocal asked
            asked += 1
            return ["127.0.0.1"]

        sender = transport(resolve=resolve)
        for status in (200, 201, 204, 299, 302, 400, 410, 500):
            good.script = lambda _, status=status: Reply(status)  # type: ignore[misc]
            reply = sender.send(f"http://{HOST}:{good.port}/", {}, b"")
            assert (reply.status, reply.success) == (status, status < 300)
    assert asked == 1


def test_redirect_is_not_followed(transport: MakeTransport) -> None:
    with receiver() as other, receiver() as first:
        first.script = lambda _: Reply(307, {"location": other.url})
        reply = transport().send(first.url, {}, b"")
    assert str(reply) == "HTTP 307: redirects are not followed"
    assert not reply.success
    assert other.all() == []


def test_retry_after_of_the_receiver_is_returned(transport: MakeTransport) -> None:
    with receiver(lambda _: Reply(429, {"Retry-After": "7"})) as busy:
        assert transport().send(busy.url, {}, b"") == WebhookReply(429, "", "7")


@pytest.mark.parametrize("talk", [receivers.hang, receivers.drip])
def test_receiver_that_hangs_or_drips_is_cut_at_the_time_limit(
    talk: Behaviour, transport: MakeTransport
) -> None:
    with serving(talk) as url:
        reply = transport(SHORT_SECONDS).send(url, {}, b"")
    assert reply == WebhookReply(0, "no answer within 0.3 s")


def test_body_of_a_reply_is_not_waited_for(transport: MakeTransport) -> None:
    """An endless body is not read; a request without the headers of a reply has failed."""
    broken = WebhookReply(0, "the connection failed: RemoteProtocolError")
    for talk, wanted in (
        (receivers.endless_body, WebhookReply(200)),
        (receivers.dripping_body, WebhookReply(200)),
        (closing_later, broken),
        (receivers.nonsense, broken),
    ):
        with serving(talk) as url:
            assert transport().send(url, {}, b"") == wanted
    reply = transport().send(f"http://127.0.0.1:{free_port()}/", {}, b"")
    assert reply.why.startswith("no connection: ")


def test_url_that_cannot_be_sent_is_a_failed_try(transport: MakeTransport) -> None:
    for url in ("https://[fe80::1%25a]+\u0663[::1]", "https://[::1"):
        assert transport().send(url, {}, b"").why.startswith("the connection failed: ")


def test_further_addresses_of_a_host_are_tried(transport: MakeTransport) -> None:
    with receiver() as good:
        both = transport(resolve=lambda host, port: ["::1", "::1", "127.0.0.1"])
        assert both.send(f"http://{HOST}:{good.port}/", {}, b"").success


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{}/", "http://localhost:{}/", "http://127.1:{}/", "http://2130706433:{}/"],
)
def test_loopback_address_is_not_connected_to(url: str, transport: MakeTransport) -> None:
    """A loopback address is refused after it is resolved, however the host is spelt."""
    with receiver() as inside:
        reply = transport(allow_private=False).send(url.format(inside.port), {}, b"")
        assert reply.why in (
            "its host has no address that is global",
            "no connection: its host has no address",
        )
        assert inside.all() == []


def test_name_server_that_answers_differently_the_second_time_is_asked_once(
    transport: MakeTransport,
) -> None:
    """A host is resolved once: with DNS rebinding, a second reply could be another address."""
    answers = [["192.0.2.1"], ["127.0.0.1"]]
    with receiver() as inside:
        sender = transport(allow_private=False, resolve=lambda host, port: answers.pop(0))
        url = f"http://{HOST}:{inside.port}/"
        assert sender.send(url, {}, b"").why == "its host has no address that is global"
        assert answers == [["127.0.0.1"]]
        assert sender.send(url, {}, b"").why == "its host has no address that is global"
        assert answers == []
        assert inside.all() == []


def test_checked_address_is_the_one_that_is_connected_to(
    transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[object] = []

    def create(address: object, *_: object, **__: object) -> socket.socket:
        connected.append(address)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "create_connection", create)
    given = ["10.0.0.1", "93.184.216.34", "::ffff:127.0.0.1", "2606:4700:4700::1111"]
    sender = transport(allow_private=False, resolve=lambda host, port: given)
    assert sender.send(f"https://{HOST}/", {}, b"").why == "no connection: no network in tests"
    assert connected == [("93.184.216.34", 443), ("2606:4700:4700::1111", 443)]


def test_host_without_address_is_a_failed_try(transport: MakeTransport) -> None:
    def late(host: str, port: int) -> Sequence[str]:
        threading.Event().wait(SHORT_SECONDS * 1.5)
        return ["127.0.0.1"]

    def missing(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    def too_long(host: str, port: int) -> Sequence[str]:
        raise UnicodeError("label too long")

    for resolve, why in (
        (missing, "no connection: its host has no address"),
        (too_long, "no connection: its host has no address"),
        (late, "no answer within 0.3 s"),
    ):
        reply = transport(SHORT_SECONDS, resolve=resolve).send(f"http://{HOST}/", {}, b"")
        assert reply.why == why


def test_tls_checks_the_name_of_the_url_and_not_the_address(
    transport: MakeTransport, tmp_path: Path
) -> None:
    server, client = contexts(tmp_path, HOST)
    names: list[str | None] = []
    server.sni_callback = lambda _, name, __: names.append(name)
    with receiver(context=server) as good:
        sender = transport(resolve=loopback, ssl_context=client)
        assert sender.send(f"https://{HOST}:{good.port}/", {}, b"").success
        assert good.next().headers["host"] == f"{HOST}:{good.port}"
        assert names == [HOST]
        other = sender.send(f"https://other.example.test:{good.port}/", {}, b"")
        assert "Hostname mismatch" in other.why
        stranger = transport(resolve=loopback).send(f"https://{HOST}:{good.port}/", {}, b"")
        assert "certificate verify failed" in stranger.why


def test_proxies_of_the_environment_are_not_used(
    transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as good, receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert transport().send(good.url, {}, b"").success
        assert proxy.all() == []


def test_egress_proxy_gets_all_requests_and_checks_addresses_itself(
    transport: MakeTransport,
) -> None:
    """The egress proxy gets the user and password of its URL, and may connect to any address."""
    with receiver() as proxy:
        url = f"http://ann:s%20c@127.0.0.1:{proxy.port}"
        sender = transport(allow_private=False, proxy=url)
        assert sender.send("http://10.1.2.3/hook", {}, b"{}").success
        got = proxy.next()
    assert got.headers["host"] == "10.1.2.3"
    user = base64.b64encode(b"ann:s c").decode()
    assert got.headers["proxy-authorization"] == f"Basic {user}"


def test_slowly_read_request_body_ends_at_the_time_limit(transport: MakeTransport) -> None:
    taken = queue.SimpleQueue[int]()
    given_up = threading.Event()

    def sip(connection: socket.socket, over: threading.Event) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        size = 0
        with contextlib.suppress(OSError):
            while got := len(connection.recv(100_000)):
                size += got
                given_up.wait(0.05)  # after the timeout, the rest is read without pauses
        taken.put(size)

    body = b"x" * 12_000_000  # far more than the server reads in time, at 2 MB/s
    with serving(sip) as url:
        assert "no answer" in transport(timeout=1.0).send(url, {}, body).why
        given_up.set()
        assert taken.get(timeout=receivers.PATIENCE) < len(body)


def test_close_ends_requests_under_way(transport: MakeTransport) -> None:
    taken = threading.Event()

    def talk(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65_536)
        taken.set()
        over.wait(receivers.PATIENCE)

    replies: queue.SimpleQueue[WebhookReply] = queue.SimpleQueue()
    sender = transport()
    with serving(talk) as url:
        thread = threading.Thread(target=lambda: replies.put(sender.send(url, {}, b"")))
        thread.start()
        assert taken.wait(receivers.PATIENCE)
        sender.close()
        assert replies.get(timeout=receivers.PATIENCE).status == 0
        thread.join()


def test_system_resolver_returns_only_addresses() -> None:
    assert "127.0.0.1" in system_addresses("127.0.0.1", 80)
