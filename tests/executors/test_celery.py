"""The Celery executor on a real Redis, with real workers: nothing lost, never stuck."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("celery")

from lro._base.errors import Unavailable
from lro._base.status import Code
from lro.executors import _celery_messages
from lro.testing._executors import Work
from tests.executors.celery_workers import House, Worker
from tests.service_steps import PATIENCE, answer, ended, reason, unpacked
from tests.services.postgres import shared_server
from tests.services.redis import Redis, redis_server

REQUEST_ID = "6f1c1ec3-3f4c-4b52-9c3d-9a4be6f1d2aa"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis that lives as long as the tests of this module."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis of one test, which may kill it."""
    with redis_server(tmp_path_factory.mktemp("mortal")) as server:
        yield server


@pytest.fixture(scope="module")
def busy(broker: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, Worker]]:
    """A house with a worker, Celery's usual pool of processes."""
    house = House(broker.url, tmp_path_factory.mktemp("busy"))
    with house.worker("prefork") as worker:
        yield house, worker
    house.close()


@pytest.fixture
def house(broker: Redis, tmp_path: Path) -> Iterator[House]:
    """A house without workers yet."""
    made = House(broker.url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def shaky(mortal: Redis, tmp_path: Path) -> Iterator[House]:
    """A house whose broker may be killed."""
    made = House(mortal.url, tmp_path)
    yield made
    made.close()


def send(house: House, name: str) -> None:
    """Send a name once more, as the upkeep does with one that it thinks lost."""
    house.service._runtime.executor.reserve().submit(Work(name))


def test_another_process_does_the_work(busy):
    """The response comes back typed, and so does the metadata."""
    house, _ = busy
    operation = ended(house.service, house.start("Echo", "abc"))
    assert answer(house.service, operation) == "cba"
    assert unpacked(house.service, operation).note != str(os.getpid())


def test_a_cancel_reaches_the_worker(busy):
    """And progress comes out of it."""
    house, _ = busy
    name = house.start("Hold", str(house.gate("never")))
    assert house.begun(name).note != str(os.getpid())
    house.service.cancel(name)
    assert reason(ended(house.service, name)) == (Code.CANCELLED, "CANCELLED")


def test_a_name_may_come_twice(busy, tmp_path):
    """Before, during and after the work: it is done once, and every message is acknowledged."""
    house, worker = busy
    gate, tally = tmp_path / "gate", tmp_path / "tally"
    held, counted = house.start("Hold", str(gate)), house.start("Count", str(tally))
    house.begun(held)
    ended(house.service, counted)
    before = worker.count("succeeded")
    for name in (held, counted) * 3:
        send(house, name)
    worker.says("succeeded", before + 6)  # the other process of the pool found nothing to do
    gate.touch()
    ended(house.service, held)
    send(house, held)
    worker.says("succeeded", before + 8)
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
    """With one line of the log, whatever it holds; it never goes back (defects 15)."""
    house = House(broker.url, tmp_path)
    with contextlib.closing(house), house.worker(pool) as worker:
        for arguments in WRONG:
            house.app.send_task("lro.work", arguments, queue=house.queue)
        house.app.send_task("lro.work", ["operations/a"], {"more": 1}, queue=house.queue)
        worker.says("a message is dropped", len(WRONG) + 1)
        worker.says("succeeded", len(WRONG) + 1)
        assert answer(house.service, ended(house.service, house.start("Echo", "abc"))) == "cba"
        with house.app.connection_for_read() as connection:
            assert connection.default_channel.client.llen(house.queue) == 0
        assert worker.count("a message is dropped") == len(WRONG) + 1
        assert not worker.count("goes back to the broker")
        assert not worker.count("Traceback")


def test_a_well_formed_name_of_no_operation_is_done_with(busy):
    """It may have been deleted: nothing is logged, and nothing goes back."""
    house, worker = busy
    before = worker.count("succeeded")
    send(house, "operations/unknown")
    worker.says("succeeded", before + 1)
    assert not worker.count("operations/unknown: not begun")


def test_a_process_of_the_pool_is_killed(busy):
    """The operation ends with the truth, and the worker goes on with a new process."""
    house, _ = busy
    name = house.start("Hold", str(house.gate("never")))
    os.kill(int(house.begun(name).note), signal.SIGKILL)
    assert reason(ended(house.service, name)) == (Code.ABORTED, "WORKER_LOST")
    assert answer(house.service, ended(house.service, house.start("Echo", "abc"))) == "cba"


def test_a_worker_is_killed(house):
    """By its method's choice the work ends with the truth, or is done again by another worker."""
    gate = house.gate("gate")
    with house.worker("prefork") as worker:
        lost, again = house.start("Hold", str(gate)), house.start("Again", str(gate))
        house.begun(lost)
        house.begun(again)
        worker.end(signal.SIGKILL)
    assert reason(ended(house.service, lost)) == (Code.ABORTED, "WORKER_LOST")
    with house.worker("threads") as worker:
        house.begun(again, attempt=2)
        gate.touch()
        assert answer(house.service, ended(house.service, again)) == str(worker.process.pid)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_stops_ends_what_it_has_begun(house, pool):
    """SIGTERM: Celery's warm stop."""
    gate = house.gate("gate")
    with house.worker(pool) as worker:
        name = house.start("Hold", str(gate))
        house.begun(name)
        worker.process.send_signal(signal.SIGTERM)
        worker.says("Warm shutdown")
        gate.touch()
        assert ended(house.service, name).response is not None
        assert worker.process.wait(PATIENCE) == 0


def test_a_worker_that_stops_coldly_hands_its_work_back(house):
    """SIGQUIT: another does it at once, whatever the method says of lost workers."""
    gate = house.gate("gate")
    with house.worker("prefork") as worker:
        name = house.start("Hold", str(gate))
        house.begun(name)
        worker.end(signal.SIGQUIT)
    record = house.service.store.get(name)
    assert (record.owner, record.lost_attempts) == ("", 0)
    with house.worker("solo"):
        house.begun(name, attempt=2)
        gate.touch()
        assert ended(house.service, name).response is not None


@pytest.fixture
def far(broker: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], House]]:
    """Makes houses with their store in PostgreSQL, whose names are not sent again for a while."""
    pytest.importorskip("psycopg")
    url = shared_server().url
    with contextlib.ExitStack() as houses:

        def make() -> House:
            folder = tmp_path_factory.mktemp("far")
            made = House(broker.url, folder, redelivery=60.0, store=url)
            houses.callback(made.close)
            return made

        yield make


def test_the_store_is_on_another_machine(far):
    """PostgreSQL: every process of the pool has connections of its own, and hears of a cancel."""
    house = far()
    with house.worker("prefork"):
        assert answer(house.service, ended(house.service, house.start("Echo", "abc"))) == "cba"
        held = [house.start("Hold", str(house.gate("never"))) for _ in range(2)]
        assert len({house.begun(name).note for name in held}) == 2
        house.service.cancel(held[0])
        assert reason(ended(house.service, held[0])) == (Code.CANCELLED, "CANCELLED")
        os.kill(int(house.begun(held[1]).note), signal.SIGKILL)
        assert reason(ended(house.service, held[1])) == (Code.ABORTED, "WORKER_LOST")


def test_the_store_is_away_when_a_name_comes(far):
    """The message goes round until it is back."""
    house, unattended = far(), far()
    tally = house.gate("tally")
    name = unattended.start("Count", str(tally))
    with house.worker("threads") as worker:
        with shared_server().away():
            send(house, name)
            worker.says("its message goes back to the broker")
        for _ in range(50):
            with contextlib.suppress(Unavailable):
                found = ended(house.service, name)
                break
            time.sleep(0.1)
        assert found.response is not None
    assert tally.read_text() == f"{name}\n"


@pytest.mark.parametrize("request_id", ["", REQUEST_ID])
def test_the_broker_is_away(mortal, shaky, request_id):
    """A start is told so, and nothing is stored."""
    mortal.kill()
    for _ in range(2):  # found out, and known
        with pytest.raises(Unavailable, match="broker cannot be reached"):
            shaky.start("Echo", "abc", request_id=request_id)
    assert shaky.stored() == []


def test_the_broker_answers_nothing(mortal, shaky):
    """The same, in bounded time: a connection is there, but whoever has it is not."""
    shaky.start("Echo", "abc")
    with mortal.frozen(), pytest.raises(Unavailable, match="broker cannot be reached"):
        shaky.start("Echo", "abc")
    assert len(shaky.stored()) == 1


@pytest.mark.parametrize("request_id", ["", REQUEST_ID])
def test_the_broker_dies_in_the_midst_of_a_start(mortal, shaky, monkeypatch, request_id):
    """It was there when asked for room: the record goes, unless its id may have been answered.

    Then the same start can be repeated, and sends the name again.
    """
    monkeypatch.setattr(_celery_messages, "FRESH_SECONDS", float("inf"))
    first = shaky.start("Echo", "abc")
    mortal.kill()
    with pytest.raises(Unavailable):
        shaky.start("Hold", "abc", request_id=request_id)
    left = [one.name for one in shaky.stored() if one.name != first]
    assert len(left) == len(request_id) // 36
    mortal.start()
    monkeypatch.setattr(_celery_messages, "FRESH_SECONDS", 0.0)
    again = shaky.start("Hold", "abc", request_id=request_id)
    assert left in ([], [again])
    assert mortal.ask("LLEN", shaky.queue) == b":1\r\n"


def test_the_broker_comes_back_empty(mortal, shaky):
    """What was started before is done, and so is what is started after, by the same worker."""
    with shaky.worker("threads"):
        assert ended(shaky.service, shaky.start("Echo", "abc")).done
        while mortal.ask("HLEN", "unacked") != b":0\r\n":
            pass  # Celery does not survive a broker that dies under an acknowledgement
        mortal.kill()
        mortal.start()
        after = shaky.start("Echo", "abc")
        assert answer(shaky.service, ended(shaky.service, after)) == "cba"


def test_the_broker_loses_what_was_sent(mortal, shaky):
    """It is killed with names in it: they are sent again, but for what was cancelled meanwhile."""
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
