"""Steps: what an edge wants done while it answers, and the two drivers that do it.

An exchange is a generator of steps that returns the reply, so that each sequence is written once;
:func:`drive` obeys it in a thread, :func:`adrive` on an event loop.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import attrs

from lro._base.errors import StreamsNotSupported
from lro._engine.access import Flow, Hook, ask_caller, flow_of, on_loop, run
from lro._engine.service import Service
from lro._http.responses import EventStream, HttpReply
from lro._model.operation import Operation, WaitOperationRequest


@attrs.frozen
class Call:
    """A step: follow this flow; ``blocks`` says that an event loop must not do it itself.

    ``many``: it makes a reply of many operations, for which there are few threads.
    """

    flow: Flow[object]
    blocks: bool
    many: bool = False


@attrs.frozen
class Wait:
    """A step: wait for an operation, as ``Service.wait`` and ``Service.wait_async`` take it."""

    request: WaitOperationRequest
    deadline_seconds: float | None
    caller: str


@attrs.frozen
class Watch:
    """A step: watch operations, as ``Service.watch`` takes it. Only an event loop can."""

    names: tuple[str, ...]
    caller: str


@attrs.frozen
class Reserve:
    """A step: set bytes aside for a reply, as ``ByteBudget.take`` and ``atake`` take it."""

    least: int
    most: int


Step: TypeAlias = Call | Wait | Watch | Reserve

R = TypeVar("R")

Steps: TypeAlias = Generator[Step, Any, R]
"""Gives steps, and at last what the caller is answered."""
Exchange: TypeAlias = Steps[HttpReply | EventStream]


def identify(hook: Hook | None, headers: Mapping[str, str]) -> Generator[Call, Any, str]:
    """Steps that give the caller, as the hook ``authenticate`` says; the empty text without one."""
    if hook is None:
        return ""
    caller: str = yield Call(ask_caller(hook, headers), blocks=not hook.awaited)
    return caller


def get_operation(service: Service, name: str, caller: str) -> Generator[Call, Any, Operation]:
    """Steps that give an operation as it is now; none where nothing blocks and nothing is asked."""
    if service.access.immediate:
        return service.get(name, caller=caller)
    flow = flow_of(service.get)(name, caller=caller)
    operation: Operation = yield Call(flow, service.access.reads_block)
    return operation


def drive(exchange: Steps[R], service: Service) -> R:
    """Obey an exchange in this thread."""

    def act(step: Step) -> object:
        if isinstance(step, Call):
            if step.many:
                context = contextvars.copy_context()
                return service.replies.threads.submit(context.run, run, step.flow).result()
            return run(step.flow)
        if isinstance(step, Reserve):
            return service.replies.take(step.least, step.most)
        if isinstance(step, Watch):
            raise StreamsNotSupported("WatchOperations")
        service.end_waits_at_signals()
        return service.wait(
            step.request.name,
            step.request.timeout,
            deadline_seconds=step.deadline_seconds,
            caller=step.caller,
        )

    try:
        step = next(exchange)
        while True:
            try:
                result = act(step)
            except Exception as exc:
                step = exchange.throw(exc)
            else:
                step = exchange.send(result)
    except StopIteration as end:
        reply: R = end.value
        return reply


async def adrive(
    exchange: Steps[R], service: Service, hold: Callable[[Awaitable[Operation]], Awaitable[object]]
) -> R:
    """Obey an exchange on the running event loop; ``hold`` awaits a wait, or gives it up."""

    async def act(step: Step) -> object:
        if isinstance(step, Call):
            threads = service.replies.threads if step.many else None
            return await on_loop(step.flow, blocks=step.blocks, threads=threads)
        if isinstance(step, Reserve):
            return await service.replies.atake(step.least, step.most)
        service.end_waits_at_signals()
        if isinstance(step, Watch):
            return await service.watch(step.names, caller=step.caller)
        return await hold(
            service.wait_async(
                step.request.name,
                step.request.timeout,
                deadline_seconds=step.deadline_seconds,
                caller=step.caller,
            )
        )

    try:
        step = next(exchange)
        while True:
            try:
                result = await act(step)
            except Exception as exc:
                step = exchange.throw(exc)
            else:
                step = exchange.send(result)
    except StopIteration as end:
        reply: R = end.value
        return reply
