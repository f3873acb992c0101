"""Futures of operations: set once, by whoever hears of the end."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any as Anything
from typing import TypeVar

from lro_client._core import Core
from lro_client._errors import ClientError, again
from lro_client._handles import HandleBase
from lro_client._hands import HANDS
from lro_client._table import Lost, News, Seen, Want

Resp = TypeVar("Resp")


def blocking(core: Core, handle: HandleBase[Resp, Anything]) -> Future[Resp]:
    """A future for threads. What waits for it is called in a lent thread: it may take its time."""
    future: Future[Resp] = Future()

    def hear(news: News) -> None:
        HANDS.give(lambda: _set(future, core, handle, news), lambda _: None)

    if handle.done:
        hear(Seen(handle.name, handle.operation))
        return future
    core.table.subscribe(handle.name, hear, Want(), handle.operation)
    future.add_done_callback(lambda _: core.table.leave(handle.name, hear))
    return future


def awaiting(core: Core, handle: HandleBase[Resp, Anything]) -> asyncio.Future[Resp]:
    """A future of the running event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Resp] = loop.create_future()

    def hear(news: News) -> None:
        if not (future.done() or loop.is_closed()):
            _give(future, core, handle, news)

    if handle.done:
        hear(Seen(handle.name, handle.operation))
        return future
    core.table.subscribe(handle.name, hear, Want(), handle.operation)
    future.add_done_callback(lambda _: core.table.leave(handle.name, hear))
    return future


def _set(future: Future[Resp], core: Core, handle: HandleBase[Resp, Anything], news: News) -> None:
    if future.set_running_or_notify_cancel():
        _give(future, core, handle, news)


def _give(
    future: Future[Resp] | asyncio.Future[Resp],
    core: Core,
    handle: HandleBase[Resp, Anything],
    news: News,
) -> None:
    if isinstance(news, Lost):
        future.set_exception(again(news.error))
        return
    handle._seen(news.operation)
    try:
        found = handle._result()
        if core.journal is not None and handle.name:
            core.journal.collected(handle.name)
    except ClientError as exc:
        future.set_exception(exc)
    else:
        future.set_result(found)
