"""The interpreter exits while a service is open: no work is lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from lro import State
from lro.adapters import Record
from tests.full.across.__main__ import place_of
from tests.full.engine.exiting_process import EXECUTORS
from tests.places import Place
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
LONG = 300.0
"""Far more seconds than a nap takes."""


@attrs.frozen
class Naps:
    """A store, and the folder with the log of the process that uses it."""

    place: Place
    folder: Path

    def run(
        self, executor: str, drain: float, ending: str, seconds: float = 0.5
    ) -> tuple[int, str, list[str]]:
        """Run the process with naps of `seconds`.

        Return its exit status, its error output, and the names of its naps.
        """
        work = (executor, str(self.folder), str(drain), str(seconds), ending)
        command = [sys.executable, "-m", "tests.full.engine.exiting_process"]
        process = subprocess.Popen(
            [*command, *attrs.astuple(self.place), *work],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        names = process.stdout.readline().split()
        until(lambda: process.poll() is not None or self.notes("begun") == len(names))
        assert process.poll() is None
        _, complaint = process.communicate("\n", timeout=360)
        lines = complaint.splitlines(keepends=True)
        # If the machine stalls, the clock of a remote store seems to have been set.
        rest = [line for line in lines if not line.startswith("the store's clock was set")]
        return process.returncode, "".join(rest), names

    def notes(self, line: str) -> int:
        """Return how often a line is in the log."""
        log = self.folder / "log"
        return log.read_text().split().count(line) if log.exists() else 0

    def records(self, names: list[str]) -> list[Record]:
        with contextlib.closing(self.place.open()) as store:
            return [store.get(name) for name in names]


@pytest.fixture(params=["sqlite", "postgres"])
def naps(request, tmp_path):
    """Naps on a store that outlives the process, unless the store is in memory."""
    if request.param == "postgres":
        pytest.importorskip("psycopg")
    return Naps(place_of(request.param, tmp_path), tmp_path)


@pytest.mark.parametrize("naps", ["memory", "sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_work_ends_before_the_interpreter(naps, executor):
    """After its last line, a program waits for its work and stores the results.

    With a store in memory, the work still runs to its end, because it may have outside effects.
    """
    assert naps.run(executor, LONG, "end")[:2] == (0, "")
    assert naps.notes("ended") == 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_unfinished_work_is_released_at_exit(naps, executor):
    """Without time to drain, work stays in progress at exit, and no process owns it."""
    status, complaint, names = naps.run(executor, 0, "end", LONG)
    assert (status, complaint) == (0, "")
    assert [(one.state, one.owner) for one in naps.records(names)] == [
        (State.IN_PROGRESS, ""),
        (State.IN_PROGRESS, ""),
    ]


@pytest.mark.parametrize("naps", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("ending", "status"), [("exit", 3), ("registered", 0), ("asked", 0), ("forked", 0)]
)
def test_exit_closes_the_service_in_every_way_to_end(naps, ending, status):
    """The service closes after sys.exit, an exit handler, calls in daemon threads, or a fork."""
    found, complaint, names = naps.run("threads", LONG, ending)
    assert (found, complaint) == (status, "")
    assert [one.state for one in naps.records(names)] == [State.SUCCEEDED] * 2
    assert not Path(naps.place.where + "-wal").exists()
