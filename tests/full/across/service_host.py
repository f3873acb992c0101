"""A service whose verbs are called by name, with arguments that JSON can represent."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

from lro import Code, LroError, Operation, Service, Status
from lro._engine import change_listener
from lro._engine.change_listener import LOOK_AGAIN_SECONDS
from lro.adapters import Executor, Store
from lro.wire import ListOperationsRequest
from tests.full.across import works
from tests.places import Muffled, Place
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

SWITCH_SECONDS = 1e-5
"""The time after which Python switches threads: short, so that calls interleave."""

REPORTS = ("complete", "fail", "acknowledge")
"""The ways in which a reporter can end an operation."""

View = dict[str, Any]
"""An operation as a reply shows it, and the time of the reply."""


def make_executor(kind: str) -> Executor:
    """Return an executor of this kind."""
    if kind == "threads":
        from lro.executors.threads import ThreadExecutor

        return ThreadExecutor(4)
    if kind == "asyncio":
        from lro.executors.asyncio import AsyncioExecutor

        return AsyncioExecutor(64)
    from lro.executors.processes import ProcessExecutor

    return ProcessExecutor(2)


class Harness:
    """The service of one process; its public methods are the verbs."""

    def __init__(self, place: Place, executor: str = "threads") -> None:
        self._store = Muffled(place.open())
        self._service = Service(cast(Store, self._store), make_executor(executor))
        self._notifier = self._service.edges.runtime.updater.notifier
        self._methods = {
            "outside": self._service.declare(
                "acme.v1.Outside.Work",
                request=WorkRequest,
                response=WorkResponse,
                metadata=WorkMetadata,
            ),
            "work": self._service.method("acme.v1.Works.Work")(works.work),
            "awork": self._service.method("acme.v1.Coroutines.Work")(works.awork),
        }
        self._callers = ThreadPoolExecutor(128)
        self._parked: list[Future[list[View]]] = []

    def leave(self) -> None:
        """Close the service, without waiting for callers."""
        self._service.close(0)
        self._callers.shutdown(wait=False)

    # -- starting -----------------------------------------------------------------------------

    def start(self, method: str = "outside", number: int = 0, **plan: Any) -> str:
        """Start an operation and return its name."""
        return self._methods[method].start(WorkRequest(size=number, rest=plan)).name

    def starts(
        self, method: str, request_id: str, texts: Sequence[str], number: int, **plan: Any
    ) -> list[str]:
        """Start an operation for each text at once, with one request id; return names or errors."""
        barrier = threading.Barrier(len(texts))

        def one(text: str) -> str:
            request = WorkRequest(text=text, size=number, rest=plan)
            barrier.wait(PATIENCE)
            try:
                return self._methods[method].start(request, request_id=request_id).name
            except LroError as exc:
                return f"{exc.code.name} {exc.reason}"

        return list(self._callers.map(one, texts))

    # -- ending -------------------------------------------------------------------------------

    def end(self, name: str, how: str, text: str = "") -> bool:
        """End an operation from outside; return whether the report was applied."""
        reporter = self._service.reporter(name)
        if how == "complete":
            return reporter.complete(WorkResponse(text))
        if how == "fail":
            return reporter.fail(Status(Code.ABORTED, text))
        self._service.cancel(name)
        return reporter.acknowledge_cancel(metadata=WorkMetadata(note=text))

    def end_at(self, name: str, how: str) -> float:
        """End or delete an operation; return the time at which the call returned."""
        if how == "delete":
            self._service.delete(name)
        else:
            assert self.end(name, how, "the truth")
        return time.monotonic()

    def end_together(self, name: str, who: str) -> dict[str, bool]:
        """Complete, fail and acknowledge the cancellation of an operation at once.

        Return whether each report was applied.
        """
        barrier = threading.Barrier(len(REPORTS))

        def end(how: str) -> bool:
            barrier.wait(PATIENCE)
            return self.end(name, how, f"{how} by {who}")

        order = random.Random(name + who).sample(REPORTS, len(REPORTS))
        return dict(zip(order, self._callers.map(end, order), strict=True))

    def cancel(self, name: str) -> None:
        """Request cancellation of an operation."""
        self._service.cancel(name)

    # -- reading ------------------------------------------------------------------------------

    def get(self, name: str) -> View:
        """Return the current state of an operation."""
        return self._view(self._service.get(name))

    def wait(self, name: str, seconds: float = PATIENCE) -> View:
        """Return an operation once it is done, or as it is after ``seconds``."""
        return self._view(self._service.wait(name, timedelta(seconds=seconds)))

    def lease(self, name: str) -> tuple[str, bool, int]:
        """Return a record's owner, whether the record has a lease, and its attempt."""
        record = self._store.get(name)
        return record.owner, record.lease_until is not None, record.attempt

    def count(self) -> int:
        """Return the number of operations."""
        request = ListOperationsRequest(page_size=1000)
        seen = 0
        while True:
            found = self._service.list(request)
            seen += len(found.operations)
            if not found.next_page_token:
                return seen
            request = ListOperationsRequest(page_size=1000, page_token=found.next_page_token)

    def watch(self, name: str, number: int, traces: str, delay: float, cancel: bool) -> View:
        """Read an operation until it has ended; record the trace of its work at each read.

        Sleep for ``delay`` seconds first, and then request cancellation if ``cancel`` is set.
        """
        time.sleep(delay)  # the request then comes at a random point of the work
        if cancel:
            self._service.cancel(name)
        trace = works.traces_at(traces)
        seen: View = {}
        looks: tuple[Callable[[str], View], ...] = (self.get, self.get, self.wait)
        for look in looks:
            seen = look(name)
            seen["trace"] = trace[number]  # read last, because an end is final
            if seen["done"]:
                return seen
        raise AssertionError(f"{name} has not ended: {seen}")

    # -- waiting ------------------------------------------------------------------------------

    def park(self, name: str, threads: int, coroutines: int) -> None:
        """Let threads and coroutines wait for an operation; return when all of them wait."""
        here = len(self._notifier)
        for _ in range(threads):
            self._parked.append(self._callers.submit(lambda: [self._ended(self.wait, name)]))

        async def wait() -> View:
            try:
                return self._view(await self._service.wait_async(name, timedelta(seconds=PATIENCE)))
            except LroError as exc:
                return _refusal(exc)

        async def main() -> list[View]:
            return await asyncio.gather(*(wait() for _ in range(coroutines)))

        self._parked.append(self._callers.submit(asyncio.run, main()))
        until(lambda: self._service.edges.waiters.waiting, lambda count: count == coroutines)
        until(lambda: len(self._notifier), lambda count: count > here + threads)

    def answers(self) -> list[View]:
        """Return the results of all waits that ``park`` began, once all of them have returned."""
        answers = [view for future in self._parked for view in future.result(PATIENCE)]
        self._parked.clear()
        return answers

    def deafen(self, deaf: bool, look_again: float = LOOK_AGAIN_SECONDS) -> None:
        """Drop notifications, sent or received, if ``deaf``; poll every ``look_again`` seconds."""
        self._store.plugged.clear()
        self._store.deaf = deaf
        change_listener.LOOK_AGAIN_SECONDS = look_again  # type: ignore[misc]  # injected
        self._service.edges.background.change_listener._look_at = (
            0.0  # the next poll uses the new interval
        )

    def unhearing(self) -> None:
        """Return once a subscription waits while notifications are dropped."""
        assert self._store.plugged.wait(PATIENCE), "no subscription listens"

    # -- internals ----------------------------------------------------------------------------

    def _ended(self, ask: Callable[[str], View], name: str) -> View:
        try:
            return ask(name)
        except LroError as exc:
            return _refusal(exc)

    def _view(self, operation: Operation) -> View:
        text = ""
        if operation.response is not None:
            text = self._service.types.unpack(operation.response, WorkResponse).text
        elif operation.error is not None:
            text = operation.error.message
        note = ""
        if operation.metadata is not None:
            note = self._service.types.unpack(operation.metadata, WorkMetadata).note
        return {
            "name": operation.name,
            "state": operation.state,
            "done": operation.done,
            "text": text,
            "note": note,
            "at": time.monotonic(),
        }


def _refusal(error: LroError) -> View:
    return {"state": error.code.name, "done": True, "at": time.monotonic()}


def asked(harness: Harness, verb: str, arguments: View) -> Any:
    """Call a verb of a service and return its result."""
    if verb.startswith("_") or not hasattr(Harness, verb):
        raise LookupError(f"no verb {verb!r}")
    return getattr(harness, verb)(**arguments)


def main(executor: str, *place: str) -> None:
    """Read calls as lines of JSON; run each in a thread, and reply with a line of JSON."""
    sys.setswitchinterval(SWITCH_SECONDS)
    harness = Harness(Place(*place), executor)
    lock = threading.Lock()

    def answer(number: int, verb: str, arguments: dict[str, Any]) -> None:
        found, error = None, None
        try:
            found = asked(harness, verb, arguments)
        except Exception as exc:
            error = (type(exc).__name__, str(exc))
        line = json.dumps([number, found, error])
        with lock:
            print(line, flush=True)

    with ThreadPoolExecutor(64) as threads:
        for line in sys.stdin:
            threads.submit(answer, *json.loads(line))
    harness.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
