"""The Celery executor with a real Redis and real workers: no work is lost or stuck."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("celery")

from lro import Code, Operation
from lro.errors import Unavailable
from lro.executors import _celery_messages
from lro.testing._executors import Work
from tests.engine.engine_parts import counted
from tests.executors import celery_app
from tests.executors.celery_workers import Harness, Worker
from tests.service_steps import answer, ended, reason
from tests.services.postgres import shared_server
from tests.services.redis import Redis, redis_server
from tests.waiting import PATIENCE, until
from tests.webhooks.receivers import receiver

SOME_SECONDS = 8
REQUEST_ID = "6f1c1ec3-3f4c-4b52-9c3d-9a4be6f1d2aa"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis server for all tests of this module."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis server for one test, which may kill it."""
    with redis_server(tmp_path_factory.mktemp("mortal")) as server:
        yield server


@pytest.fixture
def harness(broker: Redis, tmp_path: Path) -> Iterator[Harness]:
    """A service without workers."""
    made = Harness(broker.url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def shaky(mortal: Redis, tmp_path: Path) -> Iterator[Harness]:
    """A service whose broker the test may kill."""
    made = Harness(mortal.url, tmp_path)
    yield made
    made.close()


def send(harness: Harness, name: str) -> None:
    """Send a name once more, as maintenance does with a name that seems lost."""
    harness.service.edges.runtime.executor.reserve().submit(Work(name))


def test_a_worker_is_sent_the_name_after_the_commit(broker, tmp_path):
    """After the commit, an operation's name is sent at once, long before lost names are resent."""
    harness = Harness(broker.url, tmp_path, redelivery=600)
    with contextlib.closing(harness), harness.worker("solo"):
        with contextlib.closing(sqlite3.connect(tmp_path / "operations.db", timeout=60)) as link:
            name = harness.start("Echo", "abc", within=link)
            link.commit()
        assert answer(harness.service, ended(harness.service, name)) == "cba"


def test_repeated_message_runs_the_work_once(harness):
    """If messages arrive before, during and after the work, it runs once; each is acknowledged."""
    gate, tally = harness.gate("gate"), harness.gate("tally")
    with harness.worker("prefork") as worker:
        held, counted = harness.start("Hold", str(gate)), harness.start("Count", str(tally))
        harness.begun(held)
        ended(harness.service, counted)
        before = worker.count("succeeded")
        for name in (held, counted) * 3:
            send(harness, name)
        worker.says("succeeded", before + 6)  # the other pool process found no work to claim
        gate.touch()
        ended(harness.service, held)
        send(harness, held)
        send(harness, "operations/unknown")  # its record may have been deleted
        worker.says("succeeded", before + 9)
        assert not worker.count("operations/unknown: not begun")
    assert tally.read_text() == f"{counted}\n"


WRONG = [
    [],
    ["operations/a", "operations/b"],
    [{"a": 1}],
    [["operations/a"]],
    [None],
    [True],
    [10**40],
    ["x" * 2_000_000],
    [""],
    ["operations/"],
    ["operations/a\x00b"],
    ["operations/\ud800"],
    ["not a name"],
    [["x"] * 200_000],
]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_message_that_names_no_operation_is_dropped(broker, tmp_path, pool):
    """A message without an operation's name is logged in one line and never requeued."""
    harness = Harness(broker.url, tmp_path)
    with contextlib.closing(harness), harness.worker(pool) as worker:
        for arguments in WRONG:
            harness.app.send_task("lro.work", arguments, queue=harness.queue)
        harness.app.send_task("lro.work", ["operations/a"], {"more": 1}, queue=harness.queue)
        worker.says("a message is dropped", len(WRONG) + 1)
        worker.says("succeeded", len(WRONG) + 1)
        assert (
            answer(harness.service, ended(harness.service, harness.start("Echo", "abc"))) == "cba"
        )
        with harness.app.connection_for_read() as connection:
            assert connection.default_channel.client.llen(harness.queue) == 0
        assert worker.count("a message is dropped") == len(WRONG) + 1
        assert not worker.count("goes back to the broker")
        assert not worker.count("Traceback")


def test_work_of_a_killed_worker_ends_or_runs_again(harness):
    """A killed worker's work fails with WORKER_LOST or runs again, as the method's options say."""
    gate = harness.gate("gate")
    with harness.worker("prefork") as worker:
        lost, again = harness.start("Once", str(gate)), harness.start("Again", str(gate))
        harness.begun(lost)
        harness.begun(again)
        worker.end(signal.SIGKILL)
    assert reason(ended(harness.service, lost)) == (Code.ABORTED, "WORKER_LOST")
    with harness.worker("threads") as worker:
        harness.begun(again, attempt=2)
        gate.touch()
        assert answer(harness.service, ended(harness.service, again)) == str(worker.process.pid)


def test_steps_that_a_killed_worker_has_completed_do_not_run_again(harness):
    """After a kill, another worker skips the completed step and repeats the interrupted step."""
    gate = harness.gate("gate")
    with harness.worker("threads") as killed:
        name = harness.start("Steps", str(gate))
        harness.begun(name)
        killed.end(signal.SIGKILL)
    with harness.worker("threads") as worker:
        harness.begun(name, attempt=2)
        gate.touch()
        pids = f"{killed.process.pid} {worker.process.pid}"
        assert answer(harness.service, ended(harness.service, name)) == pids


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_worker_sends_the_webhooks_of_its_work(broker, tmp_path, monkeypatch, pool):
    """A process of the worker sends the webhook; the process that started the work does not."""
    with receiver() as hooks:
        monkeypatch.setenv(celery_app.URL, hooks.url)
        mine = celery_app.webhooks(hooks.url)
        harness = Harness(broker.url, tmp_path, maintenance=False, webhooks=mine)
        with contextlib.closing(harness), harness.worker(pool):
            name = harness.start("Echo", "abc")
            ended(harness.service, name)
            event = json.loads(hooks.next().body)
            assert (event["type"], event["data"]["name"]) == ("operation.succeeded", name)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_warm_shutdown_ends_the_running_work(harness, pool):
    """After SIGTERM, Celery's warm shutdown, a worker finishes its work."""
    gate = harness.gate("gate")
    with harness.worker(pool) as worker:
        name = harness.start("Hold", str(gate))
        harness.begun(name)
        worker.process.send_signal(signal.SIGTERM)
        worker.says("Warm shutdown")
        gate.touch()
        assert ended(harness.service, name).response is not None
        assert worker.process.wait(PATIENCE) == 0


def test_cold_shutdown_releases_the_running_work(harness):
    """After SIGQUIT the work is released, so another worker runs it at once."""
    gate = harness.gate("gate")
    with harness.worker("prefork") as worker:
        name = harness.start("Hold", str(gate))
        harness.begun(name)
        worker.end(signal.SIGQUIT)
    record = harness.service.store.get(name)
    assert (record.owner, record.lost_attempts) == ("", 0)
    with harness.worker("solo"):
        harness.begun(name, attempt=2)
        gate.touch()
        assert ended(harness.service, name).response is not None


def test_processes_that_a_worker_ends_leave_their_counts(harness):
    """Celery ends pool processes without calling atexit functions; counts are still stored."""
    with harness.worker("prefork") as worker:
        for text in "ab":
            ended(harness.service, harness.start("Echo", text))
        worker.end(signal.SIGTERM)
    counts = counted(harness.service.store)
    assert counts["acme.v1.Works.Echo"]["ends.succeeded"] == 2


@pytest.fixture
def far(broker: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Harness]]:
    """A function that makes services with a PostgreSQL store and a long redelivery time."""
    pytest.importorskip("psycopg")
    url = shared_server().url
    with contextlib.ExitStack() as harnesses:

        def make() -> Harness:
            folder = tmp_path_factory.mktemp("far")
            made = Harness(broker.url, folder, redelivery=60.0, store=url)
            harnesses.callback(made.close)
            return made

        yield make


def test_pool_processes_have_their_own_connections_to_the_store(far):
    """Each pool process has its own connections to PostgreSQL, and gets cancel requests."""
    harness = far()
    with harness.worker("prefork"):
        assert (
            answer(harness.service, ended(harness.service, harness.start("Echo", "abc"))) == "cba"
        )
        held = [harness.start(method, str(harness.gate("never"))) for method in ("Hold", "Once")]
        assert len({harness.begun(name).note for name in held}) == 2
        harness.service.cancel(held[0])
        assert reason(ended(harness.service, held[0])) == (Code.CANCELLED, "CANCELLED")
        os.kill(int(harness.begun(held[1]).note), signal.SIGKILL)
        assert reason(ended(harness.service, held[1])) == (Code.ABORTED, "WORKER_LOST")
        # The worker continues with a new process.
        assert ended(harness.service, harness.start("Echo", "abc")).response is not None


def found_by(harness: Harness, name: str) -> Operation | None:
    """Return an operation once it is done, or None while the store is unavailable."""
    with contextlib.suppress(Unavailable):
        return ended(harness.service, name)
    return None


def test_message_is_requeued_while_the_store_is_unavailable(far):
    """While the store is unavailable, a message is requeued."""
    harness, unattended = far(), far()
    tally = harness.gate("tally")
    name = unattended.start("Count", str(tally))
    with harness.worker("threads") as worker:
        with shared_server().away():
            send(harness, name)
            worker.says("its message goes back to the broker")
        assert until(lambda: found_by(harness, name)).response is not None
    assert tally.read_text() == f"{name}\n"


def test_closed_service_leaves_no_connection_to_the_broker(mortal, shaky):
    """After a close, the broker counts no connections, although the Celery app still exists."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(mortal.url) as asking:
        shaky.start("Echo", "abc")
        assert len(asking.client_list()) > 1
        shaky.close()
        until(lambda: len(asking.client_list()), lambda count: count <= 1)


@pytest.mark.parametrize("request_id", ["", REQUEST_ID])
def test_start_fails_while_the_broker_is_unavailable(mortal, shaky, request_id):
    """While the broker is unavailable, a start raises Unavailable and stores nothing."""
    mortal.kill()
    for _ in range(2):  # the failure is first detected, then remembered
        with pytest.raises(Unavailable, match="broker cannot be reached"):
            shaky.start("Echo", "abc", request_id=request_id)
    assert shaky.stored() == []


def test_stored_work_waits_while_the_broker_does_not_answer(mortal, shaky, monkeypatch):
    """If the broker stops answering after it was checked, the stored work's name is sent later."""
    monkeypatch.setattr(_celery_messages, "FRESH_SECONDS", PATIENCE)
    names = [shaky.start("Echo", "abc")]
    with mortal.frozen():
        names.append(shaky.start("Echo", "abc"))  # this returns in bounded time
        monkeypatch.setattr(_celery_messages, "FRESH_SECONDS", 0.0)
        with pytest.raises(Unavailable, match="broker cannot be reached"):
            shaky.start("Echo", "abc")
    assert {one.name for one in shaky.stored()} == {*names}
    with shaky.worker("threads"):
        assert [answer(shaky.service, ended(shaky.service, one)) for one in names] == ["cba"] * 2


def test_work_is_done_though_the_broker_dies_during_the_start(mortal, shaky, monkeypatch):
    """Work runs even if the broker is killed during the work's start and loses all messages."""
    monkeypatch.setattr(_celery_messages, "FRESH_SECONDS", PATIENCE)
    names = [shaky.start("Echo", "abc")]
    mortal.kill()
    names.append(shaky.start("Echo", "abc"))
    mortal.start()
    monkeypatch.setattr(_celery_messages, "FRESH_SECONDS", 0.0)
    with shaky.worker("threads"):
        assert [answer(shaky.service, ended(shaky.service, one)) for one in names] == ["cba"] * 2


def test_work_is_done_after_the_broker_restarts_empty(mortal, shaky):
    """One worker runs the work started before and after the broker's restart."""
    with shaky.worker("threads"):
        assert ended(shaky.service, shaky.start("Echo", "abc")).done
        # Celery does not survive a broker that dies during an acknowledgement.
        until(lambda: mortal.ask("HLEN", "unacked"), lambda said: said == b":0\r\n")
        mortal.kill()
        mortal.start()
        after = shaky.start("Echo", "abc")
        assert answer(shaky.service, ended(shaky.service, after)) == "cba"


def test_names_that_the_broker_lost_are_sent_again(mortal, shaky):
    """Names that the broker lost are sent again, except the names of cancelled work."""
    tally = shaky.gate("tally")
    first, second = shaky.start("Count", str(tally)), shaky.start("Count", str(tally))
    shaky.service.cancel(second)
    assert reason(ended(shaky.service, second)) == (Code.CANCELLED, "CANCELLED")
    mortal.kill()
    mortal.start()
    assert mortal.ask("LLEN", shaky.queue) == b":0\r\n"
    with shaky.worker("solo"):
        assert ended(shaky.service, first).response is not None
    assert tally.read_text() == f"{first}\n"


def times_in(file: Path) -> list[float]:
    """Return the times in a file, one for each call of the function."""
    return [*map(float, file.read_text().split())] if file.exists() else []


def test_delayed_and_retried_work_begins_when_it_is_due(harness):
    """The name of delayed or retried work is sent when the work is due, not before."""
    tally = harness.gate("tally")
    with harness.worker("prefork"):
        began = time.time()
        delayed = harness.start("Count", str(harness.gate("delayed")), delay=timedelta(seconds=2))
        retried = harness.start("Retried", str(tally))
        assert ended(harness.service, retried).state == "SUCCEEDED"
        assert ended(harness.service, delayed).state == "SUCCEEDED"
        start = harness.service.get(delayed, view="FULL").description.start_time
        assert 2 <= start.timestamp() - began < 2 + SOME_SECONDS
        first, second = times_in(tally)
        assert 2 <= second - first < 2 + SOME_SECONDS


def test_attempts_begin_when_they_are_due_though_a_worker_is_killed(harness):
    """Messages that arrive between attempts have no effect; each failed attempt is recorded."""
    tally = harness.gate("tally")
    with harness.worker("threads") as killed:
        name = harness.start("Stubborn", str(tally))
        until(lambda: harness.service.store.get(name).failure_count == 1)
        before = killed.count("succeeded")
        send(harness, name)
        killed.says("succeeded", before + 1)
        killed.end(signal.SIGKILL)
    with harness.worker("threads") as worker:
        for _ in range(3):
            send(harness, name)
        worker.says("succeeded", 3)
        assert ended(harness.service, name).state == "SUCCEEDED"
    record = harness.service.store.get(name)
    failed = record.failed_attempts
    assert (record.attempt, record.lost_attempts) == (3, 0)
    pids = (killed.process.pid, worker.process.pid)
    assert [(one.attempt, one.text) for one in failed] == [
        (number, f"away in {pid}") for number, pid in enumerate(pids, 1)
    ]
    later = times_in(tally)[1:]
    pauses = [at - one.time.timestamp() for at, one in zip(later, failed, strict=True)]
    wanted = [celery_app.STUBBORN.pause(number).total_seconds() for number in (1, 2)]
    assert all(least <= found for found, least in zip(pauses, wanted, strict=True)), pauses


def received(harness: Harness, worker: Worker, count: int) -> None:
    """Check how many messages a worker has received, once the queue is empty."""
    with harness.app.connection_for_read() as connection:
        client = connection.default_channel.client
        until(lambda: client.llen(harness.queue) == 0)
    worker.says("received", count)
    assert worker.count("received") == count


def test_work_over_a_limit_occupies_no_worker(broker, tmp_path):
    """The name of work over a limit is sent once, when the limit allows."""
    harness = Harness(broker.url, tmp_path, redelivery=600)
    gate = harness.gate("gate")
    with contextlib.closing(harness), harness.worker("prefork") as worker:
        names = [harness.start("Alone", str(gate)) for _ in range(3)]
        until(lambda: [harness.service.store.get(name).owner != "" for name in names], any)
        # the work of Echo runs in the other pool process
        assert ended(harness.service, harness.start("Echo", "abc")).state == "SUCCEEDED"
        waiting = [name for name in names if harness.service.store.get(name).waits]
        assert len(waiting) == 2
        for name in waiting:
            send(harness, name)
        worker.says("succeeded", 3)
        received(harness, worker, 4)
        gate.touch()
        assert {ended(harness.service, name).state for name in names} == {"SUCCEEDED"}
        received(harness, worker, 6)


def test_work_of_a_paused_method_waits_for_the_end_of_the_pause(broker, tmp_path):
    """A message has no effect while the method is paused; a resume sends the name at once."""
    harness = Harness(broker.url, tmp_path, redelivery=600)
    tally = harness.gate("tally")
    with contextlib.closing(harness):
        name = harness.start("Count", str(tally))
        harness.service.pause("acme.v1.Works.Count")
        with harness.worker("threads") as worker:
            worker.says("succeeded")
            assert harness.service.store.get(name).attempt == 0
            harness.service.resume("acme.v1.Works.Count")
            assert ended(harness.service, name).state == "SUCCEEDED"


def test_expired_work_does_not_begin(harness):
    """The message of expired work, still in the queue when a worker starts, has no effect."""
    tally = harness.gate("tally")
    name = harness.start("Count", str(tally), expires=timedelta(seconds=1))
    assert reason(ended(harness.service, name)) == (Code.DEADLINE_EXCEEDED, "EXPIRED")
    with harness.worker("threads") as worker:
        worker.says("succeeded")
    assert not tally.exists()


def test_names_are_sent_as_the_rate_allows(broker, tmp_path):
    """Each name is sent once, when the rate lets its work begin."""
    harness = Harness(broker.url, tmp_path, redelivery=600)
    tally = harness.gate("tally")
    with contextlib.closing(harness), harness.worker("prefork") as worker:
        names = [harness.start("Rated", str(tally)) for _ in range(5)]
        assert {ended(harness.service, name).state for name in names} == {"SUCCEEDED"}
        received(harness, worker, 5)
        starts = sorted(
            harness.service.get(name, view="FULL").description.start_time for name in names
        )
    pairs = zip(starts, starts[2:], strict=False)
    assert all(later - one >= celery_app.RATE[1] for one, later in pairs)
