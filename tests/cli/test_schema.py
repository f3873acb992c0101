"""``lro schema`` and ``lro purge``: a store's tables and its expired operations."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lro.errors import Unavailable
from lro.stores.sqlite import SCHEMA_VERSION
from lro.testing._samples import together
from tests.cli.asking import Lro
from tests.cli.serving import MEMORY, SQLITE, StepsRequest, write_service
from tests.services.postgres import shared_server
from tests.waiting import until

POSTGRES = """
from lro.stores.postgres import PostgresStore
store = PostgresStore({url!r}, schema={schema!r})
"""


@pytest.fixture
def here_lro(command: Lro) -> Iterator[Lro]:
    """The command ``lro``; the service it imports is closed, and the service's module unloaded."""
    before = {*sys.modules}
    yield command
    for name in {*sys.modules} - before:
        if name in ("work", "in_memory"):
            sys.modules.pop(name).service.close(0)


def test_file_is_shown_and_made(here: Path, here_lro: Lro) -> None:
    """``lro schema`` shows the version of a SQLite file; only ``--create`` makes a missing file."""
    new = ("schema", "sqlite:///new.db")
    shown = f"new.db: does not exist; this release uses version {SCHEMA_VERSION}"
    assert here_lro(*new, status=1).lines == [shown]
    assert not (here / "new.db").exists()
    made = here_lro(*new, "--create", status=0)
    assert made.lines == [f"new.db: version {SCHEMA_VERSION}, as this release uses it"]
    with closing(sqlite3.connect(here / "new.db")) as other:
        other.execute("PRAGMA user_version = 99")
    shown = f"new.db: has version 99; this release uses version {SCHEMA_VERSION}"
    assert here_lro(*new, status=1).lines == [shown]
    assert "has schema version 99" in here_lro(*new, "--create", status=2).err
    refused = here_lro(*new, "--sql", status=2)
    assert refused.out == ""
    assert "is for PostgreSQL" in refused.err
    (here / "other.db").write_text("no database at all, whatever its name may be" * 99)
    refused = here_lro("schema", "sqlite:///other.db", status=2)
    assert "other.db cannot be read: file is not a database" in refused.err
    with closing(sqlite3.connect(here / "theirs.db")) as other:
        other.execute("PRAGMA user_version = 1")
    for create in ([], ["--create"]):
        refused = here_lro("schema", "sqlite:///theirs.db", *create, status=2)
        assert "application id 0 and version 1: it is not of this library" in refused.err


def test_service_is_shown_by_its_store(here: Path, here_lro: Lro) -> None:
    """``schema`` shows a service's SQLite file, and refuses a MemoryStore, which has no tables."""
    write_service(here, SQLITE)
    shown = [f"{here / 'operations.db'}: version {SCHEMA_VERSION}, as this release uses it"]
    assert here_lro("schema", "work:service").lines == shown
    write_service(here, MEMORY, name="in_memory")
    refused = here_lro("schema", "in_memory:service", status=2)
    assert "has a MemoryStore, which keeps no tables" in refused.err


def test_printed_sql_makes_tables_and_indexes_for_an_application(here: Path, here_lro: Lro) -> None:
    """``--sql`` prints the SQL of tables and indexes, for an application without DDL rights."""
    psycopg = pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore

    server = shared_server()
    schema = f'Own "{server.fresh_schema()}"'
    store = POSTGRES.format(url=server.url, schema=schema)
    indexed = ', indexed_paths=("verb",)'
    write_service(here, store, method=indexed)
    shown = f"schema {schema}: does not exist; this release uses version {SCHEMA_VERSION}"
    assert here_lro("schema", "work:service", status=1).lines == [shown]
    sql = here_lro("schema", "work:service", "--sql").out
    role = f"app_{server.fresh_schema()}"
    quoted = '"' + schema.replace('"', '""') + '"'
    with psycopg.connect(server.url, autocommit=True) as plain:
        plain.execute(sql)
        plain.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {quoted} TO {role};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {quoted} TO {role}"
        )
    url = server.url.replace("lro@", f"{role}@")
    there = here_lro("schema", url, "--name", schema, status=0)
    assert there.lines == [f"schema {schema}: version {SCHEMA_VERSION}, as this release uses it"]
    with closing(PostgresStore(url, schema=schema)) as one:
        one.index(["key"])
        assert len(one.secret()) == 64
    del sys.modules["work"]
    write_service(here, POSTGRES.format(url=url, schema=schema), method=indexed)
    assert here_lro("schema", "work:service", "--create").status == 0
    service = sys.modules["work"].service
    assert service.store._setup.keys == service.store._setup.declared != frozenset()
    service.close()
    *_, index = re.findall(r"CREATE INDEX (\S+) ON lro_operations", sql)
    with psycopg.connect(server.url, autocommit=True) as plain:
        plain.execute(f"DROP INDEX {quoted}.{index}")
    del sys.modules["work"]
    refused = here_lro("schema", "work:service", "--create", status=2)
    assert f"only the owner of schema {schema} may make its indexes by " in refused.err


COMMANDS = [
    ["serve", "work:service", "--port", "0"],
    ["worker", "work:service"],
    ["workers", "work:service"],
    ["schedules", "work:service"],
    ["purge", "work:service"],
]
OTHER_VERSIONS = [-1, SCHEMA_VERSION + 1]  # an older and a newer version


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_other_version_is_refused_by_each_command(here: Path, here_lro: Lro, version: int) -> None:
    """If the store's schema has another version, ``schema`` exits with 1, other commands with 2."""
    psycopg = pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore

    known = f"version {version}; this library can only use version {SCHEMA_VERSION}"

    def refuse(shown: str, *, of: str) -> None:
        found = here_lro("schema", shown, *of.split())
        assert (found.status, f"has version {version}; this release" in found.out) == (1, True)
        for words in (["schema", shown, *of.split(), "--create"], *COMMANDS):
            refused = here_lro(*words)
            assert (refused.status, known in refused.err) == (2, True), (words, refused.err)

    write_service(here, SQLITE)
    assert here_lro("schema", "sqlite:///operations.db", "--create").status == 0
    with closing(sqlite3.connect(here / "operations.db")) as file:
        file.execute(f"PRAGMA user_version = {version}")
        refuse("sqlite:///operations.db", of="")
        assert file.execute("PRAGMA user_version").fetchone() == (version,)
    server = shared_server()
    schema = server.fresh_schema()
    write_service(here, POSTGRES.format(url=server.url, schema=schema))
    with closing(PostgresStore(server.url, schema=schema)) as store:
        store.secret()  # this first use makes the tables
    with psycopg.connect(server.url, autocommit=True) as plain:
        plain.execute(f"UPDATE {schema}.lro_versions SET version = {version}")
        refuse(server.url, of=f"--name {schema}")
        found = plain.execute(f"SELECT version FROM {schema}.lro_versions").fetchone()
        assert found == (version,)


def test_schema_of_an_unavailable_database_cannot_be_shown(here_lro: Lro) -> None:
    """If the database is unavailable, the error of ``schema`` has the cause."""
    pytest.importorskip("psycopg")
    url = "postgresql://lro@127.0.0.1:1/postgres"
    for more in ([], ["--create"]):
        refused = here_lro("schema", url, *more, status=2)
        assert "the operations database cannot be used now" in refused.err
        assert "Connection refused" in refused.err


def test_purge_removes_what_has_expired(here: Path, here_lro: Lro) -> None:
    """``lro purge`` removes expired operations, but not those that are unexpired or in progress."""
    write_service(here, SQLITE, maintenance=False)
    assert here_lro("purge", "work:service").lines == ["removed: 0"]
    service = sys.modules["work"].service

    def start() -> str:
        return str(service.start("cli.v1.Works.Work", StepsRequest()).name)

    names = [start()]
    (here / "go").touch()
    names += [start(), start()]
    for name in names:
        assert service.wait(name).done
    (here / "go").unlink()
    names.append(start())
    with closing(sqlite3.connect(here / "operations.db")) as other, other:
        other.execute("UPDATE lro_operations SET expire_time = 1 WHERE name != ?", (names[0],))
        other.execute("UPDATE lro_operations SET expire_time = NULL WHERE name = ?", (names[3],))
    assert here_lro("purge", "work:service").lines == ["removed: 2"]
    assert [service.store.get(name).name for name in (names[0], names[3])] == [names[0], names[3]]
    service.close(0)


def test_first_uses_at_once_fail_together_and_recover() -> None:
    """While one thread tries to connect again, other threads fail at once with the last error."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore
    from tests.services.ports import free_port

    url = f"postgresql://lro@127.0.0.1:{free_port()}/postgres"
    with closing(PostgresStore(url, schema="s")) as store:
        for _ in range(2):
            with pytest.raises(Unavailable, match="OperationalError"):
                store.now()
        store._setup._lock.acquire()
        with pytest.raises(Unavailable, match="OperationalError"):
            store.secret()
        store._setup._lock.release()
    with pytest.raises(Unavailable, match="the store is closed"):
        store.now()


def test_index_that_cannot_be_made_at_first_use_is_made_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If an index cannot be made, the store works without it, and a thread makes it later."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore, _schema

    server = shared_server()
    with closing(PostgresStore(server.url, schema=server.fresh_schema())) as store:
        store.index({"k1"})

        def fail(*_: object) -> bool:
            raise Unavailable("the disk is full")

        monkeypatch.setattr(_schema, "_FIRST_PAUSE", 0.01)
        with monkeypatch.context() as patch:
            patch.setattr(_schema, "make_index", fail)
            store.now()
            until(lambda: "are not made yet: the disk is full" in caplog.text)
        until(lambda: store._setup.keys == {"k1"})


def test_first_use_waits_for_that_of_another_thread() -> None:
    """While one thread makes the tables, others wait up to ``connect_seconds``, then fail."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore

    server = shared_server()
    schema = server.fresh_schema()
    known = "still being made ready"
    store = PostgresStore(server.url, schema=schema, connect_seconds=0.01)
    with closing(store), store._setup._lock, pytest.raises(Unavailable, match=known):
        store.now()
    with closing(PostgresStore(server.url, schema=schema)) as store:
        assert len({*together(8, lambda _: store.secret())}) == 1
