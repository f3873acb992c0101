"""Stores with many operations, which are bulk-loaded into the tables."""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import itertools
import os
import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs

import lro
import lro.adapters
import lro.wire
from bench.across import postgres_server
from lro._engine.method_spec import MethodSpec
from lro._model.operation import join_name, new_id
from lro.executors.inline import InlineExecutor
from lro.stores import _rows as rows
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.stores.sqlite import _statements as sqlite_statements

DATASETS: Final = 200
"""The number of different values of ``metadata.dataset``, and of ``metadata.owner``."""
PARENT: Final = "projects/main"
OTHER_PARENT: Final = "projects/other"
SPREAD: Final = timedelta(days=30)
RUN_TIME: Final = timedelta(minutes=1)
RARE: Final = "zircon"
"""A word that is in the note of one of ``DATASETS`` operations."""
_BATCH: Final = 20_000
_REQUEST: Final = lro.AnyMessage("type.googleapis.com/bench.v1.RunRequest", {})
_WORDS: Final = (
    *("basin", "copper", "delta", "ember", "fathom", "granite", "harbour", "island"),
    *("juniper", "kestrel", "lantern", "meadow", "nickel", "orchard", "pebble", "quarry"),
)


class Stage(enum.Enum):
    STAGE_UNSPECIFIED = 0
    READING = 1
    COMPUTING = 2
    WRITING = 3


@attrs.frozen
class RunRequest:
    dataset: str = ""


@attrs.frozen(kw_only=True)
class RunMetadata:
    dataset: str = ""
    owner: str = ""
    stage: Stage = Stage.STAGE_UNSPECIFIED
    progress_percent: lro.Int32 = 0
    items_done: lro.types.Int64 = 0
    labels: dict[str, str] = attrs.field(factory=dict)
    host: str = ""
    note: str = ""


@attrs.frozen(kw_only=True)
class RunResponse:
    items: lro.types.Int64 = 0
    location: str = ""
    checksum: str = ""


@attrs.frozen
class Facts:
    """The properties of an operation that filters test, and ``draw``: reproducible random bytes."""

    state: lro.State
    create_time: datetime
    dataset: str
    owner: str
    rare: bool
    draw: bytes

    @property
    def end_time(self) -> datetime | None:
        return None if self.state is lro.State.IN_PROGRESS else self.create_time + RUN_TIME


@attrs.frozen(kw_only=True)
class Population:
    """Operations by number, newest first; ended operations expire ``expiry`` after their end."""

    size: int
    newest: datetime
    expiry: timedelta
    salt: bytes = b""
    unfinished: bool = True

    def facts(self, number: int) -> Facts:
        draw = hashlib.blake2b(number.to_bytes(8, "big"), salt=self.salt, digest_size=32).digest()
        return Facts(
            state=self._state(draw[12]),
            create_time=self.newest - SPREAD * (number / self.size),
            dataset=f"d{int.from_bytes(draw[13:17]) % DATASETS}",
            owner=f"o{int.from_bytes(draw[17:21]) % DATASETS}",
            rare=int.from_bytes(draw[21:25]) % DATASETS == 0,
            draw=draw,
        )

    def _state(self, drawn: int) -> lro.State:
        share = drawn * 100 // 256
        if share < 92 or (share == 99 and not self.unfinished):
            return lro.State.SUCCEEDED
        if share < 96:
            return lro.State.FAILED
        return lro.State.CANCELLED if share < 99 else lro.State.IN_PROGRESS

    def name(self, number: int) -> str:
        return _name(PARENT, self.facts(number))

    def records(self, spec: MethodSpec, parent: str = PARENT) -> Iterator[lro.adapters.Record]:
        """Yield all records, oldest first."""
        for number in reversed(range(self.size)):
            yield spec.stamp(make_record(self.facts(number), spec, parent, self.expiry))


def _name(parent: str, facts: Facts) -> str:
    return join_name(parent, new_id(lambda count: facts.draw[:count], facts.create_time))


def make_record(
    facts: Facts,
    spec: MethodSpec,
    parent: str,
    expiry: timedelta,
    metadata: type[RunMetadata] = RunMetadata,
) -> lro.adapters.Record:
    """Return the record of an operation, without index keys."""
    done, end_time = facts.state.done, facts.end_time
    return lro.adapters.Record(
        name=_name(parent, facts),
        parent=parent,
        method=spec.full_name,
        state=facts.state,
        metadata=spec.types.pack(_metadata(facts, metadata)),
        result=_result(facts, spec),
        create_time=facts.create_time,
        update_time=end_time or facts.create_time,
        start_time=facts.create_time,
        end_time=end_time,
        expire_time=end_time and end_time + expiry,
        attempt=1,
        version=4 if done else 2,
    )


def _metadata(facts: Facts, kind: type[RunMetadata]) -> RunMetadata:
    draw = facts.draw
    words = [_WORDS[byte % len(_WORDS)] for byte in draw[:20]]
    if facts.rare:
        words[3] = RARE
    return kind(
        dataset=facts.dataset,
        owner=facts.owner,
        stage=Stage.WRITING if facts.state.done else Stage(1 + draw[25] % 3),
        progress_percent=100 if facts.state is lro.State.SUCCEEDED else draw[26] % 100,
        items_done=int.from_bytes(draw[:4]),
        labels={"team": f"t{draw[27] % 12}", "priority": "high" if draw[28] < 64 else "low"},
        host=f"worker-{draw[29]}.example.com",
        note=" ".join(words),
    )


def _result(facts: Facts, spec: MethodSpec) -> lro.AnyMessage | lro.Status | None:
    match facts.state:
        case lro.State.IN_PROGRESS:
            return None
        case lro.State.FAILED:
            return lro.Status(lro.Code.INTERNAL, f"step {facts.draw[30]} of the analysis failed")
        case lro.State.CANCELLED:
            return lro.Status(lro.Code.CANCELLED, "cancelled by its caller")
    location = f"gs://results/{facts.dataset}/{facts.owner}/{facts.draw[:8].hex()}/output.parquet"
    checksum = hashlib.sha256(facts.draw).hexdigest()
    items = int.from_bytes(facts.draw[:4])
    return spec.types.pack(RunResponse(items=items, location=location, checksum=checksum))


def declared(store: Any) -> tuple[lro.Service, Any]:
    """Return a service without maintenance, and its method; ``dataset`` is indexed."""
    service = lro.Service(store, InlineExecutor(), maintenance=False)
    method = service.declare(
        "bench.v1.Bench.Run",
        request=RunRequest,
        response=RunResponse,
        metadata=RunMetadata,
        options=lro.Options(indexed_paths=("dataset",)),
    )
    return service, method


def spec_of(service: lro.Service) -> MethodSpec:
    """Return the specification of the service's only method."""
    (spec,) = service.edges.specs.values()
    return spec


def started(record: lro.adapters.Record) -> lro.adapters.RequestKey:
    """Return a request key for the start that created this record."""
    digest = hashlib.sha256(record.name.encode()).digest()
    request_id = str(uuid.UUID(bytes=digest[:16]))
    return lro.adapters.RequestKey(record.method, "", request_id, digest.hex())


Records = Iterable[lro.adapters.Record]
Fill = Callable[[Records, bool], None]
"""A function that adds records to a store and, if the flag is set, a request key for each."""


@attrs.frozen
class Database:
    """A kind of store: ``make`` returns a new, empty store and a function that fills the store."""

    label: str
    make: Callable[[], tuple[Any, Fill]]


def databases(stack: contextlib.ExitStack) -> Iterator[Database]:
    """Yield all kinds of stores, or those in ``LRO_BENCH_STORES``: ``memory,sqlite,postgres``."""
    chosen = os.environ.get("LRO_BENCH_STORES", "memory,sqlite,postgres").split(",")
    if "memory" in chosen:
        yield Database("memory", memory_store)
    if "sqlite" in chosen:
        yield sqlite_database(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    server = postgres_server() if "postgres" in chosen else None
    if server is not None:
        yield postgres_database(server)


def memory_store() -> tuple[MemoryStore, Fill]:
    store = MemoryStore()

    def fill(records: Records, keys: bool) -> None:
        for record in records:
            store.insert(record, _REQUEST, started(record) if keys else None)
            if record.done:
                store.update(record.name, lambda present: present.next_version())

    return store, fill


def sqlite_database(folder: Path) -> Database:
    """Return SQLite as a kind of store, with new files in this folder."""
    numbers = itertools.count()

    def make() -> tuple[SQLiteStore, Fill]:
        path = folder / f"operations{next(numbers)}.db"
        return SQLiteStore(path), functools.partial(fill_sqlite, path)

    return Database("SQLite", make)


def fill_sqlite(path: Path | str, records: Records, keys: bool) -> None:
    marks = ", ".join("?" * len(rows.COLUMNS))
    insert = f"INSERT INTO lro_operations ({', '.join(rows.COLUMNS)}) VALUES ({marks})"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        for pragma in ("synchronous = OFF", "cache_size = -1000000"):
            file.execute(f"PRAGMA {pragma}")
        for batch in _batches(records):
            pairs = [(record, rows.to_row(record)) for record in batch]
            file.execute("BEGIN")
            file.executemany(insert, [row for _, row in pairs])
            for record, row in pairs if keys else ():
                start = sqlite_statements.start_row(started(record), record, row)
                sqlite_statements.remember_start(file, start)
            file.execute("COMMIT")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def postgres_database(server: Any) -> Database:
    """Return PostgreSQL as a kind of store, with new schemas on a server of our own."""

    def make() -> tuple[Any, Fill]:
        from lro.stores.postgres import PostgresStore

        schema = server.fresh_schema()
        store = PostgresStore(server.url, schema=schema)
        store.secret()  # makes the tables
        return store, functools.partial(fill_postgres, server.url, schema)

    return Database("PostgreSQL", make)


def fill_postgres(url: str, schema: str, records: Records, keys: bool) -> None:
    import psycopg

    columns = ", ".join(("id", "parent_id", "target_id", *rows.COLUMNS))
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(f"SET search_path = {schema}")
        for batch in _batches(records):
            pairs = [(record, rows.to_row(record)) for record in batch]
            with link.cursor().copy(f"COPY lro_operations ({columns}) FROM STDIN") as copy:
                for record, row in pairs:
                    copy.write_row((*_ids(record), *row))
            if keys:
                with link.cursor().copy("COPY lro_starts FROM STDIN") as copy:
                    for record, row in pairs:
                        copy.write_row(_postgres_start(record, row))
        for table in ("lro_operations", "lro_starts"):  # autovacuum would do this later
            link.execute(f"VACUUM (ANALYZE) {table}")


def _ids(record: lro.adapters.Record) -> tuple[str, str, str | None]:
    from lro.stores.postgres._statements import id_of, target_id

    return id_of(record.name), id_of(record.parent), target_id(record.target)


def _postgres_start(record: lro.adapters.Record, row: tuple[Any, ...]) -> tuple[object, ...]:
    from lro.stores.postgres._statements import id_of, start_id

    key = started(record)
    first = lro.wire.dumps(list(row)).decode()
    return start_id(key), id_of(record.name), key.fingerprint, row[_CREATED], first


def _batches(records: Records) -> Iterator[list[lro.adapters.Record]]:
    left = iter(records)
    while batch := list(itertools.islice(left, _BATCH)):
        yield batch


_CREATED: Final = rows.COLUMNS.index("create_time")
