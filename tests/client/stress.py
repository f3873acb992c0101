"""Threads share one client over connections that break: ``python -m tests.client.stress``.

A proxy in front of a server cuts connections at random. Meanwhile many threads start operations,
wait for them alone and in groups, cancel them and abandon them. The last output lists all errors:
hangs, undocumented errors, wrong results, and threads or waits that are left over.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import faulthandler
import random
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from operator import not_
from typing import Any

import httpx

import lro
import lro.asgi
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro_client import Client, ClientError, OperationCancelled, PollTimeout
from tests.client import sockets
from tests.client.messages import TYPES, ResizeMetadata, ResizeRequest, ResizeResponse
from tests.client.real_service import serving
from tests.waiting import until

METHOD = "/v1/images:resize"
HANG_SECONDS = 60.0
"""A wait longer than this counts as a hang; all timeouts in this file are shorter."""


def application() -> lro.asgi.OperationsApp:
    """Make a service with one method, and an ASGI application for the service."""
    service = lro.Service(MemoryStore(), ThreadExecutor(64), domain="acme.test")

    @service.method("acme.images.v1.Images.Resize")
    def resize(request: ResizeRequest, job: lro.Job[ResizeMetadata]) -> ResizeResponse:
        size, milliseconds = request.widths
        for percent in (20, 60):
            job.report(ResizeMetadata(percent=percent))
            job.sleep(milliseconds / 2000)
        return ResizeResponse(size_bytes=size)

    return lro.asgi.OperationsApp(service, starts={resize.spec.path: resize})


def cutting(port: str, seed: int, tally: collections.Counter[str]) -> sockets.Behaviour:
    """Return a proxy that forwards connections to a port, and cuts each after a random time."""
    chance = random.Random(seed)

    def behave(connection: socket.socket, over: threading.Event) -> None:
        tally["connections"] += 1
        with socket.create_connection(("127.0.0.1", int(port))) as onward:
            seconds = chance.choice([0.001, 0.02, 0.5, 2.0, 10.0])
            cut = threading.Timer(seconds, shut, [connection, onward])
            back = threading.Thread(target=pump, args=(onward, connection), daemon=True)
            for thread in (cut, back):
                thread.daemon = True
                thread.start()
            pump(connection, onward)
            back.join()
            tally["connections cut"] += not cut.is_alive()
            cut.cancel()

    return behave


def pump(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes until the source ends."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    shut(source, target)


def shut(*connections: socket.socket) -> None:
    """Shut down both directions of each connection."""
    for one in connections:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class Worker:
    """One of the threads that use the client; it runs random actions until the time is up."""

    def __init__(self, client: Client, seed: int, wrong: list[str]) -> None:
        self.client, self.random, self.wrong = client, random.Random(seed), wrong
        self.tally: collections.Counter[str] = collections.Counter()
        self.since, self.doing = time.monotonic(), ""
        self.futures: list[tuple[concurrent.futures.Future[Any], list[int], int]] = []

    def run(self, until: float) -> None:
        """Run random actions until the given time."""
        actions = [self.wait, self.group, self.half, self.future, self.cancel]
        while time.monotonic() < until:
            action = self.random.choice(actions)
            self.since, self.doing = time.monotonic(), action.__name__
            try:
                action()
                self.tally[action.__name__] += 1
            except (ClientError, TimeoutError) as exc:
                self.tally[f"{action.__name__}: {type(exc).__name__}"] += 1
            except BaseException:
                self.wrong.append(f"{action.__name__}: {traceback.format_exc()}")
        self.doing = ""

    def start(self) -> tuple[Any, int]:
        """Start an operation; return the handle, and the number that the result must contain."""
        number, milliseconds = self.random.randrange(1 << 30), self.random.choice([0, 50, 600])
        request = ResizeRequest(source="a.png", widths=(number, milliseconds))
        request_id = uuid.UUID(int=self.random.getrandbits(128), version=4)
        return self.client.start(METHOD, request, request_id=request_id, **TYPES), number

    def right(self, found: object, number: int) -> None:
        """Record an error if the result belongs to another operation."""
        if found != ResizeResponse(size_bytes=number):
            self.wrong.append(f"{self.doing}: {found!r} instead of {number}")

    def wait(self) -> None:
        """Wait for an operation without a timeout, or with a short timeout and then a long one."""
        handle, number = self.start()
        timeout, began = self.random.choice([0.0, 0.01, 0.3, None]), time.monotonic()
        try:
            self.right(handle.result(timeout), number)
        except PollTimeout:
            late = time.monotonic() - began - timeout
            self.tally["late by 50 ms" if late > 0.05 else "in time"] += 1
            self.right(handle.result(HANG_SECONDS / 2), number)

    def group(self) -> None:
        """Wait for a group of operations, sometimes first for only one of them."""
        started = [self.start() for _ in range(self.random.randint(1, 12))]
        group = self.client.group([handle for handle, _ in started])
        if self.random.random() < 0.3:
            group.wait(1, timeout=self.random.choice([0.01, 0.2]))
        for found, (_, number) in zip(group.results(HANG_SECONDS / 2), started, strict=True):
            self.right(found, number)

    def half(self) -> None:
        """Leave a group's block early, which cancels the operations that are not done."""
        started = [self.start() for _ in range(self.random.randint(1, 8))]
        with self.client.group([handle for handle, _ in started]) as group:
            steps = (
                group.updates(HANG_SECONDS / 2)
                if self.random.random() < 0.5
                else iter(group.as_completed())
            )
            next(iter(steps))

    def future(self) -> None:
        """Make a future of an operation, and cancel it, wait for it, or abandon it."""
        handle, number = self.start()
        future, calls = handle.future(), list[int]()
        future.add_done_callback(lambda _: calls.append(1))
        self.futures.append((future, calls, number))
        kind = self.random.random()
        if kind < 0.3:
            future.cancel()
        elif kind < 0.7:
            self.right(future.result(HANG_SECONDS / 2), number)

    def cancel(self) -> None:
        """Cancel an operation, which must end as cancelled or with its result."""
        handle, number = self.start()
        handle.cancel_and_wait(HANG_SECONDS / 2)
        with contextlib.suppress(OperationCancelled):
            self.right(handle.result(), number)


def check(client: Client, workers: list[Worker], wrong: list[str]) -> None:
    """Record leftover entries, waits and threads, and callbacks that did not run exactly once."""
    for worker in workers:
        for future, calls, number in worker.futures:
            with contextlib.suppress(ClientError, concurrent.futures.CancelledError):
                worker.right(future.result(HANG_SECONDS / 2), number)
            with noting(wrong, "a callback was called so often"):
                until(lambda calls=calls: len(calls))  # runs after the result is set
                assert calls == [1], calls
    table = client._state.registry
    if table.entries or table.own_calls:
        wrong.append(f"left over: {len(table.entries)} entries, {table.own_calls} waits")
    close(client, wrong)
    with noting(wrong, f"left over, with {table._pollers} pollers"):
        until(lambda: sum(one.name == "lro-client-call" for one in threading.enumerate()), not_)


@contextlib.contextmanager
def noting(wrong: list[str], what: str) -> Iterator[None]:
    """Record a failed assertion of the block as an error, and continue."""
    try:
        yield
    except AssertionError as exc:
        wrong.append(f"{what}: {exc}")


def close(client: Client, wrong: list[str]) -> None:
    """Close the client during waits of all kinds; each wait must end soon with a ClientError."""
    handles = [client.operation(f"operations/none-{n}", **TYPES) for n in range(30)]
    waits = [one.result for one in handles[:8]]
    waits += [client.group(handles).results, lambda: [*client.group(handles).as_completed()]]
    with concurrent.futures.ThreadPoolExecutor(len(waits)) as threads:
        waiting = [threads.submit(wait) for wait in waits]
        until(lambda: all(one.running() or one.done() for one in waiting))
        client.close()
        began = time.monotonic()
        for one in waiting:
            error = one.exception(HANG_SECONDS)
            if not isinstance(error, ClientError):
                wrong.append(f"closing: {error!r}")
    if time.monotonic() - began > 20.0:
        wrong.append(f"closing took {time.monotonic() - began:.1f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stress test, and print the counts and the errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.client.stress", description=__doc__)
    parser.add_argument("--threads", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    tally = collections.Counter[str]()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving(application())).rpartition(":")[2]
        url = stack.enter_context(sockets.serving(cutting(port, options.seed, tally)))
        client = Client(url, http=httpx.Client(limits=httpx.Limits(max_connections=200)))
        workers = [Worker(client, options.seed + n, wrong) for n in range(options.threads)]
        end = time.monotonic() + options.seconds
        threads = [threading.Thread(target=one.run, args=(end,), daemon=True) for one in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end + HANG_SECONDS - time.monotonic()))
        for worker in workers:
            if worker.doing:
                wrong.append(f"hangs in {worker.doing} for {time.monotonic() - worker.since:.0f} s")
        if any("hangs" in one for one in wrong):
            faulthandler.dump_traceback(all_threads=True)
        else:
            check(client, workers, wrong)
    print(dict(sorted(sum((one.tally for one in workers), tally).items())))
    for one, count in collections.Counter(wrong).most_common():
        print(f"WRONG, {count} times: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
