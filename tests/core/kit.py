"""What the tests of the core share: messages, a virtual event loop, vectors, small helpers."""

from __future__ import annotations

import asyncio
import json
import selectors
import threading
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import attrs

from lro import message
from lro._engine.executor_port import Executor
from lro._engine.service import Service
from lro._messages.schema import Int32
from lro._model.operation import Operation
from lro.testing import ManualClock

T = TypeVar("T")

VECTORS = Path(__file__).parent.parent / "vectors"
PATIENCE = 60.0
"""Seconds after which what should have happened counts as not happening."""


def vectors(file: str) -> dict[str, Any]:
    """The content of a file of test vectors."""
    content: dict[str, Any] = json.loads((VECTORS / f"{file}.json").read_text("utf-8"))
    return content


def by_id(case: Mapping[str, Any]) -> str:
    """The id of a vector, as the id of its test."""
    return str(case["id"])


@message("acme.v1.WorkRequest")
@attrs.frozen
class WorkRequest:
    """A request, with a part of any form."""

    text: str = ""
    size: int = 0
    rest: Mapping[str, object] = attrs.field(factory=dict)


@message("acme.v1.WorkMetadata")
@attrs.frozen
class WorkMetadata:
    """Progress, with every conventional field."""

    percent: Int32 = 0
    note: str = ""
    create_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    expire_time: datetime | None = None
    cancel_requested: bool = False


@message("acme.v1.WorkResponse")
@attrs.frozen
class WorkResponse:
    """A result."""

    text: str = ""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:  # only another thread can make something happen
            return super().select(PATIENCE)
        events = super().select(0)
        if not events:
            self._virtual.now += max(0.0, timeout)
        return events


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, run on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def ended(service: Service, operation: Operation | str) -> Operation:
    """An operation once it is done."""
    name = operation if isinstance(operation, str) else operation.name
    found = service.wait(name, timedelta(seconds=PATIENCE))
    assert found.done, f"{name} has not ended"
    return found


def recovered(service: Service, clock: ManualClock) -> None:
    """Turn a service until it has seen to the leases that are over: that takes two looks."""
    service.run_maintenance()
    clock.advance(1)
    service.run_maintenance()


def unpacked(service: Service, operation: Operation) -> WorkMetadata:
    """The metadata of an operation."""
    assert operation.metadata is not None
    return service.types.unpack(operation.metadata, WorkMetadata)


def answer(service: Service, operation: Operation) -> str:
    """The text of the response of an operation."""
    assert operation.response is not None, operation
    return service.types.unpack(operation.response, WorkResponse).text


def reason(operation: Operation) -> tuple[int, str]:
    """Code and ErrorInfo reason of the error of an operation."""
    assert operation.error is not None, operation
    (info, *_) = operation.error.details
    assert isinstance(info.payload, dict)
    return operation.error.code, str(info.payload["reason"])


def swap(service: Service, executor: Executor) -> None:
    """Give a service another executor."""
    object.__setattr__(service._runtime, "executor", executor)  # all its parts share it


class Step:
    """A function that stops in its midst: ``begun`` is set then, ``go`` lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE), "nobody let the function go on"

    def reached(self) -> None:
        """Return once the function is there."""
        assert self.begun.wait(PATIENCE), "the function has not begun"
