"""The process executor in parts: what is said, and what a child does, within this process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import types
from contextlib import closing
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Pipe

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import Any, Cancelled, Code, DeclarationError, Job, Options, Service, Status
from lro._engine import process as engine_process
from lro._engine.job import JobControl, SwallowedError, WorkerDied
from lro._engine.telemetry import ParentTrace
from lro.errors import DeadlineExceeded, LeaseLost, ResourceExhausted, Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.processes import _child, _function_reference, _messages, _process
from lro.executors.processes._child import CallInChild, ChildMain, NotResolved
from lro.executors.processes._executor import CallSupervisor, not_callable
from lro.executors.processes._function_reference import (
    FunctionReference,
    MainModule,
    check_importable,
    reference_to,
)
from lro.executors.processes._messages import (
    AttemptReplaced,
    Done,
    Failed,
    FunctionNotFound,
    LogLine,
    Ready,
    Report,
    ReportAnswer,
    ReportRefusal,
    RunFunction,
    Shutdown,
    Stop,
    Stopped,
    StopReason,
)
from lro.executors.processes._process import ChildPool
from lro.stores.memory import MemoryStore
from tests.executors import process_methods
from tests.executors.named_pipe import Mail
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

# -- what is said ------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
numbers = st.integers(-(2**53), 2**53)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
anys = st.builds(Any, texts, values | st.binary(max_size=5))
references = st.builds(
    FunctionReference,
    method=texts,
    function=texts,
    declared=st.booleans(),
    main=st.none() | st.builds(MainModule, texts, texts),
    request=texts,
    response=texts,
    metadata=texts,
    types=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    attempts=numbers,
    retry_on=st.lists(texts, max_size=2).map(tuple),
)
to_child = st.one_of(
    st.builds(
        RunFunction,
        reference=references,
        name=texts,
        attempt=numbers,
        domain=texts,
        request=anys,
        metadata=st.none() | anys,
        stop_at=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.builds(Stop, st.sampled_from(StopReason)),
    st.builds(ReportAnswer, numbers, st.none() | st.builds(ReportRefusal, texts, texts, numbers)),
    st.just(Shutdown()),
)
statuses = st.builds(Status, numbers, texts, st.lists(anys, max_size=2).map(tuple))
from_child = st.one_of(
    st.just(Ready()),
    st.builds(Report, numbers, anys),
    st.builds(LogLine, numbers, texts),
    st.builds(Done, anys),
    st.builds(Failed, statuses),
    st.builds(Stopped, st.sampled_from(StopReason)),
    st.builds(AttemptReplaced, numbers),
    st.just(FunctionNotFound()),
)


@given(to_child)
def test_what_a_parent_says_arrives(message):
    """As it was said."""
    assert _messages.to_child(_messages.encode(message)) == message


@given(from_child)
def test_what_a_child_says_arrives(message):
    """As it was said."""
    assert _messages.from_child(_messages.encode(message)) == message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Cancelled(), Cancelled()),
        (DeadlineExceeded("late"), DeadlineExceeded("late")),
        (Unavailable("away"), Unavailable("away")),
        (LeaseLost("operations/a", 1, 3), LeaseLost("operations/a", 1, 3)),
        (ResourceExhausted("full"), Unavailable("full")),
        (ValueError("odd"), Unavailable("odd")),
    ],
)
def test_a_refusal_arrives(error, expected):
    """As the error that it was, where a function may expect it, else as one that passes."""
    found = _messages.refusal_error(_messages.refusal(error), "operations/a", 1)
    assert (type(found), str(found)) == (type(expected), str(expected))


# -- what a child does -------------------------------------------------------------------------


class Parent:
    """Talks to child that work in the main thread of this process, from a thread of its own."""

    def __init__(self, monkeypatch):
        self.connection, theirs = Pipe()
        self.died = threading.Event()
        self.stopped = threading.Event()
        self.child = ChildMain(theirs, self.died.set)
        self._theirs = theirs
        self._error = None
        monkeypatch.setattr(logging.getLogger("lro"), "propagate", False)
        monkeypatch.setattr(logging.getLogger("lro"), "handlers", [self.child.forwarding])
        stop = CallInChild.stop

        def stop_and_say(attempt, why):
            stop(attempt, why)
            self.stopped.set()

        monkeypatch.setattr(CallInChild, "stop", stop_and_say)
        before = signal.signal(signal.SIGTERM, self.child.interrupt)
        self._restore = lambda: signal.signal(signal.SIGTERM, before)

    def hold(self, script):
        """Run a script while the child work; it ends with their leaving."""

        def talk():
            try:
                assert self.receive() == Ready()
                script(self)
            except BaseException as exc:
                self._error = exc
            finally:
                self.send(Shutdown())

        threads = [threading.Thread(target=run) for run in (self.child.listen, talk)]
        for thread in threads:
            thread.start()
        self.child.work()
        threads[1].join(PATIENCE)
        self.connection.close()
        assert self.died.wait(PATIENCE)
        threads[0].join(PATIENCE)
        if self._error is not None:
            raise self._error

    def close(self):
        self._restore()
        self.connection.close()
        self._theirs.close()

    def send(self, message):
        self.connection.send_bytes(_messages.encode(message))

    def receive(self):
        """The next message but for lines of the log."""
        while True:
            assert self.connection.poll(PATIENCE), "the child say nothing"
            message = _messages.from_child(self.connection.recv_bytes())
            if not isinstance(message, LogLine):
                return message

    def call(self, do, *, function=process_methods.task, **options):
        """Ask for a task."""
        self.ask(process_methods.Direct(do, function=function), **options)

    def ask(self, direct, **options):
        self.send(call_of(direct, **options))


def call_of(direct, *, stop_at=None, mail=None, reference=None, **fields):
    """What a parent says to have a task done."""
    rest = {**direct.request.rest, **({} if mail is None else {"pipe": mail})}
    return RunFunction(
        reference=attrs.evolve(reference_to(direct.spec), **(reference or {})),
        name=direct.name,
        attempt=1,
        domain="acme.test",
        request=direct.spec.types.pack(WorkRequest(rest=rest, **fields)),
        metadata=direct.spec.types.pack(WorkMetadata(note="before")),
        stop_at=stop_at,
    )


@pytest.fixture
def parent(monkeypatch):
    made = Parent(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def mail(tmp_path):
    with closing(Mail(tmp_path / "pipe")) as made:
        yield made


def text_of(message):
    """The text of the response of a call that went well."""
    assert isinstance(message, Done), message
    return message.response.payload.get("text", "")


def test_calls_are_done_in_order(parent):
    """One after the other, and each is answered once."""

    def script(parent):
        for size in range(3):
            parent.call("echo", text="x", size=size)
        assert [text_of(parent.receive()) for _ in range(3)] == ["x 0", "x 1", "x 2"]

    parent.hold(script)


@pytest.mark.parametrize(
    ("function", "do"),
    [(process_methods.task, "report_once"), (process_methods.async_task, "await_report")],
)
def test_a_report_waits_for_its_answer(parent, function, do):
    """For its own: that of an earlier one, whose sender was interrupted, is passed over."""

    def script(parent):
        parent.call(do, function=function)
        report = parent.receive()
        assert report.metadata.payload == {"percent": 50, "note": "half"}
        parent.send(ReportAnswer(report.number + 7, ReportRefusal("Cancelled", "")))
        parent.send(ReportAnswer(report.number, None))
        assert text_of(parent.receive()) == "before,1,False,half"

    parent.hold(script)


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (LeaseLost("n", 1, 4), AttemptReplaced(4)),
        (Cancelled(), Stopped(StopReason.ASKED)),
    ],
)
def test_a_refused_report_raises(parent, error, last):
    """What the parent met, where the function waits."""

    def script(parent):
        parent.call("report_once")
        parent.send(ReportAnswer(parent.receive().number, _messages.refusal(error)))
        assert parent.receive() == last

    parent.hold(script)


def test_a_refused_report_may_end_the_operation(parent):
    """As any error of ours."""

    def script(parent):
        parent.call("report_once")
        parent.send(ReportAnswer(parent.receive().number, ReportRefusal("Unavailable", "no store")))
        failed = parent.receive()
        assert (failed.status.code, failed.status.message) == (Code.UNAVAILABLE, "no store")
        assert failed.status.details[0].payload["domain"] == "acme.test"

    parent.hold(script)


@pytest.mark.parametrize(
    ("function", "do"),
    [
        (process_methods.task, "look"),
        (process_methods.task, "never_look"),
        (process_methods.async_task, "await_on"),
        (process_methods.async_task, "await_and_finish"),
    ],
)
def test_work_is_asked_to_stop(parent, mail, function, do):
    """When it looks, where it awaits, or, by a signal, where it is."""

    def script(parent):
        parent.call(do, function=function, mail=mail.path)
        assert mail.line() == "begun"
        parent.send(Stop(StopReason.ASKED))
        if do == "never_look":
            assert parent.stopped.wait(PATIENCE)
            os.kill(os.getpid(), signal.SIGTERM)
        last = parent.receive()
        assert (
            last == Stopped(StopReason.ASKED)
            if do != "await_and_finish"
            else text_of(last) == "done"
        )

    parent.hold(script)


@pytest.mark.parametrize(
    ("do", "last"),
    [
        ("await_on", Stopped(StopReason.OVERDUE)),
        ("await_and_fail", Stopped(StopReason.OVERDUE)),
        ("await_and_finish", None),
    ],
)
def test_overdue_coroutines_are_interrupted(parent, mail, do, last):
    """Whatever they fail with then is the end of their time; but a result is a result."""

    def script(parent):
        parent.call(do, function=process_methods.async_task, mail=mail.path)
        assert mail.line() == "begun"
        parent.send(Stop(StopReason.OVERDUE))
        found = parent.receive()
        assert found == last if last is not None else text_of(found) == "done"

    parent.hold(script)


def test_functions_know_their_time(parent):
    """By the clock that all processes of a machine share."""

    def script(parent):
        parent.call("fail_instead", stop_at=time.monotonic(), mail=os.devnull)
        assert parent.receive().status.code == Code.INVALID_ARGUMENT
        parent.call("look", stop_at=time.monotonic(), mail=os.devnull)
        assert parent.receive().status.code == Code.DEADLINE_EXCEEDED

    parent.hold(script)


@pytest.mark.parametrize(
    ("function", "do"),
    [(process_methods.task, "flaky"), (process_methods.async_task, "await_flaky")],
)
def test_functions_are_tried_again(parent, function, do):
    """As often as the method says, of which the first may be enough."""

    def script(parent):
        direct = process_methods.Direct(do, function=function)
        options = Options(attempts=3, retry_on=(process_methods.Flaky,))
        direct.spec = attrs.evolve(direct.spec, options=options)
        del process_methods.tries[:]
        parent.ask(direct, size=3)
        assert text_of(parent.receive()) == "3"
        del process_methods.tries[:]
        parent.ask(direct, size=4)
        assert parent.receive().status.code == Code.INTERNAL

    parent.hold(script)


@pytest.mark.parametrize("do", ["unencodable", "packed_half_a_pair", "half_a_detail", "nowhere"])
def test_the_hands_go_on_after_a_failure(parent, do):
    """Each call has its own end."""

    def script(parent):
        parent.call(do)
        assert parent.receive().status.code == Code.INTERNAL
        parent.call("echo")
        assert text_of(parent.receive()) == " 0"

    parent.hold(script)


def test_late_reports_are_dropped(parent):
    """What a thread reports after the end of its call is not said."""

    def script(parent):
        parent.call("left_behind")
        assert text_of(parent.receive()) == ""
        parent.call("now_report")
        assert text_of(parent.receive()) == "reported"

    parent.hold(script)


def test_what_cannot_be_imported_is_not_found(parent):
    """Neither a function, nor a request of another class."""

    def script(parent):
        direct = process_methods.Direct("echo")
        parent.ask(direct, reference={"function": "tests.executors.process_methods:nowhere"})
        assert parent.receive() == FunctionNotFound()
        parent.ask(direct, reference={"request": "tests.work_messages:WorkResponse"})
        assert parent.receive() == FunctionNotFound()

    parent.hold(script)


def test_threads_of_a_function_may_report(parent):
    """One after the other; the interpreter has signals handled in the main thread alone."""

    def script(parent):
        parent.call("from_another_thread")
        for _ in range(8):
            parent.send(ReportAnswer(parent.receive().number, None))
        assert text_of(parent.receive()) == "8"

    parent.hold(script)


# -- one attempt -------------------------------------------------------------------------------


def attempt_of(do, *, function=process_methods.task, **reference):
    """An attempt without a listener."""
    call = call_of(process_methods.Direct(do, function=function), reference=reference)
    return CallInChild(call, lambda message: None)


def test_an_attempt_may_be_stopped_before_it_begins():
    """The coroutine is not awaited, and the function sees it when it looks."""
    attempt = attempt_of("await_on", function=process_methods.async_task)
    attempt.stop(StopReason.ASKED)
    with pytest.raises(Cancelled) as found:
        attempt.returned()
    assert attempt.failed(found.value) == Stopped(StopReason.ASKED)


def test_an_attempt_may_be_stopped_while_it_is_prepared():
    """Its module may take its time; what comes of it does not matter any more."""
    attempt = attempt_of("echo", request="tests.executors.process_methods:nowhere")
    attempt.stop(StopReason.OVERDUE)
    with pytest.raises(NotResolved) as found:
        attempt.returned()
    assert attempt.failed(found.value) == Stopped(StopReason.OVERDUE)


def test_an_attempt_may_be_stopped_when_it_is_over():
    """Then there is nothing left to interrupt, its loop is closed."""
    attempt = attempt_of("await_report", function=process_methods.async_task)
    kept = []
    attempt._answers.put(ReportAnswer(1, None))

    class Kept(CallInChild):
        _interrupt = property(lambda self: kept[-1] if kept else None, lambda self, f: keep(f))

    def keep(interrupt):
        if interrupt is not None:
            kept.append(interrupt)

    attempt.__class__ = Kept
    attempt.returned()
    attempt.stop(StopReason.ASKED)
    assert attempt.why is StopReason.ASKED


def test_a_job_remembers_no_metadata_before_it_is_prepared():
    """No parent has it then."""
    assert attempt_of("echo")._control.metadata is None


# -- signals -----------------------------------------------------------------------------------


class Interrupting:
    """A connection on which SIGTERM comes while it is written to."""

    def __init__(self, child):
        self.child = child
        self.sent = []

    def send_bytes(self, text):
        self.child.interrupt()
        self.sent.append(text)


def test_a_message_is_sent_whole(parent):
    """A signal in its midst takes effect behind it, and once."""
    child = parent.child
    child._current = attempt_of("echo")
    child._connection = Interrupting(child)
    child.send(Ready())  # a signal from another process
    child._current.why = StopReason.OVERDUE
    with pytest.raises(DeadlineExceeded):
        child.send(Ready())
    child.send(Ready())
    assert child._connection.sent == 3 * [_messages.encode(Ready())]


def test_a_signal_between_calls_is_ignored(parent):
    """The call that it was for is gone."""
    parent.child.interrupt()
    parent.child._current = attempt_of("echo")
    parent.child.interrupt()


def test_a_forked_process_is_ended_by_signals(parent, monkeypatch):
    """Also when one comes before it has renewed itself."""
    killed = []
    monkeypatch.setattr(os, "getpid", lambda: 0)
    monkeypatch.setattr(os, "kill", lambda *arguments: killed.append(arguments))
    parent.child.interrupt()
    assert killed == [(0, signal.SIGTERM)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_forked_process_is_a_stranger(parent):
    """It has the signals of a program, a log of its own, and no connection."""
    before = signal.getsignal(signal.SIGINT)
    try:
        parent.child.detach()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert logging.getLogger("lro").propagate
    assert parent.child.forwarding not in logging.getLogger("lro").handlers
    with pytest.raises(EOFError):
        parent.connection.recv_bytes()


# -- the end -----------------------------------------------------------------------------------


def test_child_dies_with_its_parent(parent):
    """Whether they listen or speak."""
    parent.connection.close()
    parent.child.listen()
    assert parent.died.is_set()
    parent.died.clear()
    parent.child.send(Ready())
    assert parent.died.is_set()


def test_child_that_does_not_understand_dies(parent):
    """It cannot understand the parent any more; the parent gets the reason."""
    parent.connection.send_bytes(b'{"message": "Sing"}')
    parent.child.listen()
    assert parent.died.is_set()
    line = _messages.from_child(parent.connection.recv_bytes())
    assert line.level == logging.ERROR
    assert "what the parent says cannot be read" in line.text


def test_an_answer_without_a_call_is_passed_over(parent):
    """No call has come yet."""
    parent.send(ReportAnswer(1, None))
    parent.hold(lambda parent: None)


def test_a_line_that_cannot_be_sent_is_no_failure(parent, capsys):
    """It is printed where logging reports its own mistakes."""
    parent.child.forwarding.handle(logging.makeLogRecord({"msg": "half a pair: \udcff"}))
    assert "Logging error" in capsys.readouterr().err


def test_a_process_becomes_a_child(parent, monkeypatch):
    """It says so, heeds its parent's signals only, and leaves when asked to."""
    became = []
    monkeypatch.setattr(_child, "mark_worker_process", lambda: became.append(1))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    mine, theirs = Pipe()
    mine.send_bytes(_messages.encode(Shutdown()))
    monkeypatch.setattr(_child, "_die", lambda: ended.set())
    ended = threading.Event()
    try:
        _child.main(theirs)
        signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert _messages.from_child(mine.recv_bytes()) == Ready()
    assert became == [1]
    assert not logging.getLogger("lro").propagate
    mine.close()
    assert ended.wait(PATIENCE)
    theirs.close()


@pytest.mark.parametrize("leads", [True, False])
def test_dying_takes_the_group_along(monkeypatch, leads):
    """The processes that functions have started; who leads no group dies alone."""
    killed = []

    def killpg(group, number):
        killed.append((group, number))
        if not leads:
            raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", killpg)
    monkeypatch.setattr(os, "_exit", killed.append)
    _child._die()
    assert killed == [(os.getpid(), signal.SIGKILL), 1]


# -- where things are --------------------------------------------------------------------------


def test_a_role_is_taken_once_and_for_all(monkeypatch):
    """By a process that is nothing else from then on."""
    monkeypatch.setattr(engine_process, "_is_worker_process", False)
    assert not engine_process.is_worker_process()
    engine_process.mark_worker_process()
    assert engine_process.is_worker_process()


MAIN = """
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

def work(request: WorkRequest) -> WorkResponse:
    return WorkResponse(text=__name__)
"""


@pytest.fixture
def forgetful(monkeypatch):
    """The modules of this process, and what it has prepared, are as before afterwards."""
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    for cache in (_function_reference.resolve, _function_reference._load_main):
        cache.cache_clear()
    yield
    for cache in (_function_reference.resolve, _function_reference._load_main):
        cache.cache_clear()


@pytest.mark.parametrize("by", ["module", "file"])
def test_the_main_module_is_imported_under_another_name(tmp_path, monkeypatch, forgetful, by):
    """Once, and it is the main module from then on."""
    (tmp_path / "main_program.py").write_text(MAIN)
    monkeypatch.syspath_prepend(tmp_path)
    file = str(tmp_path / "main_program.py")
    main = MainModule("main_program", "") if by == "module" else MainModule("", file)
    reference = attrs.evolve(reference_to(process_methods.Direct("echo").spec), main=main)
    reference = attrs.evolve(reference, function="__main__:work")
    spec = _function_reference.resolve(reference)
    name = "main_program" if by == "module" else "__mp_main__"
    assert spec.function(WorkRequest()).text == name
    assert sys.modules["__main__"] is sys.modules["__mp_main__"]
    assert (
        _function_reference.resolve(
            attrs.evolve(reference, attempts=2, retry_on=("builtins:OSError",))
        ).function
        is spec.function
    )


def test_a_main_module_that_fails_is_imported_again(tmp_path, forgetful):
    """It is not left half done."""
    file = tmp_path / "program"
    file.write_text("1 / 0")
    before = sys.modules.get("__mp_main__")
    reference = attrs.evolve(
        reference_to(process_methods.Direct("echo").spec), main=MainModule("", str(file))
    )
    for _ in range(2):
        with pytest.raises(_function_reference.MainFailed) as caught:
            _function_reference.resolve(reference)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert sys.modules.get("__mp_main__") is not before
    assert "__mp_main__" not in sys.modules


def test_a_declared_method_keeps_its_types(forgetful):
    """It is taken as it stands in its module; the repeats are those of the parent."""
    reference = attrs.evolve(
        reference_to(process_methods.Direct("echo").spec),
        function=f"{__name__}:declared",
        method="acme.v1.Works.Declared",
        declared=True,
        attempts=4,
        retry_on=("builtins:OSError",),
    )
    spec = _function_reference.resolve(reference)
    assert spec.types is service.types
    assert spec.options.attempts == 4
    for change in (
        {"method": "acme.v1.Works.Other"},
        {"function": "tests.executors.process_methods:task"},
    ):
        with pytest.raises(DeclarationError, match="in a child process"):
            _function_reference.resolve(attrs.evolve(reference, **change))
    found = _function_reference.resolve(attrs.evolve(reference, declared=False))
    assert found.function is declared.spec.function
    assert found.types is not service.types


service = Service(MemoryStore(), InlineExecutor(), maintenance=False)


@service.method("acme.v1.Works.Declared")
def declared(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse()


def in_main(request: WorkRequest) -> WorkResponse:
    return WorkResponse()


@pytest.fixture
def main_module(monkeypatch):
    """A main module with a function in it."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(in_main, "__module__", "__main__")
    module.in_main = in_main
    module.__file__ = __file__
    return module


def spec_in_main():
    return attrs.evolve(process_methods.Direct("echo").spec, function=in_main)


@pytest.mark.parametrize(
    ("name", "file", "found"),
    [
        (None, __file__, MainModule("", __file__)),
        ("package.module", None, MainModule("package.module", "")),
    ],
)
def test_a_reference_says_where_the_main_module_is(main_module, name, file, found):
    """A file, or a module that was run by its name."""
    main_module.__spec__ = None if name is None else ModuleSpec(name, None)
    main_module.__file__ = file
    assert reference_to(spec_in_main()).main == found


@pytest.mark.parametrize(
    ("name", "file"),
    [("package.__main__", __file__), ("__main__", None), (None, "<stdin>"), (None, None)],
)
def test_some_main_modules_cannot_be_imported_again(main_module, name, file):
    """They would run the program once more, or are no files."""
    main_module.__spec__ = None if name is None else ModuleSpec(name, None)
    main_module.__file__ = file
    with pytest.raises(DeclarationError, match="is in the main module, which no other process"):
        check_importable(spec_in_main())


@pytest.mark.parametrize("main", [True, False])
def test_end_of_a_function_that_no_process_can_import_names_the_guard(main):
    """Only where it is the main module that cannot be imported."""
    ended = not_callable(process_methods.Direct("echo").spec, "acme.example", in_main=main)
    assert ("it needs its guard" in ended.ending.result.message) is main


# -- the parent's side -------------------------------------------------------------------------


def test_a_pool_can_be_ended_at_once(monkeypatch):
    """As it is when the interpreter ends: nothing is waited for but the end of the processes."""
    pool = ChildPool(None)
    processes = [pool.take(), pool.take()]
    monkeypatch.setattr(_process, "_pools", [pool])
    _process._kill_all()
    assert [process.alive for process in processes] == [False, False]
    for process in processes:
        pool.give_back(process, spoilt=True)
    assert pool._all == set()


def test_a_pool_detaches_the_children_of_its_parent():
    """In a forked process; here they see their parent go, and end."""
    pool = ChildPool(None)
    process = pool.take()
    pid = process.pid
    pool._reset_after_fork()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert pool._all == set()
    assert not process._popen.returncode
    process.wake()  # the parent cancels a call: there is no child to be woken


class LastWords:
    """A child that is dead when one looks, and has said something before."""

    started = True
    killed = False
    alive = False

    def __init__(self, *words):
        self.words = [None, *words]

    def send(self, message):
        pass

    def wake(self):
        pass

    def receive(self, seconds):
        return self.words.pop(0) if self.words else None

    def reap(self):
        return "it is gone"


def supervision(process):
    direct = process_methods.Direct("echo")
    control = JobControl(
        name="operations/a",
        attempt=1,
        publish=lambda control, metadata: None,
        recall=lambda _: None,
        clock=lambda: 0.0,
    )
    return CallSupervisor(process, call_of(direct), spec=direct.spec, control=control, grace=1.0)


def test_the_last_words_of_a_child_count():
    """It may have ended its call and itself between two looks."""
    response = Any("type.googleapis.com/acme.v1.WorkResponse", {"text": "x"})
    assert supervision(LastWords(Done(response))).response() == response


def test_a_child_that_was_not_understood_is_not_used_again():
    """What it says later would be taken for the answer to another call."""
    watched = supervision(LastWords(Report(1, Any()), Ready(), AttemptReplaced(2)))
    watched._process.send = lambda message: {}["no such thing"]
    with pytest.raises(KeyError):
        watched.response()
    assert watched.unusable
    watched = supervision(LastWords(Ready(), AttemptReplaced(2)))
    with pytest.raises(LeaseLost):
        watched.response()
    assert not watched.unusable


def test_a_child_that_says_nothing_more_has_died():
    """Even if its connection is still open."""
    watched = supervision(LastWords())
    with pytest.raises(WorkerDied, match="it is gone"):
        watched.response()
    assert watched.unusable


@pytest.mark.parametrize("function", ["unwelcome", "await_unwelcome"])
def test_error_that_is_swallowed_around_a_function_is_an_error(function):
    """In a child as anywhere: there is no response."""
    around = f"{process_methods.__name__}:noted"
    attempt = attempt_of(function, function=getattr(process_methods, function), around=around)
    with pytest.raises(SwallowedError):
        attempt.returned()


def test_context_of_a_trace_comes_with_the_call():
    """It is attached where the function is called."""
    call = call_of(process_methods.Direct("echo"))
    traced = attrs.evolve(call, trace_context=f"00-{'a' * 32}-{'b' * 16}-01")
    attempt = CallInChild(traced, lambda message: None)
    assert isinstance(attempt._control.trace, ParentTrace)
