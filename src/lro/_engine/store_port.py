"""The store port: the interface that a store of operations implements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar

import attrs

from lro._base.by_fields import ByFields
from lro._base.status import AnyMessage
from lro._filters.prefilter import EVERYTHING, Test
from lro._model.operation import Change, Record
from lro._model.page_tokens import Cursor

SCAN: Final = 500
"""Default number of records that a store reads for one page, which takes a few milliseconds."""


READ_BYTES: Final = 1024 * 1024
"""Default limit of the records that a store reads in one call, in bytes of ``Record.weight``.

Messages of many small objects take twelve times as much memory until they are encoded.
"""


KEY_LENGTH: Final = 200
"""The largest length of a checkpoint's key, in characters."""


@attrs.frozen(repr=False)
class RequestKey(ByFields):
    """Identifies a repeated start: method, caller and request id (spec §9.2(2))."""

    method: str
    caller: str
    request_id: str
    fingerprint: str
    """Hashes of the request, separated by spaces. The same id with other hashes is a conflict."""

    def fits(self, fingerprint: str) -> bool:
        """Return True if a start with this fingerprint made the same request.

        One equal hash is enough: two requests can be equal as text, or as messages.
        """
        return not {*fingerprint.split()}.isdisjoint(self.fingerprint.split())


# Objects of a frozen class take twice as long to make.
@attrs.define(eq=False, repr=False)
class Inserted(ByFields):
    """The result of an insert: the record, and whether this insert made it.

    If ``fresh`` is false, the record belongs to the first start with this key. It is the record as
    it is now or, if it was deleted or has expired, as it was first stored (spec §9.2(4)).
    """

    record: Record
    fresh: bool


WORK_WAITS: Final = ""
"""Argument of ``Store.notify_others``: work is due that any process may claim."""

PAUSES_CHANGED: Final = "paused"
"""Argument of ``Store.notify_others``: a method was paused or resumed."""


FREE_LANE: Final = 1
"""The lane of operations with an empty key: the method's limits and rates do not apply.

Lane 0 is for methods without keys, and so for work that was stored before its method got keys.
"""


@attrs.frozen(eq=False, repr=False)
class Claim(ByFields):
    """A request for waiting work, from a process with free workers.

    ``owner`` is the process that gets the work, with a lease until ``lease_until``. ``limits`` has
    the methods whose work this process can do, each with the number of operations that may run at
    once on this store; None allows any number. At most ``max_count`` operations are claimed; 0 only
    asks whether work is due. The ``excluded`` names are not claimed. If ``name`` is not empty, only
    this operation is claimed, if it is due or its name was sent. ``suspects`` is true to claim only
    operations that have lost ``SUSPECT`` workers or more, false to claim only operations that have
    lost fewer, and None for both (only with ``max_count=0``).

    For the ``keyed`` methods, limits and rates hold for each lane (``Record.lane``) except
    :data:`FREE_LANE`, and lanes take turns, beginning with the first lane after ``after_lane``.
    ``rates`` says for each method how many operations may begin within a time span.
    """

    owner: str
    lease_until: datetime
    limits: Mapping[str, int | None]
    max_count: int
    excluded: Collection[str] = ()
    name: str = ""
    suspects: bool | None = False
    keyed: Collection[str] = ()
    rates: Mapping[str, tuple[int, timedelta]] = attrs.field(factory=dict)
    after_lane: int = -1

    @property
    def puts_off(self) -> bool:
        """True if ``owner`` is empty: no work begins, and the caller sends the names to workers.

        The due time of each operation becomes ``lease_until``, or now plus the time since its name
        was first sent, whichever is later. Until then the operation counts for the limits and rates
        of claims without an owner.
        """
        return not self.owner

    @property
    def kinds(self) -> Sequence[bool]:
        """The groups that are claimed: suspects (True), normal work (False), or both."""
        return (False, True) if self.suspects is None else (self.suspects,)


@attrs.frozen(eq=False, repr=False)
class WaitingWork(ByFields):
    """The number of waiting operations of a method, and the earliest time at which one is due.

    ``due`` is how many of these operations are due now. The other operations are delayed, or their
    names were sent to a broker.
    """

    method: str
    count: int
    due_time: datetime
    due: int


SUSPECT: Final = 2
"""Work that lost this many workers may have killed them.

A process runs only one such operation at a time.
"""


@attrs.frozen(eq=False, repr=False)
class Claimed(ByFields):
    """The result of a claim: the claimed records, each with its request.

    ``more``: more work may be due and within the limits. ``next_due`` is when the next operation
    of these methods becomes due; None if there is none. A claim that takes work of a method with a
    rate sets ``more``, or ``next_due`` to the time at which the rate allows more.
    """

    works: Sequence[tuple[Record, AnyMessage]]
    more: bool
    next_due: datetime | None


@attrs.frozen(eq=False, repr=False)
class Worker(ByFields):
    """A process that uses a store, as it describes itself. All times are by the store's clock.

    It renews its row three times within a lease while it has work, and once a minute while it has
    none.
    """

    owner: str
    """The worker's random name, which is also the ``owner`` of the records it works on."""
    host: str
    """The name of the worker's machine or container."""
    pid: int
    """The worker's process id on that machine."""
    version: str
    """The worker's version of this library; empty if unknown."""
    methods: Sequence[str]
    """The full names of the methods whose work the worker can do."""
    capacity: int | None
    """How many operations the worker can run at once: 0 if it runs no work, None for no limit."""
    start_time: datetime
    """When the worker first wrote to the store."""
    seen_time: datetime
    """When the worker last renewed its row."""
    alive_until: datetime
    """When the worker's lease expires, one lease after ``seen_time``; then its work may be lost."""
    lost: bool = False
    """True if the worker counts as lost: the store refuses its renewals."""
    running: int = 0
    """The number of operations in progress that the worker owns, counted by the store."""
    held_until: datetime | None = None
    """The latest ``lease_until`` of these operations; None if the worker owns none."""


@attrs.frozen(eq=False, repr=False)
class Orphans(ByFields):
    """Work of lost workers, and workers that may be lost.

    ``records`` are owned by workers that count as lost. ``overdue`` are other owners whose lease
    has expired, each with its ``alive_until``; None if the owner never wrote its row. ``dead`` are
    the overdue owners that the store knows to have ended. ``next_look`` is when the next lease
    expires, or the next work becomes too late to begin. ``unbegun`` is work of any method that has
    not begun before its ``begin_before``.
    """

    records: Sequence[Record]
    overdue: Mapping[str, datetime | None]
    dead: Collection[str]
    next_look: datetime | None
    unbegun: Sequence[Record] = ()


@attrs.frozen(eq=False, repr=False)
class Renewed(ByFields):
    """The answer to a renewal: names of operations in progress that this worker owns.

    The operations in ``cancel_requested`` have a cancel request. Those in ``older`` were begun more
    than a lease ago; if the worker does not know one of these operations, it must recover it.
    """

    cancel_requested: Sequence[str] = ()
    older: Sequence[str] = ()


@attrs.frozen(eq=False, repr=False)
class Expired(ByFields):
    """The operations that ``Store.expire`` has removed, and whether more have expired."""

    names: Sequence[str]
    methods: Mapping[str, int]
    """The number of removed operations by method."""
    more: bool


R = TypeVar("R")

Done: TypeAlias = Callable[[R | None, BaseException | None], None]
"""Takes the result of a queued write, or its error. It must be quick and must not raise."""


def settle(action: Callable[[], R], done: Done[R]) -> None:
    """Call ``done`` with the result of an action, or with the error that it raises."""
    try:
        answer = action()
    except BaseException as exc:
        done(None, exc)
    else:
        done(answer, None)


def place_of(record: Record) -> Cursor:
    """Return the place of a record in the order of lists."""
    return Cursor(record.create_time, record.name)


@attrs.frozen(eq=False, repr=False)
class Page(ByFields):
    """A part of a list: records in order, and the place up to which the store has read.

    ``reached`` is None at the end of the list. There may be no record at that place.
    """

    records: Sequence[Record]
    reached: Cursor | None


@attrs.frozen(eq=False, repr=False)
class Found(ByFields):
    """Records found by name, and the names that are left for another call."""

    records: Sequence[Record]
    rest: Sequence[str] = ()


@attrs.frozen(eq=False, repr=False)
class StateSummary(ByFields):
    """The states of operations asked for by name."""

    finished: frozenset[str]
    """Names of operations that are done, deleted, expired, or unknown."""
    cancel_requested: frozenset[str]
    """Names of operations in progress, visible or not, with a cancel request."""


class ChangeSubscription(Protocol):
    """Receives the notifications of other processes on a store, in one thread."""

    def next_changes(self, seconds: float) -> Collection[str] | None:
        """Wait, at most ``seconds``, until another process has changed something.

        Returns:
            The names of changed operations, maybe none; or None if any operation may have changed.

        Raises:
            Unavailable: The store is closed or cannot be reached.
        """
        ...

    def close(self) -> None:
        """Free all resources, in any thread; ``next_changes`` returns soon. Idempotent."""
        ...


class OwnConnection(Protocol):
    """A connection or session of the application, with its transaction."""

    def commit(self) -> None:
        """Commit the transaction, with the operations started in it."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back, with the operations started in it."""
        ...


class ConnectionProxy(Protocol):
    """A proxy such as ``django.db.connection``, which has its own connection in each thread."""

    def __getattr__(self, name: str, /) -> Any:
        """Return an attribute of the connection."""
        ...


DatabaseConnection: TypeAlias = OwnConnection | ConnectionProxy
"""The argument ``within`` of a start: a connection of psycopg, sqlite3, Django or SQLAlchemy.

This library never commits its transaction or rolls it back.
"""


class Store(Protocol):
    """Stores operations.

    Calls are short and thread-safe, and never wait for an operation. When a call returns, its
    change is committed, as durably as the store keeps anything. A store does not know which callers
    wait: the service notifies them. ``lro.testing.check_store`` tests that a store keeps this
    contract.

    A property ``writes_wait`` is optional. It is True while a write would wait for other writes. A
    worker thread then stores a result by ``update_later``, and does other work meanwhile.
    """

    @property
    def reads_block(self) -> bool:
        """True if ``get`` may block, so that an event loop must call it in a thread."""
        ...

    @property
    def writes_block(self) -> bool:
        """True if any method other than ``get`` may block."""
        ...

    @property
    def shared(self) -> bool:
        """True if other processes may write to the store; a service then calls :meth:`listen`."""
        ...

    def notify_others(self, name: str) -> None:
        """Notify the other processes of a committed change of the operation ``name``.

        This never blocks and never fails. A notification may be late, merged with another
        notification, or lost: the next ``poll_states`` finds the change too. ``name`` can also be
        :data:`WORK_WAITS` or :data:`PAUSES_CHANGED`.
        """
        ...

    def listen(self) -> ChangeSubscription:
        """Subscribe to the changes that other processes make from now on.

        Raises:
            Unavailable: The store is closed or cannot be reached.
        """
        ...

    def poll_states(self, names: Collection[str]) -> StateSummary:
        """Find out, in one read, which of these operations have ended or have a cancel request."""
        ...

    def now(self) -> datetime:
        """Return the time in UTC by the store's clock, which all processes on the store share."""
        ...

    def secret(self) -> bytes:
        """Return 64 random bytes for page tokens, made once and shared by all processes."""
        ...

    def insert(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Add a record and its request, or return the record that used its key within 24 hours.

        ``check_only`` makes all checks and stores nothing (spec §9.7).

        Raises:
            RequestIdConflict: The key was used with another fingerprint.
            TargetBusy: The record wants an exclusive target that other work in progress has.
            InvalidArgument: The name is taken, or a text has U+0000 or half of a surrogate pair.
        """
        ...

    def insert_later(
        self, record: Record, request: AnyMessage, key: RequestKey | None, done: Done[Inserted]
    ) -> None:
        """Queue an insert, and return without waiting for the commit.

        ``done`` is called once, in any thread, maybe before this method returns. It gets the result
        of :meth:`insert` after the commit, or its error. An error that is known at once may be
        raised here instead; then ``done`` is not called.
        """
        ...

    def request(self, name: str) -> AnyMessage:
        """Return the packed request that :meth:`insert` has stored.

        A store keeps it until the work succeeds, or else until the record is removed
        (``Record.keeps_request``).

        Raises:
            OperationNotFound: There is no such request.
        """
        ...

    def get(self, name: str) -> Record:
        """Return the record of this name, visible to callers or not.

        Raises:
            OperationNotFound: There is no such record.
        """
        ...

    def find(self, names: Collection[str], max_bytes: int = READ_BYTES) -> Found:
        """Return the existing records of these names, each once, in any order.

        This is one read, however many names there are. The records have at most ``max_bytes`` in
        total (``Record.weight``), unless there is only one. ``rest`` has the names left out because
        of this limit; the store must not hold their records in memory.
        """
        ...

    def update(self, name: str, change: Change) -> Record | None:
        """Replace the record by ``change(record)`` atomically; None removes it.

        ``change`` may run more than once, so it must have no side effects. If it raises, nothing
        changes, and the error is raised here.

        Raises:
            OperationNotFound: There is no record of this name.
        """
        ...

    def update_later(self, name: str, change: Change, done: Done[Record | None]) -> None:
        """Queue an update, as :meth:`insert_later` queues an insert.

        ``change`` is called in any thread.
        """
        ...

    def checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> None:
        """Store a value of an operation under a key, replacing an earlier value.

        The record does not change. The write that ends or removes the operation also removes its
        values. A key is a printable text of at most ``KEY_LENGTH`` characters.

        Raises:
            OperationNotFound: There is no record of this name.
            NotApplied: The operation has ended.
            LeaseLost: The attempt is not the current attempt of the operation.
        """
        ...

    def checkpoint_later(
        self, name: str, attempt: int, key: str, value: AnyMessage, done: Done[None]
    ) -> None:
        """Queue a checkpoint, as :meth:`insert_later` queues an insert."""
        ...

    def checkpoints(self, name: str) -> Mapping[str, AnyMessage]:
        """Read the values that :meth:`checkpoint` has stored for this operation, by key.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def page(
        self,
        parent: str,
        after: Cursor | None,
        limit: int,
        prefilter: Test = EVERYTHING,
        scan: int = SCAN,
        max_bytes: int = READ_BYTES,
    ) -> Page:
        """Return up to ``limit`` visible records of exactly this parent, in order, after a place.

        The records have at most ``max_bytes`` in total (``Record.weight``), unless there is only
        one. The page ends before the record that would exceed this limit; the store must not hold
        that record in memory.

        A store may leave out records that do not match ``prefilter``, and must return all that do.
        After reading ``scan`` records, matching or not, it may stop and return the place reached.
        """
        ...

    def index(self, keys: Collection[str]) -> None:
        """Create the indexes that find records by these keys (``Record.keys``).

        This may take as long as reading all records. Idempotent.

        Raises:
            Unavailable: The store cannot be reached.
        """
        ...

    def claim(self, claim: Claim) -> Claimed:
        """Begin a new attempt at waiting operations, in one atomic step (spec §2.8).

        An operation waits if it is in progress, has no owner, and has a ``lease_until``, which is
        its due time. Due operations are taken by rank, lowest first, then by due time, then by
        name. For a keyed method, the first operations of all lanes come before the second
        operations of any lane, and all these first operations count as due since the due time of
        the earliest of them. Each taken record gets the owner, the lease, one more attempt, a
        ``start_time`` if it had none, a new ``update_time``, and the next version. Operations of
        paused methods, and rows that another transaction has locked, are left out.

        Raises:
            Unavailable: The store cannot be read, or work is due and the store cannot be written
                to.
        """
        ...

    def pause(self, method: str) -> None:
        """Exclude a method from claims until :meth:`resume`. Idempotent.

        Claims act as if no work of the method waited, in ``more`` and ``next_due`` too. Other calls
        are not affected.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...

    def resume(self, method: str) -> None:
        """Include a method in claims again. Idempotent.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...

    def paused(self) -> Mapping[str, datetime]:
        """Read which methods are paused, and since when, by the store's clock.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def count_waiting(self, most: int) -> int:
        """Count the operations that wait, due or not, up to ``most``.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def waiting(self) -> Sequence[WaitingWork]:
        """Count the waiting operations, due or not, by method, in the order of names.

        This may take as long as counting the rows of an index.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def renew(self, worker: Worker) -> Renewed | None:
        """Store a worker's row, with its lease until ``alive_until``.

        If the row exists, only ``methods``, ``capacity``, ``seen_time`` and ``alive_until`` change.

        Returns:
            News about the worker's work; None if the worker counts as lost (:meth:`lose`). In that
            case nothing is written, and other workers may have its work.

        Raises:
            Unavailable: The store cannot be written to now, even if it can be read.
        """
        ...

    def leave(self, owner: str) -> None:
        """Remove the row of a worker that has ended. Idempotent.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...

    def workers(self) -> Sequence[Worker]:
        """Read all workers, the lost ones included, the oldest first.

        A worker without work is removed a day after its last renewal.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def orphans(self, methods: Collection[str], limit: int) -> Orphans:
        """Read up to ``limit`` records in progress of these methods whose worker is lost.

        Also read up to ``limit`` waiting records that never began and are past ``begin_before``.

        An owner is overdue if its ``alive_until`` has passed or is unknown, and the ``lease_until``
        of all its work has passed, too. If any owner is overdue, the store also makes a test write,
        and writes to the row of each overdue owner. An owner whose row cannot be written is left
        out: perhaps it could not renew either. Operations without an owner wait, and are not lost.

        Raises:
            Unavailable: The store cannot be read, or owners are overdue and the store cannot be
                written to.
        """
        ...

    def lose(self, owner: str, alive_until: datetime | None) -> bool:
        """Declare a worker lost, if its ``alive_until`` is unchanged. Idempotent.

        Returns:
            True if the worker counts as lost now. From then on :meth:`renew` refuses it.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...

    def expire(self, limit: int) -> Expired:
        """Remove up to ``limit`` expired records, and as many request keys older than 24 hours."""
        ...

    def close(self) -> None:
        """Free all resources. Idempotent.

        If the store has a method ``reopen``, which undoes this, a closed service can be opened
        again.
        """
        ...


class TransactionalStore(Store, Protocol):
    """An optional interface: a store that can also insert in transactions of the application."""

    def insert_within(
        self,
        connection: DatabaseConnection,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Insert as :meth:`insert` does, by statements on this connection, in its transaction.

        The transaction is neither committed nor rolled back. After an error it can continue, with
        its earlier statements intact. Nothing else is written, and the record is not cached,
        because it may never be committed. The service calls this in the thread that uses the
        connection, which may be the thread of an event loop.

        Raises:
            InvalidArgument: As for :meth:`insert`; or, with the field ``within``, the store does
                not support this kind of connection, or the connection is to another database or has
                no open transaction.
            RequestIdConflict, TargetBusy: As for :meth:`insert`.
        """
        ...


Counts: TypeAlias = Mapping[str, Mapping[str, float]]
"""Counts by method, and then by the name of a series. No count is negative."""

COUNTS_LIFE: Final = timedelta(hours=72)
"""How long the counts of a minute are kept."""

STEP_MINUTES: Final = (1, 5, 30)
"""The allowed lengths, in minutes, of the steps in which counts are read."""

COUNTS_READ: Final = 10_000
"""How many :class:`MinuteCounts` a store reads in one call, by default."""


@attrs.frozen(eq=False, repr=False)
class MinuteCounts(ByFields):
    """The counts of one method in a minute, or in a step of several minutes."""

    minute: datetime
    """The beginning of the minute or step, in UTC."""
    method: str
    counts: Mapping[str, float]
    """The counts by the name of a series."""


@attrs.frozen(eq=False, repr=False)
class MethodLoad(ByFields):
    """The operations in progress of one method: how many there are, and the oldest one.

    ``waiting`` is how many of them wait for a worker, ``running`` how many a worker has begun.
    """

    method: str
    waiting: int
    running: int
    oldest_create_time: datetime
    oldest_name: str


@attrs.frozen(eq=False, repr=False)
class Load(ByFields):
    """The operations in progress, by method, and the number that each process has, by owner.

    ``capped`` is true if there are more operations, which are not counted here.
    """

    methods: Sequence[MethodLoad]
    owners: Mapping[str, int]
    capped: bool


class StatisticsStore(Store, Protocol):
    """An optional interface: a store that also keeps the counts of the processes that use it.

    Counts are kept for each minute and method, for 72 hours. Counts that belong to no method have
    the method ``""``. A store neither knows nor checks the names of series.
    """

    def add_counts(self, minute: datetime, counts: Counts) -> None:
        """Add all these counts to the counts of a minute, or none of them if this fails.

        Seconds of ``minute`` are cut off. The call also removes some counts older than 72 hours by
        the store's clock, at least as many as it adds.

        Raises:
            Unavailable: The store cannot be written to now. It may be unknown whether the counts
                were added.
        """
        ...

    def read_counts(
        self, since: datetime, limit: int = COUNTS_READ, step_minutes: int = 1
    ) -> Sequence[MinuteCounts]:
        """Read the counts of the steps that end after ``since``, oldest first.

        Steps of 1, 5 or 30 minutes begin at whole multiples since 1970. There is one item for each
        step and method that has counts. If there are more than ``limit`` items, the newest are
        returned.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def read_load(self, parents: Collection[str], limit: int) -> Load:
        """Count the operations in progress that callers can see under exactly these parents.

        At most ``limit`` + 1 records are read by an index: parent by parent, the oldest first.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...


class OutboxStore(Store, Protocol):
    """An optional interface: a store that can also find the records with pending webhooks.

    ``Record.notify_at`` marks such a record, so the write that ends an operation also stores that
    its webhooks are pending. ``expire`` keeps the record while they are pending, for up to 4 days
    (``DEBT_LIFE``) after its expiry.
    """

    def claim_due(self, until: datetime, limit: int) -> Sequence[Record]:
        """Claim up to ``limit`` records whose ``notify_at`` has passed, by setting it to ``until``.

        Records with the earliest ``notify_at`` are claimed first. The time is that of the store's
        clock. Each record is changed by one atomic update with a new version, so only one process
        gets it before ``until``. Rows that another transaction has locked are left out.

        Returns:
            The records after the change.

        Raises:
            Unavailable: The store cannot be read, or some records are due and the store cannot be
                written to.
        """
        ...

    def next_due(self) -> datetime | None:
        """Read the earliest ``notify_at`` of all records; None if there is none.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...


DEBT_LIFE: Final = timedelta(days=4)
"""How long after its expiry a record with pending webhooks is kept."""


def keeps_outbox(store: Store) -> TypeGuard[OutboxStore]:
    """Return True if a store has the methods of an :class:`OutboxStore`."""
    return all(hasattr(store, verb) for verb in ("claim_due", "next_due"))


def keeps_statistics(store: Store) -> TypeGuard[StatisticsStore]:
    """Return True if a store has the methods of a :class:`StatisticsStore`."""
    verbs = ("add_counts", "read_counts", "read_load")
    return all(hasattr(store, verb) for verb in verbs)
