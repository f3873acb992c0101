"""Flows: what a verb or an attempt does, step by step, in a thread or on an event loop.

A flow is a generator. It yields each step that may have to wait: a question to a hook, a call that
may block, a write to the store, a pause. A thread takes the steps itself. An event loop awaits
them, and no thread is held meanwhile. So each sequence is written once.
"""

from __future__ import annotations

import contextvars
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from lro._base.errors import HookFailed
from lro._engine.store_port import Done, Inserted, RequestKey, Store
from lro._model.operation import Change, Record

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from lro._engine.loop_writes import Receipt

P = ParamSpec("P")
R = TypeVar("R")


class Question:
    """A step: await a coroutine function of the application, the hook of this name."""

    def __init__(self, hook: str, ask: Callable[[], Awaitable[object]]) -> None:
        self.hook = hook
        self.ask = ask


class MayBlock:
    """A step: call a function that may block, such as a plain function of the application."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.here = function


class Pause:
    """A step: let this number of seconds pass."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def here(self) -> None:
        """Hold up this thread."""
        time.sleep(self.seconds)


class Write(ABC):
    """A step: write to a store. What is handed in is made use of, even if the caller goes away."""

    store: Store

    @abstractmethod
    def here(self) -> object:
        """Write, and wait until that is committed."""

    @abstractmethod
    def hand_in(self, done: Done[Any]) -> None:
        """Have the store write, and call ``done`` when that is over."""


class InsertWrite(Write):
    """A step: ``Store.insert``."""

    def __init__(self, store: Store, record: Record, request: Any, key: RequestKey | None) -> None:
        self.store = store
        self._what = record, request, key

    def here(self) -> Inserted:
        """Insert the record, and wait until that is committed."""
        return self.store.insert(*self._what)

    def hand_in(self, done: Done[Inserted]) -> None:
        """Have the record inserted."""
        self.store.insert_later(*self._what, done)


class UpdateWrite(Write):
    """A step: ``Store.update``."""

    def __init__(self, store: Store, name: str, change: Change) -> None:
        self.store = store
        self._name = name
        self._change = change

    def here(self) -> Record | None:
        """Update the record, and wait until that is committed."""
        return self.store.update(self._name, self._change)

    def hand_in(self, done: Done[Record | None]) -> None:
        """Have the record updated."""
        self.store.update_later(self._name, self._change, done)


Step: TypeAlias = Question | MayBlock | Pause | Write

Flow: TypeAlias = Generator[Step, Any, R]
"""Yields steps, is sent what comes of each, and returns what was wanted."""


def read(store: Store, name: str) -> Flow[Record]:
    """``Store.get``, for which nothing waits where that does not block.

    Raises:
        OperationNotFound: There is no such record.
    """
    if not store.reads_block:
        return store.get(name)
    record: Record = yield MayBlock(functools.partial(store.get, name))
    return record


def verb(flow: Callable[P, Flow[R]]) -> Callable[P, R]:
    """Make a flow a method that is called in a thread; :func:`flow_of` gives the flow."""

    @functools.wraps(flow)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(flow(*args, **kwargs))

    return call


def flow_of(method: Callable[P, R]) -> Callable[P, Flow[R]]:
    """The flow of a bound method that :func:`verb` has made."""
    made: Any = method
    return functools.partial(made.__wrapped__, made.__self__)


def run(flow: Flow[R]) -> R:
    """What a flow returns, its steps taken in this thread.

    Raises:
        HookFailed: It asks a coroutine function, which nothing here can await.
    """
    question, found = _until_asked(flow, None, None)
    if question is None:
        result: R = found
        return result
    flow.close()
    raise _unanswerable(question)


def _unanswerable(question: Question) -> HookFailed:
    text = "is a coroutine function, which only an event loop can await: call the async verbs"
    return HookFailed(question.hook, text)


def _until_asked(
    flow: Flow[Any], answer: object, error: BaseException | None
) -> tuple[Question | None, Any]:
    """The next question of a flow, its other steps being taken here; or None and its result."""
    try:
        step = flow.send(answer) if error is None else flow.throw(error)
        while not isinstance(step, Question):
            try:
                answer = step.here()
            except BaseException as exc:
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
        return step, None
    except StopIteration as end:
        return None, end.value


def run_all(flows: Sequence[Flow[R]]) -> list[R | BaseException]:
    """What each of these flows returns or raises, in this thread; their writes share groups.

    A flow that has handed in a write waits for it while the others go on.
    """
    over: SimpleQueue[tuple[int, object, BaseException | None]] = SimpleQueue()
    found: dict[int, R | BaseException] = {}
    for place, flow in enumerate(flows):
        _go_on(flow, None, None, place, over, found)
    while len(found) < len(flows):
        place, answer, error = over.get()
        _go_on(flows[place], answer, error, place, over, found)
    return [found[place] for place in range(len(flows))]


def _go_on(
    flow: Flow[R],
    answer: object,
    error: BaseException | None,
    place: int,
    over: SimpleQueue[tuple[int, object, BaseException | None]],
    found: dict[int, R | BaseException],
) -> None:
    """Go on with a flow until it waits for a write, or is over."""
    try:
        step = flow.send(answer) if error is None else flow.throw(error)
        while True:
            try:
                if isinstance(step, Write) and step.store.writes_block:
                    step.hand_in(lambda answer, error: over.put((place, answer, error)))
                    return
                if isinstance(step, Question):
                    raise _unanswerable(step)
                answer = step.here()
            except Exception as exc:
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        found[place] = end.value
    except Exception as exc:
        found[place] = exc


async def in_threads(flow: Flow[R], threads: ThreadPoolExecutor | None = None) -> R:
    """What a flow returns that takes long: all but its questions is done in ``threads``.

    By default these are the threads of the running event loop, which awaits the questions.
    """
    answer: object = None
    error: BaseException | None = None
    while True:
        step = functools.partial(_until_asked, flow, answer, error)
        question, found = await in_thread(step, threads)
        if question is None:
            result: R = found
            return result
        try:
            answer, error = await question.ask(), None
        except Exception as exc:
            answer, error = None, exc


async def in_thread(action: Callable[[], R], threads: ThreadPoolExecutor | None = None) -> R:
    """Call what may block in one of these threads, by default those of the running loop."""
    import asyncio

    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    try:
        done = loop.run_in_executor(threads, lambda: context.run(lambda: _called(action)))
    except RuntimeError:  # no thread is to be had, as at the end of the interpreter
        return _called(action)
    return await done


def _called(action: Callable[[], R]) -> R:
    try:
        return action()
    except StopIteration as exc:  # which a future cannot carry: no task would be woken
        raise RuntimeError("a function has raised StopIteration") from exc


async def on_loop(flow: Flow[R]) -> R:
    """What a flow returns, its steps awaited by the running event loop.

    If the task that awaits this is cancelled during a write or after one, a thread goes on with the
    flow, so that what was written is made use of; before that, the flow is closed.
    """
    written = False
    try:
        step = flow.send(None)
        while True:
            receipt: Receipt | None = None
            try:
                written = written or isinstance(step, Write)
                if isinstance(step, Write) and not step.store.writes_block:
                    answer = step.here()
                elif isinstance(step, Write | MayBlock):
                    receipt = _handed_over(step)
                    answer = await receipt.future
                else:
                    answer = await _taken(step)
            except BaseException as exc:
                if _gone(exc):
                    if written:
                        _go_on_aside(flow, receipt)
                    else:
                        flow.close()
                    raise
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: R = end.value
        return result


def _handed_over(step: Write | MayBlock) -> Receipt:
    """Hand a write in to its store, or have a thread of the running loop call what may block."""
    from lro._engine.loop_writes import Receipt  # needs asyncio, which not every process imports

    receipt = Receipt()
    if isinstance(step, Write):
        step.hand_in(receipt.done)
    else:
        _call_aside(step.here, receipt)
    return receipt


def _call_aside(action: Callable[[], object], receipt: Receipt) -> None:
    """Call what may block in a thread of the running loop, in the context of this task."""
    import asyncio

    loop, context = asyncio.get_running_loop(), contextvars.copy_context()

    def act() -> None:
        try:
            answer = context.run(_called, action)
        except BaseException as exc:
            receipt.done(None, exc)
        else:
            receipt.done(answer, None)

    try:
        loop.run_in_executor(None, act)
    except RuntimeError:  # no thread is to be had, as at the end of the interpreter
        act()


def _gone(error: BaseException) -> bool:
    """Whether the task was cancelled, or is closed with its loop."""
    import asyncio

    return isinstance(error, asyncio.CancelledError | GeneratorExit)


def _go_on_aside(flow: Flow[Any], receipt: Receipt | None) -> None:
    """Have a thread do the rest of a flow, when what it waits for is over."""

    def rest(answer: object, error: BaseException | None) -> None:
        question, _ = _until_asked(flow, answer, error)
        if question is not None:
            flow.close()
            raise _unanswerable(question)

    if receipt is not None:
        receipt.carry_on(rest)
        return
    from lro._engine.loop_writes import RESTS

    RESTS.do(rest, None, None)  # it was pausing


async def _taken(step: Question | Pause) -> object:
    if isinstance(step, Question):
        return await step.ask()
    import asyncio

    await asyncio.sleep(step.seconds)
    return None
