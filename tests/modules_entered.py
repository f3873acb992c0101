"""List our modules that each call enters; ``python -m tests.modules_entered`` prints them.

A profile hook follows the call in every thread. Modules of stores and of tests are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import httpx

import lro
from lro.asgi import OperationsApp
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro_client import Client
from tests.client.messages import ResizeMetadata, ResizeRequest, ResizeResponse
from tests.waiting import until_async

TITLES: Final = {
    "GET": "GET of an operation over ASGI",
    "start": "Start of a method over ASGI",
    "cancel": "Cancel over ASGI of an operation whose work runs in this process",
    "finish": "Work of the operation, from claim to end, in a thread",
    "poll": "Poll of an operation by a client over HTTP",
}

MODULES_AT_MOST: Final = {"GET": 9, "start": 19, "cancel": 17, "finish": 11, "poll": 10}
"""The most modules that a call may enter, because longer routes are hard to follow.

Never raise these numbers.
"""

BACKGROUND: Final = {"lro-maintenance", "lro-listener", "lro-claims"}
"""Threads of a service that belong to no call and run at unpredictable times."""

SRC: Final = str(Path(lro.__file__).resolve().parent.parent)


class Entered:
    """The modules that threads enter during ``noting``, in the order of entry."""

    def __init__(self) -> None:
        self.calls: dict[tuple[int, str], str] = {}
        """A map from a thread and a module to the first function that the thread calls there."""
        self._noting = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record the module of a called function; this is the profile hook."""
        code = frame.f_code
        if not self._noting or event != "call" or not code.co_filename.startswith(SRC):
            return
        module = Path(code.co_filename).relative_to(SRC).with_suffix("").as_posix()
        if module.startswith("lro/stores/") or code.co_name == "<module>":
            return
        if threading.current_thread().name not in BACKGROUND:
            self.calls.setdefault((threading.get_ident(), module), code.co_qualname)

    def modules(self, calls: int | None = None, **thread: int) -> dict[str, str]:
        """Return the modules of the first ``calls`` entries.

        ``by`` selects the entries of one thread, and ``but`` leaves out the entries of one thread.
        """
        found: dict[str, str] = {}
        for (one, module), function in [*self.calls.items()][:calls]:
            if one == thread.get("by", one) and one != thread.get("but"):
                found.setdefault(module.replace("/", "."), function)
        return found

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """During this block, record the modules that threads with the hook enter."""
        self.calls.clear()
        self._noting = True
        try:
            yield
        finally:
            self._noting = False


@contextlib.contextmanager
def hooked() -> Iterator[Entered]:
    """Set the profile hook in this thread and in all threads that begin in the block."""
    entered = Entered()
    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


async def ask(app: Any, method: str, path: str, body: bytes = b"") -> Any:
    """Return the JSON of the reply to a request over ASGI."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost"
    ) as http:
        json = {"content-type": "application/json"}
        reply = await http.request(method, path, content=body, headers=json)
    assert reply.status_code == 200, reply.text
    return reply.json()


def entered_in_server() -> dict[str, dict[str, str]]:
    """Return the modules entered by a GET, a start and a cancel over ASGI, and by the worker."""
    workers: list[int] = []
    executor, begun, may_end = ThreadExecutor(1), threading.Event(), threading.Event()
    with hooked() as entered, lro.Service(MemoryStore(), executor) as service:

        @service.method("acme.v1.Sizes.Size", path="/v1/sizes:size")
        def size(request: ResizeRequest, job: lro.Job[ResizeMetadata]) -> ResizeResponse:
            workers.append(threading.get_ident())
            begun.set()
            may_end.wait(120)
            job.report(ResizeMetadata(50))
            return ResizeResponse(len(request.source))

        app = OperationsApp(service, starts=True)

        async def ended(name: str) -> None:
            # this polls, because the callback of a Wait might run during the next call
            await until_async(lambda: service.get(name).done)
            while executor.usage.running:  # the worker cleans up after the operation has ended
                await asyncio.sleep(0)

        async def first() -> str:
            operation = await ask(app, "POST", "/v1/sizes:size", b'{"source": "abc"}')
            await ended(operation["name"])
            await ask(app, "GET", f"/v1/{operation['name']}")
            return str(operation["name"])

        async def calls() -> dict[str, dict[str, str]]:
            may_end.set()
            name = await first()  # the first calls create objects that later calls reuse
            with entered.noting():
                await ask(app, "GET", f"/v1/{name}")
            found = {"GET": entered.modules()}
            begun.clear()
            may_end.clear()
            name = (await ask(app, "POST", "/v1/sizes:size", b'{"source": "abc"}'))["name"]
            assert begun.wait(120)
            with entered.noting():
                await ask(app, "POST", f"/v1/{name}:cancel", b"{}")
            cancel = entered.modules(by=threading.get_ident())
            may_end.set()
            await ended(name)
            begun.clear()
            may_end.clear()  # cleared before the start; otherwise the list would depend on timing
            with entered.noting():
                await ask(app, "POST", "/v1/sizes:size", b'{"source": "abc"}')
                answered = len(entered.calls)
                assert begun.wait(120)
                may_end.set()
                executor.stop()
                assert executor.join(120)  # a Wait would add calls of its own listener
            found["start"] = entered.modules(answered, but=workers[-1])
            finish = entered.modules(by=workers[-1])
            return found | {"cancel": cancel, "finish": finish}

        return asyncio.run(calls())


def entered_in_client() -> dict[str, dict[str, str]]:
    """Return the modules that one poll of an HTTP client enters."""
    metadata = {"@type": "type.googleapis.com/acme.images.v1.ResizeMetadata"}
    state = {"name": "operations/a", "metadata": metadata}
    reply = httpx.MockTransport(lambda _: httpx.Response(200, json=state))
    with hooked() as entered, httpx.Client(transport=reply) as http:
        client = Client("http://localhost", http=http)
        handle = client.operation("operations/a", response=ResizeResponse, metadata=ResizeMetadata)
        handle.refresh()
        with entered.noting():
            handle.refresh()
        client.close()
        return {"poll": entered.modules()}


def entered() -> dict[str, dict[str, str]]:
    """Return the modules that each call enters, each with the first function called there."""
    return entered_in_server() | entered_in_client()


def as_markdown(lists: Mapping[str, Mapping[str, str]]) -> str:
    """Return the lists as the Markdown of the architecture page."""
    return "\n\n".join(
        f"**{TITLES[call]}**: {len(modules)} modules.\n\n"
        + "\n".join(
            f"{n}. `{module}`: `{first}`" for n, (module, first) in enumerate(modules.items(), 1)
        )
        for call, modules in lists.items()
    )


if __name__ == "__main__":
    print(as_markdown(entered()))
