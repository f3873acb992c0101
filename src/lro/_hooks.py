"""Hooks of the application, plain functions or coroutine functions: who asks them, and where.

What asks a hook is a flow: a generator that yields what an event loop must await. So each sequence
is written once, for threads (:func:`run`) and for event loops (:func:`on_loop`), and no thread is
held while a hook is awaited, which may need a thread of the same pool itself.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final, ParamSpec, TypeAlias, TypeVar
from typing import Any as Anything

from lro._arguments import check, check_function, is_coroutine_function
from lro._errors import InvalidArgument, LroError, PermissionDenied
from lro._faults import HookFailed
from lro._scalars import got

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")

Question: TypeAlias = Callable[[], Awaitable[object]]
"""Asks a hook that is a coroutine function."""

Flow: TypeAlias = Generator[Question, Anything, R]
"""Yields questions, is sent their answers, and returns what was wanted."""

_REFUSED: Final = "is refused by the method"


class Hook:
    """A function of the application that decides who may act.

    ``awaited``: it is a coroutine function, which only an event loop can ask.

    Raises:
        DeclarationError: It cannot be called.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        check_function(name, function)
        self.name = name
        self.awaited = is_coroutine_function(function)
        self._function: Callable[..., Anything] = function

    def ask(self, *arguments: object) -> Flow[object]:
        """What the hook returns.

        What it raises passes, but for what would stop a server, such as SystemExit.

        Raises:
            HookFailed: It raised such a thing.
        """
        if self.awaited:
            return (yield functools.partial(self._await, arguments))
        return contained(self.name, self._function, *arguments)

    async def _await(self, arguments: tuple[object, ...]) -> object:
        try:
            return await self._function(*arguments)
        except BaseException as exc:
            # GeneratorExit: the event loop is gone, and with it this coroutine.
            if _passes(exc) or isinstance(exc, GeneratorExit) or _cancelled(exc):
                raise
            raise HookFailed(self.name, _raised(exc)) from exc

    def check_plain(self, where: str) -> None:
        """Do nothing for a plain function.

        Raises:
            DeclarationError: It is a coroutine function, which ``where`` has no event loop for.
        """
        wanted = f"a plain function, since {where} has no event loop that could await it"
        check(self.name, self._function, wanted, fine=not self.awaited)


def contained(name: str, function: Callable[..., R], *arguments: object) -> R:
    """What a function of the application returns.

    Only the function itself is called within: an exception that a signal handler raises elsewhere,
    such as SystemExit, is to end the program.

    Raises:
        HookFailed: It raised what would stop a server.
    """
    try:
        return function(*arguments)
    except BaseException as exc:
        if _passes(exc):
            raise
        raise HookFailed(name, _raised(exc)) from exc


def _mistake(name: str, found: object, wanted: str) -> HookFailed:
    """The error of a hook that returned what it must not return."""
    text = f"must return {wanted}, got {got(found)}"
    if inspect.iscoroutine(found):
        found.close()  # or Python warns that it was never awaited
    return HookFailed(name, text)


def _raised(error: BaseException) -> str:
    return f"raised {type(error).__name__}"


def _passes(error: BaseException) -> bool:
    # Ctrl-C raises KeyboardInterrupt in the main thread, wherever that is.
    interrupted = isinstance(error, KeyboardInterrupt)
    main = threading.current_thread() is threading.main_thread()
    return isinstance(error, Exception) or (interrupted and main)


def _cancelled(error: BaseException) -> bool:
    """Whether the task that awaits a hook is to end; a hook may raise CancelledError by itself."""
    import asyncio

    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())


def ask_caller(hook: Hook, headers: Mapping[str, str]) -> Flow[str]:
    """Who is calling, as ``authenticate`` says; the empty text for None.

    Raises:
        HookFailed: It gives anything else.
    """
    found = yield from hook.ask(headers)
    if found is None:
        return ""
    if issubclass(type(found), str):  # what an object says of its own class may be untrue
        caller: Anything = found
        named: str = caller
        return named
    raise _mistake(hook.name, found, "a text, or None for a caller without a name")


def ask_permission(hook: Hook, caller: str, verb: str, name: str) -> Flow[None]:
    """Do nothing if ``authorize`` allows it: it returns None or True.

    Raises:
        PermissionDenied: It returns False.
        HookFailed: It returns anything else.
    """
    found = yield from hook.ask(caller, verb, name)
    if found is False:
        raise PermissionDenied()
    if found is not None and found is not True:
        raise _mistake(hook.name, found, "None or True to allow, False to forbid")


def ask_validity(validate: Callable[[Anything], object], request: object) -> None:
    """Do nothing if ``validate`` accepts this request: it returns None or True.

    Raises:
        InvalidArgument: It returns False, or raises a ValueError, whose text the caller is told.
        HookFailed: It returns anything else.
        BaseException: What else it raises passes, as for :func:`contained`.
    """
    try:
        found = contained("validate", validate, request)
    except LroError:  # some of these are a ValueError too, and have a code of their own
        raise
    except ValueError as exc:
        raise InvalidArgument("request", str(exc) or _REFUSED) from exc
    if found is False:
        raise InvalidArgument("request", _REFUSED)
    if found is not None and found is not True:
        wanted = "None or True to accept, False to refuse (a ValueError says why)"
        raise _mistake("validate", found, wanted)


def verb(flow: Callable[P, Flow[R]]) -> Callable[P, R]:
    """Make a flow a method that is called in a thread; :func:`flow_of` gives the flow."""

    @functools.wraps(flow)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(flow(*args, **kwargs))

    return call


def flow_of(method: Callable[P, R]) -> Callable[P, Flow[R]]:
    """The flow of a bound method that :func:`verb` has made.

    Raises:
        TypeError: It is not such a method.
    """
    try:
        made: Anything = method
        return functools.partial(made.__wrapped__, made.__self__)
    except AttributeError:
        wanted = "must be a verb of a service, such as service.get"
        raise TypeError(f"{wanted}, got {got(method)}") from None


def run(flow: Flow[R]) -> R:
    """What a flow returns, in this thread.

    Raises:
        HookFailed: It asks a coroutine function, which nothing here can await.
    """
    question, found = _resume(flow, None, None)
    if question is None:
        result: R = found
        return result
    flow.close()
    raise HookFailed("a hook", "is a coroutine function: call this verb by Service.on_loop")


async def on_loop(flow: Flow[R], *, blocks: bool, threads: ThreadPoolExecutor | None = None) -> R:
    """What a flow returns, with its questions awaited by the running event loop.

    ``blocks``: what it does between them is done in ``threads``, by default those of the loop.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    answer: object = None
    error: Exception | None = None
    while True:
        if blocks:
            step = functools.partial(_resume, flow, answer, error)
            in_context = functools.partial(contextvars.copy_context().run, step)
            question, found = await loop.run_in_executor(threads, in_context)
        else:
            question, found = _resume(flow, answer, error)
        if question is None:
            result: R = found
            return result
        try:
            answer, error = await question(), None
        except Exception as exc:
            error = exc


def _resume(
    flow: Flow[Anything], answer: object, error: Exception | None
) -> tuple[Question | None, Anything]:
    """The next question of a flow, or None and what it returns."""
    try:
        return (flow.send(answer) if error is None else flow.throw(error)), None
    except StopIteration as end:
        return None, end.value
