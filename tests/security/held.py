"""How long one request holds the event loop: the requests, and the measure.

``python -m tests.security.held`` measures all requests, which takes a few minutes, and prints the
longest; the default test run measures a selection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import attrs

from lro.asgi import OperationsApp
from tests.http.counting_service import CountMetadata, CountResponse, CountService, build

KB, MB = 1024, 1024 * 1024
START: Final = "/v1/things:count"
DEADLINE_SECONDS: Final = 120.0
"""After this long a request without an answer is given up: a stream, or a Wait."""

ODD: Final = ("\x00", "\x01", "\t", "\n", "\r", "\x1f", "\x7f", "\xe9", "\u65e5", "\U0001f600")
CHARACTERS: Final = (*map(chr, range(32, 127)), *ODD)


CHUNK: Final = 12 * KB
"""A multiple of the length of each text that the paths below repeat."""


def unquoted(path: bytes) -> str:
    """The path as a server decodes it; equal chunks of a long path are decoded once."""
    chunks, at = [], 0
    while at < len(path):
        end = at + CHUNK
        for _ in range(2):  # not inside an escape
            end -= b"%" in path[end - 2 : end]
        chunks.append(_unquoted(path[at:end]))
        at = end
    return b"".join(chunks).decode(errors="replace")


_unquoted = functools.lru_cache(64)(unquote_to_bytes)


@attrs.frozen(kw_only=True)
class Asked:
    """One request, as a server passes it to an ASGI application; the path is raw."""

    what: str
    method: str
    path: bytes
    query: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""

    @property
    def scope(self) -> dict[str, Any]:
        """The scope of ASGI."""
        return {
            "type": "http",
            "method": self.method,
            "scheme": "http",
            "path": unquoted(self.path),
            "raw_path": self.path,
            "query_string": self.query,
            "headers": self.headers,
        }


@attrs.frozen
class Held:
    """How long the event loop was held: seconds of this process's processor time."""

    seconds: float
    status: int
    what: str


class Measure:
    """Sends requests to an application on one event loop, beside a task that beats there.

    The gap between two beats is taken in processor time of the whole process: so it counts what
    holds the loop itself and what holds the interpreter in other threads, and not what other
    processes of the machine take.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._longest = 0.0

    async def each(self, requests: Iterator[Asked]) -> list[Held]:
        """The measures of requests, one after the other."""
        beating = asyncio.create_task(self._beat())
        try:
            return [await self._one(asked) for asked in requests]
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating

    async def _beat(self) -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.process_time()
            self._longest = max(self._longest, now - last)
            last = now

    async def _one(self, asked: Asked) -> Held:
        scope = asked.scope
        pieces = [asked.body[at : at + 64 * KB] for at in range(0, len(asked.body), 64 * KB)]
        messages = iter(pieces or [b""])
        left = len(pieces or [b""])
        answered = asyncio.Event()
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            nonlocal left
            for piece in messages:
                left -= 1
                return {"type": "http.request", "body": piece, "more_body": left > 0}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            else:
                answered.set()

        await asyncio.sleep(0.002)
        self._longest = 0.0
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._app(scope, receive, send), DEADLINE_SECONDS)
        await asyncio.sleep(0.002)
        return Held(self._longest, statuses[0] if statuses else 0, asked.what)


# -- requests ---------------------------------------------------------------------------------


Routes = Mapping[str, tuple[str, str]]
"""Method and path of verbs."""


def routes(name: str) -> Routes:
    """Every verb."""
    at = f"/v1/{name}"
    return {
        "get": ("GET", at),
        "list": ("GET", "/v1/operations"),
        "delete": ("DELETE", "/v1/operations/none"),
        "cancel": ("POST", f"{at}:cancel"),
        "wait": ("POST", f"{at}:wait"),
        "batchGet": ("POST", "/v1/operations:batchGet"),
        "describe": ("POST", "/v1/operations:describe"),
        "watch": ("POST", "/v1/operations:watch"),
        "watch one": ("GET", f"{at}:watch"),
        "start": ("POST", START),
        "nothing": ("POST", "/v1/nothing"),
    }


HEADERS: Final = (
    "content-type x-server-timeout content-length origin host sec-fetch-site authorization"
)


def repeated(text: str, size: int) -> str:
    """A text again and again, up to this number of characters."""
    return (text * (size // len(text) + 1))[:size]


def quoted(text: str) -> bytes:
    """A text as it may stand in a raw path or query: unsafe characters as percent-escapes."""
    return b"".join(map(_QUOTED.__getitem__, text.encode()))


_QUOTED: Final = [
    bytes([byte]) if 32 < byte < 127 and byte not in b"%?#" else b"%%%02X" % byte
    for byte in range(256)
]


def of_characters(
    chosen: Routes, characters: Sequence[str], sizes: Sequence[int]
) -> Iterator[Asked]:
    """Each character, repeated, in each header, the query, the path and the body of each verb."""
    for (verb, (method, path)), character, size in itertools.product(
        chosen.items(), characters, sizes
    ):
        what = f"{verb}: {character!r} x {size} as "
        text = repeated(character, size)
        where: dict[str, Any] = {"method": method, "path": path.encode()}
        value = text.encode()[:size]
        yield from (
            Asked(what=what + header, headers=[(header.encode(), value)], body=b"{}", **where)
            for header in HEADERS.split()
        )
        yield Asked(what=what + "header name", headers=[(value.lower(), b"")], **where)
        yield Asked(what=what + "query", query=value, **where)
        one = quoted(character)
        long = (one * (size // len(one)))[:size]
        for parameter in (b"filter", b"pageToken", b"pageSize", b"alt", b"key"):
            query = parameter + b"=" + long
            yield Asked(what=what + parameter.decode(), query=query, **where)
        yield Asked(what=what + "raw path", method=method, path=b"/v1/operations/" + value)
        yield Asked(what=what + "path", method=method, path=b"/v1/operations/" + long)
        if method == "POST":
            yield Asked(what=what + "body", body=value, **where)
            shown = json.dumps(text, ensure_ascii=False).encode()[: size - 40]
            for field in (b"name", b"timeout", b"names", b"steps", b"label"):
                body = b'{"' + field + b'": ' + shown.rstrip(b'\\"') + b'"}'
                yield Asked(what=what + field.decode(), body=body, **where)
            body = b"{" + shown.rstrip(b'\\"') + b'": 1}'
            yield Asked(what=what + "key", body=body, **where)


BODIES: Final[Mapping[str, Callable[[int], bytes]]] = {
    "nested lists": lambda size: b'{"a":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
    "99 nested lists": lambda size: b'{"a":[' + _many(b"[" * 97 + b"]" * 97, size) + b"]}",
    "nested objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "empty objects": lambda size: b'{"a":[' + _many(b"{}", size) + b"]}",
    "empty lists": lambda size: b'{"a":[' + _many(b"[]", size) + b"]}",
    "as many lists as are read": lambda size: b'{"a":[' + _many(b"[]", min(size, 299_999)) + b"]}",
    "pairs": lambda size: b'{"a":[' + _many(b'{"a":0}', size) + b"]}",
    "escaped": lambda size: b'{"a":["' + rb"\u0061" * (size // 6) + b'"]}',
    "half characters": lambda size: b'{"a":["' + rb"\ud800" * (size // 6) + b'"]}',
    "half of a character": lambda size: b'{"a":[' + _many(b"{}", size) + rb',"\ud800"]}',
    "keys": lambda size: b"{%s}" % b",".join(b'"%x":0' % n for n in range(size // 10)),
    "one key twice": lambda size: b"{%s}" % _many(b'"a":0', size),
    "a long integer": lambda size: b'{"a":' + b"9" * size + b"}",
    "a long fraction": lambda size: b'{"a":0.' + b"1" * size + b"}",
    "a long power": lambda size: b'{"a":1' + b"0" * size + b"e-" + b"9" * 20 + b"}",
    "integers": lambda size: b'{"a":[' + _many(b"9" * 4300, size) + b"]}",
    "short integers": lambda size: b'{"a":[' + _many(b"1", size) + b"]}",
    "fractions": lambda size: b'{"a":[' + _many(b"0." + b"1" * 700, size) + b"]}",
    "short fractions": lambda size: b'{"a":[' + _many(b"1e9", size) + b"]}",
    "long names": lambda size: _names(["operations/" + "a" * 1000] * (size // 1100)),
    "short names": lambda size: _names(["operations/a"] * (size // 20)),
    "names": lambda size: _names([f"operations/{n:04}{'a' * 950}" for n in range(size // 1000)]),
    "a name of segments": lambda size: _names(["operations/" + "a/" * (size // 3)]),
    "names of segments": lambda size: _names(["a/b/" * 200 + "x"] * (size // 1000)),
    "no texts": lambda size: b'{"names":[' + _many(b"0", size) + b"]}",
    "a timeout": lambda size: b'{"timeout":"' + b"9" * size + b's"}',
    "a fraction of a second": lambda size: b'{"timeout":"0.' + b"0" * size + b's"}',
    "a request id": lambda size: b'{"requestId":"' + b"a-" * (size // 2) + b'"}',
    "white space": lambda size: b" " * size + b"{}",
    "a mark": lambda size: b"\xef\xbb\xbf" * (size // 3),
    "no UTF-8": lambda size: b"\xff" * size,
}


def _many(item: bytes, size: int) -> bytes:
    return b",".join([item] * (size // (len(item) + 1)))


def _names(names: Sequence[str]) -> bytes:
    return json.dumps({"names": names}, separators=(",", ":")).encode()


def of_bodies(chosen: Routes, sizes: Sequence[int]) -> Iterator[Asked]:
    """Bodies of each structure to each verb that reads one."""
    posted = [item for item in chosen.items() if item[1][0] == "POST"]
    for (verb, (method, path)), (kind, make), size in itertools.product(
        posted, BODIES.items(), sizes
    ):
        what = f"{verb}: {kind} of {size}"
        yield Asked(what=what, method=method, path=path.encode(), body=make(size)[:size])


MANY_HEADERS: Final[Mapping[str, Callable[[int], list[tuple[bytes, bytes]]]]] = {
    "of one name": lambda size: [(b"a", b"b")] * (size // 6),
    "of one name, long": lambda size: [(b"content-type", b"application/json")] * (size // 32),
    "of their own names": lambda size: [(b"x%x" % n, b"") for n in range(size // 10)],
    "origins": lambda size: [(b"origin", b"a")] * (size // 11),
}
VALUES: Final[Mapping[str, tuple[str, str]]] = {
    "parameters": ("content-type", "application/json;a=b"),
    "charsets": ("content-type", "application/json;charset=utf-8"),
    "quotes": ("content-type", 'application/json; a=";'),
    "escapes in quotes": ("content-type", 'application/json; a="\\;'),
    "continuations": ("content-type", "application/json; a*0=;"),
    "points": ("x-server-timeout", "1.1"),
    "origin": ("origin", "http://a:80"),
    "brackets": ("origin", "http://[::1]"),
    "sites": ("sec-fetch-site", "same-origin, "),
}


def of_headers(chosen: Routes, sizes: Sequence[int]) -> Iterator[Asked]:
    """Many headers, and headers of each structure, to each verb."""
    for (verb, (method, path)), size in itertools.product(chosen.items(), sizes):
        where: dict[str, Any] = {"method": method, "path": path.encode(), "body": b'{"a": 1}'}
        for kind, make in MANY_HEADERS.items():
            yield Asked(what=f"{verb}: headers {kind}, {size}", headers=make(size), **where)
        for kind, (header, text) in VALUES.items():
            value = text.partition(";")[0] + repeated(text, size)
            pair = header.encode(), value[:size].encode()
            yield Asked(what=f"{verb}: {kind} in {header} of {size}", headers=[pair], **where)


PATHS: Final = ("/", "//a", "/%41", "/a", "%41", "%", "%2F", "%2f%41", ":", "a:", "%3A", "/..")
QUERIES: Final = ("&", "key&", "key=1&", "a=b&", "%41", "%", "+", "=", "filter=a&", "alt=json&")


def of_targets(chosen: Routes, sizes: Sequence[int]) -> Iterator[Asked]:
    """Paths and queries of each structure to each verb."""
    for (verb, (method, path)), size in itertools.product(chosen.items(), sizes):
        for text in PATHS:
            long = repeated(text, size).encode()
            end = b":" + path.rpartition(":")[2].encode() if ":" in path else b""
            for begin in (b"/v1/operations", b"/v1/operations/a", b"/"):
                what = f"{verb}: {text!r} x {size} after {begin!r}"
                yield Asked(what=what, method=method, path=begin + long + end)
        for text in QUERIES:
            query = repeated(text, size).encode()
            what = f"{verb}: query of {text!r} x {size}"
            yield Asked(what=what, method=method, path=path.encode(), query=query)


PIECES: Final = (
    *("a ", "a.", "-a ", "-", "NOT ", "(", "a OR ", "a AND ", "(a) ", "a=b ", "a:b ", "a:(", "f("),
    *("f(a,", '"', '"a" ', "'", "\\", '"\\', "*", "*a", '"*a*" ', "metadata.", "metadata.label:"),
    *('metadata.label="*a*" ', "metadata.percent=1 ", "percent>", "metadata.percent > 1 AND ", "<"),
    *(
        "done=true OR ",
        "NOT done=true ",
        "name=",
        "1.",
        "1e",
        "0x",
        "-1",
        "1 ",
        "response:",
        "true ",
    ),
    *(
        "timestamp(",
        'create_time > "2030-01-01T00:00:00Z" ',
        "1970-",
        "1h",
        "'a' ",
        "@type",
        "é",
        "日",
    ),
)
FILTERS: Final[Mapping[str, str]] = {
    "50 parentheses": "(" * 50 + "done=true" + ")" * 50,
    "500 units": " ".join(["a"] * 500),
    "500 alternatives": " OR ".join(["metadata.percent=1"] * 250),
    "one long wildcard": 'metadata.label="' + "*a" * 4000 + '*"',
    "wildcards that fit no text": 'metadata.label="' + "*a" * 4000 + '*b"',
    "wildcards in units": " AND ".join(['metadata.phase="*' + "a*" * 15 + '"'] * 150),
    "a name with wildcards": 'name="' + "*e" * 4000 + '*"',
    "a long unknown field": "metadata." + "percen" * 1300 + "=1",
    "many segments": "metadata" + ".a" * 4000 + "=1",
    "a long number": "metadata.percent=" + "9" * 8000,
    "a long fraction": "metadata.percent=0." + "9" * 8000,
    "a long power": "metadata.percent=1e" + "9" * 8000,
    "a long duration": 'create_time - update_time > "' + "9" * 8000 + 's"',
    "a long time": 'create_time > "2030-01-01T00:00:00.' + "0" * 8000 + 'Z"',
    "a long function": "f" * 8000 + "(a)",
}


def of_filters(characters: Sequence[str], sizes: Sequence[int]) -> Iterator[Asked]:
    """Filters of each character, of repeated pieces, and of the worst structures."""
    where: dict[str, Any] = {"method": "GET", "path": b"/v1/operations"}
    texts = dict(FILTERS)
    for text, size in itertools.product((*characters, *PIECES), sizes):
        texts[f"{text!r} x {size}"] = repeated(text, size)
        texts[f"a {text!r} x {size}"] = "a" + repeated(text, size - 1)
        texts[f"text of {text!r} x {size}"] = f'metadata.label="{repeated(text, size - 20)}"'
    for kind, text in texts.items():
        for size in (b"1000", b"1"):
            query = b"pageSize=%s&filter=%s" % (size, quoted(text))
            yield Asked(what=f"filter: {kind}, pages of {size.decode()}", query=query, **where)


def everything(name: str) -> Iterator[Asked]:
    """All requests of the campaign."""
    chosen, sizes = routes(name), (KB, 60 * KB, MB)
    yield from of_filters(CHARACTERS, (500, 8000, 8192))
    yield from of_headers(chosen, sizes)
    yield from of_targets(chosen, sizes)
    yield from of_bodies(chosen, sizes)
    yield from of_characters(chosen, CHARACTERS, (60 * KB, MB))


# -- the service ------------------------------------------------------------------------------


def counting_of(operations: int, store: Any = None) -> tuple[CountService, str]:
    """A service with operations in it, and the name of one of them that is done."""
    counting = build(store)
    for number in range(operations):
        metadata = CountMetadata(percent=number % 101)
        started = counting.start(metadata=metadata)
        if number % 2:
            counting.service.reporter(started).complete(CountResponse(total=number))
    name = counting.start(metadata=CountMetadata(percent=7))
    counting.finish(name)
    return counting, name


def app_of(counting: CountService) -> OperationsApp:
    """All that the service offers over ASGI."""
    return OperationsApp(counting.service, starts={START: counting.count})


def measure(requests: Callable[[str], Iterator[Asked]], operations: int = 0) -> list[Held]:
    """The measures of requests to a service with this number of operations."""
    counting, name = counting_of(operations)
    with counting.service:
        return asyncio.run(Measure(app_of(counting)).each(requests(name)))


def main() -> None:
    """Measure everything, and print how much it was, the longest, and which answers came."""
    logging.disable(logging.CRITICAL)
    chosen = sys.argv[1:]

    def wanted(name: str) -> Iterator[Asked]:
        return (one for one in everything(name) if all(word in one.what for word in chosen))

    found = measure(wanted, operations=1000)
    statuses = sorted({one.status for one in found})
    print(f"{len(found)} requests, statuses {statuses}")
    for one in heapq.nlargest(40, found, key=lambda one: one.seconds):
        print(f"{one.seconds * 1000:9.1f} ms  {one.status}  {one.what}")


if __name__ == "__main__":
    main()
