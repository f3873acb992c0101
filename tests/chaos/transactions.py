"""Starts within transactions whose process is killed between insert, commit, claim and end.

A process commits rows of its own, each with a start, until its trap springs. Another one then does
what is left. An operation must be there if, and only if, its row is; each is done, none twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from lro import State
from lro.errors import OperationNotFound
from lro.executors.threads import ThreadExecutor
from tests.chaos.trapped import trapped
from tests.chaos.traps import SERVER, Moment, Point, Trap, arm
from tests.waiting import PATIENCE

LEASE: Final = timedelta(seconds=1)
_STARTS: Final = 200
_KILLED_BY: Final = 12
"""At which start, at the latest, the process dies."""

INSERTED, COMMITTED, WORKING = "inserted", "committed", "working"
CLAIMS: Final = tuple(
    f"{moment.value} {point.value}"
    for point in (Point.TAKE_OVER, Point.CLAIM, Point.END)
    for moment in Moment
)
POINTS: Final = (INSERTED, COMMITTED, WORKING, *CLAIMS)
"""Where the process is killed: as the transaction goes, or as the store is written to."""


@attrs.frozen
class Row:
    """The request of an operation: the number of the row that is committed with it."""

    number: int = 0


@attrs.frozen
class Done:
    """The response."""

    number: int = 0


def service_on(place: str, effects: Path, midst: Callable[[], None] = lambda: None) -> Any:
    """A service on this store, and its method, which leaves an effect first of all."""
    store = trapped(store_at(place))
    service = lro.Service(store, ThreadExecutor(2), lease=LEASE, drain=timedelta(0))

    @service.method("acme.v1.Rows.Do")
    def do(request: Row) -> Done:
        with effects.open("a") as file:
            file.write(f"{request.number}\n")
        midst()
        return Done(request.number)

    return service, do


def store_at(place: str) -> Any:
    """The store at a path, or at a URL of PostgreSQL with the schema after a ``#``."""
    if place.startswith("postgresql:"):
        from lro.stores.postgres import PostgresStore

        url, _, schema = place.partition("#")
        return PostgresStore(url, schema=schema, statement_seconds=60)
    from lro.stores.sqlite import SQLiteStore

    return SQLiteStore(place, busy_seconds=60)


@contextlib.contextmanager
def _connection(place: str) -> Iterator[Any]:
    if place.startswith("postgresql:"):
        import psycopg

        made: Any = psycopg.connect(place.partition("#")[0])
    else:
        made = sqlite3.connect(place, timeout=60)
    with contextlib.closing(made):
        yield made


def _table(place: str) -> str:
    return "rows_" + place.partition("#")[2]


def live(place: str, folder: Path, point: str, count: int) -> None:
    """Start until the process dies at the point, when that is reached for the ``count``-th time."""
    left = [count]

    def die_at(here: str) -> None:
        if here == point:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    os.environ[SERVER] = str(os.getpgid(0))
    if point in CLAIMS:
        moment, _, what = point.partition(" ")
        arm(Trap(point=Point(what), moment=Moment(moment), count=count))
    _, do = service_on(place, folder / "effects", lambda: die_at(WORKING))
    with _connection(place) as connection:
        for number in range(_STARTS):
            connection.execute(f"INSERT INTO {_table(place)} VALUES ({number})")
            name = do.start(Row(number), within=connection).name
            with (folder / "names").open("a") as file:
                file.write(f"{name}\n")
            die_at(INSERTED)
            if number % 3 == 2:
                connection.rollback()
            else:
                connection.commit()
                die_at(COMMITTED)
    # The work of the last ones is under way.
    signal.pause()


def transaction_trial(place: str, folder: Path, point: str, seed: int) -> Sequence[str]:
    """Kill a process that starts within transactions; what is wrong after that, if anything."""
    with _connection(place) as connection:
        connection.execute(f"CREATE TABLE {_table(place)} (number INTEGER)")
        connection.commit()
    count = random.Random(seed).randint(1, _KILLED_BY)
    command = [sys.executable, "-m", __name__, place, str(folder), point, str(count)]
    died = subprocess.run(command, timeout=PATIENCE, start_new_session=True, check=False)
    if died.returncode != -signal.SIGKILL:
        return [f"{point}: the process has not been killed, but ended with {died.returncode}"]
    service, _ = service_on(place, folder / "effects")
    with service:
        return list(_faults(service, place, folder))


def _faults(service: Any, place: str, folder: Path) -> Iterator[str]:
    with _connection(place) as connection:
        rows = connection.execute(f"SELECT number FROM {_table(place)}").fetchall()
    committed = {number for (number,) in rows}
    names = dict(enumerate((folder / "names").read_text().split()))
    for number, name in names.items():
        try:
            ended = service.wait(name, timedelta(seconds=PATIENCE))
        except OperationNotFound:
            if number in committed:
                yield f"{number}: committed, and lost"
            continue
        if number not in committed:
            yield f"{number}: not committed, and there"
        elif not ended.done:
            yield f"{number}: has not ended"
    if committed - names.keys():
        yield "a row without a start was committed"
    effects = folder / "effects"
    done = Counter(map(int, effects.read_text().split() if effects.exists() else ()))
    yield from (f"{number}: done {times} times" for number, times in done.items() if times > 1)
    yield from (f"{number}: done without its row" for number in done.keys() - committed)
    for number in committed & names.keys():
        with contextlib.suppress(OperationNotFound):  # said above
            record = service.store.get(names[number])
            if record.state is State.SUCCEEDED and not done[number]:
                yield f"{number}: succeeded, and was never done"
            if record.state is not State.SUCCEEDED and record.lost_attempts + record.attempt == 0:
                yield f"{number}: failed without having begun"


if __name__ == "__main__":
    live(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
