"""Measure how late waits end after their deadlines.

Each fault of a server is measured on real sockets: with the blocking and the async client, with
both transports, for one operation and for a group of twelve, and for the first and the second wait
of a new client. Spec §11.4 allows 50 ms.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib.util
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import attrs

from lro_client import ClientError
from tests.client import sockets
from tests.client.faces import FACES, Face
from tests.client.messages import NAME, PREFIX, TYPES
from tests.client.sockets import Behaviour, answering, drip

MEMBERS = 12
"""The number of operations in a group."""

Answer = Callable[[str, socket.socket, threading.Event], object]
"""Answers one request. The first argument is the request line."""

Serving = Callable[[float], AbstractContextManager[str]]
"""Starts a server for a wait with this timeout in seconds, and yields the server's address."""


def reading(answer: Answer) -> Behaviour:
    """Return a behaviour that reads each request to its end, then calls ``answer``."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        received = b""
        while not over.is_set():
            while b"\r\n\r\n" not in received:
                received += (chunk := connection.recv(65536))
                if not chunk:
                    return
            head, _, received = received.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            while len(received) < int(length or 0):
                received += connection.recv(65536)
            received = received[int(length or 0) :]
            answer(head.partition(b"\r\n")[0].decode(), connection, over)

    return behave


def replying(body: bytes, *headers: str, after: float = 0.0) -> Answer:
    """Return an answer that sends a JSON response ``after`` seconds after the request."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, *headers, "", ""]).encode()

    def answer(_: str, connection: socket.socket, over: threading.Event) -> None:
        if not over.wait(max(after, 0.0)):
            connection.sendall(head)
            connection.sendall(body)

    return answer


def never(_: str, connection: socket.socket, over: threading.Event) -> None:
    """Never answer the request."""
    over.wait()


def redirecting(line: str, connection: socket.socket, over: threading.Event) -> None:
    """Answer each request with a redirect to the URL of that request."""
    head = f"HTTP/1.1 307 Again\r\nLocation: {line.split()[1]}\r\nContent-Length: 0\r\n\r\n"
    connection.sendall(head.encode())


def only(verb: str, answer: Answer, otherwise: Answer) -> Answer:
    """Use ``answer`` for requests with this custom verb, and ``otherwise`` for all others."""
    return lambda line, connection, over: (answer if f":{verb} " in line else otherwise)(
        line, connection, over
    )


def streaming(pieces: bytes, every: bytes = b"") -> Answer:
    """Return an answer that opens an event stream with ``pieces``, then repeats ``every``."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    def answer(_: str, connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head + pieces)
        if every:
            drip(connection, itertools.repeat(every), over)
        over.wait()

    return answer


@functools.cache
def large(size: int) -> bytes:
    """Return an operation as JSON, about ``size`` bytes long, with very many small values."""
    items = b",".join([b'{"a":1}'] * (size // 8))
    metadata = json.dumps({"@type": f"{PREFIX}acme.v1.Much"}).encode()[:-1]
    return b'{"name":"%s","metadata":%s,"items":[%s]}}' % (NAME.encode(), metadata, items)


def on_http(behave: Behaviour) -> Serving:
    """Return a server that treats all connections alike."""
    return lambda timeout: sockets.serving(behave)


def late(size: int, before: float) -> Serving:
    """Start a server that sends ``size`` bytes shortly before the deadline of a wait."""
    return lambda timeout: sockets.serving(reading(replying(large(size), after=timeout - before)))


def exploding(timeout: float) -> AbstractContextManager[str]:
    """Start a server whose small responses decompress to 64 MiB."""
    bomb = gzip.compress(bytes(64 * 1024 * 1024), 1)
    return sockets.serving(reading(replying(bomb, "Content-Encoding: gzip")))


@contextlib.contextmanager
def refusing(timeout: float, scheme: str = "http://") -> Iterator[str]:
    """Yield an address at which connections are refused."""
    with sockets.refusing() as port:
        yield f"{scheme}127.0.0.1:{port}"


@contextlib.contextmanager
def unaccepting(timeout: float, scheme: str = "http://") -> Iterator[str]:
    """Yield the address of a server that accepts no connection, so that clients hang in connect."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):  # more connections than the backlog can take
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"{scheme}127.0.0.1:{listening.getsockname()[1]}"


RUNNING = json.dumps({"name": NAME}).encode()

HTTP: dict[str, Serving] = {
    "never answers": on_http(reading(never)),
    "accepts and never reads": on_http(sockets.silent),
    "drips headers": on_http(sockets.dripping_headers),
    "drips a body": on_http(sockets.dripping_body),
    "drips chunks": on_http(sockets.dripping_chunks),
    "429, ask in an hour": on_http(answering("429 Too Many Requests\r\nRetry-After: 3600")),
    "503": on_http(answering("503 Service Unavailable")),
    "resets": on_http(sockets.resetting),
    "closes at once": on_http(sockets.closing),
    "refuses connections": refusing,
    "takes no connection": unaccepting,
    "cuts a body": on_http(sockets.cutting),
    "JSON cut short": on_http(reading(replying(b'{"name": "opera'))),
    "15 MiB, just in time": late(15 * 1024 * 1024, 0.1),
    "a gzip bomb": exploding,
    "redirects for ever": on_http(reading(redirecting)),
    "not done": on_http(reading(replying(RUNNING))),
    "a Wait without end": on_http(reading(only("wait", never, replying(RUNNING)))),
    "a silent stream": on_http(reading(only("watch", streaming(b""), never))),
    "a stream of comments": on_http(reading(only("watch", streaming(b"", b":\n\n"), never))),
    "half an event, in drips": on_http(
        reading(only("watch", streaming(b"event: operation\ndata: {", b" "), never))
    ),
}


def on_grpc(behave: Callable[[Any, threading.Event], object]) -> Serving:
    """Return a gRPC server that treats every call alike."""

    @contextlib.contextmanager
    def serve(timeout: float) -> Iterator[str]:
        import grpc

        from tests.grpc.serving import on_threads

        over = threading.Event()

        class Every(grpc.GenericRpcHandler):
            def service(self, handler_call_details: Any) -> Any:
                return grpc.unary_unary_rpc_method_handler(lambda _, call: behave(call, over))

        with on_threads(lambda server: server.add_generic_rpc_handlers([Every()]), 40) as address:
            try:
                yield f"grpc://{address}"
            finally:
                over.set()

    return serve


def holding(call: Any, over: threading.Event) -> bytes:
    """Never answer the call."""
    over.wait()
    return b""


def aborting(code: str) -> Callable[[Any, threading.Event], object]:
    """Return a behaviour that ends every call with this status code."""

    def behave(call: Any, _: threading.Event) -> None:
        import grpc

        call.abort(grpc.StatusCode[code], "no")

    return behave


@contextlib.contextmanager
def speechless(timeout: float) -> Iterator[str]:
    """Start a server that accepts connections, but never speaks HTTP/2."""
    with sockets.serving(sockets.silent) as url:
        yield url.replace("http", "grpc")


GRPC: dict[str, Serving] = {
    "never answers": on_grpc(holding),
    "accepts, and says nothing": speechless,
    "refuses connections": lambda timeout: refusing(timeout, "grpc://"),
    "takes no connection": lambda timeout: unaccepting(timeout, "grpc://"),
    "UNAVAILABLE": on_grpc(aborting("UNAVAILABLE")),
    "RESOURCE_EXHAUSTED": on_grpc(aborting("RESOURCE_EXHAUSTED")),
}


@attrs.frozen
class Case:
    """A scenario for one transport and kind of client; ``many`` means a group of operations."""

    scenario: str
    transport: str
    face: str
    many: bool

    def measure(self, timeout: float) -> tuple[float, float]:
        """Return how many ms late the first and the second wait of a new client end."""
        serve = (GRPC if self.transport == "grpc" else HTTP)[self.scenario]
        with serve(timeout) as address, contextlib.closing(FACES[self.face]()) as face:
            client = face.run(self._client, face, address)
            try:
                first = self._late(face, client, timeout, again=False)
                return first, self._late(face, client, timeout, again=True)
            finally:
                client.close()

    def _client(self, face: Face, address: str) -> Any:
        if self.transport == "http":
            return face.make(address)
        from lro_client.transports.grpc import AsyncGrpcTransport, GrpcTransport

        made = GrpcTransport if self.face == "sync" else AsyncGrpcTransport
        return face.make("", transport=made(address.removeprefix("grpc://")))

    def _late(self, face: Face, client: Any, timeout: float, *, again: bool) -> float:
        names = [NAME, *[f"operations/{number}" for number in range(MEMBERS - 1)]]
        handles = [client.operation(name, **TYPES) for name in (names if self.many else [NAME])]
        waiting = client.group([*map(face.inside, handles)]) if self.many else handles[0]
        verb = waiting.wait if again else waiting.results if self.many else waiting.result
        began = time.perf_counter()
        with contextlib.suppress(ClientError):
            verb(timeout=timeout)
        return (time.perf_counter() - began - timeout) * 1e3


def cases(wanted: str = "") -> list[Case]:
    """Return the cases whose scenario contains the text ``wanted``, or by default all cases."""
    transports = {"http": HTTP}
    if importlib.util.find_spec("grpc") is not None:
        transports["grpc"] = GRPC
    return [
        Case(scenario, transport, face, many)
        for transport, scenarios in transports.items()
        for scenario in scenarios
        for face in ("sync", "async")
        for many in (False, True)
        if wanted in scenario
    ]
