"""``lro workers``, ``pause`` and ``resume``: the processes that run a service's work."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from lro.adapters import Worker
from lro.stores.sqlite import SQLiteStore
from tests.cli.asking import Lro
from tests.cli.serving import MEMORY, SQLITE, write_service
from tests.stores.samples import held, insert, waiting

METHODS: Final = ("acme.images.v1.Images.Resize", "acme.images.v1.Images.Segment")
HEADINGS: Final = ["host", "pid", "state", "runs", "version", "seen", "methods"]


FRONT: Final = """
import lro
from lro.stores.sqlite import SQLiteStore
service = lro.Service(SQLiteStore("operations.db"), None)
"""


@pytest.fixture
def here_lro(command: Lro) -> Iterator[Lro]:
    """The command ``lro``; the services it imports are closed, and their modules unloaded."""
    before = {*sys.modules}
    yield command
    for name in {*sys.modules} - before:
        if name in ("work", "front", "in_memory"):
            sys.modules.pop(name).service.close(0)


SAID: Final = (
    ("images-1", 5.5, 4, METHODS),
    ("images-2", 130.0, 4, METHODS),
    ("images-3", 70.0, None, METHODS[:1]),
    ("front-1", 3.0, 0, ()),
)
"""The workers in the store: (host, seconds since last seen, capacity, methods)."""


@pytest.fixture
def known(here: Path) -> Iterator[None]:
    """A store with four workers, one of which is marked as lost."""
    write_service(here, SQLITE)
    with closing(SQLiteStore("operations.db")) as store:
        for host, seconds, capacity, methods in SAID:
            then = datetime.now(UTC) - timedelta(seconds=seconds)
            worker = Worker(
                owner=f"of {host}",
                host=host,
                pid=100,
                version="0.1.0",
                methods=methods,
                capacity=capacity,
                start_time=then,
                seen_time=then,
                alive_until=then + timedelta(seconds=15),
            )
            store.renew(worker)
            if host == "images-3":
                assert store.lose(worker.owner, worker.alive_until)
        yield


@pytest.mark.usefixtures("known")
def test_live_workers_are_lines(here_lro: Lro) -> None:
    """``lro workers`` prints live workers only. In a pipe no column has a space."""
    heading, row = here_lro("workers", "work:service", status=0).lines
    assert heading.split() == HEADINGS
    *columns, seen, methods = row.split()
    assert columns == ["images-1", "100", "idle", "0/4", "0.1.0"]
    assert re.fullmatch(r"\d+s", seen)
    assert methods == ",".join(METHODS)


@pytest.mark.usefixtures("known")
def test_all_workers_are_shown_with_their_states(here_lro: Lro) -> None:
    """``--all`` adds silent or lost workers and servers without workers, but not the command."""
    _, *rows = here_lro("workers", "work:service", "--all", status=0).lines
    found = {row.split()[0]: row.split()[2:] for row in rows}
    assert {host: (state, runs) for host, (state, runs, *_) in found.items()} == {
        "images-1": ("idle", "0/4"),
        "images-2": ("silent", "0/4"),
        "images-3": ("lost", "0"),
        "front-1": ("front", "0/0"),
    }
    assert found["images-2"][3] == "2m"
    assert found["front-1"][-1] == "-"


@pytest.mark.parametrize(("seconds", "state"), [(5, "working"), (-1, "overdue")])
@pytest.mark.usefixtures("known")
def test_worker_that_was_idle_works_as_long_as_a_lease_of_its_work(
    here_lro: Lro, seconds: float, state: str
) -> None:
    """If a worker's own lease has expired, the lease of its work decides the worker's state."""
    with closing(SQLiteStore("operations.db")) as store:
        work = held(lambda: datetime.now(UTC), seconds=seconds, owner="of images-2")
        insert(store, work)
    _, *rows = here_lro("workers", "work:service", "--all", status=0).lines
    assert {row.split()[0]: row.split()[2:4] for row in rows}["images-2"] == [state, "1/4"]


@pytest.mark.usefixtures("known")
def test_json_has_every_field(here_lro: Lro) -> None:
    """``--json`` prints a list of live workers with all fields."""
    (found,) = json.loads(here_lro("workers", "work:service", "--json", status=0).out)
    names = ("start_time", "seen_time", "alive_until")
    began, seen, until = (datetime.fromisoformat(found.pop(name)) for name in names)
    assert (seen - began, until - seen) == (timedelta(0), timedelta(seconds=15))
    assert found == {
        "owner": "of images-1",
        "host": "images-1",
        "pid": 100,
        "state": "idle",
        "running": 0,
        "capacity": 4,
        "methods": [*METHODS],
        "version": "0.1.0",
        "lost": False,
    }
    everyone = json.loads(here_lro("workers", "work:service", "--all", "--json", status=0).out)
    assert {one["owner"] for one in everyone} == {f"of {host}" for host, *_ in SAID}


@pytest.mark.usefixtures("known")
def test_table_has_room_in_eighty_columns(
    here: Path, here_lro: Lro, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal of 80 columns each method has its own line, without its package."""
    pytest.importorskip("rich")
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    drawn = Lro(here_lro.capsys, terminal=True)("workers", "work:service", "--all", status=0)
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", drawn.out).splitlines()
    assert max(map(len, plain)) <= 80
    assert plain[0].split() == HEADINGS
    methods = [row[plain[0].index("methods") :].strip() for row in plain[1:]]
    short = [".".join(name.split(".")[-2:]) for name in METHODS]
    assert "".join(methods) == "".join((*short, short[0], *short, "-"))  # the oldest is first
    assert [row.split()[0] for row in plain[1:] if row[0] != " "] == [
        "images-2",
        "images-3",
        "images-1",
        "front-1",
    ]


def test_empty_list_of_workers_is_reported(here: Path, here_lro: Lro) -> None:
    """The command itself and a service without an executor are not listed as workers."""
    write_service(here, SQLITE)
    (here / "front.py").write_text(FRONT)
    for name in ("work:service", "front:service"):
        assert here_lro("workers", name, "--all", status=0).lines == ["no workers"]
        assert json.loads(here_lro("workers", name, "--json", status=0).out) == []


def test_worker_is_seen_by_a_front(here: Path, here_lro: Lro) -> None:
    """A service without an executor lists the workers of its store."""
    write_service(here, SQLITE)
    here_lro("workers", "work:service", status=0)
    sys.modules["work"].service.run_maintenance()
    (here / "front.py").write_text(FRONT)
    _, row = here_lro("workers", "front:service", status=0).lines
    assert row.split()[2:4] == ["idle", "0/4"]
    assert row.split()[-1] == "cli.v1.Works.Work"


def test_store_that_cannot_be_read_is_refused(here: Path, here_lro: Lro) -> None:
    """If the store cannot be read, the status is 2 and the error says why."""
    write_service(here, MEMORY, name="in_memory")
    refused = here_lro("workers", "in_memory:service", status=2)
    assert "has a MemoryStore, which only its own process can read" in refused.err
    assert "is OperationsApp, not an lro.Service" in here_lro("workers", "in_memory:app").err
    assert "cannot be imported" in here_lro("workers", "nowhere:service", status=2).err
    pytest.importorskip("psycopg")
    (here / "front.py").write_text(
        "import lro\n"
        "from lro.stores.postgres import PostgresStore\n"
        'service = lro.Service(PostgresStore("postgresql://lro@127.0.0.1:1/lro"), None)\n'
    )
    refused = here_lro("workers", "front:service", status=2)
    assert "the operations database cannot be used now" in refused.err
    assert "Connection refused" in refused.err


def test_waiting_work_is_reported(known: None, here_lro: Lro) -> None:
    """Waiting work is reported on standard error, with a note if no live worker can do it."""
    with closing(SQLiteStore("operations.db")) as store:
        for hours, method in ((3, "acme.v1.Works.Old"), (2, METHODS[0]), (1, METHODS[0])):
            then = datetime.now(UTC) - timedelta(hours=hours)
            insert(store, waiting(lambda: then, f"{hours}", method=method))  # noqa: B023
        for number, method in (
            (4, METHODS[0]),
            (5, "acme.v1.Works.Later"),
            (6, "acme.v1.Works.Later"),
        ):
            later = datetime.now(UTC) + timedelta(hours=number, minutes=1)
            insert(store, waiting(lambda: later, f"{number}", method=method))  # noqa: B023
    assert here_lro("workers", "work:service", status=0).err.splitlines() == [
        "acme.images.v1.Images.Resize: 2 wait, for 2h; 1 is due later",
        "acme.v1.Works.Later: 2 are due later, the first in 5h",
        "acme.v1.Works.Old: no live worker declares it; 1 waits, for 3h",
    ]


def test_method_is_paused_and_resumed(here: Path, here_lro: Lro) -> None:
    """``lro pause`` and ``lro resume`` change the store; ``lro workers`` shows a pause."""
    write_service(here, SQLITE)
    method = "cli.v1.Works.Work"
    with closing(SQLiteStore("operations.db")) as store:
        insert(store, waiting(lambda: datetime.now(UTC), "a", method=method))
        found = here_lro("pause", "work:service", method, status=0)
        assert found.out == f"{method}: paused; operations that wait: 1\n"
        assert [*store.paused()] == [method]
        assert here_lro("pause", "work:service", method, status=0).out == found.out
        shown = here_lro("workers", "work:service", status=0)
        assert re.search(rf"{re.escape(method)}: paused, for \ds\n", shown.err)
        found = here_lro("resume", "work:service", method, status=0)
        assert (found.out, store.paused()) == (f"{method}: resumed\n", {})
        found = here_lro("resume", "work:service", method, status=0)
        assert found.out == f"{method}: was not paused\n"
        assert "paused" not in here_lro("workers", "work:service", status=0).err


def test_method_that_cannot_be_paused_is_refused(here: Path, here_lro: Lro) -> None:
    write_service(here, SQLITE)
    write_service(here, MEMORY, name="in_memory")
    for verb in ("pause", "resume"):
        found = here_lro(verb, "work:service", "cli.v1.Works.Wrong", status=2)
        assert "'cli.v1.Works.Wrong' is not declared by this service" in found.err
        assert "did you mean cli.v1.Works.Work?" in found.err
        found = here_lro(verb, "in_memory:service", "cli.v1.Works.Work", status=2)
        assert "has a MemoryStore" in found.err
        assert here_lro(verb, "work:service", status=2).err
