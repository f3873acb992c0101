"""Hooks where there is an event loop: none blocks it, and none outlives its caller."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import grpc

import lro
import lro.asgi
from lro import Code
from lro_client import AsyncLocalTransport, Call, CallError, StartRequest
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
from tests.waiting import PATIENCE

HOOKS = ["authenticate", "authorize"]


def cases_of(edge: str) -> Any:
    """Each verb with each hook; whether it is awaited, and the stores, take turns."""
    return pytest.mark.parametrize(
        ("verb", "hook", "color", "store"),
        [
            (verb, hook, ("plain", "awaited")[(row + column) % 2], [*STORES][row % 2])
            for row, verb in enumerate(VERBS[edge])
            for column, hook in enumerate(HOOKS)
        ],
        indirect=["store"],
    )


class Gate:
    """A hook that holds the caller "slow" until the test opens it, and lets others pass."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.left = threading.Event()
        self._opened = threading.Event()

    def plain(self, caller: str) -> None:
        """Blocks the thread that asks."""
        if caller == "slow":
            self.entered.set()
            assert self._opened.wait(PATIENCE)

    async def awaited(self, caller: str) -> None:
        """Blocks nothing."""
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
        """The two hooks, one of which is this gate."""

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
    """The caller, of headers or as it is named."""
    found: str = who if isinstance(who, str) else who["x-caller"]
    return found


def counting_with(store: Any, hooks: dict[str, Any]) -> tuple[CountService, str]:
    """A counting service over a store, and the name of an operation in it, which is over."""
    before = build(store)
    name = before.start()
    before.finish(name)
    return build(store, authorize=hooks.get("authorize")), name


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty store, in memory if the test does not say another."""
    return STORES[getattr(request, "param", "memory")](tmp_path)


@cases_of("asgi")
def test_asgi_answers_second_caller_while_hook_blocks(
    verb: str, hook: str, color: str, store: Any
) -> None:
    """A hook that takes long holds its own caller, not the event loop."""
    gate = Gate()
    hooks = gate.hooks(hook, color)
    counting, name = counting_with(store, hooks)
    app = asgi_app(counting, authenticate=hooks["authenticate"])

    async def calls() -> None:
        first = asyncio.ensure_future(ask_asgi(app, verb, name, "slow"))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        second = await ask_asgi(app, "GetOperation", name, "quick")
        assert second.code is Code.OK
        assert not first.done()
        gate.open()
        assert (await first).code is Code.OK

    with counting.service:
        asyncio.run(calls())


@pytest.mark.parametrize("verb", ["ListOperations", "BatchGetOperations", "DescribeOperations"])
def test_hooks_that_block_hold_no_thread_that_makes_replies(verb: str, store: Any) -> None:
    """More slow callers than there are such threads do not hold up another one."""
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


@cases_of("grpc.aio")
def test_grpc_asyncio_answers_second_caller_while_hook_blocks(
    verb: str, hook: str, color: str, store: Any
) -> None:
    """A hook that takes long holds its own caller, not the event loop."""
    gate = Gate()
    hooks = gate.hooks(hook, color)
    counting, name = counting_with(store, hooks)
    with (
        counting.service,
        serving("asyncio", counting.service, authenticate=hooks["authenticate"]) as address,
        grpc.insecure_channel(address) as channel,
    ):
        path, message = grpc_request(verb, name)
        one: Any = channel.unary_unary(path)
        first = one.future(message, metadata=[("x-caller", "slow")], timeout=PATIENCE)
        assert gate.entered.wait(PATIENCE)
        path, message = grpc_request("GetOperation", name)
        other: Any = channel.unary_unary(path)
        other(message, metadata=[("x-caller", "quick")], timeout=PATIENCE)
        assert not first.done()
        gate.open()
        first.result(PATIENCE)


@pytest.fixture
def quick_collector() -> Iterator[None]:
    """Keep all that there is from the garbage collector, which then looks at what is new."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quick_collector")
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("verb", VERBS["asgi"])
def test_asgi_caller_cancelled_during_async_hook_leaves_nothing(
    verb: str, hook: str, store: Any
) -> None:
    """The hook is cancelled with its call; no task stays, and the verb is not done.

    Only a server that stops cancels a call; its caller gets UNAVAILABLE.
    """
    gate = Gate()
    hooks = gate.hooks(hook, "awaited")
    counting, name = counting_with(store, hooks)
    app = asgi_app(counting, authenticate=hooks["authenticate"])
    record = store.get(name)

    async def calls() -> None:
        call = asyncio.ensure_future(ask_asgi(app, verb, name, "slow"))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        call.cancel()
        assert (await call).code is lro.Code.UNAVAILABLE
        assert gate.left.is_set()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with counting.service:
        asyncio.run(calls())
        gc.collect()  # a coroutine that was never awaited warns, and warnings are errors
        assert store.get(name) == record
        assert (counting.service.waiting, counting.service.watching) == (0, 0)


def test_asgi_wait_of_caller_who_leaves_during_async_authorize_ends(store: Any) -> None:
    """Wait listens for the end of the connection while the hook is awaited (spec §4.8)."""
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


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("verb", VERBS["grpc.aio"])
def test_grpc_caller_who_cancels_during_async_hook_ends_it(
    verb: str, hook: str, store: Any
) -> None:
    """The hook is cancelled with its caller, and the verb is not done."""
    gate = Gate()
    hooks = gate.hooks(hook, "awaited")
    counting, name = counting_with(store, hooks)
    record = store.get(name)
    with (
        counting.service,
        serving("asyncio", counting.service, authenticate=hooks["authenticate"]) as address,
        grpc.insecure_channel(address) as channel,
    ):
        path, message = grpc_request(verb, name)
        one: Any = channel.unary_unary(path)
        call = one.future(message, metadata=[("x-caller", "slow")], timeout=PATIENCE)
        assert gate.entered.wait(PATIENCE)
        call.cancel()
        assert gate.left.wait(PATIENCE)
        assert store.get(name) == record


@pytest.mark.parametrize("then", ["awaits", "returns"])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("edge", ["asgi", "grpc.aio"])
def test_hook_that_cancels_its_own_task_fails_its_own_call(
    edge: str, hook: str, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets INTERNAL, not that the server stops; the next one is answered."""
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


def test_authorize_sees_what_async_authenticate_has_set() -> None:
    """An async hook sets context variables for the rest of its call, and of no other."""
    seen = []

    async def authenticate(headers: Mapping[str, str]) -> str:
        assert WHO.get("unset") == "unset"
        WHO.set(headers["x-caller"])
        return ""

    def authorize(caller: str, verb: str, name: str) -> None:
        seen.append(WHO.get())

    counting, name = counting_with(STORES["memory"](Path()), {"authorize": authorize})
    app = asgi_app(counting, authenticate=authenticate)

    with counting.service, asyncio.Runner() as runner:
        for caller in ("ann", "bob"):
            runner.run(ask_asgi(app, "GetOperation", name, caller), context=contextvars.Context())
    assert seen == ["ann", "bob"]


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
@pytest.mark.parametrize("verb", VERBS["asgi"])
def test_hook_sees_context_variables_of_request(verb: str, kind: str, store: Any) -> None:
    """What a middleware has set is there, in whatever thread the hook is asked."""
    seen: list[str] = []
    hook = KINDS[kind](lambda *_: seen.append(WHO.get()))
    counting, name = counting_with(store, {"authorize": hook})
    app = asgi_app(counting, authenticate=hook)

    async def middleware(*arguments: Any) -> None:
        WHO.set("the request's")
        await app(*arguments)

    with counting.service:
        assert asyncio.run(ask_asgi(middleware, verb, name)).code is Code.OK
    assert seen == ["the request's"] * 2


@attrs.define
class Uvicorn:
    """A running uvicorn, whose application a test sets, and a client of it."""

    client: httpx.Client
    app: Any = None


@pytest.fixture(scope="module")
def uvicorn() -> Iterator[Uvicorn]:
    """One server for many tests: its start and stop take longer than they do."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await served.app(scope, receive, send)

    with (
        uvicorn_serving(app, lifespan="off") as port,
        httpx.Client(base_url=f"http://{HOST}:{port}", timeout=PATIENCE) as client,
    ):
        served = Uvicorn(client)
        yield served


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("kind", ["function", "coroutine function", "async object"])
@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, BaseException])
def test_uvicorn_outlives_hook_that_raises_base_exception(
    error: type[BaseException], kind: str, hook: str, uvicorn: Uvicorn
) -> None:
    """The caller gets INTERNAL, and the next one is answered, by one server for all cases."""
    bad = True

    def act(*_: Any) -> Any:
        if bad:
            raise error("s3cret")
        return None

    hooks = {hook: KINDS[kind](act)}
    counting = build(authorize=hooks.get("authorize"))
    uvicorn.app = asgi_app(counting, authenticate=hooks.get("authenticate"))
    with counting.service:
        for method, path in [("GET", "/v1/operations"), ("POST", "/v1/count")]:
            reply = uvicorn.client.request(method, path)
            assert (reply.status_code, "s3cret" in reply.text) == (500, False)
            assert answer_of(reply.status_code, reply.content).code is Code.INTERNAL
        bad = False
        assert uvicorn.client.get("/v1/operations").status_code == 200


# -- the service, called by coroutines ---------------------------------------------------------


async def only_ann(caller: str, verb: str, name: str) -> bool:
    """Allows one caller."""
    await asyncio.sleep(0)
    return caller == "ann"


@pytest.mark.parametrize("color", ["plain", "awaited"])
def test_verbs_on_loop_ask_hooks_of_both_kinds(color: str, store: Any) -> None:
    """Their async forms do what the verbs do, and await what must be awaited."""

    def plain(caller: str, verb: str, name: str) -> bool:
        return caller == "ann"

    counting = build(store, authorize=plain if color == "plain" else only_ann)
    service = counting.service

    async def calls(caller: str) -> None:
        request = CountRequest()
        started = await counting.count.start_async(request, caller=caller)
        named = await service.start_async(START, request, caller=caller)
        assert await service.get_async(started.name, caller=caller) == started.operation
        wanted = lro.ListOperationsRequest()
        page = await service.list_async(wanted, caller=caller)
        assert {one.name for one in page.operations} == {started.name, named.name}
        batch = await service.batch_get_async([named.name], caller=caller)
        assert batch.operations == (named,)
        described = await service.describe_many_async([named.name], caller=caller)
        assert (await service.describe_async(named.name, caller=caller)).operation == named
        assert [one.method for one in described.descriptions] == [START]
        await service.cancel_async(named.name, caller=caller)
        await service.delete_async(named.name, caller=caller)
        assert await service.wait_async(started.name, 0.0, caller=caller) == started.operation
        watching = await service.watch([named.name], caller=caller)
        assert [one async for one in watching] == [lro.MissingOperation(named.name)]

    async def refused(name: str) -> None:
        for verb in ("get", "cancel", "delete", "batch_get", "describe", "describe_many"):
            wanted: Any = [name] if verb in ("batch_get", "describe_many") else name
            with pytest.raises(lro.errors.PermissionDenied):
                await getattr(service, f"{verb}_async")(wanted, caller="bob")
        with pytest.raises(lro.errors.PermissionDenied):
            await service.list_async(lro.ListOperationsRequest(), caller="bob")
        with pytest.raises(lro.errors.PermissionDenied):
            await counting.count.start_async(CountRequest(), caller="bob")
        with pytest.raises(lro.errors.PermissionDenied):
            await service.wait_async(name, 0.0, caller="bob")
        with pytest.raises(lro.errors.NameRefused, match=name):
            await service.watch([name], caller="bob")

    with service:
        asyncio.run(calls("ann"))
        asyncio.run(refused("operations/x"))


def test_async_authorize_of_a_batch_names_what_it_refuses() -> None:
    """It is asked for each name in turn, and the error says which was refused."""
    asked = []

    async def authorize(caller: str, verb: str, name: str) -> bool:
        asked.append((verb, name))
        return name != "operations/c"

    service = build(authorize=authorize).service
    names = [f"operations/{letter}" for letter in "abcd"]
    with pytest.raises(lro.errors.NameRefused) as caught:
        asyncio.run(service.batch_get_async(names))
    assert caught.value.name == "operations/c"
    assert asked == [("GetOperation", name) for name in names[:3]]


def test_async_local_transport_awaits_authorize() -> None:
    """Each verb is done for the caller who may, and refused to the other."""
    counting = build(authorize=only_ann)

    async def calls(caller: str) -> list[Any]:
        transport, found = AsyncLocalTransport(counting.service, caller=caller), []
        requests = [
            StartRequest(target=START, message=CountRequest()),
            lro.GetOperationRequest("operations/x"),
            lro.ListOperationsRequest(),
            lro.WaitOperationRequest("operations/x"),
            lro.CancelOperationRequest("operations/x"),
            lro.DeleteOperationRequest("operations/x"),
        ]
        for request in requests:
            try:
                await transport.send(Call(request=request, budget=1.0))
                found.append(Code.OK)
            except CallError as exc:
                found.append(exc.code)
        return found

    missing = Code.NOT_FOUND
    expected = [Code.OK, missing, Code.OK, missing, missing, missing]
    assert asyncio.run(calls("ann")) == expected
    assert asyncio.run(calls("bob")) == [Code.PERMISSION_DENIED] * 6
