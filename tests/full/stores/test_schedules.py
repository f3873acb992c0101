"""Four processes share a schedule: despite kills, stops and clock jumps, no tick starts twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import lro
from tests.places import Place
from tests.services.processes import killed_at_end
from tests.waiting import until

PROGRAM: Final = """
import os, signal, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
import attrs
import lro
from lro.executors.threads import ThreadExecutor
from tests.places import Place

kind, where, schema, offset, die_at = sys.argv[1:]
clock = lambda: datetime.now(UTC) + timedelta(seconds=float(Path(offset).read_text()))

@lro.message("acme.ticks.v1.Tick")
@attrs.frozen
class Tick:
    time: str = ""

class Dying:
    '''Is killed at its third tick, at this point of the way.'''
    def __init__(self, store):
        self.store, self.left = store, 3
    def __getattr__(self, name):
        return getattr(self.store, name)
    def note_tick(self, schedule):
        point = "begun" if schedule.begun_time else "started"
        if point == "started": self.reach("before started")
        answer = self.store.note_tick(schedule)
        if answer and point == "begun": self.reach("after begun")
        return answer
    def reach(self, point):
        if point == die_at:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

store = Dying(Place(kind, where, schema).open(clock))
service = lro.Service(store, ThreadExecutor(2), lease=timedelta(seconds=3))

@service.method("acme.ticks.v1.Ticks.Take")
def take(request: Tick) -> Tick:
    return request

def request(tick):
    return Tick(tick.isoformat())

service.schedule("ticks", timedelta(seconds=1), take, request, catch_up=1000)
with service:
    print("ready", flush=True)
    sys.stdin.read()
"""
POINTS: Final = ("", "after begun", "before started")
ROUNDS: Final = 14


class Crowd:
    """Worker processes on one database; the test sets their clock."""

    def __init__(self, stack: ExitStack, place: Place, offset: Path) -> None:
        self._stack, self._place, self._offset = stack, place, offset
        self.seconds = 0.0
        self.set_clock(0)
        self.running: list[subprocess.Popen[str]] = []

    def set_clock(self, step: float) -> None:
        """Move the clock of all processes by ``step`` seconds at once."""
        self.seconds += step
        new = self._offset.with_suffix(".new")
        new.write_text(str(self.seconds))
        os.replace(new, self._offset)

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds)

    def add(self, die_at: str) -> None:
        """Start another process and wait until it is ready."""
        where = [self._place.kind, self._place.where, self._place.schema, str(self._offset)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", PROGRAM, *where, die_at]
        process = self._stack.enter_context(killed_at_end(command, **pipes))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.running.append(process)

    def fill(self, choice: random.Random) -> None:
        """Start a process for each one that has died."""
        self.running = [one for one in self.running if one.poll() is None]
        while len(self.running) < 4:
            self.add(choice.choice(POINTS))


def ticks_of(service: lro.Service) -> Sequence[str]:
    """Return the ticks of all operations, or none until all operations have ended."""
    found, token = [], ""
    while True:
        page = service.list(lro.wire.ListOperationsRequest(page_size=100, page_token=token))
        found += page.operations
        if not (token := page.next_page_token):
            break
    if not all(one.done for one in found):
        return ()
    return [one.result.payload["time"] for one in found if isinstance(one.result, lro.AnyMessage)]


@pytest.mark.parametrize("seed", [1, 2])
def test_each_tick_starts_one_operation(place: Place, tmp_path: Path, seed: int) -> None:
    """Each second has one operation, although clocks jump and processes die or stop."""
    choice, deaths = random.Random(seed), 0
    with ExitStack() as stack:
        crowd = Crowd(stack, place, tmp_path / "offset")
        store = place.open(crowd.now)
        looking = stack.enter_context(closing(lro.Service(store, None, maintenance=False)))
        begin = crowd.now()
        crowd.fill(choice)
        for number in range(ROUNDS):
            victim = choice.choice(crowd.running)
            match number % 4:
                case 0:
                    victim.kill()
                case 1:
                    os.kill(victim.pid, signal.SIGSTOP)
                    time.sleep(1.5)  # a tick is due meanwhile
                    os.kill(victim.pid, signal.SIGCONT)
                case 2:
                    crowd.set_clock(choice.choice([2.5, 20, 45]))
                case 3:
                    crowd.set_clock(-choice.choice([0.7, 3, 30]))
            time.sleep(choice.random())
            deaths += sum(one.poll() is not None for one in crowd.running)
            crowd.fill(choice)
        (known,) = until(looking.schedules, len)
        ahead = (known.tick - crowd.now()).total_seconds()
        crowd.set_clock(max(0.0, ahead) + 5)
        end = crowd.now()
        until(lambda: looking.schedules()[0].last_tick, lambda tick: tick and tick >= end)
        for one in crowd.running:
            one.terminate()
        crowd.running = []
        crowd.add("")  # this process does the work of the stopped ones
        found = until(lambda: ticks_of(looking))
    assert deaths >= ROUNDS // 4
    counted = Counter(map(datetime.fromisoformat, found))
    assert {*counted.values()} == {1}
    first, last = min(counted), max(counted)
    assert first - begin < timedelta(seconds=60)
    assert last >= end - timedelta(seconds=1)
    assert len(counted) == (last - first) // timedelta(seconds=1) + 1
