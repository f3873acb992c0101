"""The process executor, end to end: real child processes, real signals, real deaths."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest

from lro import Code, DeclarationError, Limits, Service, State
from lro.adapters import CancelSupport
from lro.executors.processes import ProcessExecutor
from lro.executors.processes._process import ChildProcess, MessageReader
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.executors import process_methods
from tests.executors.named_pipe import Mail
from tests.service_steps import answer, ended, ended_in_turn, reason, unpacked
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"
SOON = timedelta(seconds=0.5)
CLASSES = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}


@pytest.fixture
def mail(tmp_path):
    with closing(Mail(tmp_path / "pipe")) as made:
        yield made


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    """An empty store of each kind, with the system's clock, which the children use, too."""
    kept = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "operations.db")
    with closing(kept):
        yield kept


class Lasting(ProcessExecutor):
    """An executor that outlives its services, so that they need not wait for a new child."""

    def attach(self, *callbacks):
        self._attached = False
        super().attach(*callbacks)

    killed = False

    def stop(self):
        pass

    def kill(self):
        """Kill the child, as a service does if its work does not end in time."""
        self.killed = True
        super().kill()


@pytest.fixture(scope="module")
def made():
    """The lasting executors; tests use the last one."""
    executors = []
    yield executors
    for executor in executors:
        ProcessExecutor.stop(executor)
        assert executor.join(PATIENCE)


@pytest.fixture
def lasting(made):
    if not made or made[-1].killed:
        made.append(Lasting(1, grace=SOON))
    return made[-1]


@pytest.fixture
def harness(store, lasting):
    """A function that makes a service and a method; the service's child has little time to stop."""
    with ExitStack() as stack:

        def make(function=process_methods.task, *, own=None, limits=None, **options):
            executor = make.executor = (
                lasting if own is None else ProcessExecutor(**{"workers": 1, "grace": SOON, **own})
            )
            service = Service(store, executor, domain="acme.test", limits=limits or Limits())
            stack.callback(service.close, timedelta(0))
            return service, service.method(NAME, **CLASSES, **options)(function)

        yield make


def request(do, mail=None, **fields):
    """Return the request of a task."""
    rest = {"do": do, **fields.pop("rest", {})}
    return WorkRequest(rest=rest if mail is None else {**rest, "pipe": mail.path}, **fields)


def child_of(service, method):
    """Return the process ID of the child that runs the work now."""
    return int(answer(service, ended(service, method.start(request("who")))).partition(",")[0])


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# -- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("do", ["stepped", "await_stepped"])
def test_completed_steps_do_not_run_again_after_the_death_of_a_child(harness, tmp_path, do):
    """After a child dies, the next attempt, in a new child, repeats only the interrupted step."""
    awaits = do.startswith("await")
    service, method = harness(process_methods.async_task if awaits else process_methods.task)
    log = tmp_path / "log"
    found = ended(service, method.start(request(do, text=str(log))))
    assert answer(service, found) == "{'total': 3, 'long': 200000} half"
    assert log.read_text() == "0 1 2 "
    assert service.store.get(found.name).attempt == 2


@pytest.mark.parametrize(
    ("size", "end"), [(299_000, "299000"), (300_000, (Code.INTERNAL, "MESSAGE_TOO_LARGE"))]
)
def test_limits_of_checkpoints_hold_in_children(harness, size, end):
    service, method = harness(limits=Limits(checkpoint_bytes=300_000))
    found = ended(service, method.start(request("keep_large", size=size)))
    assert (answer(service, found) if found.response else reason(found)) == end


# -- the contract ------------------------------------------------------------------------------


def test_properties_of_the_process_executor():
    """The executor can kill work, and has one child per CPU, which starts when it is needed."""
    executor = ProcessExecutor()
    assert (executor.cancel_support, executor.redelivery) == (CancelSupport.FORCED, None)
    assert executor.workers == os.cpu_count()
    executor.stop()
    assert executor.join(0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"workers": 0}, ValueError),
        ({"recycle": 0}, ValueError),
        ({"grace": timedelta(-1)}, DeclarationError),
        ({"grace": 5}, DeclarationError),
    ],
)
def test_invalid_option_of_the_process_executor_is_refused(options, error):
    """The constructor refuses an invalid option."""
    with pytest.raises(error):
        ProcessExecutor(**options)


def test_process_executor_is_refused_without_posix_signals(monkeypatch):
    """On a system without POSIX signals, the process executor is refused."""
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(DeclarationError, match="POSIX signals; this is nt"):
        ProcessExecutor()


def test_a_child_that_does_not_read_is_ended(harness, monkeypatch):
    """If a child does not read, the sending thread is not blocked, and a cancel kills the child."""
    service, method = harness(own={})
    send, sent = ChildProcess.send, threading.Event()

    def send_and_note(process, message):
        send(process, message)
        sent.set()

    child = child_of(service, method)
    os.kill(child, signal.SIGSTOP)
    monkeypatch.setattr(ChildProcess, "send", send_and_note)
    operation = method.start(request("echo", text="x" * 2_000_000))
    assert sent.wait(PATIENCE)
    service.cancel(operation.name)
    assert reason(ended(service, operation)) == (Code.CANCELLED, "CANCELLED")
    assert ended(service, method.start(request("echo", text="x" * 2_000_000))).state == "SUCCEEDED"
    assert gone(child)


def test_a_child_that_stops_in_the_midst_of_its_answer_is_ended(harness, monkeypatch):
    """If a child stops in the middle of its reply, a cancel still leads to its kill."""
    service, method = harness(own={})
    child = child_of(service, method)
    take, half, texts = MessageReader.take, threading.Event(), [b""]

    def stopping(inbox, descriptor):
        texts.append(take(inbox, descriptor))
        if texts[-2:] == [None, None] and not half.is_set():  # has read the length and a part
            os.kill(child, signal.SIGSTOP)
            half.set()
        return texts[-1]

    monkeypatch.setattr(MessageReader, "take", stopping)
    text = "x" * 3_000_000
    operation = method.start(request("big", text=text, size=len(text)))
    assert half.wait(PATIENCE)
    service.cancel(operation.name)
    assert reason(ended(service, operation)) == (Code.CANCELLED, "CANCELLED")


# -- same results as in threads -------------------------------------------------------------------


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def both(request, tmp_path_factory):
    """A function that runs a task in a thread and in a child, and returns both results."""
    services = []
    for executor in (ThreadExecutor(1), ProcessExecutor(1)):
        path = tmp_path_factory.mktemp("store") / "operations.db"
        store = MemoryStore() if request.param == "memory" else SQLiteStore(path)
        services.append(process_methods.service_of(executor, store))

    def done(method, asked):
        found = []
        for service in services:
            given = WorkMetadata(note="given")
            operation = service.start(f"acme.v1.Works.{method}", asked, metadata=given)
            operation = ended_in_turn(service, operation.name)
            found.append((operation.result, unpacked(service, operation).note))
        return found

    yield done
    for service in services:
        service.close(timedelta(0))


@pytest.mark.parametrize("how", process_methods.FAILURES)
@pytest.mark.parametrize("method", ["Task", "AsyncTask"])
def test_a_failure_is_reported_as_in_a_thread(both, method, how):
    """An error in a child has the same code, message and details as an error in a thread."""
    in_thread, in_child = both(method, request("fail", rest={"how": how}))
    assert in_child == in_thread


@pytest.mark.parametrize(
    ("method", "do", "size"),
    [
        ("Task", "echo", 3),
        ("Task", "report_once", 3),
        ("Task", "from_another_thread", 3),
        ("Task", "give:wrong class", 3),
        ("Task", "give:unencodable", 3),
        ("Task", "report_wrongly", 3),
        ("Task", "nowhere", 3),
        ("AsyncTask", "await_report", 3),
        ("Short", "", 3),
        ("Nothing", "", 3),
        *((method, "flaky", tries) for method in ("Again", "Aagain") for tries in (2, 3, 4)),
    ],
)
def test_result_and_metadata_are_as_in_a_thread(both, method, do, size):
    """Result and last metadata are equal in child and thread, if only one thread reports."""
    asked = request(do, text="text", size=size)
    in_thread, in_child = both(method, asked)
    assert in_child == in_thread


def test_reports_after_the_end_are_dropped(both):
    """A thread that outlives its function affects neither its operation nor the next one."""
    both("Task", request("left_behind"))
    in_thread, in_child = both("Task", request("now_report"))
    assert in_child == in_thread
    assert in_child[1] == "given"


# -- messages between parent and child -------------------------------------------------------------


def test_child_runs_several_operations_in_its_main_thread(harness):
    """One child runs several operations one after the other, in its main thread."""
    service, method = harness()
    (found,) = {answer(service, ended(service, method.start(request("who")))) for _ in range(3)}
    assert found.endswith(",True")
    assert found != f"{os.getpid()},True"


def test_large_messages_reach_the_child_and_return(harness):
    """Messages of many megabytes reach the child and come back."""
    service, method = harness(limits=Limits(response_bytes=30_000_000))
    text = "0123456789" * 2_000_000
    operation = method.start(request("big", text=text, size=len(text)))
    assert answer(service, ended(service, operation)) == text[::-1]


@pytest.mark.parametrize(
    ("function", "do"),
    [
        (process_methods.task, "give:half a pair"),
        (process_methods.task, "give:packed"),
        (process_methods.task, "fail"),
        (process_methods.task, "report_wrongly:half a pair"),
        (process_methods.async_task, "give:half a pair"),
    ],
)
def test_lone_surrogate_fails_the_operation(harness, function, do):
    service, method = harness(function)
    who = service.method(f"{NAME}Who", **CLASSES)(process_methods.task)
    before = child_of(service, who)
    for _ in range(2):
        operation = ended(service, method.start(request(do, rest={"how": "detail"})))
        assert reason(operation) == (Code.INTERNAL, "ENCODING_FAILED")
    assert child_of(service, who) == before


def test_the_log_of_a_child_is_forwarded(harness, caplog):
    """Log records of a child arrive with level and traceback, unless below the parent's level."""
    service, method = harness()
    with caplog.at_level(logging.DEBUG, "lro"):
        operation = ended(service, method.start(request("lines")))
        ended(service, method.start(request("fail", rest={"how": "value"})))
    texts = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("WARNING", f"{operation.name}: a line of the child") in texts
    assert ("WARNING", r"half of a character: \udcff") in texts
    assert any("ValueError: a secret" in text for level, text in texts if level == "ERROR")
    assert not any("too fine" in text or "below the level" in text for _, text in texts)
    (line,) = [record for record in caplog.records if record.name == "acme.works"]
    assert (line.getMessage(), line.levelname) == ("a line of the application", "ERROR")
    assert vars(line)["lro.operation"] == operation.name
    assert not any("has a handler" in text for _, text in texts)


def test_thread_of_a_child_logs_between_calls(harness, tmp_path):
    """Between calls the parent reads nothing, so a thread's logging in the child must not block."""
    service, method = harness()
    done = tmp_path / "done"
    ended(service, method.start(request("log_afterwards", text=str(done))))
    until(done.exists)


GREEN = """
import gevent.monkey

gevent.monkey.patch_all()
import lro
from lro.executors.processes import ProcessExecutor
from lro.stores.memory import MemoryStore
from tests.executors import process_methods
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

classes = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
with lro.Service(MemoryStore(), ProcessExecutor(1)) as service:
    work = service.method("acme.v1.Works.Work", **classes)(process_methods.task)
    for do, size in (("echo", 3), ("big", 3_000_000)):
        started = work.start(WorkRequest("x" * size, size, {"do": do}))
        found = service.wait(started.name, 100)
        print(found.state, found.error and found.error.message)
"""


def test_children_work_under_gevent():
    """Children work under gevent, although gevent makes pipes non-blocking at both ends."""
    pytest.importorskip("gevent")
    command = [sys.executable, "-c", GREEN]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert ran.stdout.split("\n")[0] == "SUCCEEDED None", ran.stderr
    assert "WORKER_LOST" not in ran.stdout


def test_child_ignores_signals_of_the_terminal_and_supervisor(harness):
    """A child ignores Ctrl-C and a supervisor's SIGTERM, which its parent handles."""
    service, method = harness()
    operation = ended(service, method.start(request("signals")))
    assert answer(service, operation) == "still here"


def test_service_in_a_child_cannot_start_work(harness):
    """A child refuses to start work, as it would run a second service beside its parent's."""
    service, method = harness()
    operation = ended(service, method.start(request("start_more")))
    assert "starts none" in answer(service, operation)


# -- work that is stopped ----------------------------------------------------------------------


@pytest.fixture
def kills(monkeypatch):
    """An event before which no child is killed, however long the child takes to be interrupted."""
    allowed, kill = threading.Event(), ChildProcess.kill

    def kill_when_allowed(process):
        assert allowed.wait(PATIENCE)
        kill(process)

    monkeypatch.setattr(ChildProcess, "kill", kill_when_allowed)
    yield allowed
    allowed.set()


LADDER = [
    (process_methods.task, "look", "Cancelled"),
    (process_methods.task, "report_on", None),
    (process_methods.task, "never_look", "Cancelled"),
    (process_methods.task, "write_on", None),
    (process_methods.task, "stubborn", "no"),
    (process_methods.task, "look:die", None),
    (process_methods.async_task, "await_on", "CancelledError"),
    (process_methods.async_task, "await_never", None),
    (process_methods.async_task, "await_stubbornly", None),
]


@pytest.mark.parametrize(("function", "do", "said"), LADDER)
def test_cancelled_work_is_stopped_or_killed(harness, mail, kills, function, do, said):
    """Cancelled work stops at a check or ``await``; otherwise a signal interrupts or kills it."""
    service, method = harness(function)
    operation = method.start(request(do, mail))
    assert mail.line() == "begun"
    service.cancel(operation.name)
    if said is not None:
        assert mail.line() == said
    kills.set()
    assert reason(ended(service, operation)) == (Code.CANCELLED, "CANCELLED")
    mail.end()
    other = method.start(
        request("report_once" if function is process_methods.task else "await_report")
    )
    assert answer(service, ended(service, other)) == ",1,False,half"


@pytest.mark.parametrize(("function", "do", "said"), LADDER)
def test_overdue_work_ends_with_deadline_exceeded(harness, mail, function, do, said):
    """Overdue work is stopped like cancelled work, but ends with DEADLINE_EXCEEDED."""
    service, method = harness(function, time_limit=timedelta(seconds=0.5))
    warm = service.method(f"{NAME}Warm", **CLASSES)(process_methods.task)
    ended(service, warm.start(request("echo")))
    operation = ended(service, method.start(request(do, mail)))
    assert reason(operation) == (Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    mail.end()


@pytest.mark.parametrize(
    ("function", "do"), [(process_methods.task, "look"), (process_methods.async_task, "await_on")]
)
def test_result_after_a_cancel_is_stored(harness, mail, function, do):
    """A result or an error that comes after a cancel is stored."""
    service, method = harness(function, own={"grace": timedelta(seconds=PATIENCE)})
    found = []
    for end in ("finish", "fail"):
        operation = method.start(request(f"{do}:{end}", mail))
        assert mail.line() == "begun"
        service.cancel(operation.name)
        found.append(ended(service, operation))
    assert answer(service, found[0]) == "done"
    assert reason(found[1]) == (Code.INVALID_ARGUMENT, "INVALID_ARGUMENT")


@pytest.mark.parametrize("do", ["look", "stubborn"])
def test_closing_service_releases_work_and_ends_its_children(harness, mail, store, do):
    """A closing service releases its work for another process, and no child survives."""
    service, method = harness(own={})
    operation = method.start(request(do, mail))
    assert mail.line() == "begun"
    store.close, close = lambda: None, store.close
    service.close(timedelta(0))
    record = store.get(operation.name)
    assert (record.state, record.owner, record.lost_attempts) == (State.IN_PROGRESS, "", 0)
    assert mail.line() == {"look": "Cancelled", "stubborn": "no"}[do]
    assert harness.executor.join(PATIENCE)
    mail.end()
    close()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_function_that_does_not_stop_is_killed_before_its_work_is_released(
    harness, mail, store, cancelled
):
    """A function that does not stop is killed before its work is released or shown as ended."""
    service, method = harness(own={"grace": timedelta(minutes=1)})
    child = child_of(service, method)
    operation = method.start(request("stubborn", mail))
    assert mail.line() == "begun"
    if cancelled:
        service.cancel(operation.name)
    store.close, close = lambda: None, store.close
    running = []

    def noting(write):
        """Wrap a write of the store so that it records whether the child is running."""

        def noted(*given):
            running.append(not gone(child))
            return write(*given)

        return noted

    for verb in ("update", "update_later"):
        setattr(store, verb, noting(getattr(store, verb)))
    service.close(timedelta(0))
    assert running
    assert not any(running)
    record = store.get(operation.name)
    state = State.CANCELLED if cancelled else State.IN_PROGRESS
    assert (record.state, record.owner, record.lost_attempts) == (state, "", 0)
    mail.end()
    close()


def test_a_lost_lease_reaches_the_function(harness, mail, store):
    """After the loss of the lease, the function's next report raises LeaseLost, as in a thread."""
    _, method = harness()
    operation = method.start(request("lose", mail))
    assert mail.line() == "begun"
    attempt = store.get(operation.name).attempt + 1
    changes = {"owner": "another", "attempt": attempt, "lease_until": store.now() + timedelta(60)}
    store.update(operation.name, lambda record: record.next_version(**changes))
    assert mail.line() == f"{operation.name} {attempt - 1} {attempt}"
    assert harness.executor.join(PATIENCE)
    record = store.get(operation.name)
    assert (record.state, record.owner) == (State.IN_PROGRESS, "another")


# -- children that die -------------------------------------------------------------------------

DEATHS = [
    ("exit_at_once", 0, "exit code 0"),
    ("exit_at_once", 7, "exit code 7"),
    ("kill_itself", signal.SIGKILL, "ended by SIGKILL"),
    ("kill_itself", signal.SIGRTMIN + 1, f"ended by signal {signal.SIGRTMIN + 1}"),
    ("crash", 0, "ended by SIGSEGV"),
    ("fork_and_die", 0, "exit code 5"),
    ("fork_unnoticed", 0, "exit code 5"),
    ("run_a_program", 0, "exit code 1"),
]


@pytest.mark.parametrize(("do", "size", "how"), DEATHS)
def test_a_dead_child_ends_its_operation(harness, mail, caplog, do, size, how):
    """After a child's death its work is lost at once, its processes die, and a new child starts."""
    service, method = harness()
    operation = ended(service, method.start(request(do, mail, size=int(size))))
    assert reason(operation) == (Code.ABORTED, "WORKER_LOST")
    assert f"{operation.name}: attempt 1: its process" in caplog.text
    assert how in caplog.text
    mail.end()
    assert answer(service, ended(service, method.start(request("echo")))) == " 0"


def test_lost_work_runs_again_in_a_new_child(harness):
    """If the method allows it, lost work runs again in a new child, as another attempt."""
    service, method = harness()
    operation = method.start(request("die_once"))
    assert answer(service, ended(service, operation)) == "attempt 2"


def test_a_function_may_fork(harness, caplog):
    """A process forked by a function is not a worker: signals end it, and its log is dropped."""
    service, method = harness()
    operation = ended(service, method.start(request("fork")))
    assert answer(service, operation) == str(-signal.SIGTERM)
    assert "not for the parent" not in caplog.text


def test_a_child_that_died_idle_is_replaced(harness):
    """If an idle child dies, no operation is lost, and another child replaces it."""
    service, method = harness()
    before = child_of(service, method)
    assert harness.executor.join(PATIENCE)
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert child_of(service, method) != before


MIXED = {
    "echo": None,
    "give:wrong class": (Code.INTERNAL, "ENCODING_FAILED"),
    "exit_at_once": (Code.ABORTED, "WORKER_LOST"),
    "crash": (Code.ABORTED, "WORKER_LOST"),
    "look": (Code.CANCELLED, "CANCELLED"),
    "never_look": (Code.CANCELLED, "CANCELLED"),
    "stubborn": (Code.CANCELLED, "CANCELLED"),
}


def test_many_concurrent_operations_have_their_expected_ends(harness, mail):
    """Each operation has its expected end, whatever other operations do; no child survives."""
    service, method = harness(own={"grace": timedelta(seconds=0.05), "workers": 4})
    started = [(do, method.start(request(do, mail))) for do in 4 * [*MIXED]]
    for do, operation in started:
        if MIXED[do] == (Code.CANCELLED, "CANCELLED"):
            service.cancel(operation.name)
    for do, operation in started:
        operation = ended(service, operation)
        found = None if operation.error is None else reason(operation)
        assert (do, found) == (do, MIXED[do])
    service.close()
    mail.end()


# -- children that exit ------------------------------------------------------------------------


def test_child_is_replaced_after_its_number_of_calls(harness):
    service, method = harness(own={"recycle": 2})
    found = [child_of(service, method) for _ in range(5)]
    assert found[0::2] == [found[0], found[2], found[4]]
    assert found[1::2] == found[0:4:2]
    assert len({*found}) == 3
    assert harness.executor.join(PATIENCE)
    assert [gone(child) for child in found] == [True] * 4 + [False]


def test_child_that_does_not_exit_is_killed(harness):
    """A child that cannot exit, because a thread of the function still runs, is killed."""
    service, method = harness(own={"recycle": 1})
    ended(service, method.start(request("hang_at_exit")))
    assert answer(service, ended(service, method.start(request("echo")))) == " 0"


PARENT = """
import sys
from datetime import timedelta
from lro.executors.processes import ProcessExecutor
from lro.stores.memory import MemoryStore
from tests.executors import process_methods
from tests.service_steps import ended
from tests.work_messages import WorkRequest

drain = timedelta(seconds=0.5)  # at its exit; the work does not end by itself
service = process_methods.service_of(ProcessExecutor(2), MemoryStore(), drain=drain)
for do in sys.argv[2:]:
    operation = service.start(
        "acme.v1.Works.Task", WorkRequest(rest={"do": do, "pipe": sys.argv[1]})
    )
    if do == "hold_on":
        ended(service, operation)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("works", [["stubborn", "stubborn"], ["hold_on", "never_look"]])
@pytest.mark.parametrize("how", ["exit", signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_its_parent(mail, how, works):
    command = [sys.executable, "-c", PARENT, mail.path, *works]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout.readline() == b"ready\n"
        for do in works:
            assert do == "hold_on" or mail.line() == "begun"
        if how == "exit":
            parent.stdin.close()
        else:
            parent.send_signal(how)
        mail.end()
        assert parent.wait(PATIENCE) == (0 if how == "exit" else -how)


FORKED = """
import os, sys, warnings
from lro.executors.processes import ProcessExecutor
from lro.stores.memory import MemoryStore
from tests.executors.process_methods import service_of
from tests.service_steps import answer, ended
from tests.work_messages import WorkRequest

def child_of(service):
    name = service.start("acme.v1.Works.Task", WorkRequest(rest={{"do": "who"}})).name
    return answer(service, ended(service, name))

service = service_of(ProcessExecutor(1), MemoryStore())
first = child_of(service) if {warm} else ""
warnings.simplefilter("ignore")  # Python warns of forks beside threads, which is the point here
forked = os.fork()
if not forked:
    assert child_of(service) != first
    service.close()
    sys.exit(0)  # and what is called at exit ends none of the parent's children
assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
assert first in ("", child_of(service))
service.close()
"""


@pytest.mark.parametrize("warm", [False, True])
def test_the_executor_survives_a_fork(warm):
    """A forked process starts its own children and leaves its parent's children alone."""
    ran = subprocess.run(
        [sys.executable, "-c", FORKED.format(warm=warm)],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
