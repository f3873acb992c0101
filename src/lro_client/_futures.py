"""Futures of operations: set once, by whoever hears of the end."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import Future
from typing import Any as Anything
from typing import TypeVar

from lro_client._errors import ClientError, OperationFailed, again
from lro_client._flow.threads import HANDS
from lro_client._handle_flows import AFTERWARDS_SECONDS, noted
from lro_client._handles import HandleBase
from lro_client._state import Core
from lro_client._watch.registry import Lost, News, Seen, Want

Resp = TypeVar("Resp")


def blocking(core: Core, handle: HandleBase[Resp, Anything]) -> Future[Resp]:
    """A future for threads. What waits for it is called in a lent thread: it may take its time."""
    future: Future[Resp] = Future()

    def hear(news: News) -> None:
        HANDS.give(lambda: _set(future, core, handle, news), lambda _: None)

    known = _known(handle)
    if known is not None:
        hear(known)
        return future
    core.table.subscribe(handle.name, hear, Want(fits=handle._fits), handle.operation)
    future.add_done_callback(lambda _: core.table.leave(handle.name, hear))
    return future


def awaiting(core: Core, handle: HandleBase[Resp, Anything]) -> asyncio.Future[Resp]:
    """A future of the running event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Resp] = loop.create_future()

    def hear(news: News) -> None:
        if not (future.done() or loop.is_closed()):
            _give(future, core, handle, news)

    known = _known(handle)
    if known is not None:
        hear(known)
        return future
    core.table.subscribe(handle.name, hear, Want(fits=handle._fits), handle.operation)
    future.add_done_callback(lambda _: core.table.leave(handle.name, hear))
    return future


def _known(handle: HandleBase[Anything, Anything]) -> News | None:
    if handle.done:
        return Seen(handle.name, handle.operation)
    if not handle.name and handle._error is not None:
        return Lost(handle.name, handle._error)
    return None


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
    owed = False
    try:
        found = handle._result()
    except ClientError as exc:
        if isinstance(exc, OperationFailed):
            owed = _owe(core, handle)
        future.set_exception(exc)
    else:
        owed = _owe(core, handle)
        future.set_result(found)
    if owed and core.journal is not None:
        # Who crashes before finds it in the journal. One thread writes for all that come meanwhile.
        settle = functools.partial(core.journal.settle, AFTERWARDS_SECONDS)
        HANDS.give(functools.partial(noted, handle._known_as, settle), lambda _: None)


def _owe(core: Core, handle: HandleBase[Anything, Anything]) -> bool:
    journal = core.journal
    if journal is None or not handle._known_as:
        return False
    return journal.owe(handle.name, server=core.address, request_id=handle._request_id)
