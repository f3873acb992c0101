"""Flows: the steps of verbs, attempts and exchanges with callers, for threads and event loops.

A flow is a generator. It yields each step that may have to wait: a question to a hook, a call that
may block, a write to a store, a wait for an operation. Each flow is written once, and two drivers
can take its steps: :func:`run` in a thread, and :func:`on_loop` on an event loop, without occupying
a thread.

On an event loop, writes are queued in the store, and threads make the calls that may block. One
wake-up of the loop can bring many answers. If the task that awaits an answer is cancelled, or its
loop ends, a thread finishes the flow, provided that the flow has begun to write.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Final, ParamSpec, TypeAlias, TypeVar

from lro._base.errors import HookFailed, OperationNotFound
from lro._engine.process import PerProcess
from lro._engine.store_port import Done, Inserted, RequestKey, Store, settle
from lro._model.operation import MAX_NAMES, Change, Record

if TYPE_CHECKING:  # only event loops need asyncio, and not every process has one
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger("lro")

P = ParamSpec("P")
R = TypeVar("R")

Continuation: TypeAlias = Done[Any]
"""Continues a flow with the answer or the error of its last step; a thread calls this."""


class FlowStep(ABC):
    """A step of a flow: a thread calls :meth:`take`, an event loop awaits :meth:`take_async`."""

    blocks: bool = True
    """False if the step takes so little time that an event loop, too, calls :meth:`take`."""

    writes: bool = False
    """True for a write to a store, and for a step of a flow that has written without a step.

    After such a step, a flow runs to its end, even without a caller.
    """

    outlives_caller: ClassVar[bool] = False
    """True if a thread can take the step, and go on, after the caller has gone away."""

    @abstractmethod
    def take(self) -> Any:
        """Take the step in this thread."""

    @abstractmethod
    def take_async(self) -> Awaitable[Any]:
        """Take the step for the running event loop."""

    def continue_with(self, then: Continuation) -> None:
        """Have a thread call ``then`` when this step has ended, because no task awaits the step.

        Call this only for a step that :attr:`outlives_caller`, after :meth:`take_async`.
        """
        raise NotImplementedError


class Question(FlowStep):
    """Await the hook of this name, which is a coroutine function of the application."""

    def __init__(self, hook: str, ask: Callable[[], Awaitable[object]]) -> None:
        self._hook = hook
        self._ask = ask

    def take(self) -> object:
        """Refuse the question.

        Raises:
            HookFailed: Always: a thread cannot await the hook.
        """
        text = "is a coroutine function, which only an event loop can await: call the async verbs"
        raise HookFailed(self._hook, text)

    def take_async(self) -> Awaitable[object]:
        """Ask the hook."""
        return self._ask()


class _HandedOver(FlowStep):
    """A step that a store or a thread takes for an event loop, which then gets the answer."""

    outlives_caller = True
    _future: asyncio.Future[Any]
    _results: _Results
    _over: tuple[Any, BaseException | None] | None = None
    _then: Continuation | None = None

    @abstractmethod
    def hand_in(self, done: Done[Any]) -> None:
        """Hand the step to a store or a thread, which calls ``done`` with the answer."""

    def take_async(self) -> Awaitable[Any]:
        """Hand the step in, and return the future of its answer."""
        import asyncio

        loop = asyncio.get_running_loop()
        self._results = _results_for(loop)
        self._future = future = loop.create_future()
        self.hand_in(self)
        return future

    def __call__(self, answer: Any, error: BaseException | None) -> None:
        """Receive the answer or the error. Any thread may call this."""
        # The tuple is made before the lock is taken. Its allocation may start a garbage collection,
        # which may close the waiting task. The task then calls continue_with(), which takes the
        # same lock.
        over = answer, error
        with self._results.lock:
            self._over, then = over, self._then
        if then is None:
            self._results.add(self)
        else:
            CONTINUATIONS.run_soon(then, answer, error)

    def settle(self) -> None:
        """Give the answer to the task that awaits it. Only the loop calls this."""
        assert self._over is not None  # the step has ended
        answer, error = self._over
        if self._future.done():
            return  # the task was cancelled
        if error is None:
            self._future.set_result(answer)
        else:
            self._future.set_exception(error)

    def continue_with(self, then: Continuation) -> None:
        """Have a thread call ``then`` when there is an answer, because no task awaits it now."""
        with self._results.lock:
            self._then, over = then, self._over
        if over is not None:
            if self._future.done() and not self._future.cancelled():
                self._future.exception()  # else asyncio warns about an error never retrieved
            CONTINUATIONS.run_soon(then, *over)


class MayBlock(_HandedOver):
    """Call a function that may block, such as a plain function of the application."""

    def __init__(
        self, function: Callable[[], object], *, blocks: bool = True, writes: bool = False
    ) -> None:
        self._function = function
        self.blocks = blocks
        self.writes = writes

    def take(self) -> object:
        """Call the function in this thread."""
        return self._function()

    def hand_in(self, done: Done[Any]) -> None:
        """Have a thread of the running loop call the function."""
        import asyncio

        call = functools.partial(settle, _in_context(self._function), done)
        try:
            asyncio.get_running_loop().run_in_executor(None, call)
        except RuntimeError:  # no thread can be started, as at the end of the interpreter
            call()


class Pause(FlowStep):
    """Wait for a number of seconds."""

    outlives_caller = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def take(self) -> None:
        """Block this thread for this number of seconds."""
        time.sleep(self.seconds)

    async def take_async(self) -> None:
        """Sleep for this number of seconds, while other tasks of the running loop go on."""
        import asyncio

        await asyncio.sleep(self.seconds)

    def continue_with(self, then: Continuation) -> None:
        """Go on without the rest of the pause."""
        CONTINUATIONS.run_soon(then, None, None)


class Write(_HandedOver):
    """A write to a store. Once it is handed in, its flow runs to the end, even without a caller."""

    writes = True
    store: Store


class InsertWrite(Write):
    """Call ``Store.insert``."""

    def __init__(self, store: Store, record: Record, request: Any, key: RequestKey | None) -> None:
        self.store = store
        self.blocks: bool = store.writes_block
        self._record = record
        self._request = request
        self._key = key

    def take(self) -> Inserted:
        """Insert the record, and wait until the insert is committed."""
        return self.store.insert(self._record, self._request, self._key)

    def hand_in(self, done: Done[Inserted]) -> None:
        """Queue the insert."""
        self.store.insert_later(self._record, self._request, self._key, done)


class UpdateWrite(Write):
    """Call ``Store.update``."""

    def __init__(self, store: Store, name: str, change: Change) -> None:
        self.store = store
        self.blocks: bool = store.writes_block
        self._name = name
        self._change = change

    def take(self) -> Record | None:
        """Update the record, and wait until the update is committed."""
        return self.store.update(self._name, self._change)

    def hand_in(self, done: Done[Record | None]) -> None:
        """Queue the update."""
        self.store.update_later(self._name, self._change, done)


class CheckpointWrite(Write):
    """Call ``Store.checkpoint``."""

    def __init__(self, store: Store, name: str, attempt: int, key: str, value: Any) -> None:
        self.store = store
        self.blocks: bool = store.writes_block
        self._kept = name, attempt, key, value

    def take(self) -> None:
        """Store the value, and wait until the checkpoint is committed."""
        self.store.checkpoint(*self._kept)

    def hand_in(self, done: Done[None]) -> None:
        """Queue the checkpoint."""
        self.store.checkpoint_later(*self._kept, done)


class Read(FlowStep):
    """Call ``Store.get``. An event loop combines simultaneous reads into one ``Store.find``."""

    outlives_caller = True

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.blocks: bool = store.reads_block

    def take(self) -> Record:
        """Read the record."""
        return self.store.get(self.name)

    def take_async(self) -> Awaitable[Record]:
        """Have a thread read the record, together with the records of other reads."""
        return read_on_loop(self.store, self.name)

    def continue_with(self, then: Continuation) -> None:
        """Read the record once more, in the thread that finishes the flow."""
        CONTINUATIONS.run_soon(lambda *_: settle(self.take, then), None, None)


Flow: TypeAlias = Generator[FlowStep, Any, R]
"""A generator that yields steps, is sent the answer to each step, and returns a result."""


class InThreads(FlowStep):
    """Follow a flow, which may take long, in ``threads``.

    An event loop awaits only the flow's questions to hooks. Without ``threads``, the threads of the
    running loop follow the flow; a caller in a thread follows the flow itself.
    """

    def __init__(self, flow: Flow[Any], threads: ThreadPoolExecutor | None = None) -> None:
        self.flow = flow
        self._threads = threads

    def take(self) -> Any:
        """Follow the flow, and wait until it has ended."""
        if self._threads is None:
            return run(self.flow)
        context = contextvars.copy_context()
        return self._threads.submit(context.run, run, self.flow).result()

    def take_async(self) -> Awaitable[Any]:
        """Have threads follow the flow."""
        return in_threads(self.flow, self._threads)


def read(store: Store, name: str) -> Flow[Record]:
    """Read a record. An event loop does this without a thread if the store's reads do not block.

    Raises:
        OperationNotFound: There is no such record.
    """
    record: Record = yield Read(store, name)
    return record


def only(step: FlowStep) -> Flow[Any]:
    """Take one step, and return its answer."""
    return (yield step)


def blocking(flow: Callable[P, Flow[R]]) -> Callable[P, R]:
    """Turn a method that returns a flow into a method that follows the flow in the calling thread.

    :func:`flow_of` returns the original method.
    """

    @functools.wraps(flow)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(flow(*args, **kwargs))

    return call


def flow_of(method: Callable[P, R]) -> Callable[P, Flow[R]]:
    """Return the method that returns the flow, given the method that :func:`blocking` made."""
    made: Any = method
    return functools.partial(made.__wrapped__, made.__self__)


def run(flow: Flow[R]) -> R:
    """Follow a flow in this thread, and return its result."""
    result: R = _advance(flow, None, None)[1]
    return result


def run_or_leave(flow: Flow[Any], later: Callable[[Callable[[], None]], None]) -> bool:
    """Follow a flow in this thread, unless one of its writes would wait for other writes.

    Such a write is handed in. When it has ended, ``later`` is called with a function, which follows
    the rest of the flow in the thread that calls it.

    Returns:
        True if the rest is left to ``later``.
    """
    step, _ = _advance(flow, None, None, _would_wait)
    if not isinstance(step, Write):
        return False
    _hand_in(step, lambda answer, error: later(lambda: _finish(flow, answer, error)))
    return True


def _finish(flow: Flow[Any], answer: object, error: BaseException | None) -> None:
    _advance(flow, answer, error)


def _at_question(step: FlowStep) -> bool:
    return isinstance(step, Question)


def _at_slow_write(step: FlowStep) -> bool:
    return isinstance(step, Write) and step.blocks


def _would_wait(step: FlowStep) -> bool:
    return isinstance(step, Write) and getattr(step.store, "writes_wait", False)


def _without_caller(step: FlowStep) -> bool:
    return not step.outlives_caller


def _advance(
    flow: Flow[Any],
    answer: object,
    error: BaseException | None,
    until: Callable[[FlowStep], bool] | None = None,
) -> tuple[FlowStep | None, Any]:
    """Follow the flow in this thread to its end, or to a step for which ``until`` is true.

    Return that step and None, or, at the end of the flow, None and the result.
    """
    try:
        step = flow.send(answer) if error is None else flow.throw(error)
        while until is None or not until(step):
            try:
                answer = step.take()
            except BaseException as exc:
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
            answer = None  # a large answer is not kept while the next step is taken
        return step, None
    except StopIteration as end:
        return None, end.value


def run_all(flows: Sequence[Flow[R]]) -> list[R | BaseException]:
    """Follow these flows in this thread; return the result or the error of each.

    A flow that has handed in a write waits for it while the other flows go on, so that the store
    can commit their writes together.
    """
    over: SimpleQueue[tuple[int, object, BaseException | None]] = SimpleQueue()
    found: dict[int, R | BaseException] = {}

    def go_on(place: int, answer: object, error: BaseException | None) -> None:
        try:
            step, result = _advance(flows[place], answer, error, _at_slow_write)
            if isinstance(step, Write):
                _hand_in(step, lambda answer, error: over.put((place, answer, error)))
            else:
                found[place] = result
        except Exception as exc:
            found[place] = exc

    for place in range(len(flows)):
        go_on(place, None, None)
    while len(found) < len(flows):
        go_on(*over.get())
    return [found[place] for place in range(len(flows))]


def _hand_in(write: Write, done: Done[Any]) -> None:
    try:
        write.hand_in(done)
    except Exception as exc:  # the store refuses the write at once
        done(None, exc)


async def in_threads(flow: Flow[R], threads: ThreadPoolExecutor | None = None) -> R:
    """Follow a flow, which may take long, in ``threads``; return its result.

    The running event loop awaits the flow's questions to hooks. By default, the threads of that
    loop are used.
    """
    answer: object = None
    error: BaseException | None = None
    while True:
        step = functools.partial(_advance, flow, answer, error, _at_question)
        question, found = await in_thread(step, threads)
        if question is None:
            result: R = found
            return result
        try:
            answer, error = await question.take_async(), None
        except Exception as exc:
            answer, error = None, exc


def in_thread(
    action: Callable[[], R], threads: ThreadPoolExecutor | None = None
) -> asyncio.Future[R]:
    """Call a function, which may block, in ``threads``, by default those of the running loop."""
    import asyncio

    loop, action = asyncio.get_running_loop(), _in_context(action)
    try:
        return loop.run_in_executor(threads, action)
    except RuntimeError:  # no thread can be started, as at the end of the interpreter
        done: asyncio.Future[R] = loop.create_future()
        try:
            done.set_result(action())
        except BaseException as exc:
            done.set_exception(exc)
        return done


def _in_context(action: Callable[[], R]) -> Callable[[], R]:
    """Return a function that runs the action in any thread, with the current context variables."""
    context = contextvars.copy_context()

    def act() -> R:
        try:
            return context.run(action)
        except StopIteration as exc:  # a future cannot hold this error, and its task would not wake
            raise RuntimeError("a function has raised StopIteration") from exc

    return act


async def on_loop(flow: Flow[R]) -> R:
    """Follow a flow on the running event loop, and return its result.

    If the task that awaits this is cancelled during a write or after a write, a thread runs the
    rest of the flow, up to a step that cannot outlive its caller. If the task is cancelled before
    any write, the flow is closed, and the rest of the flow never runs.
    """
    written = False
    try:
        step = flow.send(None)
        while True:
            try:
                written = written or step.writes
                answer = (await step.take_async()) if step.blocks else step.take()
            except BaseException as exc:
                if step.blocks and _gone(exc):  # only an awaited step can be cancelled
                    _caller_left(flow, step, written=written)
                    raise
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
                answer = None  # a large answer is not kept while the next step is taken
    except StopIteration as end:
        result: R = end.value
        return result


def _gone(error: BaseException) -> bool:
    """Return True for the error of a task that was cancelled, or was closed with its loop."""
    import asyncio

    return isinstance(error, asyncio.CancelledError | GeneratorExit)


def _caller_left(flow: Flow[Any], step: FlowStep, *, written: bool) -> None:
    """Have a thread finish the flow after this step if the flow has ``written``; else close it.

    The flow is also closed at a step that cannot outlive its caller.
    """

    def then(answer: object, error: BaseException | None) -> None:
        if _advance(flow, answer, error, _without_caller)[0] is not None:
            flow.close()

    if written and step.outlives_caller:
        step.continue_with(then)
    else:
        flow.close()


_Asked: TypeAlias = "tuple[str, asyncio.Future[Record]]"

_Answers: TypeAlias = tuple[Mapping[str, Record], Collection[str]]
"""Records by name, and the names that the next call of the store must read."""


class _LoopReads:
    """Reads records of one store for the coroutines of one loop.

    One thread reads at a time. The next call of the store reads all names that were requested
    meanwhile. No task is used, because a program that ends cancels all its tasks, and may still
    read after that.
    """

    def __init__(self, store: Store, delay: float) -> None:
        self._store = store
        self._delay = delay
        self._asked: list[_Asked] = []
        self._reading = False

    def get(self, name: str) -> asyncio.Future[Record]:
        """Request a read of a record; return its future."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Record] = loop.create_future()
        self._asked.append((name, future))
        if not self._reading:
            self._reading = True
            # Until then, other coroutines may ask, too.
            if self._delay:
                loop.call_later(self._delay, self._read_next)
            else:
                loop.call_soon(self._read_next)
        return future

    def _read_next(self) -> None:
        wanted = [one for one in self._asked if not one[1].done()]
        asked, self._asked = wanted[:MAX_NAMES], wanted[MAX_NAMES:]
        self._reading = bool(asked)
        if asked:
            names = list(dict.fromkeys(name for name, _ in asked))
            read = in_thread(functools.partial(_read_together, self._store, names))
            read.add_done_callback(functools.partial(self._answer, asked))

    def _answer(self, asked: Sequence[_Asked], read: asyncio.Future[_Answers]) -> None:
        if read.cancelled():  # the owner of the threads has shut them down
            for _, future in asked:
                future.cancel()
        elif (error := read.exception()) is not None:
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
        else:
            self._asked[:0] = _left(asked, *read.result())
        self._read_next()


def _read_together(store: Store, names: Sequence[str]) -> _Answers:
    if len(names) > 1:
        found = store.find(names)
        return {record.name: record for record in found.records}, frozenset(found.rest)
    try:
        return {names[0]: store.get(names[0])}, ()
    except OperationNotFound:
        return {}, ()


def _left(
    asked: Sequence[_Asked], records: Mapping[str, Record], rest: Collection[str]
) -> Sequence[_Asked]:
    """Answer these reads; return the reads that are left for the next call of the store."""
    for name, future in asked:
        if future.done() or name in rest:
            continue  # the task was cancelled, or the next call reads this name
        if name in records:
            future.set_result(records[name])
        else:
            future.set_exception(OperationNotFound(name))
    return [one for one in asked if one[0] in rest]


_reads: Final[
    weakref.WeakKeyDictionary[
        asyncio.AbstractEventLoop, weakref.WeakValueDictionary[tuple[int, float], _LoopReads]
    ]
] = weakref.WeakKeyDictionary()
"""The readers of each loop, by ``id(store)`` and delay.

The references to readers are weak, so that a reader, which refers to its loop, does not keep the
loop alive. Only its pending reads keep a reader alive.
"""


def read_on_loop(store: Store, name: str, delay: float = 0) -> asyncio.Future[Record]:
    """Have a thread read a record for the running loop; return the future of the record.

    Names that are requested at the same time, or within ``delay`` seconds, are read by one
    ``Store.find``. A name whose future is done by then is not read.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    of_loop = _reads.get(loop)
    if of_loop is None:
        of_loop = _reads[loop] = weakref.WeakValueDictionary()
    key = id(store), delay
    reads = of_loop.get(key)
    if reads is None:
        reads = of_loop[key] = _LoopReads(store, delay)
    return reads.get(name)


class _Results:
    """Holds finished steps until their loop gives the answers to its tasks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # All steps of the loop share this lock. A step holds the lock for two assignments.
        self.lock = threading.Lock()
        self._loop = weakref.ref(loop)
        self._waiting: deque[_HandedOver] = deque()
        self._called = False

    def add(self, step: _HandedOver) -> None:
        """Add a step that has ended, and wake the loop if need be. Any thread may call this."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            self._waiting.clear()  # threads finish the loop's flows: continue_with()
            return
        self._waiting.append(step)
        if self._called:
            return
        self._called = True
        with contextlib.suppress(RuntimeError):  # the loop was closed just now
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._called = False  # set first: a step that is added from now on wakes the loop
        while self._waiting:
            self._waiting.popleft().settle()


_results: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Results]]] = (
    weakref.WeakKeyDictionary()
)
"""The finished steps of each loop.

The references to the values are weak, because a value holds steps, which refer to the loop. Each
step that was handed over for the loop keeps the value alive.
"""


def _results_for(loop: asyncio.AbstractEventLoop) -> _Results:
    known = _results.get(loop)
    found = None if known is None else known()
    if found is None:  # no lock: only the thread of the loop asks for its results
        found = _Results(loop)
        _results[loop] = weakref.ref(found)
    return found


_MOST_CONTINUED: Final = 16
"""Maximum number of threads that finish flows whose callers have gone away."""


class _ContinuationThreads(PerProcess):
    """Threads that finish flows whose callers have gone away.

    A step of such a flow may take long, and must not hold up other flows. So each flow that finds
    no idle thread gets a new one, up to ``_MOST_CONTINUED`` threads.
    """

    def __init__(self) -> None:
        self._due: SimpleQueue[tuple[Continuation, Any, BaseException | None]] = SimpleQueue()
        # Re-entrant: a garbage collection under the lock may close a coroutine, which adds a flow.
        self._lock = threading.RLock()
        self._threads = 0
        self._unclaimed = 0
        """The number of idle threads, less the number of flows in the queue."""

    def run_soon(self, then: Continuation, answer: Any, error: BaseException | None) -> None:
        """Call ``then`` soon in a thread of this object.

        If no thread can start, as at the end of the interpreter, call ``then`` here.
        """
        self._due.put((then, answer, error))
        with self._lock:
            self._unclaimed -= 1
            if self._unclaimed >= 0 or self._threads >= _MOST_CONTINUED:
                return
            self._threads += 1
            self._unclaimed += 1
        thread = threading.Thread(
            target=self._live, args=(self._due,), name="lro-continuations", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                self._unclaimed -= 1
            while not self._due.empty():
                self._run(*self._due.get())

    def _live(self, due: SimpleQueue[tuple[Continuation, Any, BaseException | None]]) -> None:
        while True:
            self._run(*due.get())

    def _run(self, then: Continuation, answer: Any, error: BaseException | None) -> None:
        try:
            then(answer, error)
        except BaseException as exc:
            log.info("a call whose caller had gone away has failed: %s", exc)
        finally:
            with self._lock:
                self._unclaimed += 1


CONTINUATIONS: Final = _ContinuationThreads()
