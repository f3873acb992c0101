"""Callers of the servers: they start, cancel, delete, wait and list, and record the replies.

A story is one start request, with all that callers know of its operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs

import lro
from lro_client import CallError
from tests.chaos.servers import Server, Stuck, insist
from tests.chaos.stalls import Stalls
from tests.chaos.stories import Journal, Sight, Story
from tests.chaos.works import WorkMetadata, WorkRequest, WorkResponse

LIST_SECONDS: Final = 0.2
"""The pause between two List calls, in seconds."""
WAIT_SECONDS: Final = 2.0
"""The timeout of a Wait, in seconds."""
HUNG_SECONDS: Final = 60.0
"""A Wait with no reply this many seconds after its timeout is hung, even on a busy machine."""
_NO_ANSWER: Final = frozenset({lro.Code.UNAVAILABLE, lro.Code.DEADLINE_EXCEEDED})


class Callers:
    """All callers, and the journal of their calls; ``servers`` returns the servers to call."""

    def __init__(
        self, journal: Journal, servers: Callable[[], Sequence[Server]], stalls: Stalls
    ) -> None:
        self.journal = journal
        self._stalls = stalls
        self._servers = servers
        self._tasks: list[asyncio.Task[None]] = []
        self._watched: set[str] = set()
        self.unanswered = 0
        """The number of calls that got no reply, or the error UNAVAILABLE or DEADLINE_EXCEEDED."""
        self.longest_overrun = 0.0
        """The longest time from a Wait's timeout to its reply, in seconds."""

    def begin(self) -> None:
        """Begin to list operations regularly."""
        self._tasks.append(asyncio.create_task(self._list()))

    async def end(self) -> None:
        """Stop all lists and waits; raise the errors that occurred in them."""
        for task in self._tasks:
            if not task.done():
                task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def start(self, server: Server, story: Story) -> bool:
        """Send the start of a story, maybe again; return whether a reply named its operation."""
        sent = time.monotonic()
        story.asked_at = story.asked_at or sent
        try:
            handle = await _started(server, story, story.request)
        except CallError as exc:
            if exc.code is not lro.Code.ABORTED or story.kind != "alone":  # the target may be busy
                self._unanswered(story, exc)
            return False
        if story.named_at is None:
            story.started_at = sent
        story.answered(handle.operation, sent, time.monotonic())
        self._watch()
        return True

    async def insist(self, server: Server, story: Story) -> None:
        """Repeat the start of a story until it succeeds; record a fault if it never does."""
        try:
            await insist(lambda: self.start(server, story), "an answer")
        except Stuck:
            story.faults.append("its start is not answered, or its target is not free")

    async def start_otherwise(self, server: Server, story: Story) -> None:
        """Send a start with a story's request id and another body, which must be refused."""
        other = attrs.evolve(story.request, steps=story.request.steps + 1)
        try:
            await _started(server, story, other)
        except CallError as exc:
            if exc.code is not lro.Code.INVALID_ARGUMENT:
                self._unanswered(story, exc)
        else:
            story.faults.append("its request id was taken for another request")

    async def cancel(self, server: Server, story: Story) -> None:
        """Cancel the operation of a story, whose name must be known."""
        story.cancel_asked = True
        await self._ask(story, server.client.cancel)

    async def delete(self, server: Server, story: Story) -> None:
        """Delete the operation of a story, whose name must be known."""
        story.delete_asked = True
        if await self._ask(story, server.client.delete) and story.deleted_at is None:
            story.deleted_at = time.monotonic()

    async def look(self, server: Server, story: Story) -> None:
        """Get the operation of a story if its name is known."""
        if story.name is not None:
            await self._ask(story, server.client.get)

    async def list_once(self, server: Server) -> bool:
        """List all operations; return whether there was a reply."""
        sent = time.monotonic()
        try:
            found = [operation async for operation in server.client.list(page_size=50)]
        except CallError as exc:
            self._unanswered(None, exc)
            return False
        self.journal.listed(sent, time.monotonic(), found)
        self._watch()
        return True

    def any_server(self) -> Server | None:
        servers = self._servers()
        return self.journal.random.choice(servers) if servers else None

    # -- internal parts ---------------------------------------------------------------------------

    def _watch(self) -> None:
        for story in self.journal.unsettled:
            if story.text not in self._watched:
                self._watched.add(story.text)
                self._tasks.append(asyncio.create_task(self._wait(story)))

    async def _list(self) -> None:
        while True:
            server = self.any_server()
            if server is not None:
                await self.list_once(server)
            await asyncio.sleep(LIST_SECONDS)

    async def _wait(self, story: Story) -> None:
        while not story.settled:
            server = self.any_server()
            sent = time.monotonic()
            if server is None or not await self._ask(story, _waiting(server)):
                await asyncio.sleep(LIST_SECONDS)
            now = time.monotonic()
            overrun = now - sent - self._stalls.within(sent, now) - WAIT_SECONDS
            self.longest_overrun = max(self.longest_overrun, overrun)
            if overrun > HUNG_SECONDS:
                story.faults.append(f"a Wait was answered {overrun:.1f} s after its limit")

    async def _ask(
        self, story: Story, call: Callable[[str], Awaitable[lro.Operation | None]]
    ) -> bool:
        assert story.name is not None
        sent = time.monotonic()
        operation: lro.Operation | None = None
        try:
            operation = await call(story.name)
            if operation is None:  # Cancel and Delete return no operation
                return True
        except CallError as exc:
            if exc.code is not lro.Code.NOT_FOUND:
                self._unanswered(story, exc)
                return False
        story.sights.append(Sight(sent, time.monotonic(), operation))
        return True

    def _unanswered(self, story: Story | None, error: CallError) -> None:
        # A call may get no reply, UNAVAILABLE or DEADLINE_EXCEEDED. Every other error is a fault.
        if error.http_status is None or error.code in _NO_ANSWER:
            self.unanswered += 1
            return
        if story is None:
            raise AssertionError(f"a list was answered with {error}")
        story.faults.append(f"was answered with {error}")


async def _started(server: Server, story: Story, request: WorkRequest) -> Any:
    return await server.client.start(
        f"/v1/works:{story.kind}",
        request,
        response=WorkResponse,
        metadata=WorkMetadata,
        request_id=story.request_id,
    )


def _waiting(server: Server) -> Callable[[str], Awaitable[lro.Operation]]:
    return lambda name: server.client.wait(name, timeout=WAIT_SECONDS)
