"""This release reads, finishes and removes operations that earlier releases have stored."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from lro.errors import OperationNotFound, TargetBusy, WorkFailed
from lro.stores.sqlite import SCHEMA_VERSION, SQLiteStore
from lro.testing import ManualClock
from lro.types import ErrorInfo, QuotaFailure
from tests.engine.engine_parts import counted
from tests.services.postgres import UNHURRIED, shared_server
from tests.stores import keep
from tests.stores.keep import KEPT, REFUSED, REQUEST_ID, SAMPLE, Kept, Sample, project_version
from tests.waiting import PATIENCE

RELEASES = sorted({path.name.rsplit(".", 2)[0] for path in KEPT.glob("*.sql")}, key=Version)
SUPPORTED = RELEASES[-3:]
"""This release and the two before it."""
MISSING = (
    "the {} schema is not the one in tests/stores/kept of {}. If that is released, give the "
    "schema the next SCHEMA_VERSION, write what upgrades the one before, and leave the kept texts "
    "as they are; if it is not released yet, run `python -m tests.stores.keep {}`"
)


def text_of(release: str, database: str) -> str:
    """Return the SQL dump of a release's database."""
    return (KEPT / f"{release}.{database}.sql").read_text("utf-8")


def opened_sqlite(text: str, folder: Path, clock: ManualClock) -> SQLiteStore:
    path = folder / "kept.db"
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.executescript(text)
    return SQLiteStore(path, clock=clock)


def opened_postgres(text: str, folder: Path, clock: ManualClock) -> Any:
    psycopg = pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore

    url = keep.new_database(shared_server())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text)
    return PostgresStore(url, clock=clock, **UNHURRIED)


OPENED: dict[str, Callable[[str, Path, ManualClock], Any]] = {
    "postgres": opened_postgres,
    "sqlite": opened_sqlite,
}


@pytest.fixture(params=[(release, name) for release in SUPPORTED for name in OPENED], ids="-".join)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """Run the current service on an earlier release's database, fifteen minutes after the dump."""
    release, database = request.param
    clock = ManualClock()
    clock.advance(minutes=15)
    store = OPENED[database](text_of(release, database), tmp_path, clock)
    with contextlib.closing(Kept(store, clock)) as service:
        yield service


def test_operations_of_an_earlier_release_are_read(kept: Kept) -> None:
    """Operations of an earlier release are readable, and filters and request ids find them."""
    (copied,) = kept.listed('done = true AND metadata.text = "half"')
    assert kept.service.types.unpack(copied.response, Sample) == SAMPLE
    assert kept.service.types.unpack(copied.metadata, Sample) == Sample("half", ratio=0.5)
    again = kept.copy.start(SAMPLE, request_id=REQUEST_ID, caller="ann")
    assert again.name == copied.name
    (refused,) = kept.listed("done = true", parent="projects/p")
    assert (refused.error.code, refused.error.message) == (REFUSED, "the tray is empty")
    info, quota = refused.error.details
    unpack = kept.service.types.unpack
    assert unpack(info, ErrorInfo) == ErrorInfo("NO_PAPER", "acme.test")
    assert unpack(quota, QuotaFailure).violations[0].description == "no sheets are left"


def test_running_work_of_an_earlier_release_is_finished(kept: Kept) -> None:
    """Work of an earlier release is taken over and finished; its target is busy until then."""
    (held,) = kept.listed("done = false")
    with pytest.raises(TargetBusy):
        kept.hold.start(Sample("door"))
    kept.release.set()
    kept.take_over()
    assert kept.begun.wait(PATIENCE)
    done = kept.service.wait(held.name, PATIENCE)
    assert kept.service.types.unpack(done.response, Sample) == Sample("door")
    assert kept.hold.start(Sample("door")).result(PATIENCE) == Sample("door")


def test_operations_of_an_earlier_release_are_deleted_and_expire(kept: Kept) -> None:
    """Stored operations can be deleted, and expire at the time that the earlier release has set."""
    (copied,) = kept.listed('metadata.text = "half"')
    (refused,) = kept.listed("done = true", parent="projects/p")
    kept.service.delete(copied.name)
    kept.clock.advance(days=31)
    kept.take_over()
    for name in (copied.name, refused.name):
        with pytest.raises(OperationNotFound):
            kept.service.get(name)
    assert kept.listed("done = true", parent="projects/p") == []


def test_statistics_of_an_earlier_release_are_read_and_added_to(kept: Kept) -> None:
    """The counts of an earlier release are read, and new counts are added to them."""
    before = counted(kept.service.store)[kept.refuse.full_name]["starts.started"]
    with pytest.raises(WorkFailed):
        kept.refuse.start(Sample()).result(PATIENCE)
    kept.clock.advance(60)
    kept.service.run_maintenance()
    after = counted(kept.service.store)[kept.refuse.full_name]["starts.started"]
    assert (before, after) == (1, 2)


def schema_in(text: str) -> set[str]:
    """Return the statements of a dump that create the schema and set its version."""
    made = re.findall(r"^(?:CREATE|PRAGMA|INSERT INTO lro_versions)\b[^;]*;", text, re.MULTILINE)
    return {" ".join(statement.split()) for statement in made}


@pytest.mark.parametrize("database", OPENED)
def test_schema_equals_the_newest_stored_schema(database: str, tmp_path: Path) -> None:
    """The schema equals the newest dump's; if not, the failure says what a change requires."""
    newest = RELEASES[-1]
    if database == "sqlite":
        made, version = keep.keep_sqlite(tmp_path), f"PRAGMA user_version = {SCHEMA_VERSION};"
    else:
        pytest.importorskip("psycopg")
        from lro.stores import postgres

        made = keep.keep_postgres(keep.new_database(shared_server()))
        version = f"INSERT INTO lro_versions VALUES (1, {postgres.SCHEMA_VERSION});"
    today = schema_in(made)
    assert version in today
    assert today == schema_in(text_of(newest, database)), MISSING.format(database, newest, newest)


def test_each_release_has_its_dumps() -> None:
    """The current version has its dumps, so that later releases can be tested on them."""
    version = project_version()
    assert RELEASES[-1] == version, f"run `python -m tests.stores.keep {version}`"
    assert {path.name for path in KEPT.iterdir()} == {
        f"{release}.{database}.sql" for release in RELEASES for database in OPENED
    }


def test_dump_of_another_version_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The dump command refuses other versions, whose dumps only their own code could write."""
    assert keep.main(["0.0.1"]) == 2
    assert capsys.readouterr().err == f"usage: python -m tests.stores.keep {project_version()}\n"
