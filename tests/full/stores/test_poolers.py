"""Stores behind PgBouncer in each pool mode."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("psycopg")

import psycopg

from lro.errors import Unavailable
from lro.stores.postgres import PostgresStore
from tests.services.ports import free_port
from tests.services.postgres import UNHURRIED, as_other_user, shared_server
from tests.services.processes import killed_at_end
from tests.stores.samples import insert, listed, record_of, together
from tests.waiting import until

REFUSED = "pool_mode = transaction|still being made|cannot be used now"
TAKING_TURNS = 2
"""Server connections of a pooler that gives each transaction the next connection in turn."""


@contextmanager
def pooler(mode: str, size: int = 20, wait_seconds: int = 120) -> Iterator[str]:
    """Run PgBouncer in front of the tests' shared server; yield its URL."""
    with tempfile.TemporaryDirectory(prefix="lro-pooler-") as folder:
        yield from _running(Path(folder), mode, size, wait_seconds)


def _running(folder: Path, mode: str, size: int, wait_seconds: int) -> Iterator[str]:
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    server, port = shared_server(), free_port()
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"""[databases]
postgres = host=127.0.0.1 port={server.port} user=lro
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = lro
pool_mode = {mode}
default_pool_size = {size}
query_wait_timeout = {wait_seconds}
ignore_startup_parameters = extra_float_digits
server_round_robin = {int(size == TAKING_TURNS)}
"""
    )
    command = [*as_other_user(folder), program, str(settings)]
    url = f"postgresql://lro@127.0.0.1:{port}/postgres"
    with killed_at_end(command, stderr=subprocess.DEVNULL):
        until(lambda: _answers(url))
        yield url


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def public_tables(url: str) -> list[tuple[str, ...]]:
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    with psycopg.connect(url) as plain:
        return plain.execute(tables).fetchall()


def refusal(store: PostgresStore) -> str:
    with pytest.raises(Unavailable) as caught:
        store.secret()
    return str(caught.value)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("size", [1, TAKING_TURNS, 20])
def test_pooler_in_statement_or_transaction_mode_is_refused(mode, size, clock):
    """A pooler in statement or transaction mode is refused with an explanation.

    The refused first use makes no table and no schema.
    """
    server = shared_server()
    before = public_tables(server.url)  # other tests of this run may have made tables there
    schemas = [server.fresh_schema() for _ in "ab"]
    with pooler(mode, size) as url, ExitStack() as stack:
        stores = [
            stack.enter_context(
                closing(PostgresStore(url, schema=one, connect_seconds=5, statement_seconds=2))
            )
            for one in schemas
        ]

        def use(number: int) -> None:
            with pytest.raises(Unavailable, match=REFUSED):
                insert(stores[number % 2], record_of(clock, str(number)))

        assert together(8, use) == [None] * 8
        until(lambda: refusal(stores[0]), lambda said: "= transaction): use its session" in said)
    with psycopg.connect(server.url) as plain:
        names = "SELECT count(*) FROM pg_namespace WHERE nspname = ANY(%s)"
        assert plain.execute(names, (schemas,)).fetchone() == (0,)
    assert public_tables(server.url) == before


def test_pooler_in_session_mode_is_used(clock):
    """Stores may open more connections than the pooler has to the server."""
    schema = shared_server().fresh_schema()
    with pooler("session", 6) as url, ExitStack() as stack:
        stores = [
            stack.enter_context(
                closing(PostgresStore(url, schema=schema, connections=3, **UNHURRIED))
            )
            for _ in range(2)
        ]
        for number in range(40):
            insert(stores[number % 2], record_of(clock, str(number)))
        assert listed(stores[0]) == sorted(map(str, range(40)))


def test_pooler_without_room_for_a_second_session_is_used(clock):
    """A pooler whose only session is in use is not mistaken for one in statement mode."""
    with pooler("session", 1, wait_seconds=1) as url:
        made = PostgresStore(url, schema=shared_server().fresh_schema(), **UNHURRIED)
        with closing(made) as store:
            insert(store, record_of(clock))
            assert listed(store) == ["a"]


def test_pooler_that_leaves_session_mode_is_refused(clock):
    """A pooler that changes from session to transaction mode during use is refused."""
    with pooler("session") as url, ExitStack() as stack:
        stores = [
            stack.enter_context(
                closing(PostgresStore(url, schema=shared_server().fresh_schema(), **UNHURRIED))
            )
            for _ in "ab"
        ]
        for number in range(4):
            insert(stores[number % 2], record_of(clock, f"before-{number}"))
        with psycopg.connect(url.replace("/postgres", "/pgbouncer"), autocommit=True) as console:
            for command in ("SET pool_mode = transaction", "KILL postgres", "RESUME postgres"):
                console.execute(command, prepare=False)
        numbers = itertools.count()

        def use(number: int) -> str:
            try:
                insert(stores[number % 2], record_of(clock, f"{next(numbers)}"))
            except Unavailable as exc:
                return str(exc)
            return ""

        until(lambda: "= transaction): use its session" in "".join(map(str, together(8, use))))
