"""The child process: it receives function calls from its parent, and runs them one by one."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import enum
import functools
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from lro._base.errors import Cancelled, DeadlineExceeded, EncodingError, LeaseLost
from lro._base.status import AnyMessage, Status
from lro._engine.attempt import failure
from lro._engine.events import about
from lro._engine.flow import Flow, MayBlock
from lro._engine.job import Checkpoints, FinalResult, JobControl
from lro._engine.method_spec import MethodSpec
from lro._engine.process import PerProcess, mark_worker_process
from lro._engine.telemetry import ParentTrace
from lro.executors.processes._function_reference import MainFailed, resolve
from lro.executors.processes._messages import (
    AttemptReplaced,
    Done,
    Failed,
    FinalMessage,
    FromChild,
    FunctionNotFound,
    Keep,
    LoadCheckpoints,
    LogLine,
    Ready,
    Report,
    Request,
    RequestAnswer,
    RunFunction,
    Shutdown,
    Stop,
    Stopped,
    StopReason,
    encode,
    refusal_error,
    to_child,
)

log = logging.getLogger("lro")


class NotResolved(Exception):
    """The function cannot be imported, or its request cannot be read; the cause says why."""


class CallInChild:
    """One call of a function.

    The order of its methods is ``returned``, then ``done`` or ``failed``, then ``finish``.
    The listening thread creates this object and calls :meth:`stop` and :meth:`answered`; the main
    thread calls the other methods.
    """

    def __init__(self, call: RunFunction, send: Callable[[FromChild], None]) -> None:
        self.call = call
        self.why: StopReason | None = None
        """Why the call must stop; None as long as it may continue."""
        self._send = send
        self._spec: MethodSpec | None = None
        self._interrupt: Callable[[], None] | None = None
        self._reporting = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: SimpleQueue[RequestAnswer] = SimpleQueue()
        self._finished = False
        self._control = JobControl(
            name=call.name,
            method=call.reference.method,
            caller=call.caller,
            attempt=call.attempt,
            publish=self._publish,
            recall=self._recall,
            clock=time.monotonic,
            stop_at=call.stop_at,
            domain=call.domain,
            remember=self._remembered,
        )
        if call.trace_context:
            self._control.trace = ParentTrace(call.trace_context)

    # -- by the listening thread --------------------------------------------------------------

    def stop(self, why: StopReason) -> None:
        """Stop the function at its next check, or at its next ``await``."""
        self.why = why
        if why is StopReason.ASKED:  # the job itself notices a time limit
            self._control.stop()
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def answered(self, answer: RequestAnswer) -> None:
        """Pass an answer to the request that waits for it."""
        self._answers.put(answer)

    # -- by the main thread -------------------------------------------------------------------

    def returned(self) -> object:
        """Call the function.

        Raises:
            NotResolved: The function could not be called.
            BaseException: The function raised this.
        """
        try:
            spec = self._spec = resolve(self.call.reference)
            self._control.awaits = spec.is_async
            request: object = spec.types.unpack(self.call.request, spec.request)
        except BaseException as exc:  # importing the application may raise anything
            raise NotResolved(self.call.name) from exc
        function: Any = spec.function
        arguments = (request, self._control.job) if spec.takes_job else (request,)
        with self._control:
            if spec.is_async:
                return asyncio.run(self._awaited(spec, arguments))
            with spec.surroundings(self._control.job):
                return function(*arguments)

    def done(self, returned: object) -> Done:
        """Return the last message after the function returned.

        Raises:
            EncodingError: The result cannot be encoded, or is not a response of the method.
        """
        assert self._spec is not None  # otherwise the function was not called
        return Done(self._spec.pack_response(returned))

    def failed(self, error: BaseException) -> FinalMessage:
        """Return the last message after an error."""
        spec = self._spec
        if spec is None or isinstance(error, NotResolved):
            return self._unprepared(error)
        if isinstance(error, Cancelled):
            return Stopped(StopReason.ASKED)
        if isinstance(error, LeaseLost):
            return AttemptReplaced(error.current)
        if spec.is_async and self.why is StopReason.OVERDUE:
            return Stopped(StopReason.OVERDUE)
        if isinstance(error, asyncio.CancelledError) and self.why is not None:
            return Stopped(self.why)
        outcome = failure(spec, self.call.domain, self._control, error)
        assert isinstance(outcome, FinalResult)  # the other classes of errors are handled above
        assert isinstance(outcome.result, Status)
        return Failed(outcome.result, outcome.failure)

    def finish(self, last: FinalMessage) -> None:
        """Send the last message; no report follows it.

        If the message cannot be encoded, send a message that reports this error instead.
        """
        with self._reporting:
            self._finished = True
            try:
                self._send(last)
            except EncodingError as exc:
                self._send(self.failed(exc))

    def _unprepared(self, error: BaseException) -> FinalMessage:
        if self.why is not None:
            return Stopped(self.why)
        name, method = self.call.name, self.call.reference.method
        line, facts = "%s: %s cannot be run in this process", about(name, method, self.call.attempt)
        log.error(line, name, method, exc_info=error.__cause__, extra=facts)
        return FunctionNotFound(in_main=isinstance(error.__cause__, MainFailed))

    async def _awaited(self, spec: MethodSpec, arguments: tuple[object, ...]) -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the function has ended
                loop.call_soon_threadsafe(task.cancel)

        self._interrupt = interrupt
        function: Any = spec.function
        try:
            if self.why is not None:  # the request to stop came before the task existed
                raise self.why.error()
            with spec.surroundings(self._control.job):
                return await function(*arguments)
        finally:
            self._interrupt = None

    def _recall(self, _: object) -> object:
        if self._spec is None:
            return None
        return self._spec.unpack_metadata(self.call.metadata)

    def _publish(self, _: JobControl, metadata: object) -> Flow[None]:
        yield MayBlock(functools.partial(self._send_report, metadata))

    def _send_report(self, metadata: object) -> None:
        assert self._spec is not None  # set before the function got the job
        self._ask(Report, self._spec.pack_metadata(metadata))

    def _remembered(self, control: JobControl) -> Checkpoints:
        assert self._spec is not None  # set before the function got the job
        load = self._load if control.attempt > 1 else None
        return Checkpoints(self._spec.types, self._spec.limits, self._keep, load)

    def _keep(self, key: str, value: AnyMessage) -> Flow[None]:
        yield MayBlock(functools.partial(self._ask, Keep, key, value))

    def _load(self) -> Flow[Mapping[str, AnyMessage]]:
        answer: RequestAnswer = yield MayBlock(functools.partial(self._ask, LoadCheckpoints))
        return answer.checkpoints

    def _ask(self, request: Callable[..., Request], *facts: object) -> RequestAnswer:
        """Send a request with the next number, and wait for its answer.

        Raises:
            LroError: The request is refused.
        """
        with self._reporting:
            number = next(self._numbers)
            if self._finished:  # the function has ended, but not its thread
                return RequestAnswer(number)
            self._send(request(number, *facts))
            answer = self._answers.get()
            while answer.number != number:  # answers to interrupted requests
                answer = self._answers.get()
        if answer.refusal is not None:
            raise refusal_error(answer.refusal, self.call.name, self.call.attempt)
        return answer


def main(connection: Connection, level: int) -> None:
    """Run the calls received on a connection, until the parent ends this process.

    ``level`` is the level of the parent's root logger. When the parent has ended, this process and
    the processes that it started are killed.
    """
    mark_worker_process()
    child = ChildMain(connection, _kill_group)
    signal.signal(signal.SIGINT, _ignore_signal)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, child.interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for logger in (log, logging.getLogger()):
        logger.addHandler(child.forwarding)
    logging.getLogger().setLevel(level)
    log.propagate = False
    threading.Thread(target=child.listen, name="lro-listen", daemon=True).start()
    child.work()


class Shield(enum.Enum):
    """Protects a message that the main thread is sending from exceptions of signal handlers."""

    DOWN = "down"
    UP = "up"
    """The main thread is sending a message, and a signal must wait."""
    STRUCK = "struck"
    """A signal has arrived, and is handled once the message is sent."""


class ChildMain(PerProcess):
    """Runs the calls one by one in the main thread, while another thread listens."""

    def __init__(self, connection: Connection, on_parent_lost: Callable[[], None]) -> None:
        self.forwarding = _Forwarding(self._log)
        """Sends log lines to the parent."""
        self._connection = connection
        self._on_parent_lost = on_parent_lost
        self._attempts: SimpleQueue[CallInChild | None] = SimpleQueue()
        self._sending = threading.Lock()
        self._main = threading.get_ident()
        self._pid = os.getpid()
        self._shield = Shield.DOWN
        self._current: CallInChild | None = None
        """The call whose function the main thread is running."""
        self._parent_reads = False
        """True while the parent reads messages; it does not read between calls."""

    def listen(self) -> None:
        """Receive messages, also while a function runs; end the process if the parent has ended."""
        attempt: CallInChild | None = None
        try:
            while True:
                message = to_child(self._connection.recv_bytes())
                if isinstance(message, RunFunction):
                    # Create the call in this thread, so that a Stop that follows at once finds the
                    # call.
                    attempt = CallInChild(message, self.send)
                    self._attempts.put(attempt)
                elif isinstance(message, Shutdown):
                    self._attempts.put(None)
                elif attempt is None:
                    continue
                elif isinstance(message, Stop):
                    attempt.stop(message.why)
                else:
                    attempt.answered(message)
        except (EOFError, OSError):  # the parent has ended
            self._on_parent_lost()
        except BaseException:  # such as MemoryError: the parent's messages can no longer be read
            self._parent_reads = True  # the parent has sent a message, and reads the answer
            log.exception("a message of the parent process cannot be read")
            self._on_parent_lost()

    def work(self) -> None:
        """Run calls until the parent ends this process."""
        self.send(Ready())
        while (attempt := self._attempts.get()) is not None:
            last: FinalMessage
            self._parent_reads = True
            try:
                try:
                    self._current = attempt
                    returned = contextvars.Context().run(attempt.returned)
                finally:
                    self._current = None
                last = attempt.done(returned)
            except BaseException as exc:  # SystemExit too must not end the process
                last = attempt.failed(exc)
            self._parent_reads = False
            attempt.finish(last)

    def send(self, message: FromChild) -> None:
        """Send a whole message to the parent, even if a signal arrives.

        Raises:
            EncodingError: The message cannot be encoded.
        """
        try:
            text = encode(message)
        except (ValueError, TypeError) as exc:
            raise EncodingError(type(message).__name__, "", f"cannot be sent: {exc}") from exc
        with self._shielded(), self._sending:
            try:
                self._connection.send_bytes(text)
            except OSError:
                self._on_parent_lost()

    def _log(self, record: logging.LogRecord, text: str) -> None:
        if self._parent_reads:
            text = text.encode("utf-8", "backslashreplace").decode()
            self.send(LogLine(record.levelno, text, record.name))
        elif logging.lastResort is not None and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)

    def interrupt(self, *_: object) -> None:
        """Handle SIGTERM: interrupt the function, if the parent has asked it to stop.

        A signal from another sender is ignored: a supervisor that ends a process group ends the
        parent too, and the parent decides.
        """
        if os.getpid() != self._pid:  # a process that a function forked: see _after_fork
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        attempt = self._current
        if attempt is None or attempt.why is None:
            return
        if self._shield is not Shield.DOWN:
            self._shield = Shield.STRUCK
            return
        self._current = None  # interrupt the function once: it may be cleaning up
        raise attempt.why.error()

    def _after_fork(self) -> None:
        """Cut the connection to the parent, in a process that a function forked."""
        self._connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for logger in (log, logging.getLogger()):
            logger.removeHandler(self.forwarding)
        log.propagate = True

    @contextlib.contextmanager
    def _shielded(self) -> Iterator[None]:
        # Signals are handled in the main thread, so other threads are never interrupted.
        if threading.get_ident() != self._main:
            yield
            return
        self._shield = Shield.UP
        try:
            yield
        finally:
            before, self._shield = self._shield, Shield.DOWN
        if before is Shield.STRUCK:
            self.interrupt()


class _Forwarding(logging.Handler):
    """Sends log lines, with tracebacks, to the log of the parent.

    If a logger of the application has a handler in this process, only that handler gets the lines.
    Lines between calls, such as the lines of a thread, go to standard error.
    """

    def __init__(self, pass_on: Callable[[logging.LogRecord, str], None]) -> None:
        super().__init__()
        self._pass_on = pass_on

    def _is_handled(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None and logger is not log:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_handled(record.name):
            return
        try:
            self._pass_on(record, self.format(record))
        except (Cancelled, DeadlineExceeded):  # the function must stop
            raise
        except Exception:  # as in logging, a lost line is not a failure
            self.handleError(record)


def _ignore_signal(*_: object) -> None:
    # Use a handler, not SIG_IGN, which programs that a function starts would inherit.
    pass


def _kill_group() -> None:
    with contextlib.suppress(OSError):  # this process leads no group
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
