"""Scripts of tests: how operations run, faults of calls, and the store that plays the scripts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import attrs

from lro import AnyMessage, Code, State, Status
from lro.adapters import Inserted, Record, RequestKey
from lro.errors import OperationNotFound
from lro.stores.memory import MemoryStore

Scripted: TypeAlias = object
"""A message of any class, an ``lro.AnyMessage``, or a message's JSON object with its ``@type``."""

Pack: TypeAlias = Callable[[Scripted | None], AnyMessage | None]
"""A function that packs a message into an ``lro.AnyMessage``, and returns None for None."""

TICK_SECONDS: Final = 1e-9
"""Rounding error of a clock that adds many floats: a time this close counts as reached."""

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MAX_SECONDS: Final = 2e11
"""Maximum number of seconds after the epoch that a datetime can represent."""


@attrs.define(kw_only=True)
class ServerCall:
    """A call that the server received ``at`` seconds after the server was made.

    ``name`` is the operation's name, or the target of a start. ``verb`` is the RPC's name, such as
    GetOperation, or Start.
    ``hold`` is the timeout of a Wait in seconds. It is None for a Wait without a timeout and for
    other verbs. ``status`` is the HTTP status of the reply, or 0 without a reply.
    """

    at: float
    verb: str
    name: str
    hold: float | None = None
    status: int = 0


@attrs.frozen(kw_only=True)
class Fault:
    """A fault of a reply.

    ``error`` is an exception that is raised instead of a reply, such as ``httpx.ConnectError``.
    ``status`` and ``body`` replace those of the reply. A status alone gets the interface's error
    body (spec §5.12), and a body alone gets the status 200. ``headers`` are added to the reply.
    ``keep`` truncates the body to that many bytes. ``seconds`` delays the reply. Calls with a
    shorter timeout fail.
    """

    status: int | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    error: Callable[[str], Exception] | None = None
    keep: int | None = None
    seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Rule:
    """A fault with its conditions: a verb, numbers of the verb's calls, and a span of time."""

    fault: Fault
    verb: str
    calls: Collection[int] | None
    since: float
    until: float

    def applies(self, call: ServerCall, earlier: list[ServerCall]) -> bool:
        """Return True if the fault applies to a call. ``earlier`` are all calls before it."""
        if self.verb not in ("", call.verb) or not self.since <= call.at < self.until:
            return False
        number = 1 + sum(1 for one in earlier if self.verb in ("", one.verb))
        return self.calls is None or number in self.calls


@attrs.define(kw_only=True)
class Script:
    """The script of one operation: see :meth:`ScriptedServer.operation`. The response is packed."""

    name: str
    began: float
    ends_after: float | None = 0.0
    response: AnyMessage | None
    metadata: Scripted | Callable[[float], Scripted | None] | None = None
    error: Status | None = None
    gone_after: float = math.inf
    cancels_after: float | None = 0.0
    retry_after: str = ""
    cancelled: bool = False

    def over(self, now: float) -> bool:
        """Return True if the operation has ended."""
        return self.ends_after is not None and now - self.began >= self.ends_after - TICK_SECONDS

    def changes(self, now: float) -> float:
        """Return the seconds until the operation ends or is gone, or infinity for never."""
        moments = (self.gone_after, self.ends_after if self.ends_after is not None else math.inf)
        coming = [self.began + one - now for one in moments]
        return min((one for one in coming if one > TICK_SECONDS), default=math.inf)

    def cancel(self, now: float) -> None:
        """Ask the operation to stop."""
        if self.cancels_after is None:
            return
        ends_after = now - self.began + self.cancels_after
        if self.ends_after is None or ends_after < self.ends_after - TICK_SECONDS:
            self.ends_after, self.cancelled = ends_after, True

    def metadata_at(self, now: float) -> Scripted | None:
        """Return the metadata at this time, not packed."""
        elapsed = now - self.began
        if self.ends_after is not None and self.over(now):
            elapsed = self.ends_after
        return self.metadata(elapsed) if callable(self.metadata) else self.metadata

    def ended(self, record: Record, metadata: AnyMessage | None) -> Record:
        """Return the record of the ended operation."""
        assert self.ends_after is not None
        result, state = self.error or self.response, State.SUCCEEDED
        if self.cancelled:
            result, state = Status(Code.CANCELLED, "cancelled"), State.CANCELLED
        elif self.error is not None:
            state = State.FAILED
        end = moment(self.began + self.ends_after)
        return record.next_version(
            state=state, metadata=metadata, result=result, update_time=end, end_time=end
        )


Begin: TypeAlias = Callable[[AnyMessage], Script]
"""A function that makes the script of a method's new operation from the packed request."""


class ScriptedStore(MemoryStore):
    """A store in memory whose operations follow their scripts, by the time of ``clock``.

    ``play`` updates the records: call it before you read them. ``methods`` maps the full name of a
    method to the function that makes the script of a started operation. ``failure`` is the
    exception that the test's code raised at a start.
    """

    def __init__(self, clock: Callable[[], float], pack: Pack) -> None:
        super().__init__(lambda: moment(clock()))
        self._seconds = clock
        self._pack = pack
        self._scripts: dict[str, Script] = {}
        self.methods: dict[str, Begin] = {}
        self.failure: Exception | None = None

    def add(self, script: Script) -> None:
        """Add an operation, which replaces an earlier operation of the same name."""
        with contextlib.suppress(OperationNotFound):
            self.update(script.name, lambda _: None)
        now = self.now()
        record = Record(name="", parent="", method="", create_time=now, update_time=now)
        self._add(script, record, AnyMessage(""), None)

    def insert(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Begin an operation that follows the method's script, under the script's name."""
        known = super().insert(record, request, key, check_only=True)
        if not known.fresh:
            self.play(known.record.name)
            return super().insert(record, request, key, check_only=True)
        if check_only:
            return known
        try:
            return self._add(self.methods[record.method](request), record, request, key)
        except Exception as exc:
            self.failure = exc
            raise

    def play(self, *names: str) -> None:
        """Update the operations with these names or, without names, all operations."""
        now = self._seconds()
        for name in names or list(self._scripts):
            for record in self.find([name]).records:
                if not record.done:
                    self._act(self._scripts[name], record, now)

    def free_name(self, collection: str) -> str:
        """Return a new name in this collection. Its number counts all operations so far."""
        number = len(self._scripts) + 1
        while f"{collection}/{number}" in self._scripts:
            number += 1
        return f"{collection}/{number}"

    def script(self, name: str) -> Script:
        """Return the script of an operation that exists or existed."""
        return self._scripts[name]

    def _add(
        self, script: Script, record: Record, request: AnyMessage, key: RequestKey | None
    ) -> Inserted:
        self._scripts[script.name] = script
        record = attrs.evolve(
            record,
            name=script.name,
            parent=script.name.rpartition("/operations/")[0],
            expire_time=moment(script.began + script.gone_after),
        )
        super().insert(record, request, key)
        self.play(script.name)
        return Inserted(self.get(script.name), fresh=True)

    def _act(self, script: Script, record: Record, now: float) -> None:
        if record.cancel_requested:
            script.cancel(now)
        over, metadata = script.over(now), self._pack(script.metadata_at(now))

        def change(record: Record) -> Record:
            if over:
                return script.ended(record, metadata)
            if metadata == record.metadata:
                return record
            return record.next_version(metadata=metadata, update_time=moment(now))

        with contextlib.suppress(OperationNotFound):  # a thread has deleted the operation meanwhile
            self.update(script.name, change)


def moment(seconds: float) -> datetime:
    """Return the time of a virtual clock as a datetime in UTC."""
    return _EPOCH + timedelta(seconds=min(seconds, _MAX_SECONDS))
