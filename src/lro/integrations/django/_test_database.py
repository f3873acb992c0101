"""The store of the service while Django's tests run."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

from django.db import connections

from lro.adapters import Observer, OperationStarted
from lro.integrations.django._operations import WRONG_SETTINGS, service
from lro.stores.sqlite import SQLiteStore


class _Starts(Observer):
    """Notes whether this process has started operations."""

    seen = False

    def started(self, event: OperationStarted) -> None:  # noqa: ARG002
        """Note the start."""
        self.seen = True


class TestDatabase:
    """Moves the service's store to the test database while Django's tests run.

    Django makes its test database after it has imported the project, and with it the store. Without
    the move, tests would run the real work of the development database.
    """

    def __init__(self, alias: str) -> None:
        self._connection: Any = connections[alias]
        self._name = _name_of(self._connection)
        """The name of the database before Django makes its test database, or a worker's copy."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._starts = _Starts()

    def watch(self) -> None:
        """Move the store when Django has made the test database or a worker's copy of it.

        Django sends no signal then, so this wraps the methods of this connection.
        """
        creation = self._connection.creation
        for name in ("create_test_db", "setup_worker_connection"):
            setattr(creation, name, self._then_move(getattr(creation, name)))
        creation._destroy_test_db = self._after_close(creation._destroy_test_db)

    def _then_move(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*arguments: Any, **more: Any) -> Any:
            found = make(*arguments, **more)
            with contextlib.suppress(*WRONG_SETTINGS):  # the settings check reports the error
                self._move()
            return found

        return made

    def _after_close(self, destroy: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(destroy)
        def destroyed(name: Any, *arguments: Any, **more: Any) -> Any:
            with contextlib.suppress(*WRONG_SETTINGS):
                service().close(0)  # PostgreSQL keeps a database that has connections
            found = destroy(name, *arguments, **more)
            if self._connection.vendor == "sqlite":
                for log in ("-wal", "-shm"):  # a process that was ended has left them
                    with contextlib.suppress(OSError):
                        os.unlink(f"{name}{log}")
            return found

        return destroyed

    def _move(self) -> None:
        """Move the store out of this database, or out of a file that Django does not manage."""
        store: Any = service().store
        own, self._name = self._name, _name_of(self._connection)
        if isinstance(store, SQLiteStore):
            others = (_name_of(one) for one in connections.all() if one is not self._connection)
            ours = os.path.samefile(store.path, own) if os.path.exists(own) else False
            if not ours and any(os.path.realpath(one) == store.path for one in others):
                return
            place = self._name if ours else ""
            if not ours or self._connection.is_in_memory_db():
                place = self._file_of_its_own()
        elif getattr(store, "database", "") == own:
            place = self._name
        else:
            return
        service().close(0)
        store.reopen(place)
        service().edges.open()
        self._empty_after_tests(own_file=isinstance(store, SQLiteStore) and place != self._name)

    def _empty_after_tests(self, *, own_file: bool) -> None:
        """Remove the operations after each test that has started some.

        Django removes the rows of the test, and the next test may get the same primary keys, which
        are the names of callers. Django sends no signal then, so this wraps a method.
        """
        from django.test.testcases import TransactionTestCase

        service().edges.observe(self._starts)
        cases: Any = TransactionTestCase
        tear_down = cases._post_teardown

        @functools.wraps(tear_down)
        def torn_down(test: Any) -> None:
            try:
                tear_down(test)
            finally:
                # In a TestCase, the transaction of the class locks a shared SQLite file.
                locked = self._connection.vendor == "sqlite" and self._connection.in_atomic_block
                if self._starts.seen and (own_file or not locked):
                    self._starts.seen = False
                    self._empty(own_file=own_file)

        cases._post_teardown = torn_down

    def _empty(self, *, own_file: bool) -> None:
        store: Any = service().store
        service().close(0)
        if own_file:
            for log in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{store.path}{log}")
        else:
            schema = "" if isinstance(store, SQLiteStore) else f'"{store.schema}".'
            other = self._connection.copy()  # outside of the transaction of a TestCase
            with contextlib.closing(other), other.cursor() as cursor:
                for table in ("operations", "inputs", "starts", "begins", "paused"):
                    cursor.execute(f"DELETE FROM {schema}lro_{table}")
        store.reopen()
        service().edges.open()

    def _file_of_its_own(self) -> str:
        self._folder = tempfile.TemporaryDirectory(prefix="lro-tests-", ignore_cleanup_errors=True)
        return os.path.join(self._folder.name, "operations.db")


def _name_of(connection: Any) -> str:
    return str(connection.settings_dict["NAME"])
