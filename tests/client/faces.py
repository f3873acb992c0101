"""One interface for the blocking and the async client, so that every test is written once."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from lro_client import AsyncClient, AsyncGroup, AsyncOperationHandle, AsyncPager, Client
from lro_client.testing import VirtualClock as Clock

URL = "http://test"


class Face:
    """Makes blocking clients, and closes them in `close`."""

    name = "sync"

    def __init__(self) -> None:
        self._closing: list[Callable[[], object]] = []

    def client(self, base_url: str = URL, *, clock: Clock | None = None, **options: Any) -> Any:
        """Make a client that `close` closes. A given ``clock`` is used by the client's policies.

        By default the client's HTTP client loads no certificates, because loading takes longer than
        a test.
        """
        if clock is not None:
            options.update(clock=clock, sleep=self.sleeping(clock))
        if not {"http", "transport"} & options.keys():
            options["http"] = self.http(verify=False)
        return self.own(base_url, **options)

    def own(self, base_url: str, **options: Any) -> Any:
        """Make a client that `close` closes, which by default makes its own HTTP client."""
        made = self.make(base_url, **options)
        self._closing.append(made.close)
        return made

    def at_close(self, function: Callable[[], object]) -> None:
        """Let `close` call a function, and await what it returns if that is awaitable."""
        self._closing.append(lambda: self.run(function))

    def make(self, base_url: str, **options: Any) -> Any:
        return Client(base_url, **options)

    def sleeping(self, clock: Clock) -> Callable[[float], object]:
        return clock.sleep

    def http(self, **options: Any) -> Any:
        """Make a blocking or async httpx client; `close` closes it."""
        made = httpx.Client(**options)
        self._closing.append(made.close)
        return made

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function and return its result; if the result is awaitable, run it to its end."""
        return function(*args)

    def together(self, verbs: list[Callable[..., Any]], *args: Any) -> list[Any]:
        """Call several methods of a client at once; return what each returned or raised."""
        with ThreadPoolExecutor(len(verbs)) as threads:
            futures = [threads.submit(verb, *args) for verb in verbs]
            return [future.exception() or future.result() for future in futures]

    def inside(self, made: Any) -> Any:
        """Return the client, handle or pager itself, without the wrapper `Awaited`."""
        return made

    @contextmanager
    def entering(self, made: Any) -> Iterator[Any]:
        """Enter a client as a context manager."""
        with made as entered:
            yield entered

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


class AsyncFace(Face):
    """Makes async clients that look blocking; their coroutines run on this object's event loop."""

    name = "async"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def make(self, base_url: str, **options: Any) -> Any:
        return Awaited(self, AsyncClient(base_url, **options))

    def sleeping(self, clock: Clock) -> Callable[[float], object]:
        return clock.asleep

    def http(self, **options: Any) -> Any:
        made = httpx.AsyncClient(**options)
        self._closing.append(lambda: self.run(made.aclose))
        return made

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        async def call() -> Any:
            found = function(*args)
            return await found if inspect.isawaitable(found) else found

        return self.runner.run(call())

    def together(self, verbs: list[Callable[..., Any]], *args: Any) -> list[Any]:
        async def gather() -> list[Any]:
            calls = [verb.__wrapped__(*args) for verb in verbs]  # type: ignore[attr-defined]
            return await asyncio.gather(*calls, return_exceptions=True)

        return self.runner.run(gather())

    def inside(self, made: Any) -> Any:
        return made.target

    @contextmanager
    def entering(self, made: Any) -> Iterator[Any]:
        entered = self.run(made.target.__aenter__)
        try:
            yield entered
        finally:
            self.run(made.target.__aexit__, None, None, None)

    def close(self) -> None:
        super().close()
        self.runner.close()


class Awaited:
    """Wraps an async object as a blocking one: runs its coroutines, and steps its iterators."""

    def __init__(self, face: AsyncFace, target: Any) -> None:
        self.face, self.target = face, target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        return self._calling(found) if inspect.ismethod(found) else found

    def __iter__(self) -> Iterator[Any]:
        return self._stepping(aiter(self.target))

    def __repr__(self) -> str:
        return repr(self.target)

    def _calling(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            found = method(*args, **options)
            if inspect.iscoroutine(found):
                found = self.face.runner.run(found)
            if inspect.isasyncgen(found):
                return self._stepping(found)
            if isinstance(found, (AsyncGroup, AsyncOperationHandle, AsyncPager)):
                return Awaited(self.face, found)
            return found

        return call

    def _stepping(self, steps: Any) -> Iterator[Any]:
        run = self.face.runner.run
        try:
            while True:
                try:
                    yield run(anext(steps))
                except StopAsyncIteration:
                    return
        finally:
            run(steps.aclose())


FACES = {"sync": Face, "async": AsyncFace}
