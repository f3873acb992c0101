"""Client CPU per poll of an operation; against a plain GET and json with httpx.

Only the client's CPU counts; the server is another process. One connection polls an operation
in progress, with metadata, again and again. ``result()`` polls with a policy that never pauses, and
is compared with a loop that does the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import httpx

import lro
import lro_client
from bench.measure import Figure, Sample, compare
from bench.operated import operated
from lro_client.transports.aiohttp import AiohttpTransport

POLLS: Final = 1000
RESULT_SECONDS: Final = 0.8

PARSER: Final = argparse.ArgumentParser(prog="python -m bench polls")
PARSER.add_argument("--polls", type=int, default=POLLS, help="calls in each round")
PARSER.add_argument("--rounds", type=int, default=7)

AT_ONCE: Final = lro_client.Polling(
    wait=lambda _: 0.0, jitter=0.0, wait_first=False, max_retry_after=0
)
TARGETS: Final = {
    "Client.get / httpx": 1.2,
    "Client, a poll of result() / httpx": 1.2,
    "AsyncClient.get / httpx": 1.25,
    "AsyncClient, a poll of result() / httpx": 1.25,
    "AsyncClient.get by aiohttp / google-api-core": 1.0,
}
TYPES: Final[dict[str, Any]] = {"response": lro.types.StringValue, "metadata": lro.Struct}


def counted(poll: Callable[[], object], times: int) -> Sample:
    """Return a function that measures the seconds of CPU per call."""
    return polling(poll, times, lambda _: None)


def polling(poll: Callable[[], object], times: int, sleep: Callable[[float], object]) -> Sample:
    """Return a function that measures the CPU of a call and a sleep of zero, a system call."""

    def sample() -> float:
        cpu = time.process_time()
        for _ in range(times):
            poll()
            sleep(0)
        return (time.process_time() - cpu) / times

    return sample


def awaited(loop: asyncio.Runner, poll: Callable[[], Awaitable[object]], times: int) -> Sample:
    """Return a function that measures the seconds of CPU per call on an event loop."""

    async def polls() -> float:
        cpu = time.process_time()
        for _ in range(times):
            await poll()
        return (time.process_time() - cpu) / times

    return lambda: loop.run(polls())


def waited(client: lro_client.Client, name: str) -> float:
    """Return the seconds of CPU per poll of a ``result()`` that polls until its timeout."""
    cpu = time.process_time()
    try:
        client.operation(name, **TYPES).result(timeout=RESULT_SECONDS)
    except lro_client.PollTimeout as exc:
        return (time.process_time() - cpu) / exc.polls
    raise AssertionError(f"{name} is never done")


async def awaiting(client: lro_client.AsyncClient, name: str) -> float:
    """Return the seconds of CPU per poll of a ``result()`` on an event loop."""
    cpu = time.process_time()
    try:
        await client.operation(name, **TYPES).result(timeout=RESULT_SECONDS)
    except lro_client.PollTimeout as exc:
        return (time.process_time() - cpu) / exc.polls
    raise AssertionError(f"{name} is never done")


Pairs = Iterator[tuple[str, Sample, Sample]]


def blocking_pairs(url: str, name: str, times: int) -> Pairs:
    """Yield our client and other blocking clients, each with its floor, mostly ``httpx.Client``."""
    where = f"{url}/v1/{name}"
    with httpx.Client() as plain, lro_client.Client(url, polling=AT_ONCE) as client:
        floor = counted(lambda: plain.get(where).json(), times)
        yield "Client.get / httpx", counted(lambda: client.get(name), times), floor
        loop = polling(lambda: plain.get(where).json(), times, time.sleep)
        yield "Client, a poll of result() / httpx", lambda: waited(client, name), loop
        with contextlib.suppress(ImportError):
            import httpx2

            with httpx2.Client() as second:
                newer = lro_client.Client(url, http=second)  # type: ignore[arg-type]  # as httpx's
                own = counted(lambda: second.get(where).json(), times)
                asked = counted(lambda: newer.get(name), times)
                yield "Client.get by httpx2 / httpx2", asked, own
                yield "httpx2 / httpx", own, floor
        with contextlib.suppress(ImportError):
            from bench.clients.on_google import blocking_client

            google = blocking_client(url)
            asked = counted(lambda: google.get_operation(name), times)
            yield "google-api-core / httpx", asked, floor


def async_pairs(loop: asyncio.Runner, url: str, name: str, times: int) -> Pairs:
    """Yield our client and other async clients, each with a floor, mostly ``httpx.AsyncClient``."""
    where = f"{url}/v1/{name}"
    plain, client = httpx.AsyncClient(), lro_client.AsyncClient(url, polling=AT_ONCE)
    floor = awaited(loop, lambda: _read(plain, where), times)
    yield "AsyncClient.get / httpx", awaited(loop, lambda: client.get(name), times), floor
    polls = awaited(loop, lambda: _read(plain, where, asyncio.sleep), times)
    yield "AsyncClient, a poll of result() / httpx", lambda: loop.run(awaiting(client, name)), polls
    with contextlib.suppress(ImportError):
        import httpx2

        second = httpx2.AsyncClient()
        own = awaited(loop, lambda: _read(second, where), times)
        newer = lro_client.AsyncClient(url, http=second)  # type: ignore[arg-type]  # as httpx's
        asked = awaited(loop, lambda: newer.get(name), times)
        yield "AsyncClient.get by httpx2 / httpx2", asked, own
        yield "httpx2, asyncio / httpx", own, floor
        loop.run(second.aclose())
    quick = lro_client.AsyncClient(transport=AiohttpTransport(base_url=url))
    asked = awaited(loop, lambda: quick.get(name), times)
    yield "AsyncClient.get by aiohttp / httpx", asked, floor
    with contextlib.suppress(ImportError):
        from bench.clients.on_google import async_client

        google = loop.run(_made(async_client, url))
        theirs = awaited(loop, lambda: google.get_operation(name), times)
        yield "google-api-core, asyncio / httpx", theirs, floor
        yield "AsyncClient.get by aiohttp / google-api-core", asked, theirs
        loop.run(google.transport._session.close())
    loop.run(quick.close())
    loop.run(plain.aclose())
    loop.run(client.close())


async def _read(client: Any, where: str, sleep: Any = None) -> object:
    found: object = (await client.get(where)).json()
    if sleep is not None:
        await sleep(0)
    return found


async def _made(make: Callable[[str], Any], url: str) -> Any:
    return make(url)  # clients must be created on the event loop


def run(options: argparse.Namespace) -> Iterator[Figure]:
    """Measure each client and its floor alternately."""
    logging.getLogger("lro_client").setLevel(logging.ERROR)  # every wait of this bench times out
    with operated("plain") as server, asyncio.Runner() as loop:
        (name,) = server.call("make", [0])
        pairs = itertools.chain(
            blocking_pairs(server.url, name, options.polls),
            async_pairs(loop, server.url, name, options.polls),
        )
        for label, own, low in pairs:
            target = TARGETS.get(label)
            yield compare(label, own, low, rounds=options.rounds, measure="CPU", target=target)
