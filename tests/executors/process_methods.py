"""Functions that the tests of the process executor run in child processes, which import them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs

from lro import (
    AnyMessage,
    Cancelled,
    Code,
    Empty,
    InvalidArgument,
    Job,
    Retry,
    Service,
    StatusError,
    message,
)
from lro.adapters import Executor, Store
from lro.errors import DeadlineExceeded, EncodingError, LeaseLost, ResourceExhausted, Unavailable
from lro.executors.processes import ProcessExecutor
from lro.logging import operation_facts
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

SOON: Final = timedelta(microseconds=1)
"""The pause before the next attempt."""


@message("acme.v1.Hint")
@attrs.frozen
class Hint:
    """A detail of an error."""

    text: str = ""


class Flaky(Exception):
    """An error that is retried."""


class OddError(StatusError):
    """An error whose details cannot be read."""

    def details(self, domain: str) -> tuple[object, ...]:
        raise ValueError(domain)


def say(request: WorkRequest, text: str) -> None:
    """Write a line to the test's named pipe."""
    with open(str(request.rest["pipe"]), "w") as pipe:
        pipe.write(f"{text}\n")


def hold(request: WorkRequest) -> None:
    """Keep the named pipe open as long as this process, or a process that it forks, lives."""
    kept.append(os.open(str(request.rest["pipe"]), os.O_WRONLY))


kept: Final[list[int]] = []
tries: Final[list[str]] = []


def echo(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse(text=f"{request.text} {request.size}")


HALF: Final = WorkMetadata(percent=50, note="half")


def report_once(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    before = job.metadata
    job.report(HALF)
    return _learnt(job, before)


def stepped(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Run four steps; in the first attempt, the process dies during the third step."""

    def effect(number: int) -> int:
        if (job.attempt, number) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        with open(request.text, "a") as log:
            log.write(f"{number} ")
        return number

    total = sum(job.step(f"step {n}", effect, n) for n in range(3))
    job.checkpoint("message", HALF)
    large = job.step("large", "x".__mul__, 200_000)
    job.checkpoint("far", {"total": total, "long": len(large)})
    with contextlib.suppress(EncodingError):
        job.checkpoint("wrong", (1, 2))
    return WorkResponse(f"{job.checkpointed('far')} {job.checkpointed('message').note}")


async def await_stepped(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    return await asyncio.to_thread(stepped, request, job)


def keep_large(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Store a checkpoint of the requested size; in attempt 1, the process then dies."""
    job.checkpoint("large", "x" * request.size)
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return WorkResponse(str(len(job.checkpointed("large"))))


def _learnt(job: Job[WorkMetadata], before: WorkMetadata | None) -> WorkResponse:
    job.raise_if_cancelled()
    note = "" if before is None else before.note
    return WorkResponse(text=f"{note},{job.attempt},{job.cancel_requested},{job.metadata.note}")


def who_asked(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Return the name of the caller who started the operation."""
    return WorkResponse(text=job.caller)


async def await_who_asked(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse(text=job.caller)


def who(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse(
        text=f"{os.getpid()},{threading.current_thread() is threading.main_thread()}"
    )


def big(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    assert len(request.text) == request.size
    return WorkResponse(text=request.text[::-1])


def lines(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    logging.getLogger("lro").warning("%s: a line of %s", job.name, "the child")
    logging.getLogger("lro").debug("too fine")
    logging.getLogger("lro").warning("half of a character: \udcff")
    logging.getLogger("acme.works").error("a line of %s", "the application")
    logging.getLogger("acme.works").info("below the level of the parent's root logger")
    own = logging.getLogger("acme.own")
    own.addHandler(logging.NullHandler())
    own.error("of a logger that has a handler here")
    return WorkResponse()


def log_afterwards(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    def log_much() -> None:
        for _ in range(300):
            logging.getLogger("acme.works").warning("x" * 2000)
        Path(request.text).touch()

    threading.Thread(target=log_much).start()
    return WorkResponse()


def from_another_thread(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    threads = [
        threading.Thread(target=job.report, args=(WorkMetadata(percent=n),)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.metadata is not None
    return WorkResponse(text=str(len(threads)))


def left_behind(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Start a thread that reports after the function has returned."""
    go = threading.Event()

    def late() -> None:
        go.wait()
        job.report(WorkMetadata(note="late"))

    thread = threading.Thread(target=late, daemon=True)
    thread.start()
    left.append((go, thread))
    return WorkResponse()


left: Final[list[tuple[threading.Event, threading.Thread]]] = []


def now_report(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    go, thread = left.pop()
    go.set()
    thread.join()
    return WorkResponse(text="reported")


def environment(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Return the value of the environment variable that the request names."""
    return WorkResponse(text=os.environ.get(request.text, ""))


SEEN: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("seen", default="")


def context(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Return the context variable's value, and set a new one."""
    before = SEEN.get()
    SEEN.set(f"by {job.name}")
    return WorkResponse(text=before)


async def context_async(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Do the same as ``context`` in a coroutine."""
    return context(request, job)


# -- failures --------------------------------------------------------------------------------------


def fail(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    raise FAILURES[request.rest["how"]]()


def overflow() -> BaseException:
    return overflow()


FAILURES: Final[dict[Any, Callable[[], BaseException]]] = {
    "value": lambda: ValueError("a secret"),
    "status": lambda: StatusError(Code.DATA_LOSS, "gone", (Hint("look there"),), "LOST_IT"),
    "argument": lambda: InvalidArgument("size", "is odd"),
    "exhausted": lambda: ResourceExhausted("no more"),
    "unavailable": lambda: Unavailable(),
    "deadline": lambda: DeadlineExceeded("its own"),
    "cancelled": lambda: Cancelled(),
    "as cancelled": lambda: StatusError(Code.CANCELLED, "in its own words"),
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt(),
    "memory": lambda: MemoryError(),
    "recursion": overflow,
    "task": lambda: asyncio.CancelledError(),
    "odd": lambda: OddError(Code.INTERNAL, "x"),
    "surrogate": lambda: StatusError(Code.DATA_LOSS, "half a pair: \udcff"),
    "detail": lambda: StatusError(
        Code.DATA_LOSS, "gone", (AnyMessage("type.googleapis.com/x.Y", {"a": "\udcff"}),)
    ),
}


def given(request: WorkRequest) -> str:
    """Return the part of the request's ``do`` after the colon."""
    return str(request.rest["do"]).partition(":")[2]


GIVEN: Final[dict[str, Any]] = {
    "wrong class": 5,
    "unencodable": WorkResponse(text=3),  # type: ignore[arg-type]  # deliberately wrong
    "half a pair": WorkResponse(text="\udcff"),
    # A message that is already packed is checked as well.
    "packed": AnyMessage("type.googleapis.com/acme.v1.WorkResponse", {"text": "\udcff"}),
}


def give(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Return a value that is not a valid response."""
    response: WorkResponse = GIVEN[given(request)]
    return response


def report_wrongly(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    wrong: Any = "half"
    job.report(WorkMetadata(note="\udcff") if given(request) == "half a pair" else wrong)
    return WorkResponse()


def flaky(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    tries.append(job.name)
    if tries.count(job.name) < request.size:
        raise Flaky
    return WorkResponse(text=str(tries.count(job.name)))


# -- functions that are stopped --------------------------------------------------------------------


def stopped(request: WorkRequest, error: BaseException) -> WorkResponse:
    """Write the error's class and raise the error, unless ``do`` says finish, fail or die."""
    match given(request):
        case "finish":
            return WorkResponse(text="done")
        case "fail":
            raise InvalidArgument("size", "is odd") from None
        case "die":
            os._exit(1)
    say(request, type(error).__name__)
    raise error


def interrupted(request: WorkRequest, sleep: Callable[[float], object]) -> WorkResponse:
    """Write that the work has begun, and sleep until the work is stopped."""
    try:
        say(request, "begun")
        sleep(3600)
    except (Cancelled, DeadlineExceeded) as exc:
        return stopped(request, exc)
    raise AssertionError


def look(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Sleep with the job's help, until a stop of the work interrupts the sleep."""
    return interrupted(request, job.sleep)


def report_on(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Report repeatedly until a report raises."""
    say(request, "begun")
    while True:
        time.sleep(0.001)
        job.report(WorkMetadata())


def never_look(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Sleep without the job's help, until a signal interrupts the sleep."""
    hold(request)
    return interrupted(request, time.sleep)


def write_on(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Log without a pause, so that the signal probably comes while the child sends a message."""
    say(request, "begun")
    while True:
        logging.getLogger("lro").warning("x" * 100_000)


def stubborn(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Ignore every interrupt, so that only a kill ends the function."""
    hold(request)
    word = "begun"
    while True:
        try:
            say(request, word)
            time.sleep(3600)
        except (Cancelled, DeadlineExceeded):
            word = "no"


# -- functions whose process dies ------------------------------------------------------------------


def exit_at_once(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    os._exit(request.size)


def kill_itself(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    os.kill(os.getpid(), request.size)
    raise AssertionError


def crash(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    ctypes.string_at(0)
    raise AssertionError


def die_once(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    if job.attempt == 1:
        os._exit(1)
    return WorkResponse(text=f"attempt {job.attempt}")


def run_a_program(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Start a program that holds the pipe open, and die before it ends."""
    program = "import os, sys, time; os.open(sys.argv[1], os.O_WRONLY); time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", program, str(request.rest["pipe"])])
    say(request, "begun")
    os._exit(1)


def fork(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Fork a process that leaves the parent's connection alone and ends at SIGTERM."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        logging.getLogger("lro").warning("not for the parent")
        os.close(there)
        while True:
            time.sleep(3600)
    os.close(there)
    os.read(here, 1)  # the forked process has begun
    os.kill(child, signal.SIGTERM)
    return WorkResponse(text=str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def fork_and_die(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    if not os.fork():
        while True:
            time.sleep(3600)
    os._exit(5)


def fork_unnoticed(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Fork without Python's knowledge, so that the new process keeps the connection open."""
    library = ctypes.CDLL(None)
    if not library.fork():
        while True:
            library.pause()
    os._exit(5)


def hang_at_exit(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Leave a thread behind that blocks the interpreter's exit."""
    threading.Thread(target=threading.Event().wait).start()
    return WorkResponse()


def hold_on(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Keep the pipe open while the child waits for more work."""
    hold(request)
    return WorkResponse()


def signals(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
        job.raise_if_cancelled()
    return WorkResponse(text="still here")


def start_more(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    try:
        ProcessExecutor(1).reserve()
    except Unavailable as exc:
        return WorkResponse(text=str(exc))
    raise AssertionError


def settings(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    given = (
        sys.warnoptions,
        sys._xoptions.get("utf8"),
        sys._xoptions.get("no_debug_ranges"),
        sys.argv,
    )
    return WorkResponse(text=" ".join(map(str, (*given, sys.path[0]))))


def lose(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Report until a report raises LeaseLost."""
    say(request, "begun")
    while True:
        try:
            job.report(WorkMetadata())
        except LeaseLost as exc:
            say(request, f"{exc.name} {exc.attempt} {exc.current}")
            raise


def task(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Run the function that the request's ``do`` names."""
    found: WorkResponse = globals()[str(request.rest["do"]).partition(":")[0]](request, job)
    return found


def short(request: WorkRequest) -> WorkResponse:
    """Run without a job."""
    return WorkResponse(text=request.text)


def nothing(request: WorkRequest) -> None:
    """Return no response."""


async def async_task(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Run the function that the request's ``do`` names, and await its result if necessary."""
    found: Any = task(request, job)
    return await found if inspect.isawaitable(found) else found


async def await_on(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Sleep until the ``await`` is cancelled."""
    say(request, "begun")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError as exc:
        return stopped(request, exc)
    raise AssertionError


async def await_never(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Run without an ``await``, so that only a signal interrupts the function."""
    say(request, "begun")
    while True:
        time.sleep(0.001)


async def await_stubbornly(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    hold(request)
    say(request, "begun")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


async def await_report(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    before = job.metadata
    await job.report_async(HALF)
    return _learnt(job, before)


# -- the around hook -------------------------------------------------------------------------------

_noted = "not noted"


@contextlib.contextmanager
def noted(job: Job[Any]) -> Iterator[None]:
    """Set a flag while a function runs inside this hook; swallow an ``Unwelcome`` error."""
    global _noted
    _noted = "noted"
    try:
        yield
    except Unwelcome:
        pass
    finally:
        _noted = "not noted"


class Unwelcome(Exception):
    pass


def known(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Return the facts of the operation, and whether the around hook is active."""
    return WorkResponse(" ".join([*map(str, operation_facts().values()), _noted]))


async def await_known(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    await asyncio.sleep(0)
    return known(request, job)


def flaky_known(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    tries.append(job.name)
    if tries.count(job.name) < 2:
        raise Flaky
    return known(request, job)


def unwelcome(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    raise Unwelcome


async def await_unwelcome(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    raise Unwelcome


def service_of(executor: Executor, store: Store, **options: Any) -> Service:
    """Return a service with methods whose functions child processes can import by name."""
    options = {"maintenance": False, **options}
    service = Service(store, executor, domain="acme.test", **options)
    service.types.register(Hint)
    again: dict[str, Any] = {"retry": Retry(attempts=3, on=Flaky, first_pause=SOON)}
    service.method("acme.v1.Works.Task")(task)
    service.method("acme.v1.Works.Again", **again)(task)
    service.method("acme.v1.Works.AsyncTask")(async_task)
    service.method("acme.v1.Works.Aagain", **again)(async_task)
    service.method("acme.v1.Works.Short", metadata=WorkMetadata)(short)
    service.method("acme.v1.Works.Nothing", metadata=WorkMetadata, response=Empty)(nothing)
    return service
