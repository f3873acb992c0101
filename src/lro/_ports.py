"""What the service needs from the outside: the contracts of stores and executors."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any as Anything
from typing import Protocol, TypeAlias

import attrs

from lro._any import Any
from lro._jobs import Job
from lro._pages import Place
from lro._record import Record
from lro._spec import MethodSpec
from lro._states import Change


@attrs.frozen
class RequestKey:
    """What makes a repeated start the same one: method, caller, request id (spec §9.2(2))."""

    method: str
    caller: str
    request_id: str
    fingerprint: str
    """Hash of the request itself: the same id with another one is a conflict."""


@attrs.frozen
class Inserted:
    """What became of an insert: the record, and whether it is a new one.

    If not ``fresh``, the record is the present one of the first start, or, where that was deleted
    or has expired, as it was first stored (spec §9.2(4)).
    """

    record: Record
    fresh: bool


@attrs.frozen
class Orphans:
    """Work whose lease ran out, and when the next lease now held will do so."""

    records: tuple[Record, ...]
    next_lease_end: datetime | None


@attrs.frozen
class Expired:
    """What a sweep has removed, and whether it has left something to the next one."""

    names: Sequence[str]
    more: bool


@attrs.frozen
class Glance:
    """Of the names asked for: which nobody need wait for, and which are asked to cancel."""

    over: frozenset[str]
    """Done, deleted, expired, or never there."""
    asked: frozenset[str]
    """In progress, visible or not, and asked to cancel."""


class Ear(Protocol):
    """Listens to what the other processes on a store announce. Used by one thread."""

    def heard(self, seconds: float) -> Collection[str] | None:
        """Wait, at most so long, until another process has changed something.

        Returns:
            The names of what has changed, none if nothing has, or None if anything may have.

        Raises:
            Unavailable: The store is closed or cannot be reached.
        """
        ...

    def close(self) -> None:
        """Free what the ear holds. By any thread: ``heard`` returns soon. Idempotent."""
        ...


class Store(Protocol):
    """Where operations are kept.

    Calls are short, thread-safe, and never wait for an operation. What a call has answered is
    committed, as durably as the store keeps anything. A store knows nothing of waiters: the
    service rings the bell. ``lro.testing.check_store`` is this contract as code.
    """

    @property
    def reads_block(self) -> bool:
        """Whether ``get`` may block so long that an event loop must call it in a thread."""
        ...

    @property
    def writes_block(self) -> bool:
        """The same of every other verb."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it, whose bells are not heard here."""
        ...

    def announce(self, name: str) -> None:
        """Tell the other processes that this record has changed; the change is committed.

        Never waits, never fails: an announcement may be late, merged with others, or lost, which
        the next ``glance`` makes good.
        """
        ...

    def listen(self) -> Ear:
        """An ear for the announcements of other processes from now on.

        Raises:
            Unavailable: The store is closed or cannot be reached.
        """
        ...

    def glance(self, names: Collection[str]) -> Glance:
        """What has become of these operations, in one look however many they are."""
        ...

    def now(self) -> datetime:
        """The moment by the store's clock, in UTC: the one clock of all its processes."""
        ...

    def secret(self) -> bytes:
        """64 random bytes, made once per store and shared by all its processes, for page tokens."""
        ...

    def insert(
        self, record: Record, request: Any, key: RequestKey | None, *, check_only: bool = False
    ) -> Inserted:
        """Add a record and its request; for a key of the last 24 hours, find the first one instead.

        ``check_only`` makes every check and stores nothing (spec §9.7).

        Raises:
            RequestIdConflict: The key was used with another fingerprint.
            TargetBusy: The record wants a target alone which other work in progress has.
            InvalidArgument: The name is taken, or a text has U+0000 or half of a surrogate pair.
        """
        ...

    def forget(self, name: str) -> None:
        """Undo an insert whose work could not be submitted, its request key included."""
        ...

    def request(self, name: str) -> Any:
        """The packed request of work in progress.

        Raises:
            OperationNotFound: There is none; it goes with the end of the work.
        """
        ...

    def get(self, name: str) -> Record:
        """The record of this name, visible to callers or not.

        Raises:
            OperationNotFound: There is none.
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

    def page(self, parent: str, after: Place | None, limit: int) -> Sequence[Record]:
        """Up to ``limit`` visible records of exactly this parent, in order, after a place."""
        ...

    def renew(
        self, owner: str, until: datetime, names: Collection[str] | None = None
    ) -> Sequence[str]:
        """Prolong the leases of this owner, all or those of these names.

        Returns:
            The names of those that are asked to cancel.
        """
        ...

    def orphans(self, methods: Collection[str], limit: int) -> Orphans:
        """Up to ``limit`` records in progress of these methods whose lease has run out."""
        ...

    def expire(self, limit: int) -> Expired:
        """Remove up to ``limit`` records past their expiry, and as many keys past their day."""
        ...

    def close(self) -> None:
        """Free what the store holds. Idempotent."""
        ...


Through: TypeAlias = Callable[[MethodSpec, object, Job[Anything]], object]
"""Has a method's function done elsewhere: given its request and job, what the function returns.

The response may come packed. What the function raises is raised here; :class:`lro._jobs.Ended`
says that it ended with a status, and :class:`lro._jobs.WorkerDied` that nobody is left to ask.
"""


class Reach(enum.Enum):
    """How far a request to cancel reaches into work that has begun (spec §2.6)."""

    NOT = "not"
    """The work runs to its end."""
    LOOKS = "looks"
    """The function learns of it when it looks: ``job.report()``, ``job.raise_if_cancelled()``."""
    AWAITS = "awaits"
    """An async function is interrupted at its next ``await``; another one when it looks."""
    KILLS = "kills"
    """The function may look; if it has not ended after a while, its process is ended."""


class Task(Protocol):
    """A piece of work that an executor runs. It takes care of its own errors."""

    @property
    def name(self) -> str:
        """The operation's name."""
        ...

    @property
    def group(self) -> str:
        """Tasks of one group share a limit: the method's name."""
        ...

    @property
    def group_limit(self) -> int | None:
        """How many tasks of the group may run at once in this process; None: any number."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether :meth:`arun` is this task's natural colour."""
        ...

    def run(self, through: Through | None = None) -> None:
        """Do the work in this thread, or have the function itself done ``through`` another way."""
        ...

    async def arun(self) -> None:
        """Do the work on this event loop; only of a task that ``is_async``."""
        ...


class Slot(Protocol):
    """Room for one task, reserved before anything is stored. Used up by either call."""

    @property
    def at_once(self) -> bool:
        """Whether somebody is free to begin the task: it is then stored as begun, in one write.

        True is no promise: what is stored so and then has to wait for a worker does no harm.
        """
        ...

    def submit(self, task: Task) -> None:
        """Run the task as soon as possible.

        Raises:
            Unavailable: The executor is stopping or cannot be reached.
        """
        ...

    def release(self) -> None:
        """Give the room back unused."""
        ...


class Executor(Protocol):
    """Where work runs. ``lro.testing.check_executor`` is this contract as code."""

    @property
    def reach(self) -> Reach:
        """How far a request to cancel reaches here."""
        ...

    @property
    def redelivery(self) -> timedelta | None:
        """None if work is done in the process that submits it, which holds its lease.

        Else the work is done by whoever gets the name and claims it, and this is how long a
        submitted name may take before it counts as lost on its way and is submitted once more.
        """
        ...

    def attach(self, work: Callable[[str], None], close: Callable[[timedelta], None]) -> None:
        """Told once by the service: how work is done by its name alone, and how all of it is ended.

        ``close`` is for executors that learn of the end of a worker before the service does: work
        that has not ended within the time given is handed back.
        """
        ...

    def admit(self, spec: MethodSpec) -> None:
        """Told of every method whose work is to be done here, when it is declared.

        Raises:
            DeclarationError: Its function cannot be called here.
        """
        ...

    def reserve(self) -> Slot:
        """Room for one task.

        Raises:
            ResourceExhausted: The queue is full.
            Unavailable: The executor is stopping or cannot be reached.
        """
        ...

    def withdraw(self, name: str) -> bool:
        """Take back the task of this operation if it has not begun."""
        ...

    def stop(self) -> Sequence[Task]:
        """Begin nothing more; the tasks that were waiting, now withdrawn. Idempotent."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for running tasks, at most so long; whether none is left."""
        ...
