"""Flows: what a verb or an attempt does, step by step, in a thread or on an event loop.

A flow is a generator. It yields each step that may have to wait: a question to a hook, a call that
may block, a write to the store, a pause. A thread takes the steps itself. An event loop awaits
them, and no thread is held meanwhile. So each sequence is written once.

A loop hands writes in to a store, and calls that may block to threads; one wake-up brings it many
answers. If the task that awaits an answer goes away, or its loop ends, a thread does the rest.
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
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeGuard, TypeVar

from lro._base.errors import HookFailed, OperationNotFound
from lro._engine.process import PerProcess
from lro._engine.store_port import Done, Inserted, RequestKey, Store, settle
from lro._model.operation import MAX_NAMES, Change, Record

if TYPE_CHECKING:  # asyncio is needed on loops alone, which not every process has
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger("lro")

P = ParamSpec("P")
R = TypeVar("R")


class Question:
    """A step: await a coroutine function of the application, the hook of this name."""

    def __init__(self, hook: str, ask: Callable[[], Awaitable[object]]) -> None:
        self.hook = hook
        self.ask = ask


class MayBlock:
    """A step: call a function that may block, such as a plain function of the application.

    ``blocks``: whether it may do so here; if not, a loop calls it as well.
    """

    def __init__(self, function: Callable[[], object], *, blocks: bool = True) -> None:
        self.here = function
        self.blocks = blocks


class Pause:
    """A step: let this number of seconds pass."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def here(self) -> None:
        """Hold up this thread."""
        time.sleep(self.seconds)

    async def wait(self) -> None:
        """Let other tasks of the running loop go on meanwhile."""
        import asyncio

        await asyncio.sleep(self.seconds)


class Write(ABC):
    """A step: write to a store. What is handed in is made use of, even if the caller goes away."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.blocks = store.writes_block

    @abstractmethod
    def here(self) -> object:
        """Write, and wait until that is committed."""

    @abstractmethod
    def hand_in(self, done: Done[Any]) -> None:
        """Have the store write, and call ``done`` when that is over."""


class InsertWrite(Write):
    """A step: ``Store.insert``."""

    def __init__(self, store: Store, record: Record, request: Any, key: RequestKey | None) -> None:
        super().__init__(store)
        self._record = record
        self._request = request
        self._key = key

    def here(self) -> Inserted:
        """Insert the record, and wait until that is committed."""
        return self.store.insert(self._record, self._request, self._key)

    def hand_in(self, done: Done[Inserted]) -> None:
        """Have the record inserted."""
        self.store.insert_later(self._record, self._request, self._key, done)


class UpdateWrite(Write):
    """A step: ``Store.update``."""

    def __init__(self, store: Store, name: str, change: Change) -> None:
        super().__init__(store)
        self._name = name
        self._change = change

    def here(self) -> Record | None:
        """Update the record, and wait until that is committed."""
        return self.store.update(self._name, self._change)

    def hand_in(self, done: Done[Record | None]) -> None:
        """Have the record updated."""
        self.store.update_later(self._name, self._change, done)


class CheckpointWrite(Write):
    """A step: ``Store.checkpoint``."""

    def __init__(self, store: Store, name: str, attempt: int, key: str, value: Any) -> None:
        super().__init__(store)
        self._kept = name, attempt, key, value

    def here(self) -> None:
        """Keep the value, and wait until that is committed."""
        self.store.checkpoint(*self._kept)

    def hand_in(self, done: Done[None]) -> None:
        """Have the value kept."""
        self.store.checkpoint_later(*self._kept, done)


class Read:
    """A step: ``Store.get``. Those that a loop takes at once are made by one ``Store.find``."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.blocks = store.reads_block

    def here(self) -> Record:
        """Read the record."""
        return self.store.get(self.name)


Step: TypeAlias = Question | MayBlock | Pause | Write | Read

Flow: TypeAlias = Generator[Step, Any, R]
"""Yields steps, is sent what comes of each, and returns what was wanted."""


def read(store: Store, name: str) -> Flow[Record]:
    """``Store.get``, for which nothing waits where that does not block.

    Raises:
        OperationNotFound: There is no such record.
    """
    record: Record = yield Read(store, name)
    return record


def only(step: Step) -> Flow[Any]:
    """Take one step, and return what comes of it."""
    return (yield step)


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
    question, found = _advance(flow, None, None)
    if question is None:
        result: R = found
        return result
    raise _unanswered(question, flow)


def _unanswered(question: Step, flow: Flow[Any]) -> HookFailed:
    """Close a flow that asks what cannot be answered in a thread."""
    flow.close()
    assert isinstance(question, Question)
    text = "is a coroutine function, which only an event loop can await: call the async verbs"
    return HookFailed(question.hook, text)


def _asks(step: Step) -> TypeGuard[Question]:
    return isinstance(step, Question)


def _asks_or_hands_in(step: Step) -> bool:
    return _asks(step) or (isinstance(step, Write) and step.blocks)


def _advance(
    flow: Flow[Any],
    answer: object,
    error: BaseException | None,
    until: Callable[[Step], bool] = _asks,
) -> tuple[Step | None, Any]:
    """The next step of a flow ``until`` which it goes on here; or None and its result."""
    try:
        step = flow.send(answer) if error is None else flow.throw(error)
        while not until(step):
            assert not isinstance(step, Question)  # which is not for a thread to answer
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

    def go_on(place: int, answer: object, error: BaseException | None) -> None:
        try:
            step, result = _advance(flows[place], answer, error, _asks_or_hands_in)
            if isinstance(step, Write):
                _hand_in(step, lambda answer, error: over.put((place, answer, error)))
            elif step is not None:
                raise _unanswered(step, flows[place])
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
    except Exception as exc:  # refused at once
        done(None, exc)


async def in_threads(flow: Flow[R], threads: ThreadPoolExecutor | None = None) -> R:
    """What a flow returns that takes long: all but its questions is done in ``threads``.

    By default these are the threads of the running event loop, which awaits the questions.
    """
    answer: object = None
    error: BaseException | None = None
    while True:
        step = functools.partial(_advance, flow, answer, error)
        question, found = await in_thread(step, threads)
        if question is None:
            result: R = found
            return result
        assert isinstance(question, Question)
        try:
            answer, error = await question.ask(), None
        except Exception as exc:
            answer, error = None, exc


async def in_thread(action: Callable[[], R], threads: ThreadPoolExecutor | None = None) -> R:
    """Call what may block in one of these threads, by default those of the running loop."""
    return await _begun_in_thread(action, threads)


def _begun_in_thread(
    action: Callable[[], R], threads: ThreadPoolExecutor | None = None
) -> asyncio.Future[R]:
    """What comes of a call in one of these threads."""
    import asyncio

    loop, action = asyncio.get_running_loop(), _in_context(action)
    try:
        return loop.run_in_executor(threads, action)
    except RuntimeError:  # no thread is to be had, as at the end of the interpreter
        done: asyncio.Future[R] = loop.create_future()
        try:
            done.set_result(action())
        except BaseException as exc:
            done.set_exception(exc)
        return done


def _in_context(action: Callable[[], R]) -> Callable[[], R]:
    """Make what a thread calls act in the context of this task."""
    context = contextvars.copy_context()

    def act() -> R:
        try:
            return context.run(action)
        except StopIteration as exc:  # which a future cannot carry: no task would be woken
            raise RuntimeError("a function has raised StopIteration") from exc

    return act


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
                if isinstance(step, Question):
                    answer = await step.ask()
                elif isinstance(step, Pause):
                    await step.wait()
                    answer = None
                elif not step.blocks:
                    answer = step.here()
                elif isinstance(step, Read):
                    answer = await read_on_loop(step.store, step.name)
                else:
                    receipt = _handed_over(step)
                    answer = await receipt.future
            except BaseException as exc:
                if _gone(exc):
                    if written:
                        _go_on_aside(flow, step, receipt)
                    else:
                        flow.close()
                    raise
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: R = end.value
        return result


_Asked: TypeAlias = "tuple[str, asyncio.Future[Record]]"

_Answers: TypeAlias = tuple[Mapping[str, Record], Collection[str]]
"""Records by name, and the names that are left for the next call of the store."""


class _LoopReads:
    """Reads records of one store for the coroutines of one loop.

    One thread reads at a time. What is asked for meanwhile is read together, next. No task of the
    loop does this: programs cancel all tasks when they end, and then read in what tidies up.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: list[_Asked] = []
        self._reading = False

    def get(self, name: str) -> asyncio.Future[Record]:
        """Have a record read."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Record] = loop.create_future()
        self._asked.append((name, future))
        if not self._reading:
            self._reading = True
            loop.call_soon(self._read_next)  # with those that are asked for until then
        return future

    def _read_next(self) -> None:
        wanted = [one for one in self._asked if not one[1].done()]
        asked, self._asked = wanted[:MAX_NAMES], wanted[MAX_NAMES:]
        self._reading = bool(asked)
        if asked:
            names = list(dict.fromkeys(name for name, _ in asked))
            read = _begun_in_thread(functools.partial(_read_together, self._store, names))
            read.add_done_callback(functools.partial(self._answer, asked))

    def _answer(self, asked: Sequence[_Asked], read: asyncio.Future[_Answers]) -> None:
        if read.cancelled():  # by the owner of the threads, which will never read it
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
    """Answer these reads; return those that are left for the next call of the store."""
    for name, future in asked:
        if future.done() or name in rest:
            continue  # its task was cancelled, or it is read next
        if name in records:
            future.set_result(records[name])
        else:
            future.set_exception(OperationNotFound(name))
    return [one for one in asked if one[0] in rest]


_reads: Final[
    weakref.WeakKeyDictionary[
        asyncio.AbstractEventLoop, weakref.WeakValueDictionary[int, _LoopReads]
    ]
] = weakref.WeakKeyDictionary()
"""By the identity of a store. Only reads that are under way hold them: they refer to the loop."""


def read_on_loop(store: Store, name: str) -> asyncio.Future[Record]:
    """``Store.get`` for the running loop, where that may block; made with others in a thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    of_loop = _reads.get(loop)
    if of_loop is None:
        of_loop = _reads[loop] = weakref.WeakValueDictionary()
    reads = of_loop.get(id(store))
    if reads is None:
        reads = of_loop[id(store)] = _LoopReads(store)
    return reads.get(name)


def _handed_over(step: Write | MayBlock) -> Receipt:
    """Hand a write in to its store, or have a thread of the running loop call what may block."""
    receipt = Receipt()
    if isinstance(step, Write):
        step.hand_in(receipt.done)
        return receipt
    call = functools.partial(settle, _in_context(step.here), receipt.done)
    try:
        receipt.loop.run_in_executor(None, call)
    except RuntimeError:  # no thread is to be had, as at the end of the interpreter
        call()
    return receipt


def _gone(error: BaseException) -> bool:
    """Whether the task was cancelled, or is closed with its loop."""
    import asyncio

    return isinstance(error, asyncio.CancelledError | GeneratorExit)


def _go_on_aside(flow: Flow[Any], step: Step, receipt: Receipt | None) -> None:
    """Have a thread do the rest of a flow, when what it waits for is over."""

    def rest(answer: object, error: BaseException | None) -> None:
        question, _ = _advance(flow, answer, error)
        if question is not None:
            raise _unanswered(question, flow)

    if receipt is not None:
        receipt.carry_on(rest)
    elif isinstance(step, Read):
        RESTS.do(lambda *_: settle(step.here, rest), None, None)
    else:  # it was pausing
        RESTS.do(rest, None, None)


Rest: TypeAlias = Callable[[Any, BaseException | None], object]
"""Does what is left to be done with an answer, or an error; in a thread, where it may block."""


class Receipt:
    """What comes of one write or call, for the event loop that runs where this is made."""

    __slots__ = ("_over", "_rest", "_results", "future", "loop")

    def __init__(self) -> None:
        import asyncio

        self.loop = loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._over: tuple[Any, BaseException | None] | None = None
        self._rest: Rest | None = None
        self._results = _results_for(loop)

    def done(self, answer: Any, error: BaseException | None) -> None:
        """Take the answer or the error. In any thread."""
        over = answer, error  # made before: to collect garbage may close the task that awaits this
        with self._results.lock:
            self._over, rest = over, self._rest
        if rest is None:
            self._results.add(self)
        else:
            RESTS.do(rest, answer, error)

    def settle(self) -> None:
        """Give the answer to the task that awaits it. On the loop."""
        assert self._over is not None  # it is done
        answer, error = self._over
        if self.future.done():
            return  # that task was cancelled
        if error is None:
            self.future.set_result(answer)
        else:
            self.future.set_exception(error)

    def carry_on(self, rest: Rest) -> None:
        """Have a thread do the rest when there is an answer: no task awaits it any more."""
        with self._results.lock:
            self._rest, over = rest, self._over
        if over is not None:
            if self.future.done() and not self.future.cancelled():
                self.future.exception()  # or asyncio reports that it was never asked for
            RESTS.do(rest, *over)


class _Results:
    """Receipts that are done, until the thread of their loop takes note of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Shared by all receipts of the loop, each of which holds it for two assignments.
        self.lock = threading.Lock()
        self._loop = weakref.ref(loop)
        self._waiting: deque[Receipt] = deque()
        self._called = False

    def add(self, receipt: Receipt) -> None:
        """Add one, and wake the loop unless it is being woken already. In any thread."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            self._waiting.clear()  # what is left of its tasks goes on without it: see carry_on()
            return
        self._waiting.append(receipt)
        if self._called:
            return
        self._called = True
        with contextlib.suppress(RuntimeError):  # it has been closed just now
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._called = False  # first: what comes from now on wakes the loop again
        while self._waiting:
            self._waiting.popleft().settle()


_results: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Results]]] = (
    weakref.WeakKeyDictionary()
)
"""Only receipts hold them: they refer to futures, and so to the loop itself."""


def _results_for(loop: asyncio.AbstractEventLoop) -> _Results:
    known = _results.get(loop)
    found = None if known is None else known()
    if found is None:  # only the thread of the loop asks for those of a loop
        found = _Results(loop)
        _results[loop] = weakref.ref(found)
    return found


class _RestThread(PerProcess):
    """A thread that does the rest of calls whose callers have gone away, one after the other."""

    def __init__(self) -> None:
        self._due: SimpleQueue[tuple[Rest, Any, BaseException | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, rest: Rest, answer: Any, error: BaseException | None) -> None:
        """Do it soon; at the end of the interpreter, which starts no thread, do it here."""
        self._due.put((rest, answer, error))
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(
                target=self._live, args=(self._due,), name="lro-rest", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                self._do_all(self._due)
            else:
                self._thread = thread

    def _live(self, due: SimpleQueue[tuple[Rest, Any, BaseException | None]]) -> None:
        while True:
            self._do(*due.get())

    def _do_all(self, due: SimpleQueue[tuple[Rest, Any, BaseException | None]]) -> None:
        while not due.empty():
            self._do(*due.get())

    def _do(self, rest: Rest, answer: Any, error: BaseException | None) -> None:
        try:
            rest(answer, error)
        except BaseException as exc:
            log.info("a call whose caller had gone away has failed: %s", exc)


RESTS: Final = _RestThread()
