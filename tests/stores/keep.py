"""Dump as SQL the databases that a release writes: ``python -m tests.stores.keep 0.1.0``.

The dumps in ``tests/stores/kept`` stand for the files and schemas that users have. Later releases
open them in ``test_kept.py``. The command writes the dumps of the project's current version.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from lro.adapters import Observer, OperationEnded
from lro.errors import StatusError, WorkFailed
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro.testing import START, ManualClock
from lro.types import QuotaFailure, QuotaViolation
from tests.services.postgres import UNHURRIED, PostgresServer, shared_server
from tests.waiting import PATIENCE, until

KEPT: Final = Path(__file__).with_name("kept")
PYPROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
REQUEST_ID: Final = "5bb0ff1c-9d5a-4f5c-8a6e-3b1a8a0f4f11"
"""The request id of the operation that succeeds."""
REFUSED: Final = lro.Code.RESOURCE_EXHAUSTED
_NUMBERS: Final = itertools.count()


@lro.message("acme.kept.v1.Part")
@attrs.frozen
class Part:
    """A message nested in another message."""

    label: str = ""


@lro.message("acme.kept.v1.Sample")
@attrs.frozen
class Sample:
    """A message with a field of each kind: the request and response of all methods."""

    text: str = ""
    count: int = 0
    small: lro.Int32 = 0
    ratio: float = 0.0
    yes: bool = False
    data: bytes = b""
    at: datetime | None = None
    span: timedelta | None = None
    parts: tuple[Part, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    free: Mapping[str, object] = attrs.field(factory=dict)


SAMPLE: Final = Sample(
    text='it\'s "né" \\ \n\N{GRINNING FACE}',
    count=2**62,
    small=-7,
    ratio=0.1,
    yes=True,
    data=b"\x00\xff",
    at=datetime(2026, 2, 28, 23, 59, 59, 123456, UTC),
    span=timedelta(seconds=-1.5),
    parts=(Part("a"), Part("b")),
    labels={"": "x", "y.z": ""},
    free={"list": [1.0, None, {"deep": True}]},
)


class Ends(Observer):
    """Counts ended operations, each one after the service's statistics have counted it."""

    count = 0

    def ended(self, event: OperationEnded) -> None:
        self.count += 1


class Kept:
    """A service whose operations are dumped; its ``hold`` method runs until ``release`` is set."""

    def __init__(self, store: Any, clock: ManualClock) -> None:
        self.begun, self.release, self.clock = threading.Event(), threading.Event(), clock
        self.ends = Ends()
        self.service = lro.Service(
            store,
            ThreadExecutor(2),
            maintenance=False,
            observers=[self.ends],
            domain="acme.test",
            clock=lambda: (clock() - START).total_seconds(),
        )
        self.copy = self.service.method("acme.kept.v1.Kept.Copy", indexed_paths=("text",))(
            self._copy
        )
        self.refuse = self.service.method("acme.kept.v1.Kept.Refuse")(self._refuse)
        self.hold = self.service.method(
            "acme.kept.v1.Kept.Hold", exclusive_target=lambda request: request.text
        )(self._hold)

    def close(self) -> None:
        """Let the held work end, and close the service."""
        self.release.set()
        self.service.close(0)

    def listed(self, filter_text: str, parent: str = "") -> list[lro.Operation]:
        """List the operations below a parent that match a filter."""
        request = lro.wire.ListOperationsRequest(name=parent, filter=filter_text)
        return list(self.service.list(request).operations)

    def take_over(self) -> None:
        """Run the maintenance, and run it again two seconds later."""
        self.service.run_maintenance()
        self.clock.advance(2)
        self.service.run_maintenance()

    def _copy(self, request: Sample, job: lro.Job[Sample]) -> Sample:
        job.report(Sample(text="half", ratio=0.5))
        return request

    def _refuse(self, request: Sample) -> Sample:
        violation = QuotaViolation("user:ann", "no sheets are left")
        raise StatusError(REFUSED, "the tray is empty", (QuotaFailure((violation,)),), "NO_PAPER")

    def _hold(self, request: Sample) -> Sample:
        self.begun.set()
        assert self.release.wait(PATIENCE)
        return request


def fill(store: Any, clock: ManualClock, dump: Callable[[], str]) -> str:
    """Have a service write each kind of record; dump its store while one operation runs."""
    with contextlib.closing(Kept(store, clock)) as kept:
        kept.copy.start(SAMPLE, request_id=REQUEST_ID, caller="ann").result(PATIENCE)
        until(lambda: kept.ends.count == 1)
        clock.advance(1)
        with contextlib.suppress(WorkFailed):
            kept.refuse.start(SAMPLE, parent="projects/p").result(PATIENCE)
        until(lambda: kept.ends.count == 2)
        clock.advance(1)
        kept.hold.start(Sample("door"))
        assert kept.begun.wait(PATIENCE)
        clock.advance(60)
        kept.service.run_maintenance()  # writes the statistics
        return dump()


def keep_sqlite(folder: Path) -> str:
    """Have this release fill a file; return SQL that recreates the file."""
    path, clock = folder / "kept.db", ManualClock()

    def dump() -> str:
        with contextlib.closing(sqlite3.connect(path)) as reader:
            marks = [
                f"PRAGMA {mark} = {reader.execute(f'PRAGMA {mark}').fetchone()[0]};"
                for mark in ("application_id", "user_version")
            ]
            return "\n".join([*reader.iterdump(), *marks, ""])

    return fill(SQLiteStore(path, clock=clock), clock, dump)


def keep_postgres(url: str) -> str:
    """Have this release fill a database; return SQL that recreates the schema."""
    import psycopg

    from lro.stores.postgres import PostgresStore

    clock = ManualClock()
    store = PostgresStore(url, clock=clock, **UNHURRIED)

    def dump() -> str:
        with psycopg.connect(url, autocommit=True) as reader:
            return store.schema_sql() + "".join(_inserts(reader))

    return fill(store, clock, dump)


def _inserts(reader: Any) -> Iterator[str]:
    """Yield an INSERT for each row, except for ``lro_versions``, which the schema's SQL fills."""
    from psycopg import sql

    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'lro' ORDER BY 1"
    for (table,) in reader.execute(tables).fetchall():
        columns = reader.execute(f"SELECT * FROM lro.{table} LIMIT 0").description
        names = [column.name for column in columns]
        texts = ", ".join(f"{name}::text" for name in names)
        for row in reader.execute(f"SELECT {texts} FROM lro.{table} ORDER BY 1").fetchall():
            values = ", ".join(sql.Literal(value).as_string(reader).strip() for value in row)
            if table != "lro_versions":
                yield f"INSERT INTO lro.{table} ({', '.join(names)}) VALUES ({values});\n"


def new_database(server: PostgresServer) -> str:
    """Create a database without the library's schema; return the database's URL."""
    import psycopg

    name = f"kept_{next(_NUMBERS)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server.url.rpartition('/')[0]}/{name}"


def project_version() -> str:
    """Return the project's version from pyproject.toml."""
    return str(tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["version"])


def main(arguments: list[str]) -> int:
    """Write the two dumps of this version."""
    version = project_version()
    if arguments != [version]:
        print(f"usage: python -m tests.stores.keep {version}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        (KEPT / f"{version}.sqlite.sql").write_text(keep_sqlite(Path(folder)), "utf-8")
    made = keep_postgres(new_database(shared_server()))
    (KEPT / f"{version}.postgres.sql").write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
