"""What the service needs of a store: the contract of those that keep operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar

import attrs

from lro._base.status import AnyMessage
from lro._filters.prefilter import EVERYTHING, Test
from lro._model.operation import Change, Record
from lro._model.page_tokens import Cursor

SCAN: Final = 500
"""How many records a store looks at for one page, by default: a few milliseconds' worth."""


READ_BYTES: Final = 1024 * 1024
"""How much a store reads in one call, in bytes of ``Record.weight``, by default.

Messages of many small objects take twelve times this memory, until they are shown.
"""


KEY_LENGTH: Final = 200
"""How many characters the key of a checkpoint has at most."""


@attrs.frozen
class RequestKey:
    """What makes a repeated start the same one: method, caller, request id (spec §9.2(2))."""

    method: str
    caller: str
    request_id: str
    fingerprint: str
    """Hashes of the request, separated by spaces: the same id with another one is a conflict."""

    def fits(self, fingerprint: str) -> bool:
        """Return True if a start with this fingerprint made the same request.

        One equal hash is enough: a request may be the same text for a caller, or the same message.
        """
        return not {*fingerprint.split()}.isdisjoint(self.fingerprint.split())


@attrs.frozen
class Inserted:
    """What became of an insert: the record, and whether it is a new one.

    If not ``fresh``, the record is the present one of the first start, or, where that was deleted
    or has expired, as it was first stored (spec §9.2(4)).
    """

    record: Record
    fresh: bool


WORK_WAITS: Final = ""
"""What ``Store.notify_others`` is given when work is due that any process may claim."""

PAUSES_CHANGED: Final = "paused"
"""What ``Store.notify_others`` is given when a method was paused or resumed."""


FREE_LANE: Final = 1
"""The lane of operations that have no key: limits and rates of a keyed method let them be.

Lane 0 is that of methods without keys, and so of work that was stored before its method got them.
"""


@attrs.frozen
class Claim:
    """What a process asks for that has free workers.

    ``owner`` is the name under which it holds what it gets, until ``lease_until``. ``limits`` are
    the methods that it can do, and how many operations of each may run at once on the store; None:
    any number. ``most`` is how many operations it can begin; with 0 it only looks. Operations
    ``without`` these names. ``only`` is the one operation that is asked for, if it is due or
    its name was sent; empty: any. With ``suspects``, only those are asked for whose worker was lost
    ``SUSPECT`` times or more; else, all others. None: both, which only a look can ask for.

    With an empty ``owner`` nothing is begun: the names of what is due are to be sent. It is put off
    to ``lease_until``, or for as long again as it is since they were first sent, whichever is
    later. Until then each takes a place within limits and rates, for such claims.

    Of the ``keyed`` methods, limits and rates hold for each lane (``Record.lane``) but
    :data:`FREE_LANE`, and lanes take turns: those after ``start`` come first. ``rates``: how many
    operations of a method may begin in any such time.
    """

    owner: str
    lease_until: datetime
    limits: Mapping[str, int | None]
    most: int
    without: Collection[str] = ()
    only: str = ""
    suspects: bool | None = False
    keyed: Collection[str] = ()
    rates: Mapping[str, tuple[int, timedelta]] = attrs.field(factory=dict)
    start: int = -1

    @property
    def kinds(self) -> Sequence[bool]:
        """The values of ``suspects`` that fit."""
        return (False, True) if self.suspects is None else (self.suspects,)


@attrs.frozen
class WaitingWork:
    """How many operations of a method wait, and when the first of them was, or will be, due.

    ``due`` says how many of them are due now. The others are delayed, or their names were sent to
    the workers of a broker.
    """

    method: str
    count: int
    due_time: datetime
    due: int


SUSPECT: Final = 2
"""Work may be what has killed its workers if so many were lost: it is begun apart from others."""


@attrs.frozen
class Claimed:
    """What a claim has got: records as they are now, each with its request.

    ``more``: there may be more that is due, and that the limits allow. ``next_due`` is when the
    next operation of these methods is due that is not due now; None: there is none.
    """

    works: Sequence[tuple[Record, AnyMessage]]
    more: bool
    next_due: datetime | None


@attrs.frozen
class Worker:
    """A process that uses a store, as it has said of itself. All times are by the store's clock.

    It renews its row three times within a lease while it has work, and once a minute without.
    """

    owner: str
    """The random name by which the store knows it, and which the records of its work bear."""
    host: str
    """The name of its machine, or of its container."""
    pid: int
    """The id of the process there."""
    version: str
    """The release of this library that it runs; empty if that is not known."""
    methods: Sequence[str]
    """The full names of the methods whose work it can do."""
    capacity: int | None
    """How many operations it can run at once; 0: it runs none, None: there is no bound."""
    start_time: datetime
    """When it wrote to the store first."""
    seen_time: datetime
    """When it wrote to the store last to say that it lives."""
    alive_until: datetime
    """When its lease ends, one lease after ``seen_time``: its work may count as lost from then."""
    lost: bool = False
    """Whether it counts as lost: it cannot write as this worker any more."""
    running: int = 0
    """How many operations in progress it holds, as the store counts them."""
    held_until: datetime | None = None
    """When the latest of the leases ends with which these were begun; None: it holds none."""


@attrs.frozen
class Orphans:
    """Work of lost workers, and which workers may be lost.

    ``records`` are held by workers that count as lost. ``overdue`` are the owners of other work
    that have not said in time that they live, each with its ``alive_until``; None: it has said
    nothing yet. ``dead`` are those of them that the store knows to have ended. ``next_look`` is
    when the next of the others could be found to be lost, or the next work too late to begin.
    ``unbegun`` is work of any method that has not begun before its ``begin_before``.
    """

    records: Sequence[Record]
    overdue: Mapping[str, datetime | None]
    dead: Collection[str]
    next_look: datetime | None
    unbegun: Sequence[Record] = ()


@attrs.frozen
class Renewed:
    """What a worker holds that it should know of: names of operations in progress.

    ``cancel_requested`` are asked to stop. ``older`` are those whose own lease is over: it is the
    worker that has to know of them.
    """

    cancel_requested: Sequence[str] = ()
    older: Sequence[str] = ()


@attrs.frozen
class Expired:
    """What a sweep has removed, and whether it has left something to the next one."""

    names: Sequence[str]
    methods: Mapping[str, int]
    """How many of the removed operations are of each method."""
    more: bool


R = TypeVar("R")

Done: TypeAlias = Callable[[R | None, BaseException | None], None]
"""Takes the answer of a write that was handed in, or its error; quick, and raises nothing."""


def settle(action: Callable[[], R], done: Done[R]) -> None:
    """Call ``done`` with what an action gives, or with the error that it raises."""
    try:
        answer = action()
    except BaseException as exc:
        done(None, exc)
    else:
        done(answer, None)


def place_of(record: Record) -> Cursor:
    """Where a record stands in the order of lists."""
    return Cursor(record.create_time, record.name)


@attrs.frozen
class Page:
    """A piece of a list: records in order, and the place up to which all were looked at.

    ``reached`` is None if nothing comes after; the place may be one where no record is.
    """

    records: Sequence[Record]
    reached: Cursor | None


@attrs.frozen
class Found:
    """Records that were asked for by name, and those names that were left for another call."""

    records: Sequence[Record]
    rest: Sequence[str] = ()


@attrs.frozen
class StateSummary:
    """Of the names asked for: those that need no more waiting, and those asked to cancel."""

    finished: frozenset[str]
    """Done, deleted, expired, or never there."""
    cancel_requested: frozenset[str]
    """In progress, visible or not, and asked to cancel."""


class ChangeSubscription(Protocol):
    """Receives the changes that other processes on a store notify. Used by one thread."""

    def next_changes(self, seconds: float) -> Collection[str] | None:
        """Wait, at most ``seconds``, until another process has changed something.

        Returns:
            The names of what has changed, none if nothing has, or None if anything may have.

        Raises:
            Unavailable: The store is closed or cannot be reached.
        """
        ...

    def close(self) -> None:
        """Free all that is held, in any thread: ``next_changes`` returns soon. Idempotent."""
        ...


class OwnConnection(Protocol):
    """A connection or session of the application's own, with its transaction."""

    def commit(self) -> None:
        """End the transaction; what was started within it is there."""
        ...

    def rollback(self) -> None:
        """End the transaction; what was started within it never was there."""
        ...


class ConnectionProxy(Protocol):
    """What stands for such a connection, as ``django.db.connection`` does for that of a thread."""

    def __getattr__(self, name: str, /) -> Any:
        """An attribute of the connection."""
        ...


DatabaseConnection: TypeAlias = OwnConnection | ConnectionProxy
"""What a start takes ``within``: a connection or session of psycopg, sqlite3, Django or SQLAlchemy.

No part of this library commits it or rolls it back.
"""


class Store(Protocol):
    """Where operations are kept.

    Calls are short, thread-safe, and never wait for an operation. What a call has answered is
    committed, as durably as the store keeps anything. A store knows nothing of waiters: the
    service notifies them. ``lro.testing.check_store`` is this contract as code.
    """

    @property
    def reads_block(self) -> bool:
        """Whether ``get`` may block, so that an event loop must call it in a thread."""
        ...

    @property
    def writes_block(self) -> bool:
        """The same of every other verb."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it, whose notifications do not come here."""
        ...

    def notify_others(self, name: str) -> None:
        """Notify the other processes that this record has changed; the change is committed.

        Never waits, never fails: a notification may be late, merged with others, or lost, which
        the next ``poll_states`` makes good. :data:`WORK_WAITS` is no record: work is due. Nor is
        :data:`PAUSES_CHANGED`.
        """
        ...

    def listen(self) -> ChangeSubscription:
        """Subscribe to the changes of other processes from now on.

        Raises:
            Unavailable: The store is closed or cannot be reached.
        """
        ...

    def poll_states(self, names: Collection[str]) -> StateSummary:
        """Read which of these operations have ended or are asked to cancel, in one read."""
        ...

    def now(self) -> datetime:
        """The moment by the store's clock, in UTC: the one clock of all its processes."""
        ...

    def secret(self) -> bytes:
        """64 random bytes, made once per store and shared by all its processes, for page tokens."""
        ...

    def insert(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Add a record and its request; for a key of the last 24 hours, find the first one instead.

        ``check_only`` makes every check and stores nothing (spec §9.7).

        Raises:
            RequestIdConflict: The key was used with another fingerprint.
            TargetBusy: The record wants a target alone which other work in progress has.
            InvalidArgument: The name is taken, or a text has U+0000 or half of a surrogate pair.
        """
        ...

    def insert_later(
        self, record: Record, request: AnyMessage, key: RequestKey | None, done: Done[Inserted]
    ) -> None:
        """Take what :meth:`insert` takes, and return without waiting for the commit.

        ``done`` is called once: with what ``insert`` would return, when that is committed, or with
        the error that it would raise. In any thread, maybe before this returns. What can be refused
        at once may be raised here instead, and then ``done`` is not called.
        """
        ...

    def request(self, name: str) -> AnyMessage:
        """The packed request of an operation; the one that was given to :meth:`insert`.

        It is kept until the work has succeeded, and else until the record is removed
        (``Record.keeps_request``).

        Raises:
            OperationNotFound: There is none.
        """
        ...

    def get(self, name: str) -> Record:
        """The record of this name, visible to callers or not.

        Raises:
            OperationNotFound: There is none.
        """
        ...

    def find(self, names: Collection[str], max_bytes: int = READ_BYTES) -> Found:
        """Those records of these names that are there, each once, as ``get`` would give them.

        In one read, however many names they are; a name that no record can have is not there. The
        order is the store's. The records have at most ``max_bytes`` together (``Record.weight``),
        or it is only one; names that were not looked at for that reason are the ``rest``. A store
        must not hold in memory what it leaves out.
        """
        ...

    def update(self, name: str, change: Change) -> Record | None:
        """Replace the record by ``change(record)``, all or nothing; None removes it.

        ``change`` may run more than once, so it must have no effects of its own. What it raises is
        raised here, and nothing changes.

        Raises:
            OperationNotFound: There is no record of this name.
        """
        ...

    def update_later(self, name: str, change: Change, done: Done[Record | None]) -> None:
        """Take what :meth:`update` takes, and return without waiting: as for ``insert_later``.

        ``change`` is called in any thread.
        """
        ...

    def checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> None:
        """Keep a value beside the request, in place of an earlier one with this key.

        The record stays as it is. All values of an operation go with its end, in the same step, and
        with its record. A key is a printable text of at most ``KEY_LENGTH`` characters.

        Raises:
            OperationNotFound: There is no record of this name.
            NotApplied: The operation is over.
            LeaseLost: This is not its current attempt.
        """
        ...

    def checkpoint_later(
        self, name: str, attempt: int, key: str, value: AnyMessage, done: Done[None]
    ) -> None:
        """Take what :meth:`checkpoint` takes, and return without waiting.

        As for :meth:`insert_later`.
        """
        ...

    def checkpoints(self, name: str) -> Mapping[str, AnyMessage]:
        """Read the values that :meth:`checkpoint` has kept for this operation, by their keys.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def page(
        self,
        parent: str,
        after: Cursor | None,
        limit: int,
        narrowing: Test = EVERYTHING,
        scan: int = SCAN,
        max_bytes: int = READ_BYTES,
    ) -> Page:
        """Up to ``limit`` visible records of exactly this parent, in order, after a place.

        Together they have at most ``max_bytes`` (``Record.weight``), or it is only one: a page ends
        before the record that would pass that bound, which a store must not hold in memory.

        Records that do not meet ``narrowing`` may be left out, as far as the store can decide that;
        all others are there. So that no call takes long, a store may stop when it has looked at
        ``scan`` records, found or not, and say how far it has come.
        """
        ...

    def index(self, keys: Collection[str]) -> None:
        """Make what is needed to find records quickly by these keys (``Record.keys``).

        May take as long as reading all records takes. Idempotent.

        Raises:
            Unavailable: The store cannot be reached.
        """
        ...

    def claim(self, claim: Claim) -> Claimed:
        """Begin a new attempt at operations that wait, in one atomic step (spec §2.8).

        An operation waits if it is in progress, has no owner, and has a ``lease_until``, which is
        when it is due. Of what is due, the lowest rank comes first, then what was due first, then
        they go by name. Of a keyed method, the first operations of all lanes come before the second
        ones; they count as due when the first of them was. A record that is taken
        has one attempt more, the owner, its lease, a ``start_time`` if it had none, the present
        ``update_time``, and the next version. What another transaction has locked is left out, and
        work of paused methods.

        Raises:
            Unavailable: The store cannot be read, or there is such work and it cannot be written.
        """
        ...

    def pause(self, method: str) -> None:
        """Have no claim take work of a method, from now on until :meth:`resume`. Idempotent.

        Claims leave it out as if none waited: they do not say that more is due, or when. Other
        verbs take no notice.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...

    def resume(self, method: str) -> None:
        """Have claims take work of a method again. Idempotent.

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
        """Count the operations that wait, due or not, of each method of which any does, in order.

        May take as long as counting an index takes.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def renew(self, worker: Worker) -> Renewed | None:
        """Write that a worker lives until its ``alive_until``; for the first time or again.

        Again, only ``methods``, ``capacity``, ``seen_time`` and ``alive_until`` are written.

        Returns:
            What it should know of its work; None if it counts as lost (:meth:`lose`): then nothing
            is written, and others may have its work.

        Raises:
            Unavailable: The store cannot be written to now, even if it can be read.
        """
        ...

    def leave(self, owner: str) -> None:
        """Forget a worker, which has ended. Idempotent.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...

    def workers(self) -> Sequence[Worker]:
        """Read which workers there are, the lost ones included, the oldest first.

        Those that have ended without a word are forgotten a day after they were seen last.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def orphans(self, methods: Collection[str], limit: int) -> Orphans:
        """Read up to ``limit`` records in progress of these methods whose worker is lost.

        And as many that wait, have never begun, and whose ``begin_before`` has passed.

        What has no owner is not lost: it waits. An owner is overdue if its ``alive_until`` has
        passed, or is not known, and so has ``lease_until`` of all work that it holds, of whichever
        methods. If there are such owners, it is also tried to write to the store, and to what it
        knows of each of them; where that fails, the owner is left out, who could not write either.

        Raises:
            Unavailable: The store cannot be read, or owners are overdue and it cannot be written.
        """
        ...

    def lose(self, owner: str, alive_until: datetime | None) -> bool:
        """Have a worker count as lost, if its ``alive_until`` is still this one; idempotent.

        Returns:
            Whether it counts as lost now. From then on it cannot :meth:`renew`.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...

    def expire(self, limit: int) -> Expired:
        """Remove up to ``limit`` records past their expiry, and as many keys past their day."""
        ...

    def close(self) -> None:
        """Free what the store holds. Idempotent."""
        ...


class TransactionalStore(Store, Protocol):
    """A store that also inserts as part of a transaction of the application's. Optional."""

    def insert_within(
        self,
        connection: DatabaseConnection,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Do what :meth:`insert` does, by statements on this connection, in its transaction.

        That transaction is neither committed nor rolled back. After an error, its other statements
        are as they were, and it can go on. Nothing else is written, and nothing is remembered of
        the record, which may never be committed. Called in the thread that uses the connection,
        maybe that of an event loop.

        Raises:
            InvalidArgument: Also, with the field ``within``: the connection is of a kind that the
                store does not know, or to another database; or it has no transaction that could be
                written in.
            RequestIdConflict, TargetBusy: As for :meth:`insert`.
        """
        ...


Counts: TypeAlias = Mapping[str, Mapping[str, float]]
"""What was counted: by method, and then by the name of a series. No number is negative."""

COUNTS_LIFE: Final = timedelta(hours=72)
"""How long the counts of a minute are kept."""

STEP_MINUTES: Final = (1, 5, 30)
"""How many minutes the steps may have in which counts are read."""

COUNTS_READ: Final = 10_000
"""How many :class:`MinuteCounts` a store reads in one call, by default."""


@attrs.frozen
class MinuteCounts:
    """What was counted of one method in a minute, or in a step of minutes that begins with it."""

    minute: datetime
    """When it begins, in UTC."""
    method: str
    counts: Mapping[str, float]
    """By the name of a series."""


@attrs.frozen
class MethodLoad:
    """How much of one method is in progress, and the oldest of that.

    ``waiting`` is how many operations wait for a worker, ``running`` how many are worked on.
    """

    method: str
    waiting: int
    running: int
    oldest_create_time: datetime
    oldest_name: str


@attrs.frozen
class Load:
    """What is in progress, by method, and how many operations each process holds, by owner.

    ``capped`` says that there is more, of which nothing is counted here.
    """

    methods: Sequence[MethodLoad]
    owners: Mapping[str, int]
    capped: bool


class StatisticsStore(Store, Protocol):
    """A store that also keeps what the processes on it have counted. Optional.

    Counts are kept for each minute and method, for 72 hours, and in totals, for ever. The method
    ``""`` has what is counted of no method. A store neither knows nor checks the names of series.
    """

    def add_counts(self, minute: datetime, counts: Counts) -> None:
        """Add to what was counted in this minute, and to the totals, all or nothing.

        Seconds of ``minute`` are cut off. It also removes some of what is older than 72 hours by
        the store's clock, at least as much as it adds.

        Raises:
            Unavailable: The store cannot be written to now. It may not be known then whether the
                counts were added.
        """
        ...

    def read_counts(
        self, since: datetime, limit: int = COUNTS_READ, step_minutes: int = 1
    ) -> Sequence[MinuteCounts]:
        """Read what was counted in the steps that end after ``since``, oldest first.

        Steps of 1, 5 or 30 minutes begin at whole multiples since 1970. There is one item for each
        step and method of which something was counted; of more than ``limit``, the newest.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def read_totals(self) -> Counts:
        """Read what was counted since the store was made: numbers that never fall.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def read_load(self, parents: Collection[str], limit: int) -> Load:
        """Read what callers can see in progress under exactly these parents, the oldest first.

        At most ``limit`` + 1 records are looked at, by an index, one parent after the other.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...


class OutboxStore(Store, Protocol):
    """A store that also finds the records that owe notifications. Optional.

    Which these are stands in the records themselves (``Record.notify_at``), so that the update that
    ends an operation also stores what is owed. ``expire`` leaves them for up to 4 days longer
    (``DEBT_LIFE``) than the others, for as long as they owe something.
    """

    def claim_due(self, until: datetime, limit: int) -> Sequence[Record]:
        """Take up to ``limit`` records whose ``notify_at`` has passed, and move it to ``until``.

        That is by the store's clock; the oldest due first. Each is moved in one atomic update,
        which also counts up the version: of several processes one gets it, and others only after
        ``until``. What others have locked is left out.

        Returns:
            The records as they are then.

        Raises:
            Unavailable: The store cannot be read, or there are some and it cannot be written to.
        """
        ...

    def next_due(self) -> datetime | None:
        """Read the earliest ``notify_at`` of all records; None if nothing is owed.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...


DEBT_LIFE: Final = timedelta(days=4)
"""How long after its expiry a record is kept that still owes notifications."""


def keeps_outbox(store: Store) -> TypeGuard[OutboxStore]:
    """Whether a store has the methods of an :class:`OutboxStore`."""
    return all(hasattr(store, verb) for verb in ("claim_due", "next_due"))


def keeps_statistics(store: Store) -> TypeGuard[StatisticsStore]:
    """Whether a store has the methods of a :class:`StatisticsStore`."""
    verbs = ("add_counts", "read_counts", "read_totals", "read_load")
    return all(hasattr(store, verb) for verb in verbs)
