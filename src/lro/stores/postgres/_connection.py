"""One connection, with a time limit on every answer, and the server's clock that it measures."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, TypeVar

import attrs
import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lro._base.errors import DeclarationError, Unavailable
from lro.stores._rows import moment

PERIOD_SECONDS: Final = 60.0
"""How long a measurement is good: quartz clocks drift by a few milliseconds in that time."""

ASK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The server's time in SQL, in microseconds since 1970."""


class ServerClock:
    """How far the server's clock is ahead of this process's monotonic clock, which cannot be set.

    ``monotonic`` gives seconds, as :func:`time.monotonic` does.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._ahead = 0
        self._slack: int | None = None
        self._due = 0.0

    def now(self) -> datetime:
        """The moment by the server's clock, in UTC."""
        return moment(_micros(self.monotonic()) + self._ahead)

    def due(self) -> bool:
        """Whether it is time to measure again; a caller that gets True must do so."""
        now = self.monotonic()
        if now < self._due:
            return False
        self._due = now + PERIOD_SECONDS
        return True

    def measured(self, server: int, began: float, ended: float) -> None:
        """Between these two moments of the monotonic clock the server's showed this.

        An estimate that agrees with the last one, within what the two round trips leave open, does
        not move the clock: it must not tremble with the network.
        """
        ahead = server - _micros((began + ended) / 2)
        slack = _micros((ended - began) / 2)
        self._due = self.monotonic() + PERIOD_SECONDS
        agrees = self._slack is not None and abs(ahead - self._ahead) <= slack + self._slack
        if not agrees or self._slack is None or slack < self._slack:
            self._ahead, self._slack = ahead, slack


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


T = TypeVar("T")

_DEFAULTS: Final = {
    "application_name": "lro",
    # A peer that has vanished is noticed in half a minute, also by a connection that only listens.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_OFF: Final = (
    *("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin"),
    "jit",
)
"""Every statement finds its few rows by an index, and in its order. A plan made while a table was
small, or while its statistics are old, must not read or sort the whole of it later. What has to be
sorted still is; compiling such a plan, which then seems dear, would take seconds."""

_SET_UP: Final = f"""SELECT set_config('search_path', %s, false),
    set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    {", ".join(f"set_config('{name}', 'off', false)" for name in _OFF)}, {ASK}"""


INHERITED: Final[list[object]] = []
"""What a forked process has inherited, and must neither use nor close: it is the parent's."""


class NoAnswer(psycopg.OperationalError):
    """The server has not answered in time: whether it does what was asked is not known."""


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which no answer is waited for longer than ``patience`` seconds.

    The server's own time limit does not help where the server, or the way to it, stands still.
    """

    patience: float = 10.0

    @contextlib.contextmanager
    def locks_within(self, milliseconds: int | None) -> Iterator[None]:
        """Wait no longer for a lock within the block, which is one transaction; None: as usual."""
        if milliseconds is None:
            yield
            return
        with self.transaction():
            self.execute(f"SET LOCAL lock_timeout = {milliseconds:d}".encode(), prepare=False)
            yield

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """As psycopg does, but not for ever."""
        return super().wait(_bounded(gen, self.patience), *args, **options)


def _bounded(steps: PQGen[T], seconds: float) -> PQGen[T]:
    end = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= end:
                raise NoAnswer(f"no answer from the server within {seconds:g} s")
            wanted = steps.send(ready)
    except StopIteration as over:
        result: T = over.value
        return result


def unavailable(cause: BaseException) -> Unavailable:
    """The error that callers get for one of the database: its kind, and no details."""
    error = Unavailable(f"the operations database cannot be used now ({type(cause).__name__})")
    error.__cause__ = cause
    return error


@attrs.frozen(kw_only=True)
class ServerAddress:
    """Where the database is, which schema is ours, and how long we wait for what, in seconds.

    Raises:
        DeclarationError: The URL is not a connection string of PostgreSQL.
    """

    url: str = attrs.field(repr=False)  # it may hold a password
    schema: str
    connect_seconds: float
    statement_seconds: float
    _conninfo: str = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        timeout = max(1, math.ceil(self.connect_seconds))
        limits = {"connect_timeout": timeout, "tcp_user_timeout": timeout * 1000}
        try:
            given = conninfo_to_dict(self.url)
        except psycopg.ProgrammingError:  # its text may quote the password
            raise DeclarationError("url", "is no connection string of PostgreSQL") from None
        whole: dict[str, Any] = {**_DEFAULTS, **limits, **given, "client_encoding": "UTF8"}
        object.__setattr__(self, "_conninfo", make_conninfo("", **whole))

    def connect(self, clock: ServerClock) -> BoundedConnection:
        """A new connection; making it also measures the clock.

        Raises:
            psycopg.Error: The server cannot be reached, or does not let us in.
        """
        connection = BoundedConnection.connect(self._conninfo, autocommit=True, prepare_threshold=0)
        try:
            connection.patience = self.statement_seconds + 1
            milliseconds = max(1, round(self.statement_seconds * 1000))  # 0 is no limit
            path = '"' + self.schema.replace('"', '""') + '"'
            began = clock.monotonic()
            # One row that blocks must not use up the time of all that are written with it.
            limits = (path, str(milliseconds), str(max(1, milliseconds // 5)))
            row = connection.execute(_SET_UP.encode(), limits, prepare=False).fetchone()
            assert row is not None
            clock.measured(row[-1], began, clock.monotonic())
        except BaseException:
            connection.close()
            raise
        return connection
