"""Starts of operations: the options of a start, and the steps from its request to its work."""

from __future__ import annotations

import contextlib
import functools
import os
import typing
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import attrs

from lro._base.arguments import check, check_keywords, check_span
from lro._base.by_fields import ByFields
from lro._base.errors import (
    DeclarationError,
    EncodingError,
    InvalidArgument,
    InvalidParent,
    LroError,
    MessageTooLarge,
    NotRerunnable,
    OperationNotFound,
    ResourceExhausted,
    Unavailable,
    got,
)
from lro._base.status import AnyMessage, ErrorInfo
from lro._engine.access import Access, application_call, ask_validity, starter_given
from lro._engine.attempt import UNREADABLE, Attempt
from lro._engine.backlog import Backlog
from lro._engine.events import NO_START_TRACE, Headers, Sent, StartOutcome, StartTrace, code_name
from lro._engine.executor_port import Slot
from lro._engine.flow import Flow, InsertWrite, MayBlock
from lro._engine.local_work import StartingRecord
from lro._engine.maintenance import Background
from lro._engine.method_spec import MethodSpec, check_priority
from lro._engine.process import PerProcess
from lro._engine.runtime import Runtime
from lro._engine.store_port import FREE_LANE, DatabaseConnection, Inserted, RequestKey
from lro._engine.webhook_sender import Endpoint
from lro._messages.defaults import without_defaults
from lro._messages.json_text import canonical
from lro._messages.wellknown import Empty
from lro._model.operation import (
    Operation,
    Record,
    join_name,
    new_id,
    normal_request_id,
    normalise_parent,
    note_rerun,
    rerun_request_id,
)

Meta = TypeVar("Meta")

_NEW_RECORD: Final[dict[str, Any]] = Record(
    name="", parent="", method="", create_time=datetime.min, update_time=datetime.min
).__dict__
"""Defaults of the fields of a new record. Copying this is faster than the constructor of attrs."""

LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""The latest time at which an operation can be due."""


NOBODY: Final[Sequence[Endpoint]] = ()
"""The endpoints of a start that notifies no one."""

_NO_TURN: Final = (None, None, None, None)


class Queueing(typing.TypedDict, total=False):
    """The due time of work and its place in the queue: see ``Method.start``."""

    delay: timedelta | None
    at: datetime | None
    priority: int | None
    expires: timedelta | None


class StartManyKeywords(Queueing, total=False):
    """Arguments of ``Method.start_many`` that apply to each start."""

    parent: str
    caller: str | int


class EndpointStartKeywords(Queueing, Generic[Meta], total=False):
    """Arguments of a start by an endpoint of the application: see ``Method.start``."""

    parent: str
    target: str
    metadata: Meta | None
    within: DatabaseConnection | None
    notify: Sequence[Endpoint]


class StartKeywords(EndpointStartKeywords[Meta], total=False):
    """The keyword arguments of ``Method.start``."""

    request_id: str
    caller: str | int
    validate_only: bool


# Objects of a frozen class take twice as long to make.
@attrs.define(eq=False, repr=False)
class StartSettings:
    """The options of one start: those of ``Method.start``, and four for the library itself.

    ``headers`` are those of the call that asks for the start. ``sent`` returns the request as the
    caller has sent it; only a start with a request id needs it. ``origin`` is stored in the record.
    With ``only_uuid``, the request id must be a UUID (spec §9.2(1)).
    """

    request_id: str = ""
    parent: str = ""
    target: str = ""
    caller: str = ""
    metadata: object = None
    validate_only: bool = False
    within: DatabaseConnection | None = None
    notify: Sequence[Endpoint] = NOBODY
    delay: timedelta | None = None
    at: datetime | None = None
    priority: int | None = None
    expires: timedelta | None = None
    headers: Headers | None = None
    sent: Sent | None = None
    origin: str = ""
    only_uuid: bool = False

    @classmethod
    def of(cls, given: StartKeywords[Any]) -> StartSettings:
        """Return the options for these arguments of ``Method.start``.

        Raises:
            TypeError: There is no such argument.
        """
        if not given:
            return NO_SETTINGS
        check_keywords("start", given, StartKeywords)
        plain: typing.Any = given  # :meth:`check` makes a text of the caller
        return cls(**plain)

    def check(self) -> None:
        """Check the options that need no knowledge of the method or the store.

        A ``caller`` that is a whole number becomes the text of its digits.

        Raises:
            InvalidArgument: An option has the wrong type.
        """
        for name, text in (("request_id", self.request_id), ("target", self.target)):
            if not isinstance(text, str):
                raise _no_text(name, text)
        if type(self.caller) is not str:
            self.caller = starter_given(self.caller)
        if not isinstance(self.validate_only, bool):
            wanted = f"must be True or False, got {got(self.validate_only)}"
            raise InvalidArgument("validate_only", wanted)

    def due(self, now: datetime) -> datetime | None:
        """Return the time at which the work is due, or None if it is due now.

        Raises:
            DeclarationError: ``delay`` or ``at`` is not valid.
            InvalidArgument: ``delay`` and ``at`` are both given.
        """
        if self.delay is not None:
            check_span("delay", self.delay, zero=True)
        at = None if self.at is None else _in_utc(self.at)
        if self.delay is not None and at is not None:
            raise InvalidArgument("at", "cannot be given together with delay")
        due = at if self.delay is None else now + self.delay
        return None if due is None or due <= now else due


NO_SETTINGS: Final = StartSettings()
"""The options of a start without arguments, which nothing changes."""


@attrs.frozen(eq=False, repr=False)
class Turn(ByFields):
    """The due time of a new operation (None: now) and its place in the queue, as in its record."""

    due: datetime | None = None
    rank: int = 0
    lane: int = 0
    expires: timedelta | None = None


PLAIN_TURN: Final = Turn()


class RandomBytes(PerProcess):
    """Random bytes, read from the system in large pieces.

    A read for each new name took a tenth of the time of a start.
    """

    _AT_ONCE: Final = 340

    def __init__(self) -> None:
        self._ready: dict[int, list[bytes]] = {}

    def __call__(self, count: int) -> bytes:
        """Return ``count`` random bytes; no two calls share any."""
        try:
            return self._ready[count].pop()  # one step: no other thread gets the same bytes
        except LookupError:
            some = os.urandom(count * self._AT_ONCE)
            parts = [some[first : first + count] for first in range(0, len(some), count)]
            found = parts.pop()
            self._ready.setdefault(count, []).extend(parts)
            return found


@attrs.define(eq=False, repr=False)
class _Start:
    """A start whose arguments have been checked, with all parts of its record."""

    spec: MethodSpec
    request: object
    packed: AnyMessage
    key: RequestKey | None
    options: StartSettings
    parent: str
    target: str
    metadata: AnyMessage | None
    notify: str
    turn: Turn
    insert: Callable[..., Inserted] | None
    """Inserts the record in a transaction of the application, if the start is part of one."""
    trace: StartTrace


class Starter:
    """Starts operations. The first start of a process begins its maintenance."""

    def __init__(
        self, runtime: Runtime, background: Background, access: Access, backlog: Backlog
    ) -> None:
        self._runtime = runtime
        self._backlog = backlog
        self._background = background
        self._work = background.work
        self._access = access
        self._events = runtime.events
        self._random = RandomBytes()
        self._remote: timedelta | None = runtime.executor.redelivery
        self._submits_block: bool = runtime.executor.submits_block

    def start(self, spec: MethodSpec, request: object, options: StartSettings) -> Flow[Operation]:
        """Start an operation: see ``Method.start``."""
        trace = NO_START_TRACE
        tracer = self._events.tracer
        if not options.validate_only and tracer.refresh():
            trace = tracer.begin_start(spec.full_name, options.headers)
        try:
            if self._background.pending:
                self._background.start()
            if self._work.stopping:
                raise self._work.refusal()
            start = yield from self._checked(spec, request, options, trace)
            if self._access.asks:
                yield from self._access.permit(options.caller, spec.full_name, start.parent)
            if self._runtime.first_use.pending:
                yield from self._runtime.first_use.connect()
            if self._work.paused is None:
                yield MayBlock(self._work.read_paused, blocks=self._runtime.store.reads_block)
            known: Inserted | None = None
            if start.key is not None and spec.options.aliases:
                known = yield from self._started_as_alias(start, start.key)
            if options.validate_only:
                if known is None:
                    yield from self._validated(start)
                return Operation(done=True, result=spec.types.pack(Empty()))
            if known is None and start.insert is not None:
                # The insert runs in this thread, even if the thread runs an event loop: the
                # connection belongs to this thread.
                known = start.insert(self._record(start, sent=False), start.packed, start.key)
            elif known is None and spec.function is None:
                record = self._record(start)
                known = yield InsertWrite(self._runtime.store, record, start.packed, start.key)
            if known is None:
                return (yield from self._insert_and_run(start))
            return self._observed(start, known).operation
        except BaseException as exc:
            trace.failed(exc)
            if isinstance(exc, LroError) and not options.validate_only:
                self.observe_refusal(spec.full_name, exc)
            raise
        finally:
            if trace is not NO_START_TRACE:
                trace.end()

    def rerun(self, spec: MethodSpec | None, before: Record, request_id: str) -> Flow[Operation]:
        """Start again the work of an operation that has ended, for the caller of the first start.

        Without a ``request_id``, the rerun that the record names is returned; if the record names
        none, the request id is made from the name. So if the process stops before it has stored the
        name of the rerun, the next call finds that rerun by its request id.

        Raises:
            NotRerunnable: The operation is in progress, its request is gone or cannot be read, the
                service does not declare its method (``spec`` is None), or the method has
                ``at_most_once`` and the work had begun (spec §3.12).
        """
        if not before.done:
            raise NotRerunnable(before.name, "it is in progress")
        if spec is None:
            text = f"the service does not declare its method, {before.method}"
            raise NotRerunnable(before.name, text)
        if before.rerun and not request_id:
            yield from self._access.permit(before.caller, spec.full_name, before.parent)
            with contextlib.suppress(OperationNotFound):  # it may be deleted
                return (yield from self._access.visible_record(before.rerun, None)).operation
        store = self._runtime.store
        read = functools.partial(store.request, before.name)
        try:
            packed: AnyMessage = yield MayBlock(read, blocks=store.writes_block)
        except OperationNotFound:
            text = "its request is gone; that of a success is not kept"
            raise NotRerunnable(before.name, text) from None
        try:
            request: object = spec.types.unpack_request(packed, spec.request)
        except Exception as exc:  # an older version of the method may have stored it
            raise NotRerunnable(before.name, "its stored request cannot be read") from exc
        if spec.options.at_most_once and _may_have_begun(spec, before):
            text = "its method has at_most_once, and its work had begun: the work may have had its"
            raise NotRerunnable(before.name, f"{text} effect; check, then start a new operation")
        options = StartSettings(
            request_id=request_id or rerun_request_id(before.name),
            parent=before.parent,
            target="" if spec.options.exclusive_target else before.target,
            caller=before.caller,
            origin=before.name,
        )
        again = yield from self.start(spec, request, options)
        if again.name != before.rerun:
            with contextlib.suppress(OperationNotFound):  # it may be deleted since it was read
                yield from self._runtime.updater.applied(before.name, note_rerun(again.name))
        return again

    def _checked(
        self, spec: MethodSpec, request: object, options: StartSettings, trace: StartTrace
    ) -> Flow[_Start]:
        options.check()
        insert = None if options.within is None else self._insert_within(options.within)
        notify = "" if options.notify is NOBODY else self._encoded(options.notify)
        if not isinstance(request, spec.instances[spec.request]):
            wanted = f"must be a {spec.request.__name__}, got {got(request)}"
            raise InvalidArgument("request", wanted)
        hooks = spec.options
        if hooks.validate is not None:
            yield from ask_validity(hooks.validate, request)
        target, parent = options.target, options.parent
        if not target and hooks.exclusive_target is not None:
            target = yield application_call("exclusive_target", hooks.exclusive_target, request)
            if not isinstance(target, str):
                raise _no_text("target", target)
        if parent == "" and hooks.parent is not None:
            parent = yield application_call("parent", hooks.parent, request)
        if parent != "":
            parent = _checked_parent(parent)
        turn, given = PLAIN_TURN, (options.delay, options.at, options.priority, options.expires)
        if hooks.has_turns or given != _NO_TURN:
            turn = yield from self._turn(spec, request, options)
        try:
            packed = spec.types.pack(request, spec.request)
        except EncodingError as exc:
            path = f"request.{exc.path}" if exc.path else "request"
            raise InvalidArgument(path, exc.description) from None
        key = _request_key(spec, options, parent, packed) if options.request_id else None
        first = options.metadata
        if first is None and spec.default_metadata is not None:
            first = spec.first_metadata(target)
        metadata = None if first is None else _first_metadata(spec, first)
        return _Start(
            spec,
            request,
            packed,
            key,
            options,
            parent,
            target,
            metadata,
            notify,
            turn,
            insert,
            trace,
        )

    def _record(self, start: _Start, *, begun: bool = False, sent: bool = True) -> Record:
        """Return a new record; with ``begun`` it is already claimed, which saves a write.

        ``sent`` means that the executor, if it sends names, sends the name of this operation to a
        worker as soon as the record is stored. The work is then due again after ``redelivery``.
        """
        spec, options, turn = start.spec, start.options, start.turn
        now = self._runtime.store.now()
        due = now if turn.due is None else turn.due
        owner, sent_time, until = "", None, due if spec.function is not None else None
        if begun:
            owner, until = self._work.owner, now + self._runtime.lease
        elif self._remote is not None and sent and until is not None and due <= now:
            sent_time, until = now, now + self._remote
        fields = _NEW_RECORD | {
            "name": _prefix(start.parent) + new_id(self._random, now),
            "parent": start.parent,
            "method": spec.full_name,
            "metadata": start.metadata,
            "create_time": now,
            "update_time": now,
            "owner": owner,
            "lease_until": until,
            "caller": options.caller,
            "target": start.target,
            "trace_context": start.trace.context,
            "notify": start.notify,
            "sent_time": sent_time,
            "origin": options.origin,
        }
        if begun:
            fields |= {"start_time": now, "attempt": 1, "version": 2}  # a claim makes version 2
        if start.key is not None:
            fields["request_id"] = start.key.request_id
        if turn is not PLAIN_TURN:
            late = None if turn.expires is None else due + turn.expires
            fields |= {"rank": turn.rank, "lane": turn.lane, "begin_before": late}
        return spec.stamp(Record.of(fields))

    def _turn(self, spec: MethodSpec, request: object, options: StartSettings) -> Flow[Turn]:
        """Return when a new operation is due, and its place in the queue.

        Raises:
            InvalidArgument: A value is wrong, or has no effect on work that is done outside.
            Unavailable: The store cannot be reached.
            HookFailed: An error of ``concurrency_key`` would stop a server, such as SystemExit.
            Exception: Any further error of ``concurrency_key``; ``parent`` and ``exclusive_target``
                behave likewise.
        """
        declared = spec.options
        if spec.function is None:
            for name in Queueing.__annotations__:
                if getattr(options, name) is not None:
                    text = "has no effect on work that is done outside: leave it out"
                    raise InvalidArgument(name, text)
        priority = declared.priority if options.priority is None else options.priority
        try:
            check_priority(priority)
            if options.expires is not None:
                check_span("expires", options.expires)
            if self._runtime.first_use.pending:
                yield from self._runtime.first_use.connect()
            due = options.due(self._runtime.store.now())
        except DeclarationError as exc:
            raise InvalidArgument(exc.subject, exc.description) from None
        lane = 0
        if declared.concurrency_key is not None:
            key = yield application_call("concurrency_key", declared.concurrency_key, request)
            if not isinstance(key, str):
                raise _no_text("concurrency_key", key)
            lane = _lane(key)
        return Turn(due, -priority, lane, options.expires or declared.expires)

    def _observed(self, start: _Start, inserted: Inserted) -> Record:
        """Report a start that is stored, and return its record."""
        record = inserted.record
        outcome: StartOutcome = "started" if inserted.fresh else "repeated"
        if start.trace is not NO_START_TRACE:
            start.trace.stored(record.name, outcome)
        method = self._events.renamed.get(record.method, record.method)
        self._events.emit_start(method, outcome, record.name, record.caller)
        return record

    def observe_refusal(self, method: str, error: LroError) -> None:
        """Report a start that was refused, here or by an edge that could not read the request."""
        self._events.emit_start(method, "refused", why=code_name(error))

    def _encoded(self, notify: object) -> str:
        if isinstance(notify, list | tuple) and not notify:
            return ""
        if self._runtime.webhooks is None:
            raise InvalidArgument("notify", "the service sends no webhooks: Service(webhooks=...)")
        return self._runtime.webhooks.encode(notify)

    def _insert_within(self, connection: DatabaseConnection) -> Callable[..., Inserted]:
        store = self._runtime.store
        insert = getattr(store, "insert_within", None)
        if insert is None:
            able = "the PostgresStore and the SQLiteStore can"
            store_class = type(store).__name__
            text = f"a {store_class} cannot write in the application's transactions: {able}"
            raise InvalidArgument("within", text)
        return functools.partial(insert, connection)

    def _tried(self, start: _Start, record: Record, key: RequestKey | None) -> Flow[Inserted]:
        """Return the result that an insert of this record would have; insert nothing."""
        store = self._runtime.store
        insert = start.insert or store.insert
        check = functools.partial(insert, record, start.packed, key, check_only=True)
        blocks = start.insert is None and store.reads_block
        found: Inserted = yield MayBlock(check, blocks=blocks)
        return found

    def _started_as_alias(self, start: _Start, key: RequestKey) -> Flow[Inserted | None]:
        """Find the operation that was started with this key under an alias; None if there is none.

        Raises:
            RequestIdConflict: The operation was started with another request.
        """
        for alias in start.spec.options.aliases:
            # The record has no target: the operation that is looked for may still use the target.
            record = attrs.evolve(self._record(start), target="")
            found = yield from self._tried(start, record, attrs.evolve(key, method=alias))
            if not found.fresh:
                return found
        return None

    def _validated(self, start: _Start) -> Flow[None]:
        """Refuse a start as a real one would be refused (spec §9.7); store nothing."""
        found = yield from self._tried(start, self._record(start), start.key)
        if not found.fresh or start.insert is not None or start.spec.function is None:
            return
        slot = (yield from self._place(start))[0]
        if slot is not None:
            slot.release()

    def _place(self, start: _Start) -> Flow[tuple[Slot | None, bool, bool]]:
        """Reserve a worker or, if none is free, a place in the queue.

        Return the worker, whether a later claim reserves one, and whether the record waits for one.
        If it does not wait, the record is stored as begun, which saves a write. Older work, and a
        limit that the store counts, make it wait.

        Raises:
            ResourceExhausted: The queue is full.
            Unavailable: The store cannot be read, or no work can be handed to the executor.
        """
        work, claims, executor = self._work, self._background.claims, self._runtime.executor
        remote, limited = self._remote is not None, start.spec.options.is_limited
        waits = start.turn.due is not None or (bool(work.paused) and work.is_paused(start.spec))
        later, waits = waits or (remote and limited), waits or remote or limited
        slot: Slot | None = None
        try:
            if not later:
                if self._submits_block:
                    slot = yield MayBlock(executor.reserve)
                else:
                    slot = executor.reserve()
            waits = waits or slot is None or (claims is not None and claims.older_waits)
            if waits:
                yield from self._backlog.admit()
        except BaseException:
            if slot is not None:
                slot.release()
            raise
        return slot, later, waits

    def _insert_and_run(self, start: _Start) -> Flow[Operation]:
        spec, key, work = start.spec, start.key, self._work
        store, remote = self._runtime.store, self._remote is not None
        slot: Slot | None = None
        write: StartingRecord | None = None
        try:
            try:
                slot, later, waits = yield from self._place(start)
            except (ResourceExhausted, Unavailable):
                if key is None:
                    raise
                # A repeated start needs no place in the queue: it returns the earlier operation.
                known = yield from self._tried(start, self._record(start), key)
                if known.fresh or (remote and known.record.waits):
                    raise
                return self._observed(start, known).operation
            record, attempt = self._record(start, begun=not waits, sent=not later), None
            if record.owner == work.owner:
                attempt = Attempt(record, spec, work, request=start.request)
            write = work.writing(attempt)
            inserted: Inserted
            if store.writes_block:
                inserted = yield InsertWrite(store, record, start.packed, key)
            else:
                inserted = store.insert(record, start.packed, key)
            record = self._observed(start, inserted)
            if slot is not None and (record.waits if remote else inserted.fresh and not waits):
                # A repeated start sends the name again: the first message may have been lost.
                taken, slot = slot, None
                begin = functools.partial(work.submit, record, taken, start=write)
                # ``writes``, because the insert may have been no step of its own.
                attempt = (yield MayBlock(begin, writes=True)) if self._submits_block else begin()
                # Quick work, or work of an inline executor, may have ended (spec §9.8).
                return (attempt.ended or record).operation
            if inserted.fresh:
                self._announce(spec, record)
            return record.operation
        except BaseException as exc:
            if write is not None and write.open:
                write.end(exc)
            raise
        finally:
            if write is not None and write.open:
                write.end(None)
            if slot is not None:
                slot.release()

    def _announce(self, spec: MethodSpec, waiting: Record) -> None:
        if not self._work.is_paused(spec):
            self._work.announce_work()
        if waiting.begin_before is not None:
            self._background.maintenance.look_at(waiting.begin_before)


def _may_have_begun(spec: MethodSpec, ended: Record) -> bool:
    """Return False if the function of an ended operation was certainly never called."""
    began, before, error = ended.start_time, ended.begin_before, ended.error
    if ended.attempt != 1 or began is None or error is None:
        return ended.attempt > 0
    if before is not None and began >= before:  # the claim came too late
        return False
    details = spec.types.details_of(error)
    return not any(isinstance(one, ErrorInfo) and one.reason == UNREADABLE for one in details)


def _lane(key: str) -> int:
    """Return the number that stands for a concurrency key: 63 bits of its hash."""
    if not key:
        return FREE_LANE
    import hashlib

    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return max(int.from_bytes(digest, "big") >> 1, FREE_LANE + 1)


@functools.lru_cache(maxsize=256)
def _prefix(parent: str) -> str:
    # The name is valid if its parent is: new ids all have the same valid form.
    probe = new_id(bytes, datetime.max.replace(tzinfo=UTC))
    return join_name(parent, probe).removesuffix(probe)


def _in_utc(at: object) -> datetime:
    moment: Any = None
    if isinstance(at, datetime):
        with contextlib.suppress(Exception):  # a time zone of the application may raise any error
            moment = None if at.utcoffset() is None else at.astimezone(UTC)
    wanted = f"a datetime with a time zone, before the year {LATEST.year}"
    check("at", at, wanted, fine=moment is not None and moment <= LATEST)
    return typing.cast(datetime, moment)


def _no_text(name: str, value: object) -> InvalidArgument:
    return InvalidArgument(name, f"must be a text, got {got(value)}")


def _checked_parent(parent: str) -> str:
    try:
        return normalise_parent(parent)
    except InvalidParent as exc:  # List calls this field `name`
        raise InvalidParent("parent", exc.description) from None


def _first_metadata(spec: MethodSpec, metadata: object) -> AnyMessage:
    packed_already = isinstance(metadata, AnyMessage)
    if not packed_already and not isinstance(metadata, spec.instances[spec.metadata]):
        wanted = f"must be a {spec.metadata.__name__}, got {got(metadata)}"
        raise InvalidArgument("metadata", wanted)
    packed = spec.types.pack(metadata, None if packed_already else spec.metadata)
    try:
        return spec.limits.check_metadata(packed)
    except MessageTooLarge as exc:  # the caller's error: the cause is mostly a large request
        raise InvalidArgument("metadata", exc.description) from None


def _request_key(
    spec: MethodSpec, options: StartSettings, parent: str, packed: AnyMessage
) -> RequestKey:
    text = normal_request_id(options.request_id, only_uuid=options.only_uuid)
    scope = _scope(parent, options.target, options.origin)
    # A newer release may make another message of the same request. So there are several hashes: of
    # the request as sent, of the message without its defaults, and of the whole message, because
    # the default of a field may have changed.
    payload = packed.payload
    if isinstance(payload, bytes):
        hashes = [_hash(b"", scope, payload)]
    else:
        shown = without_defaults(payload, spec.request, spec.types)
        hashes = [_hash(b"", scope, canonical(shown)), _hash(b"whole:", scope, canonical(payload))]
    if options.sent is not None:
        hashes.append(_hash(b"sent:", scope, options.sent()))
    return RequestKey(spec.full_name, options.caller, text, " ".join(hashes))


def _scope(parent: str, target: str, origin: str) -> bytes:
    """Return the parts of a start besides its message; the target only if the call names it."""
    named = f"target:{len(target)}:{target}" if target else ""
    named += f"origin:{len(origin)}:{origin}" if origin else ""
    return f"{named}{len(parent)}:{parent}".encode()


def _hash(what: bytes, scope: bytes, payload: bytes) -> str:
    import hashlib

    return hashlib.sha256(what + scope + payload).hexdigest()
