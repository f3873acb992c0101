"""``lro schedules``: the schedules that a service's store has recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lro.stores.sqlite import SQLiteStore
from tests.cli.asking import Lro
from tests.cli.serving import MEMORY, SQLITE, write_service
from tests.stores.samples import schedule_of

TICK = datetime(2026, 3, 1, 2, tzinfo=UTC)


@pytest.fixture
def here_lro(command: Lro) -> Iterator[Lro]:
    """The command ``lro``; the service it imports is closed, and the service's module unloaded."""
    before = {*sys.modules}
    yield command
    for name in {*sys.modules} - before:
        if name == "work":
            sys.modules.pop(name).service.close(0)


@pytest.fixture
def known(here: Path) -> None:
    """A store with two schedules, one of which has not run yet."""
    write_service(here, SQLITE)
    with closing(SQLiteStore("operations.db")) as store:
        times = {"tick": TICK, "next_tick": TICK + timedelta(days=1)}
        store.note_tick(schedule_of(lambda: TICK, **times, last_tick=TICK))
        every = {"expression": "every 1:00:00", "timezone": "UTC"}
        store.note_tick(schedule_of(lambda: TICK, "a b\x1b", **times, **every))


@pytest.mark.usefixtures("known")
def test_schedules_are_lines(here_lro: Lro) -> None:
    """Each schedule is a line that ends with its expression. Control characters are escaped."""
    assert [line.split() for line in here_lro("schedules", "work:service", status=0).lines] == [
        ["name", "method", "timezone", "last_tick", "next_tick", "expression"],
        ["a", "b\\x1b", "M", "UTC", "-", "2026-03-02T02:00:00+00:00", "every", "1:00:00"],
        [
            *("nightly", "M", "Europe/Berlin"),
            *("2026-03-01T03:00:00+01:00", "2026-03-02T03:00:00+01:00", "0", "3", "*", "*", "*"),
        ],
    ]


def test_ticks_of_an_unknown_time_zone_are_in_utc(here_lro: Lro, here: Path) -> None:
    """If this machine does not know a schedule's time zone, ticks are printed in UTC."""
    write_service(here, SQLITE)
    with closing(SQLiteStore("operations.db")) as store:
        times = {"tick": TICK, "next_tick": TICK + timedelta(days=1)}
        store.note_tick(schedule_of(lambda: TICK, **times, timezone="Mars/Base"))
    row = here_lro("schedules", "work:service", status=0).lines[1]
    assert row.split()[2:5] == ["Mars/Base", "-", "2026-03-02T02:00:00Z"]


@pytest.mark.usefixtures("known")
def test_schedules_as_json(here_lro: Lro) -> None:
    """``--json`` prints each schedule with all fields; ``last_tick`` is null before the first."""
    found = json.loads(here_lro("schedules", "work:service", "--json", status=0).out)
    assert [(one["name"], one["last_tick"]) for one in found] == [
        ("a b\x1b", None),
        ("nightly", "2026-03-01T02:00:00Z"),
    ]
    assert found[1] == {
        "name": "nightly",
        "method": "M",
        "timezone": "Europe/Berlin",
        "last_tick": "2026-03-01T02:00:00Z",
        "next_tick": "2026-03-02T02:00:00Z",
        "expression": "0 3 * * *",
    }


def test_empty_list_of_schedules_is_reported(here_lro: Lro, here: Path) -> None:
    write_service(here, SQLITE)
    assert here_lro("schedules", "work:service", status=0).lines == ["no schedules"]


def test_store_of_one_process_is_refused(here_lro: Lro, here: Path) -> None:
    """A service on a MemoryStore, which no other process can read, is refused."""
    write_service(here, MEMORY)
    said = here_lro("schedules", "work:service", status=2)
    assert "has a MemoryStore, which only its own process can read" in said.err
