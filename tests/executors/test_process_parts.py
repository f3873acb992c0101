"""The process executor: signals and lost races in its parts, and short tests of the whole.

The parts use fake connections, so everything happens in one thread and in a fixed order. The last
tests use real children, whose timing varies; more such tests are in ``tests/full/executors``.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import closing

import attrs
import pytest

from lro import Cancelled, Code, Service
from lro._engine.job import AttemptEnded
from lro.errors import DeadlineExceeded, LeaseLost, ResourceExhausted, Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor, _messages
from lro.executors.processes._child import ChildMain
from lro.executors.processes._executor import CallSupervisor
from lro.executors.processes._function_reference import reference_to
from lro.executors.processes._process import MessageReader
from lro.stores.memory import MemoryStore
from tests.executors import process_methods
from tests.executors.named_pipe import Mail
from tests.service_steps import answer, ended, reason
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

CLASSES = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
ASKED, OVERDUE = (_messages.Stop(why) for why in _messages.StopReason)
INTERRUPTED = "interrupted"


def call_of(do, *, function=process_methods.task, reference=None, **options):
    """Return the message with which a parent tells a child to run a task."""
    with Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:
        spec = service.method("acme.v1.Works.Parts", **CLASSES)(function).spec
    rest = {"do": do, "pipe": os.devnull, "how": "detail"}
    return _messages.RunFunction(
        reference=attrs.evolve(reference_to(spec), **(reference or {})),
        name="operations/a",
        attempt=1,
        domain="acme.test",
        request=spec.types.pack(WorkRequest(rest=rest), spec.request),
        metadata=spec.types.pack(WorkMetadata(note="before"), spec.metadata),
        **{"stop_at": None, "caller": "", **options},
    )


class Line:
    """A child's connection that delivers the given messages, closes, and records what is sent.

    For each ``interrupted`` in ``while_sending``, SIGTERM comes during that send.
    """

    def __init__(self, *messages, while_sending=()):
        self._texts = [_messages.encode(one) for one in (*messages, _messages.Shutdown())]
        self._while_sending = list(while_sending)
        self.said = []
        self.child = None

    def recv_bytes(self):
        if not self._texts:
            raise EOFError
        return self._texts.pop(0)

    def send_bytes(self, text):
        if self._while_sending and self._while_sending.pop(0) == INTERRUPTED:
            self.child.interrupt()
        self.said.append(_messages.from_child(text))
        assert len(self.said) < 10, "it goes on and on"


def lived(line):
    """Run a child that gets all messages before it begins; return the messages that it sent."""
    died = []
    line.child = ChildMain(line, lambda: died.append(True))
    line.child.listen()
    here = threading.get_ident()  # other threads of this process may log for other tests
    line.child.forwarding.addFilter(lambda record: record.thread == here)
    log = logging.getLogger("lro")
    log.addHandler(line.child.forwarding)
    try:
        line.child.work()
    finally:
        log.removeHandler(line.child.forwarding)
    assert died == [True]
    assert line.said[0] == _messages.Ready()
    return line.said[1:]


def told(number, error=None):
    return _messages.RequestAnswer(number, error and _messages.refusal(error))


@pytest.mark.parametrize(
    ("do", "script", "last"),
    [
        ("report_once", [told(7, Cancelled()), told(1)], "before,1,False,half"),
        ("report_once", [told(1, LeaseLost("n", 1, 4))], _messages.AttemptReplaced(4)),
        ("report_once", [told(1, Cancelled())], _messages.Stopped(ASKED.why)),
        ("report_once", [told(1, ValueError("no store"))], Code.UNAVAILABLE),
        ("look", [ASKED], _messages.Stopped(ASKED.why)),
        ("await_on", [ASKED], _messages.Stopped(ASKED.why)),
        ("await_on", [OVERDUE], _messages.Stopped(OVERDUE.why)),
        ("await_report", [told(1)], "before,1,False,half"),
        ("fail", [], Code.INTERNAL),
    ],
)
def test_call_heeds_messages_that_came_before_it_began(do, script, last):
    """Replies to earlier reports are skipped; a stop takes effect whenever it comes."""
    function = process_methods.async_task if do.startswith("await") else process_methods.task
    *_, found = lived(Line(call_of(do, function=function), *script))
    if isinstance(last, Code):
        assert found.status.code == last
    elif isinstance(last, str):
        assert found.response.payload["text"] == last
    else:
        assert found == last


@pytest.mark.parametrize(
    ("script", "last"), [([], _messages.FunctionNotFound()), ([OVERDUE], _messages.Stopped)]
)
def test_function_that_is_not_found_does_not_matter_once_the_call_is_to_stop(script, last):
    call = call_of("echo", reference={"request": "tests.work_messages:WorkResponse"})
    *_, found = lived(Line(call, *script))
    assert found == (last if script == [] else last(OVERDUE.why))


def test_signal_that_comes_while_a_message_is_sent_takes_effect_behind_it():
    """A stop signal during a send acts once, after it; without a stop, signals have no effect."""
    signals = [INTERRUPTED, INTERRUPTED, ""]
    found = lived(Line(call_of("write_on"), ASKED, while_sending=signals))
    assert [type(one) for one in found] == [_messages.LogLine, _messages.Stopped]
    found = lived(Line(call_of("lines"), while_sending=signals))
    assert [type(one) for one in found] == [_messages.LogLine, _messages.LogLine, _messages.Done]


def test_child_that_does_not_understand_its_parent_says_so_and_dies():
    line = Line(ASKED)
    line.recv_bytes = lambda: b'{"message": "Sing"}'
    died = []
    child = line.child = ChildMain(line, lambda: died.append(True))
    logging.getLogger("lro").addHandler(child.forwarding)
    try:
        child.listen()
    finally:
        logging.getLogger("lro").removeHandler(child.forwarding)
    (said,) = line.said
    assert "a message of the parent process cannot be read" in said.text
    assert died == [True]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DeadlineExceeded("late"), DeadlineExceeded("late")),
        (Unavailable("away"), Unavailable("away")),
        (LeaseLost("operations/a", 1, 3), LeaseLost("operations/a", 1, 3)),
        (ResourceExhausted("full"), Unavailable("full")),
    ],
)
def test_refused_report_raises_in_the_child(error, expected):
    """Errors that functions may expect keep their class; other errors become Unavailable."""
    found = _messages.refusal_error(_messages.refusal(error), "operations/a", 1)
    assert (type(found), str(found)) == (type(expected), str(expected))


class LastWords:
    """A child that has sent some messages and is dead at the next check."""

    started = True
    killed = False
    alive = False

    def __init__(self, *words):
        self._words = [None, *words]

    def send(self, message):
        if isinstance(message, _messages.RequestAnswer):
            raise KeyError("the answer cannot be sent")

    def wake(self):
        """Do nothing: there is no child."""

    def receive(self, seconds):
        return self._words.pop(0) if self._words else None

    def reap(self):
        return "it is gone"


class Control:
    """A job that nobody stops."""

    cancel_requested = False

    def on_stop(self, wake):
        """Do nothing: nobody stops the job."""


def supervision(*words):
    with Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:
        spec = service.method("acme.v1.Works.Parts", **CLASSES)(process_methods.task).spec
    return CallSupervisor(
        LastWords(*words), call_of("echo"), spec=spec, control=Control(), grace=1.0
    )


def test_result_sent_before_the_death_of_a_child_is_used():
    """If a child sends its result and exits between two checks, the result is used."""
    response = _messages.AnyMessage("type.googleapis.com/acme.v1.WorkResponse", {"text": "x"})
    assert supervision(_messages.Done(response)).response() == response


@pytest.mark.parametrize(
    ("last", "error"),
    [(_messages.AttemptReplaced(2), LeaseLost), (_messages.FunctionNotFound(), AttemptEnded)],
)
def test_child_is_reused_only_if_all_its_messages_were_read(last, error):
    """A child with messages that may be unread is not reused: the next call would read them."""
    fine = supervision(_messages.Ready(), last)
    with pytest.raises(error):
        fine.response()
    broken = supervision(_messages.Report(1, _messages.AnyMessage()), last)
    with pytest.raises(KeyError):
        broken.response()
    assert (fine.unusable, broken.unusable) == (False, True)


def test_messages_are_read_from_pieces_of_any_size():
    """A message above 2 GB has an eight-byte length; a message that is cut off raises EOFError."""
    reading, writing = os.pipe()
    inbox = MessageReader()
    lengths = [
        (2).to_bytes(4, "big"),
        (-1).to_bytes(4, "big", signed=True) + (3).to_bytes(8, "big"),
    ]
    for length, text in zip(lengths, (b"ab", b"abc"), strict=True):
        found = []
        for number in (*length, *text):
            os.write(writing, bytes([number]))
            found.append(inbox.take(reading))
        assert found == [None] * (len(found) - 1) + [text]
    os.write(writing, lengths[0] + b"a")
    assert [inbox.take(reading), inbox.take(reading)] == [None, None]
    os.close(writing)
    with pytest.raises(EOFError):
        inbox.take(reading)
    os.close(reading)


@pytest.fixture(scope="module")
def service():
    with process_methods.service_of(ProcessExecutor(1), MemoryStore(), maintenance=True) as made:
        yield made


def start(service: Service, do: str, **fields):
    """Start a task; ``pipe`` and ``how`` go into its request."""
    rest = {"do": do, **{key: fields.pop(key) for key in ("pipe", "how") if key in fields}}
    return service.start("acme.v1.Works.Task", WorkRequest(rest=rest, **fields)).name


def test_function_in_a_child_reports_and_responds(service):
    found = ended(service, start(service, "report_once"))
    assert answer(service, found) == ",1,False,half"
    assert answer(service, ended(service, start(service, "who"))) != f"{os.getpid()},True"


def test_error_of_a_function_in_a_child_ends_its_operation(service):
    found = ended(service, start(service, "fail", how="status"))
    assert reason(found) == (Code.DATA_LOSS, "LOST_IT")


def test_cancelled_function_in_a_child_stops(service, tmp_path):
    with closing(Mail(tmp_path / "pipe")) as mail:
        name = start(service, "look", pipe=mail.path)
        assert mail.line() == "begun"
        service.cancel(name)
        assert mail.line() == "Cancelled"
        assert reason(ended(service, name)) == (Code.CANCELLED, "CANCELLED")


def test_killed_child_is_a_lost_worker_and_is_replaced(service):
    found = ended(service, start(service, "kill_itself", size=int(signal.SIGKILL)))
    assert reason(found) == (Code.ABORTED, "WORKER_LOST")
    assert answer(service, ended(service, start(service, "echo", text="next"))) == "next 0"
