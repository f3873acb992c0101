"""Hooks on an event loop: no hook blocks the loop or outlives its caller."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import grpc

import lro
import lro.asgi
from lro import Code
from lro_client import CallError
from lro_client.transports import AsyncLocalTransport, BatchGetOperationsRequest, Call, StartRequest
from tests.grpc.serving import serving
from tests.http.counting_service import CountRequest, CountService, build
from tests.http.servers import HOST, uvicorn_serving
from tests.security.guarded import (
    KINDS,
    SERVED,
    START,
    STORES,
    VERBS,
    answer_of,
    asgi_app,
    ask_asgi,
    grpc_request,
)
from tests.waiting import PATIENCE, until

HOOKS = ["authenticate", "authorize"]


LOOPS = ["asgi", "grpc.aio"]


class Gate:
    """A hook that blocks the caller "slow" until the test opens the gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.left = threading.Event()
        self._opened = threading.Event()

    def plain(self, caller: str) -> None:
        """Block the thread of a slow caller."""
        if caller == "slow":
            self.entered.set()
            assert self._opened.wait(PATIENCE)

    async def awaited(self, caller: str) -> None:
        """Await the event of a slow caller, without blocking a thread."""
        if caller == "slow":
            self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()
            self.entered.set()
            try:
                await self._event.wait()
            finally:
                self.left.set()

    def open(self) -> None:
        """Let the slow caller pass."""
        self._opened.set()
        if hasattr(self, "_loop"):
            self._loop.call_soon_threadsafe(self._event.set)

    def hooks(self, hook: str, color: str) -> dict[str, Callable[..., Any]]:
        """Return both hooks; the one that ``hook`` names waits at this gate."""

        def plain(who: Any, *_: str) -> Any:
            caller = name(who)
            self.plain(caller)
            return caller if hook == "authenticate" else None

        async def awaited(who: Any, *_: str) -> Any:
            caller = name(who)
            await self.awaited(caller)
            return caller if hook == "authenticate" else True

        return {"authenticate": name, hook: plain if color == "plain" else awaited}


def name(who: Any) -> str:
    """Return the caller's name, given as a name or in headers."""
    found: str = who if isinstance(who, str) else who["x-caller"]
    return found


def counting_with(store: Any, hooks: dict[str, Any]) -> tuple[CountService, str]:
    """Return a service on the store with these hooks, and the name of an operation that is done."""
    before = build(store, statistics=False)  # the other service closes the store
    name = before.start()
    before.finish(name)
    return build(store, authorize=hooks.get("authorize")), name


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty store, in memory unless the test's parameter names another."""
    return STORES[getattr(request, "param", "memory")](tmp_path)


@contextlib.contextmanager
def calling(
    edge: str, counting: CountService, authenticate: Any
) -> Iterator[Callable[[str, str, str], Any]]:
    """Serve an edge on a loop; yield a function (verb, name, caller) that returns a future."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(counting.service)
        if edge == "asgi":
            app = asgi_app(counting, authenticate=authenticate)
            loop = stack.enter_context(running_loop())

            def call(verb: str, name: str, caller: str) -> Any:
                return asyncio.run_coroutine_threadsafe(ask_asgi(app, verb, name, caller), loop)

        else:
            serve = serving("asyncio", counting.service, authenticate=authenticate)
            channel = stack.enter_context(grpc.insecure_channel(stack.enter_context(serve)))

            def call(verb: str, name: str, caller: str) -> Any:
                path, message = grpc_request(verb, name)
                one: Any = channel.unary_unary(path)
                return one.future(message, metadata=[("x-caller", caller)], timeout=PATIENCE)

        yield call


@contextlib.contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread, and wait until no task is left on it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
        until(lambda: asyncio.all_tasks(loop), lambda tasks: not tasks)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.mark.parametrize(
    ("edge", "verb", "hook", "color", "store"),
    [
        (edge, verb, hook, ("plain", "awaited")[(row + column) % 2], [*STORES][row % 2])
        for edge in LOOPS
        for row, verb in enumerate(VERBS[edge])
        for column, hook in enumerate(HOOKS)
    ],
    indirect=["store"],
)
def test_second_caller_is_answered_while_hook_blocks(
    edge: str, verb: str, hook: str, color: str, store: Any
) -> None:
    """A slow hook delays its own caller, not the event loop."""
    gate = Gate()
    hooks = gate.hooks(hook, color)
    counting, name = counting_with(store, hooks)
    with calling(edge, counting, hooks["authenticate"]) as call:
        first = call(verb, name, "slow")
        assert gate.entered.wait(PATIENCE)
        check_ok(call("GetOperation", name, "quick").result(PATIENCE))
        assert not first.done()
        gate.open()
        check_ok(first.result(PATIENCE))


def check_ok(found: Any) -> None:
    """Check that a call succeeded: a gRPC call returned bytes, an ASGI call the code OK."""
    assert isinstance(found, bytes) or found.code is Code.OK, found


@pytest.mark.parametrize("verb", ["ListOperations", "BatchGetOperations", "FullBatch"])
def test_blocking_hooks_do_not_use_the_threads_for_replies(verb: str, store: Any) -> None:
    """While hooks block more callers than there are reply threads, another caller is answered."""
    slow = 4
    entered = threading.Semaphore(0)
    opened = threading.Event()

    def authorize(caller: str, verb: str, name: str) -> None:
        if caller == "slow":
            entered.release()
            assert opened.wait(PATIENCE)

    counting, name = counting_with(store, {"authorize": authorize})
    app = asgi_app(counting, authenticate=lambda headers: headers["x-caller"])

    async def calls() -> None:
        held = [asyncio.ensure_future(ask_asgi(app, verb, name, "slow")) for _ in range(slow)]
        for _ in held:
            assert await asyncio.to_thread(entered.acquire, timeout=PATIENCE)
        assert (await ask_asgi(app, verb, name, "quick")).code is Code.OK
        assert not any(call.done() for call in held)
        opened.set()
        assert {(await call).code for call in held} == {Code.OK}

    with counting.service:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(ThreadPoolExecutor(slow + 2))
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(calls())


@pytest.fixture
def frozen_objects() -> Iterator[None]:
    """Freeze all existing objects, so that the garbage collector only visits new ones."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen_objects")
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(("edge", "verb"), [(one, verb) for one in LOOPS for verb in VERBS[one]])
def test_caller_cancelled_during_async_hook_leaves_nothing(
    edge: str, verb: str, hook: str, store: Any
) -> None:
    """If a call is cancelled while an async hook runs, the hook is cancelled; nothing changes."""
    gate = Gate()
    hooks = gate.hooks(hook, "awaited")
    counting, name = counting_with(store, hooks)
    record = store.get(name)
    with calling(edge, counting, hooks["authenticate"]) as call:
        first = call(verb, name, "slow")
        assert gate.entered.wait(PATIENCE)
        first.cancel()
        assert gate.left.wait(PATIENCE)
    gc.collect()  # a coroutine that was never awaited warns, and warnings are errors
    assert store.get(name) == record
    assert (counting.service.edges.waiters.waiting, counting.service.edges.waiters.watching) == (
        0,
        0,
    )


def test_asgi_wait_ends_if_the_caller_leaves_during_async_authorize(store: Any) -> None:
    """If the caller disconnects while ``authorize`` is awaited, Wait ends (spec §4.8)."""
    gate = Gate()
    hooks = gate.hooks("authorize", "awaited")
    counting, name = counting_with(store, hooks)
    app = asgi_app(counting, authenticate=hooks["authenticate"])

    async def leave() -> Any:
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        return {"type": "http.disconnect"}

    with counting.service:
        assert asyncio.run(ask_asgi(app, "WaitOperation", name, "slow", leave)) is None
    assert gate.left.is_set()


@pytest.mark.parametrize("then", ["awaits", "returns"])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("edge", ["asgi", "grpc.aio"])
def test_hook_that_cancels_its_own_task_fails_its_own_call(
    edge: str, hook: str, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If a hook cancels its own task, its caller gets INTERNAL, and the next caller is answered."""
    bad = True

    async def act(*_: Any) -> None:
        if bad:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if then == "awaits":
                await asyncio.sleep(0)

    counting, name = counting_with(STORES["memory"](Path()), {hook: act})
    authenticate = act if hook == "authenticate" else lambda headers: "ann"
    with counting.service, SERVED[edge](counting, authenticate) as call:
        for verb in VERBS[edge]:
            caplog.clear()
            assert call(verb, name).code is Code.INTERNAL
            assert f"{hook} raised CancelledError" in caplog.text
        bad = False
        assert call("GetOperation", name).code is Code.OK


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who")


def test_hooks_see_context_variables_of_their_own_request() -> None:
    """``authorize`` sees variables set by a middleware or ``authenticate``, also in a thread."""
    seen: list[str] = []

    async def authenticate(headers: Mapping[str, str]) -> str:
        seen.append(WHO.get("unset"))
        WHO.set(headers["x-caller"])
        return ""

    hook = KINDS["function"](lambda *_: seen.append(WHO.get("unset")))
    counting, name = counting_with(STORES["memory"](Path()), {"authorize": hook})
    app = asgi_app(counting, authenticate=authenticate)

    async def middleware(*arguments: Any) -> None:
        WHO.set("the request's")
        await app(*arguments)

    with counting.service, asyncio.Runner() as runner:
        for verb in VERBS["asgi"]:
            for caller, called in (("ann", app), ("bob", middleware)):
                asked = ask_asgi(called, verb, name, caller)
                code = runner.run(asked, context=contextvars.Context()).code
                assert code is Code.OK or verb == "DeleteOperation"
            assert seen == ["unset", "ann", "the request's", "bob"], verb
            if verb == "DeleteOperation":
                name = counting.start()
                counting.finish(name)
            seen.clear()


@pytest.mark.parametrize("hook", HOOKS)
def test_uvicorn_outlives_hook_that_raises_base_exception(hook: str) -> None:
    """If a hook raises SystemExit or the like, the caller gets INTERNAL and uvicorn goes on."""
    served: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await served[-1](scope, receive, send)

    with (
        uvicorn_serving(app, lifespan="off") as port,
        httpx.Client(base_url=f"http://{HOST}:{port}", timeout=PATIENCE) as client,
    ):
        for error in (SystemExit, asyncio.CancelledError, BaseException):
            for kind in ("function", "coroutine function", "async object"):
                raised = [error("s3cret"), error("s3cret")]

                def act(*_: Any, raised: list[BaseException] = raised) -> Any:
                    if raised:
                        raise raised.pop()

                hooks = {hook: KINDS[kind](act)}
                counting = build(authorize=hooks.get("authorize"))
                served.append(asgi_app(counting, authenticate=hooks.get("authenticate")))
                for method, path in [("GET", "/v1/operations"), ("POST", "/v1/count")]:
                    reply = client.request(method, path)
                    assert (reply.status_code, "s3cret" in reply.text) == (500, False)
                    assert answer_of(reply.status_code, reply.content).code is Code.INTERNAL
                assert client.get("/v1/operations").status_code == 200
                counting.service.close()


# -- async verbs of the service ----------------------------------------------------------------


async def only_ann(caller: str, verb: str, name: str) -> bool:
    """Allow only Ann."""
    await asyncio.sleep(0)
    return caller == "ann"


@pytest.mark.parametrize("color", ["plain", "awaited"])
def test_verbs_on_a_loop_call_plain_and_async_hooks(color: str, store: Any) -> None:
    """Plain and async ``authorize`` refuse Bob each verb, and let Ann's calls pass."""

    def plain(caller: str, verb: str, name: str) -> bool:
        return caller == "ann"

    counting = build(store, authorize=plain if color == "plain" else only_ann)
    service, name, wanted = counting.service, "operations/x", lro.wire.ListOperationsRequest()

    async def refused(caller: str) -> list[bool]:
        to_one = (service.get_async, service.cancel_async, service.delete_async)
        to_many = (service.batch_get_async, service.watch)
        calls: list[Any] = [call(name, caller=caller) for call in to_one]
        calls += [call([name], caller=caller) for call in to_many]
        calls += [
            service.get_async(name, view="FULL", caller=caller),
            service.list_async(wanted, caller=caller),
            service.wait_async(name, 0.0, caller=caller),
            counting.count.start_async(CountRequest(), caller=caller),
            service.start_async(START, CountRequest(), caller=caller),
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [isinstance(one, lro.errors.PermissionDenied) for one in found]

    with service:
        assert asyncio.run(refused("ann")) == [False] * 10
        assert asyncio.run(refused("bob")) == [True] * 10


def test_async_local_transport_awaits_authorize() -> None:
    """With an async ``authorize``, AsyncLocalTransport runs each verb for Ann but not for Bob."""
    counting = build(authorize=only_ann)

    async def calls(caller: str) -> list[Any]:
        transport, found = AsyncLocalTransport(counting.service, caller=caller), []
        requests = [
            StartRequest(target=START, message=CountRequest()),
            lro.wire.GetOperationRequest("operations/x"),
            lro.wire.ListOperationsRequest(),
            lro.wire.WaitOperationRequest("operations/x"),
            lro.wire.CancelOperationRequest("operations/x"),
            lro.wire.DeleteOperationRequest("operations/x"),
            BatchGetOperationsRequest("", ("operations/x",)),
        ]
        for request in requests:
            try:
                reply = (await transport.send(Call(request=request, budget=1.0))).value
                found.append(Code.OK)
                assert getattr(reply, "missing", ("operations/x",)) == ("operations/x",)
            except CallError as exc:
                found.append(exc.code)
        return found

    missing = Code.NOT_FOUND
    expected = [Code.OK, missing, Code.OK, missing, missing, missing, Code.OK]
    assert asyncio.run(calls("ann")) == expected
    assert asyncio.run(calls("bob")) == [Code.PERMISSION_DENIED] * 7
