"""Changing passwords of PostgreSQL: a function returns the current one for each new connection."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("psycopg")

import psycopg
from psycopg import sql

import lro
from lro import DeclarationError
from lro.errors import Unavailable
from lro.executors.threads import ThreadExecutor
from lro.stores.postgres import SCHEMA_VERSION, PostgresStore
from lro.testing import ManualClock
from tests.cli.asking import COMMAND, SOURCE, Lro
from tests.full.stores.test_poolers import pooler
from tests.services.postgres import UNHURRIED, PostgresServer, new_server
from tests.services.processes import killed_at_end
from tests.stores.samples import insert, listed, record_of, together
from tests.waiting import PATIENCE, joined, until

ROLE: Final = "app"
SECRET: Final = "s3cret words"
FIRST: Final = r"1 'st' \ %40 &a=b"  # no character may act as syntax of a URL or SQL
SECOND: Final = "2nd"


class Passwords:
    """A password function, and the role that has the password."""

    def __init__(self, server: PostgresServer, plain: psycopg.Connection[Any]) -> None:
        self.url = server.url.replace("lro@", f"{ROLE}@")
        self.given = FIRST
        self.calls: list[bool] = []
        """Whether the thread of each call has a running event loop."""
        self._plain = plain
        self.set(FIRST)

    def __call__(self) -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.calls.append(False)
        else:
            self.calls.append(True)
        return self.given

    def set(self, password: str) -> None:
        """Change the role's password, but not ``given``, which the function still returns."""
        text = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(ROLE), password)
        self._plain.execute(text)

    def end_connections(self) -> None:
        """Have the server close all connections of the role."""
        kill = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = %s"
        self._plain.execute(kill, (ROLE,))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Run a server that demands a password from the role ``app``."""
    made = new_server()
    with psycopg.connect(made.url, autocommit=True) as plain:
        plain.execute(f"CREATE ROLE {ROLE} LOGIN; GRANT CREATE ON DATABASE postgres TO {ROLE}")
        found = plain.execute("SHOW hba_file").fetchone()
        assert found is not None
        rules = Path(found[0])
        rules.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        plain.execute("SELECT pg_reload_conf()")
        refused = made.url.replace("lro@", f"{ROLE}:wrong@")
        until(lambda: "password authentication failed" in _refusal(refused))
    yield made
    made.stop()


def _refusal(url: str) -> str:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError as exc:
        return str(exc)
    return ""


@pytest.fixture
def passwords(server: PostgresServer) -> Iterator[Passwords]:
    with psycopg.connect(server.url, autocommit=True) as plain:
        yield Passwords(server, plain)


Make = Callable[..., PostgresStore]


@pytest.fixture
def make(server: PostgresServer, passwords: Passwords, clock: ManualClock) -> Iterator[Make]:
    """Return a function that opens stores with a password function, and close the stores."""
    with ExitStack() as stack:

        def made(password: Callable[[], Any] = passwords, **options: Any) -> PostgresStore:
            known = {"schema": server.fresh_schema(), "clock": clock, **UNHURRIED}
            store = PostgresStore(passwords.url, password=password, **{**known, **options})
            return stack.enter_context(closing(store))

        yield made


def soon(call: Callable[[], object]) -> None:
    """Repeat a call until the store has reconnected."""

    def works() -> bool:
        try:
            call()
        except Unavailable:
            return False
        return True

    until(works)


def test_new_connections_use_the_current_password(
    make: Make, passwords: Passwords, clock: ManualClock
) -> None:
    """After a password change, open connections work, and new ones need the new password."""
    store = make()
    insert(store, record_of(clock, "first"))
    with closing(store.listen()) as subscription, closing(make(schema=store.schema)) as other:
        assert other.get("operations/first").name == "operations/first"
        passwords.set(SECOND)
        insert(store, record_of(clock, "second"))
        other.notify_others("operations/second")
        assert subscription.next_changes(PATIENCE) == {"operations/second"}
        with pytest.raises(Unavailable, match="cannot be used now") as refused:
            store.listen()
        assert "password authentication failed" in str(refused.value.__cause__)
        passwords.given = SECOND
        store.listen().close()
        passwords.end_connections()
        soon(lambda: insert(store, record_of(clock, "third")))
        assert listed(store) == ["first", "second", "third"]
        with pytest.raises(Unavailable):
            subscription.next_changes(PATIENCE)
    with closing(store.listen()) as subscription:
        assert subscription.next_changes(0) == ()


def test_store_reconnects_after_a_password_change_ends_its_connections(
    make: Make, passwords: Passwords, clock: ManualClock
) -> None:
    """Once connections are closed, calls fail until the function returns the new password."""
    store = make()
    insert(store, record_of(clock, "first"))
    passwords.set(SECOND)
    passwords.end_connections()
    for _ in range(3):
        with pytest.raises(Unavailable, match="cannot be used now"):
            store.get("operations/first")
    passwords.given = SECOND
    soon(lambda: store.get("operations/first"))


def test_each_schema_command_calls_the_password_function(make: Make, passwords: Passwords) -> None:
    store = make()
    assert store.schema_version() == 0
    store.index(["k1"])
    passwords.set(SECOND)
    with pytest.raises(Unavailable):
        store.create_schema()
    passwords.given = SECOND
    soon(store.create_schema)
    assert store.schema_version() == SCHEMA_VERSION
    assert len(passwords.calls) >= 5


def test_pooler_probe_calls_the_password_function(
    make: Make, passwords: Passwords, clock: ManualClock
) -> None:
    """Behind a pooler the store opens a second connection, to find out if sessions are kept."""
    with pooler("session") as url, closing(PostgresStore(url, password=passwords)) as store:
        store.secret()
        alone = len(passwords.calls)
    with closing(make()) as direct:
        direct.secret()
    assert alone > 2 * (len(passwords.calls) - alone) > 0


class VaultDown(Exception):
    """An application's error whose message contains a secret."""


def failing(error: BaseException) -> Callable[[], str]:
    def fail() -> str:
        raise error

    return fail


BAD: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "error": (failing(VaultDown(SECRET)), "raised VaultDown"),
    "exit": (failing(SystemExit(SECRET)), "raised SystemExit"),
    "cancelled": (failing(asyncio.CancelledError(SECRET)), "raised CancelledError"),
    "none": (lambda: None, "returned NoneType"),
    "bytes": (SECRET.encode, "returned bytes"),
    "empty": (str, "returned a text that is empty or has a NUL character"),
    "nul": (lambda: f"{SECRET}\0", "returned a text that is empty or has a NUL character"),
    "surrogate": (lambda: f"{SECRET}\ud800", "raised UnicodeEncodeError"),
}


@pytest.mark.parametrize("case", BAD)
def test_password_function_that_fails_is_unavailable_and_called_again(
    make: Make,
    passwords: Passwords,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    """Each connection calls the password function; our error names only the class of its error."""
    caplog.set_level(logging.DEBUG)
    function, why = BAD[case]
    now: list[Callable[[], Any]] = [function]
    store = make(lambda: now[0]())
    store.index(["k1"])
    calls: list[Callable[[], object]] = [
        store.secret, store.listen, store.schema_version, store.create_schema,
        lambda: insert(store, record_of(clock)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Unavailable) as refused:
            call()
        whole = f"the operations database cannot be used now (the password function {why})"
        assert str(refused.value) == whole
        assert SECRET not in "".join(traceback.format_exception(refused.value))
    now[0] = passwords
    soon(store.create_schema)
    insert(store, record_of(clock))
    now[0] = function
    assert store.get("operations/a").name == "operations/a"
    passwords.end_connections()
    with pytest.raises(Unavailable, match="the password function"):
        store.get("operations/a")
    now[0] = passwords
    soon(lambda: store.get("operations/a"))
    assert SECRET not in caplog.text
    assert FIRST not in caplog.text


def test_slow_password_function_does_not_delay_other_threads(
    make: Make, passwords: Passwords, clock: ManualClock
) -> None:
    """Several threads can ask for the password at once; a slow call delays no other thread."""
    slow, gate = threading.Barrier(3), threading.Event()

    def password() -> str:
        if threading.current_thread().name == "slow":
            slow.wait(PATIENCE)
            assert gate.wait(PATIENCE)
        return passwords()

    store = make(password)
    insert(store, record_of(clock))
    passwords.end_connections()
    calls: list[Callable[[], object]] = [
        lambda: store.get("operations/a"),
        lambda: store.listen().close(),
    ]
    threads = [threading.Thread(target=call, name="slow") for call in calls]
    for thread in threads:
        thread.start()
    slow.wait(PATIENCE)  # both threads are in the function
    assert store.get("operations/a").name == "operations/a"
    insert(store, record_of(clock, "b"))
    store.listen().close()
    gate.set()
    for thread in threads:
        joined(thread)


def test_concurrent_connections_each_call_the_password_function(
    make: Make, passwords: Passwords, clock: ManualClock
) -> None:
    store = make()
    store.secret()
    before = len(passwords.calls)
    subscriptions = together(8, lambda _: store.listen())
    for subscription in subscriptions:
        subscription.close()
    assert len(passwords.calls) == before + 8


def test_password_function_is_never_called_on_an_event_loop(
    make: Make, passwords: Passwords
) -> None:
    """The event loop's thread never calls the password function, not even to reconnect."""

    def work(request: lro.Empty) -> None:
        pass

    async def use() -> None:
        for number in range(3):
            handle = await method.start_async(lro.Empty())
            assert (await handle.wait_async(timeout=PATIENCE)).done
            assert await service.list_async(lro.wire.ListOperationsRequest())
            before = len(passwords.calls)
            assert number == before == 0 or before > 0
            await asyncio.to_thread(passwords.end_connections)

    store = make(clock=None)
    with closing(lro.Service(store, ThreadExecutor())) as service:
        method = service.method("acme.v1.Works.Work")(work)
        asyncio.run(use())
    assert len(passwords.calls) > 3
    assert not any(passwords.calls)


def no_secret(*_: object) -> str:
    raise AssertionError("is not called")


class Asynchronous:
    async def __call__(self) -> str:
        return SECRET


NO_FUNCTION: Final = [
    SECRET,
    SECRET.encode(),
    functools.partial(lambda one, two: f"{one}{two}", SECRET),
    lambda one: SECRET,
    Asynchronous(),
]


@pytest.mark.parametrize("password", NO_FUNCTION, ids=lambda one: type(one).__name__)
def test_password_must_be_a_function_without_arguments(password: Any) -> None:
    """Only a function without arguments is accepted; the error shows no password or argument."""
    wanted = "password: must be a plain function without arguments that returns the password, got"
    with pytest.raises(DeclarationError) as refused:
        PostgresStore("postgresql://app@host/db", password=password)
    assert str(refused.value) == f"{wanted} {type(password)!r}"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET.replace(' ', '%20')}@host/db",
        f"postgresql://app@host/db?password={SECRET.replace(' ', '%20')}",
        f"host=host password='{SECRET}'",
        "host=host password=''",
    ],
)
def test_password_in_both_url_and_function_is_refused(url: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        PostgresStore(url, password=no_secret)
    assert str(refused.value) == "url: must have no password if a function gives it"


def test_password_function_takes_precedence_over_the_environment(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    assert len(make().secret()) == 64


def test_repr_of_a_store_hides_its_password(make: Make, passwords: Passwords) -> None:
    store = make()
    store.secret()
    shown = [repr(one) for one in (store, *vars(store).values())]
    assert not [text for text in shown if passwords.given in text]


FORKER: Final = """
import os, sys
from datetime import UTC, datetime
from lro import AnyMessage
from lro.adapters import Record
from lro.stores.postgres import PostgresStore

calls = []

def password():
    calls.append(os.getpid())
    return sys.stdin.readline().rstrip("\\n")

def use(store, name):
    now = datetime.now(UTC)
    record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
    assert store.insert(record, AnyMessage(), None).fresh

store = PostgresStore(sys.argv[1], password=password, schema=sys.argv[2], connections=1)
use(store, "operations/parent")
print("used", flush=True)
child = os.fork()
if child == 0:
    use(store, "operations/child")
    assert calls[-1] == os.getpid()
    store.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
use(store, "operations/after")
assert {*calls} == {os.getpid()}
store.close()
"""


def test_forked_process_calls_the_password_function(
    server: PostgresServer, make: Make, passwords: Passwords
) -> None:
    """A forked child calls the function for its connection; the parent keeps its connection."""
    schema = server.fresh_schema()
    command = [sys.executable, "-W", "error", "-c", FORKER, passwords.url, schema]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1}
    with killed_at_end(command, env=environment(), **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{FIRST}\n" * 2)  # one for the schema, one for the pool
        assert process.stdout.readline() == "used\n"
        passwords.set(SECOND)
        process.stdin.write(f"{SECOND}\n")
        assert process.wait(PATIENCE) == 0
    passwords.given = SECOND
    assert listed(make(schema=schema)) == ["after", "child", "parent"]


MODULE: Final = """
from pathlib import Path
import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.postgres import PostgresStore

def password():
    return Path({path!r}).read_text()

store = PostgresStore({url!r}, password=password, schema={schema!r})
service = lro.Service(store, ThreadExecutor())

@service.method("acme.v1.Works.Work")
def work(request: lro.Empty) -> None:
    pass
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{SOURCE}:{SOURCE / 'src'}"}


def test_commands_on_a_service_use_its_password_function(
    server: PostgresServer, passwords: Passwords, make: Make, tmp_path: Path
) -> None:
    """``lro schema`` reports a function's error in a sentence; ``lro worker`` reconnects."""
    schema, path = server.fresh_schema(), tmp_path / "password"
    text = MODULE.format(path=str(path), url=passwords.url, schema=schema)
    (tmp_path / "work.py").write_text(text)
    refused = Lro.as_process("schema", "work:service", here=tmp_path)
    why = "the operations database cannot be used now (the password function raised"
    assert refused.stderr == f"Error: {why} FileNotFoundError)\n"
    assert refused.returncode == 2
    path.write_text(FIRST)
    made = Lro.as_process("schema", "work:service", "--create", here=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    command = [*COMMAND, "worker", "work:service"]
    with (
        killed_at_end(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL),
        closing(lro.Service(make(schema=schema, clock=None), None)) as service,
    ):

        @service.method("acme.v1.Works.Work")
        def work(request: lro.Empty) -> None:
            pass

        assert work.start(lro.Empty()).wait(timeout=PATIENCE).done
        passwords.set(SECOND)
        path.write_text(SECOND)
        passwords.given = SECOND
        passwords.end_connections()
        soon(lambda: work.start(lro.Empty()).wait(timeout=PATIENCE))
