"""The parts of the Celery executor, without a broker or with a broker in memory."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import signal
import socket
import threading
from contextlib import ExitStack
from datetime import timedelta

import pytest

pytest.importorskip("celery")

import celery
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.signals import worker_ready
from kombu.exceptions import OperationalError

from lro import DeclarationError, Service
from lro.adapters import CancelSupport
from lro.errors import Unavailable
from lro.executors import _celery_messages
from lro.executors._celery_messages import CeleryWorkerTask, NamePublisher
from lro.executors.celery import CeleryExecutor
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.testing import REMOTE_CHECKS, check_remote_executor, run_remote_check
from lro.testing._executors import Work
from tests.stores.samples import together
from tests.waiting import PATIENCE, joined

NUMBERS = itertools.count()
NAME = "operations/a"


def app_on(broker):
    """Return a Celery app that leaves the configuration of logging unchanged."""
    app = celery.Celery(f"app{next(NUMBERS)}", broker=broker, set_as_current=False)
    app.conf.worker_hijack_root_logger = False
    app.conf.worker_redirect_stdouts = False
    app.conf.broker_connection_retry_on_startup = True
    return app


@pytest.fixture
def unused_address():
    """The address of a port on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def level():
    """Restore the level of the root logger, which a Celery worker sets."""
    before = logging.root.level
    yield
    logging.root.setLevel(before)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    """Let a worker reject a message without a pause."""
    monkeypatch.setattr(_celery_messages, "REJECT_PAUSE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def make_remote():
    """A function that makes executors, each with a broker in memory and a worker of two threads."""
    with ExitStack() as workers:

        def make(work):
            app = app_on("memory://")
            app.conf.task_default_queue = app.main
            app.conf.broker_transport_options = {"polling_interval": 0.01}
            executor = CeleryExecutor(app)
            executor.attach(work)
            worker = start_worker(app, 2, "threads", perform_ping_check=False, loglevel="CRITICAL")
            workers.enter_context(worker)
            return executor

        yield make


@pytest.mark.parametrize("check", REMOTE_CHECKS, ids=lambda check: check.__name__)
def test_executor_passes_the_remote_checks(check, make_remote):
    run_remote_check(check, make_remote)


def test_broken_remote_executor_fails_its_contract_check():
    """The failure of a check names the promise that the executor breaks."""
    with pytest.raises(AssertionError, match="redelivery_is_valid"):
        check_remote_executor(lambda work: InlineExecutor())


def test_properties_of_the_celery_executor():
    executor = CeleryExecutor(app_on("memory://"), queue="q", redelivery=timedelta(minutes=5))
    assert executor.cancel_support is CancelSupport.COOPERATIVE
    assert executor.redelivery == timedelta(minutes=5)
    assert executor.join(0)
    executor.stop()


def test_two_services_of_one_app_need_different_task_names():
    """Two services may not share a task name, or workers would get the other service's names."""
    app = app_on("memory://")
    CeleryExecutor(app).attach(print)
    with pytest.raises(DeclarationError, match=r"lro\.work"):
        CeleryExecutor(app).attach(print)
    CeleryExecutor(app, task_name="acme.work").attach(print)
    assert {"lro.work", "acme.work"} <= set(app.tasks)


def test_settings_of_the_app_do_not_change_the_task():
    """Settings of the app do not change the task's options, on which the executor depends."""
    app = app_on("memory://")
    ours = {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": True}
    app.conf.update({f"task_{name}": not value for name, value in ours.items()})
    app.conf.task_serializer = "yaml"
    CeleryExecutor(app).attach(print)
    task = app.tasks["lro.work"]
    assert {name: getattr(task, name) for name in ours} == ours
    assert task.serializer == "json"


def test_an_eager_app_does_the_work_at_once():
    """An eager app, as Celery users have in tests, runs the work at once and needs no broker."""
    done = []
    app = app_on("redis://nowhere.invalid")
    app.conf.task_always_eager = True
    executor = CeleryExecutor(app)
    executor.attach(done.append)
    executor.reserve().submit(Work(NAME))
    assert done == [NAME]


def test_executor_that_is_opened_again_sends_names():
    """After ``reopen``, a stopped executor sends names to its broker again."""
    sent = []
    app = app_on("memory://")
    executor = CeleryExecutor(app)
    executor.attach(print)
    for _ in range(2):
        executor.stop()
        with pytest.raises(Unavailable, match="stopping"):
            executor.reserve()
        executor.reopen()
        executor.reserve().submit(Work(NAME))
        with app.connection() as connection, connection.SimpleQueue("celery") as queue:
            sent.append(queue.get(timeout=PATIENCE).headers["task"])
    assert len(sent) == 2
    executor.stop()


# -- the broker ---------------------------------------------------------------------------------


def publisher(*, app=None, seconds=1, connections=1):
    return NamePublisher(app or app_on("memory://"), timedelta(seconds=seconds), connections)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_start_is_refused_without_a_broker(unused_address, scheme, monkeypatch):
    """Without a broker, a start is refused, and further starts are refused with no new attempt."""
    executor = CeleryExecutor(app_on(f"{scheme}://{unused_address}"))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"cannot be reached now \(Connection"):
            executor.reserve()
        monkeypatch.setattr(NamePublisher, "publish", None)


def test_every_broker_of_a_list_is_tried(unused_address):
    """If the app lists several brokers, all are tried before a start is refused."""
    publisher(app=app_on([f"redis://{unused_address}", "memory://"])).check_reachable()


@pytest.mark.parametrize(
    ("url", "option"),
    [("redis://x", "socket_timeout"), ("amqp://x", "read_timeout"), ("memory://", None)],
)
def test_broker_timeouts_apply_only_to_our_connections(url, option):
    """Timeouts apply to the executor's connections; the app's own settings stay unchanged."""
    app = app_on(url)
    app.conf.broker_transport_options = {"visibility_timeout": 7}
    connection = publisher(app=app, seconds=3)._connect()
    assert connection.connect_timeout == 3
    assert connection.transport_options["visibility_timeout"] == 7
    assert {option} <= {None, *connection.transport_options}
    assert app.conf.broker_transport_options == {"visibility_timeout": 7}


def test_a_dead_connection_is_replaced_once():
    """After a restart of the broker, a failed call is repeated once on a new connection."""
    broker = publisher()
    broker.check_reachable()
    failures = [OperationalError("gone") for _ in range(3)]

    def act(connection):
        if failures:
            raise failures.pop()

    with pytest.raises(Unavailable, match="OperationalError"):
        broker.publish(act)
    assert len(failures) == 1
    broker.publish(act)
    assert failures == []


def test_start_is_refused_while_all_connections_are_in_use():
    """A start that gets no connection in time raises, but the broker still counts as reachable."""
    broker = publisher(seconds=0.01)

    def act(connection):
        with pytest.raises(Unavailable, match="all 1 connections"):
            broker.publish(print)

    broker.publish(act)
    broker.check_reachable()


def test_broker_is_not_checked_again_right_after_a_success(monkeypatch):
    """After a successful check, the broker is not checked again for a moment."""
    asked, broker = [], publisher()
    monkeypatch.setattr(_celery_messages, "_open_channel", asked.append)
    for seconds, times in ((float("inf"), 1), (float("inf"), 1), (0.0, 2)):
        monkeypatch.setattr(_celery_messages, "FRESH_SECONDS", seconds)
        broker.check_reachable()
        assert len(asked) == times


@pytest.mark.platform
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_makes_its_own_broker_connections():
    """After a fork, the child does not use the parent's connections."""
    broker = publisher()
    broker.check_reachable()
    pool = broker._pool
    child = os.fork()
    if not child:
        found = 2
        with contextlib.suppress(BaseException):
            broker.check_reachable()
            found = int(broker._pool in {pool, None} or broker._parent_pool is not pool)
        os._exit(found)
    assert os.waitpid(child, 0)[1] == 0


def test_closed_publisher_closes_its_connections():
    """A closed publisher makes no connection; a connection in use is closed when its call ends."""
    broker, used = publisher(connections=10), []

    def act(connection):
        used.append(connection)
        connection.default_channel  # noqa: B018  # opens the channel
        if len(used) == 2:
            broker.publish(act)
            broker.close()
            assert [one.connected for one in used] == [True, True, False]

    broker.publish(act)
    assert used[0].connected  # stays open for the next call
    broker.publish(act)
    assert used[0] is used[1]
    assert [one.connected for one in used] == [False, False, False]
    with pytest.raises(Unavailable, match="the executor is stopping"):
        broker.publish(act)


# -- the worker ---------------------------------------------------------------------------------


def unavailable(name):
    raise Unavailable("the store is away")


def test_message_is_requeued_if_the_store_is_unavailable(caplog):
    """While the store is unavailable, a message is requeued for later or for another worker."""
    with caplog.at_level(logging.WARNING, "lro"), pytest.raises(Reject) as caught:
        CeleryWorkerTask(unavailable, None).run(NAME)
    assert caught.value.requeue
    assert "the store is away" in caplog.text


def dropped(caplog):
    """Return the log lines about dropped messages, without other lines of the library."""
    lines = [record.getMessage() for record in caplog.records if record.name == "lro"]
    return [line for line in lines if "a message is dropped" in line]


@pytest.mark.parametrize(
    ("arguments", "named", "held"),
    [
        ((), {}, "[]"),
        ((NAME, NAME), {}, "['str', 'str']"),
        (({"a": 1},), {}, "['dict']"),
        ((NAME,), {"more": 1}, "['str', 'int']"),
        (tuple("x" * 100), {}, "['str', 'str', 'str', 'str', 'str']"),
    ],
)
def test_message_without_one_string_argument_is_dropped(caplog, arguments, named, held):
    """A message with wrong arguments is dropped; the log shows their types; nothing is claimed."""
    CeleryWorkerTask(lambda name: pytest.fail(f"asked for {name}"), None).run(*arguments, **named)
    (line,) = dropped(caplog)
    assert f"a message is dropped: it must have the name of an operation, not {held}" in line


def test_a_message_of_a_malformed_name_is_dropped(caplog, monkeypatch):
    """A message with a malformed name is dropped before the store is read, in any thread."""
    store = MemoryStore()
    monkeypatch.setattr(store, "get", None)  # a read would fail
    with Service(store, InlineExecutor(), maintenance=False) as service:
        CeleryWorkerTask(service.edges.work.run_operation, None).run("operations/")
        (line,) = dropped(caplog)
        assert "a message is dropped: name: 'operations/' names no operation" in line
        other = threading.Thread(
            target=CeleryWorkerTask(service.edges.work.run_operation, None).run, args=("a\x00",)
        )
        other.start()
        joined(other)
    assert len(dropped(caplog)) == 2


@pytest.mark.parametrize("begun", [False, True])
def test_work_is_begun_once(monkeypatch, begun):
    """If a signal interrupts a thread's start, before or after its work, the work runs once."""
    seen, errors = [], [SoftTimeLimitExceeded()]
    whole = threading.Thread.start

    def start(thread):
        if begun or not errors:
            whole(thread)
            joined(thread)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(threading.Thread, "start", start)
    CeleryWorkerTask(seen.append, None).run(NAME)
    assert seen == [NAME]


@pytest.mark.parametrize(
    ("error", "raised", "closes"),
    [
        (RuntimeError("can't start new thread"), Reject, 0),  # requeued for another worker
        (NotImplementedError("kill_job"), Reject, 1),  # raised by a signal handler during the start
        (SystemExit(1), SystemExit, 1),
    ],
)
def test_work_whose_thread_cannot_be_started_is_not_begun(monkeypatch, error, raised, closes):
    """If the start of a thread fails, its work is not done, even if the thread begins later."""
    seen, closed, threads = [], [], []

    def start(thread):
        threads.append(thread)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(raised, match=str(error)) as caught:
            CeleryWorkerTask(seen.append, closed.append).run(NAME)
    assert raised is SystemExit or caught.value.requeue
    assert closed == [timedelta()] * closes
    if closes:
        threads[0].start()
        joined(threads[0])
        assert seen == []


class Consumer:
    """The sender of Celery's ``worker_ready`` signal."""

    def __init__(self, app):
        self.app = app


def test_ready_worker_starts_maintenance_in_its_main_process():
    """A ready worker starts its app's maintenance, if there is any, in its main process."""
    app, begun = app_on("memory://"), []
    executor = CeleryExecutor(app)
    executor.attach(print, None, lambda: begun.append(1))
    idle = CeleryExecutor(app, task_name="acme.idle")
    idle.attach(print)
    for ready in (app_on("memory://"), app):
        assert begun == []
        worker_ready.send(sender=Consumer(ready))
    assert begun == [1]


def test_stopped_worker_requeues_its_messages():
    """A stopped worker requeues messages that come later and messages whose work it gave up."""
    done, app = [], app_on("memory://")
    executor = CeleryExecutor(app)

    def work(name):
        executor.stop()
        done.append(name)

    executor.attach(work)
    for _ in range(2):
        with pytest.raises(Reject) as caught:
            app.tasks["lro.work"](NAME)
        assert caught.value.requeue
    assert done == [NAME]


@pytest.mark.parametrize("apart", [False, True])
def test_service_is_notified_when_a_task_ends(apart):
    """After a task ends in any way, it no longer counts as running, and the callback is called."""
    app, told = app_on("memory://"), []
    executor = CeleryExecutor(app)

    def work(name):
        assert executor.usage.running == 1
        if name != NAME:
            raise KeyError(name)

    executor.attach(work, None, None, lambda: told.append(executor.usage.running))

    def carry():
        app.tasks["lro.work"](NAME)
        with pytest.raises(KeyError):
            app.tasks["lro.work"]("operations/other")

    if apart:
        together(1, lambda _: carry())
    else:
        carry()
    assert told == [0, 0]


def test_an_error_of_the_work_is_an_error_of_the_task():
    """An error of the work is raised by its task, in the main thread and in other threads."""

    def work(name):
        raise KeyError(name)

    worker_task, found = CeleryWorkerTask(work, None), []

    def carry():
        with pytest.raises(KeyError):
            worker_task.run(NAME)
        found.append(worker_task.join(0))

    carry()
    other = threading.Thread(target=carry)
    other.start()
    joined(other)
    assert found == [True, True]


class Signalled:
    """Work that is interrupted by a signal handler's error in the main thread."""

    def __init__(self, error, hand_back=None):
        self.closed = []
        self.may_end = threading.Event()
        self.handled = threading.Event()
        self.error, self.hand_back = error, hand_back
        self.worker_task = CeleryWorkerTask(self.work, self.close)
        before = signal.signal(signal.SIGUSR2, self.handle)
        self.restore = lambda: signal.signal(signal.SIGUSR2, before)

    def handle(self, number, frame):
        self.handled.set()
        raise self.error

    def work(self, name):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
        assert self.handled.wait(PATIENCE)
        assert self.may_end.wait(PATIENCE)

    def close(self, drain):
        self.closed.append(drain)
        self.may_end.set()
        if self.hand_back is not None:
            raise self.hand_back
        assert self.worker_task.join(PATIENCE)


@pytest.fixture
def signalled():
    """A function that makes ``Signalled`` work from an error.

    The garbage collector is off, because Python drops errors of signal handlers in its callbacks.
    """
    made = []
    gc.collect()
    gc.disable()

    def make(*given):
        made.append(Signalled(*given))
        return made[-1]

    yield make
    gc.enable()
    for one in made:
        one.restore()


@pytest.mark.parametrize(
    ("error", "hand_back", "raised"),
    [
        (SystemExit(-241), None, SystemExit),  # raised by Celery in a pool process
        (NotImplementedError("kill_job"), None, Reject),  # raised by a worker without a pool
        (SystemExit(1), ValueError("the store is broken"), SystemExit),  # the lease expires later
    ],
)
def test_worker_that_is_stopped_hands_its_work_back(signalled, caplog, error, hand_back, raised):
    """A worker that is stopped first releases its work; then the work's message is requeued."""
    work = signalled(error, hand_back)
    with caplog.at_level(logging.ERROR, "lro"), pytest.raises(raised) as caught:
        work.worker_task.run(NAME)
    assert raised is SystemExit or caught.value.requeue
    assert work.closed == [timedelta()]
    assert ("could not be released" in caplog.text) == (hand_back is not None)


def test_soft_time_limit_does_not_stop_an_operation(signalled, caplog):
    """A soft time limit does not stop the work; the log says why."""
    work = signalled(SoftTimeLimitExceeded())
    work.may_end.set()
    with caplog.at_level(logging.WARNING, "lro"):
        work.worker_task.run(NAME)
    assert work.closed == []
    assert "soft time limit" in caplog.text


def test_work_that_cannot_be_released_keeps_its_lease(signalled):
    """Without a function that releases the work, the work keeps its lease, which expires later."""
    work = signalled(SystemExit(1))
    work.worker_task = CeleryWorkerTask(work.work, None)
    with pytest.raises(SystemExit):
        work.worker_task.run(NAME)
    work.may_end.set()
    assert work.worker_task.join(PATIENCE)
