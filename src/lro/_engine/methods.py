"""The methods of a service: declared, started, and reported on from elsewhere (spec §3, §9)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
import secrets
import threading
import typing
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar, Unpack, overload

import attrs

from lro._base.arguments import check, check_instance, check_span, check_text
from lro._base.errors import (
    Cancelled,
    DeclarationError,
    EncodingError,
    InvalidArgument,
    InvalidParent,
    InvalidRequestId,
    LeaseLost,
    LroError,
    MessageTooLarge,
    NotApplied,
    NotRerunnable,
    OperationNotFound,
    ResourceExhausted,
    Unavailable,
    got,
)
from lro._base.status import AnyMessage, Status
from lro._engine.access import Access, application_call, ask_validity
from lro._engine.attempt import Attempt
from lro._engine.backlog import Backlog
from lro._engine.events import (
    NO_START_TRACE,
    Headers,
    MetadataReported,
    OperationStarted,
    Sent,
    StartOutcome,
    StartTrace,
    code_name,
    emit_end,
)
from lro._engine.executor_port import Slot
from lro._engine.flow import Flow, InsertWrite, MayBlock, on_loop, run, run_all
from lro._engine.handle import Handle, HandleCalls
from lro._engine.job import Job, job_alone
from lro._engine.limits import Limits
from lro._engine.maintenance import Background
from lro._engine.method_spec import Around, MethodSpec, Options, check_priority
from lro._engine.notifications import Endpoint
from lro._engine.process import PerProcess
from lro._engine.runtime import RecordUpdater, Runtime, stopping
from lro._engine.store_port import FREE_LANE, DatabaseConnection, Inserted, RequestKey
from lro._filters.indexes import Indexes
from lro._messages.defaults import without_defaults
from lro._messages.json_text import canonical
from lro._messages.registry import TypeRegistry
from lro._messages.schema import checked_aliases
from lro._messages.wellknown import Empty
from lro._model.method_names import FINDINGS, MethodName, OperationInfoRegistry
from lro._model.operation import (
    Change,
    Operation,
    OperationInfo,
    Record,
    State,
    end,
    join_name,
    new_id,
    normalise_parent,
    report,
)

log = logging.getLogger("lro")

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NIL: Final = "00000000-0000-0000-0000-000000000000"


class RandomBytes(PerProcess):
    """Random bytes, of which the system is asked for many at once.

    To ask it for each name took a tenth of the time of a start.
    """

    _AT_ONCE: Final = 4096

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes, self._used = b"", 0

    def __call__(self, count: int) -> bytes:
        """So many bytes, which no other call is given."""
        with self._lock:
            if self._used + count > len(self._bytes):
                self._bytes = secrets.token_bytes(max(count, self._AT_ONCE))
                self._used = 0
            first = self._used
            self._used += count
            return self._bytes[first : self._used]


class Queueing(typing.TypedDict, total=False):
    """When work is due, and what its turn goes by: see ``Method.start``."""

    delay: timedelta | None
    at: datetime | None
    priority: int | None
    expires: timedelta | None


def check_queueing(call: str, queueing: Queueing) -> None:
    """Check that all these arguments of a call are those of :class:`Queueing`.

    Raises:
        TypeError: One is not.
    """
    if unknown := queueing.keys() - Queueing.__annotations__.keys():
        raise TypeError(f"{call} takes no argument {min(unknown)!r}")


@attrs.frozen
class Turn:
    """When a new operation is due, None: now; and what its turn goes by, as in its record."""

    due: datetime | None = None
    rank: int = 0
    lane: int = 0
    expires: timedelta | None = None
    origin: str = ""


PLAIN_TURN: Final = Turn()

_NEW_RECORD: Final[dict[str, Any]] = Record(
    name="", parent="", method="", create_time=datetime.min, update_time=datetime.min
).__dict__
"""What a new record has in fields that a start does not set: quicker than attrs' own way."""

LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""The latest time at which an operation can be due."""


def _lane(key: str) -> int:
    """The number that stands for a concurrency key: 63 bits of its hash."""
    if not key:
        return FREE_LANE
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return max(int.from_bytes(digest, "big") >> 1, FREE_LANE + 1)


class NewRecord(Protocol):
    """Makes the record of a new operation."""

    def __call__(self, *, begun: bool = False, sent: bool = True) -> Record:
        """The record; one that has ``begun`` is claimed by this process, another one waits.

        ``sent``: its name goes to a worker as soon as it is stored, if the executor sends names.
        """
        ...


class Insert(Protocol):
    """``Store.insert``, or what does the same in the application's transaction."""

    def __call__(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Insert the record; or, with ``check_only``, only check whether it could be."""
        ...


class Starter:
    """Starts operations: a sequence that begins the maintenance of the process with the first."""

    def __init__(
        self, runtime: Runtime, background: Background, access: Access, backlog: Backlog
    ) -> None:
        self._runtime = runtime
        self._backlog = backlog
        self._background = background
        self._workers = background.workers
        self._access = access
        self._events = runtime.events
        self._random = RandomBytes()

    def start(
        self,
        spec: MethodSpec,
        request: object,
        *,
        request_id: str = "",
        parent: str = "",
        metadata: object | None = None,
        target: str = "",
        caller: str = "",
        validate_only: bool = False,
        within: DatabaseConnection | None = None,
        notify: Sequence[Endpoint] = (),
        headers: Headers | None = None,
        sent: Sent | None = None,
        origin: str = "",
        **queueing: Unpack[Queueing],
    ) -> Flow[Operation]:
        """See ``Method.start``; ``headers`` are those of the call that it came by, if any.

        ``sent`` gives the request as the caller has sent it. ``origin`` is that of the record.
        """
        trace = NO_START_TRACE
        if not validate_only:  # which starts nothing
            trace = self._events.begin_start(spec.full_name, headers)
        try:
            self._background.start()
            if self._workers.stopping:
                raise stopping()
            for argument, text in (
                ("request_id", request_id),
                ("target", target),
                ("caller", caller),
            ):
                _check_text(argument, text)
            if not isinstance(validate_only, bool):
                wanted = f"must be True or False, got {got(validate_only)}"
                raise InvalidArgument("validate_only", wanted)
            insert = None if within is None else self._insert_within(within)
            encoded = self._encoded(notify)
            _check_request(spec, request)
            if spec.options.validate is not None:
                yield from ask_validity(spec.options.validate, request)
            given = target
            if not target and spec.options.exclusive_target is not None:
                function = spec.options.exclusive_target
                target = yield application_call("exclusive_target", function, request)
                _check_text("target", target)
            if parent == "" and spec.options.parent is not None:
                parent = yield application_call("parent", spec.options.parent, request)
            if parent != "":
                parent = _checked_parent(parent)
            turn = PLAIN_TURN
            if queueing or origin or spec.options.has_turns:
                turn = yield from self._turn(spec, request, origin, queueing)
            packed = _packed(spec, request)
            key = None
            if request_id:
                key = _request_key(
                    spec, caller, request_id, _scope(parent, given, origin), packed, sent
                )
            if metadata is None:
                metadata = spec.first_metadata(target)
            first = None if metadata is None else _first_metadata(spec, metadata)
            yield from self._access.permit(caller, spec.full_name, parent)
            if self._runtime.first_use.pending:
                yield from self._runtime.first_use.reach()
            if self._workers.paused is None:
                yield MayBlock(self._workers.read_paused, blocks=self._runtime.store.reads_block)
            new = functools.partial(
                self._record, spec, parent, first, target, caller, key, trace.context, encoded, turn
            )
            known = yield from self._started_as_alias(spec, new, packed, key, insert)
            if validate_only:
                if known is None:
                    yield from self._checked(new(), packed, key, insert)
                return Operation(done=True, result=spec.types.pack(Empty()))
            if known is not None:
                self._observe(known, trace)
                return known.record.operation
            if insert is not None:
                # In this thread, even of a loop: the connection is one that this thread uses.
                inserted: Inserted = insert(new(sent=False), packed, key)
                self._observe(inserted, trace)
                return inserted.record.operation
            if spec.function is None:
                inserted = yield InsertWrite(self._runtime.store, new(), packed, key)
                self._observe(inserted, trace)
                return inserted.record.operation
            waits = turn.due is not None or self._workers.is_paused(spec)
            return (yield from self._insert_and_run(spec, new, request, packed, key, trace, waits))
        except BaseException as exc:
            trace.failed(exc)
            if isinstance(exc, LroError) and not validate_only:
                self.observe_refusal(spec.full_name, exc)
            raise
        finally:
            trace.end()

    def rerun(self, spec: MethodSpec | None, before: Record, request_id: str) -> Flow[Operation]:
        """Start the work of an operation that has ended again, for the caller that it was for.

        Raises:
            NotRerunnable: It is in progress, its request is gone or cannot be read, or there is no
                ``spec``: the service does not declare its method.
        """
        if not before.done:
            raise NotRerunnable(before.name, "it is in progress")
        if spec is None:
            text = f"the service does not declare its method, {before.method}"
            raise NotRerunnable(before.name, text)
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
        return (
            yield from self.start(
                spec,
                request,
                request_id=request_id,
                parent=before.parent,
                target="" if spec.options.exclusive_target else before.target,
                caller=before.caller,
                origin=before.name,
            )
        )

    def _record(
        self,
        spec: MethodSpec,
        parent: str,
        metadata: AnyMessage | None,
        target: str,
        caller: str,
        key: RequestKey | None,
        trace_context: str,
        notify: str,
        turn: Turn,
        *,
        begun: bool = False,
        sent: bool = True,
    ) -> Record:
        """A new record; one that has ``begun`` is as a claim that follows at once would leave it.

        That is one write less. If its name is ``sent`` to a worker, it is due again later.
        """
        now = self._runtime.store.now()
        due = now if turn.due is None else turn.due
        owner, until, sent_time = self._first_lease(spec, now, due, begun=begun, sent=sent)
        fields = _NEW_RECORD | {
            "name": _prefix(parent) + new_id(self._random, now),
            "parent": parent,
            "method": spec.full_name,
            "metadata": metadata,
            "create_time": now,
            "update_time": now,
            "owner": owner,
            "lease_until": until,
            "caller": caller,
            "target": target,
            "trace_context": trace_context,
            "notify": notify,
            "sent_time": sent_time,
        }
        if begun:
            fields |= {"start_time": now, "attempt": 1, "version": 2}  # a claim makes the second
        if key is not None:
            fields["request_id"] = key.request_id
        if turn is not PLAIN_TURN:
            late = None if turn.expires is None else due + turn.expires
            fields |= {"rank": turn.rank, "lane": turn.lane, "origin": turn.origin}
            fields["begin_before"] = late
        return spec.stamp(Record.of(fields))

    def _turn(
        self, spec: MethodSpec, request: object, origin: str, queueing: Queueing
    ) -> Flow[Turn]:
        """When a new operation is due, and what its turn goes by.

        Raises:
            InvalidArgument: A value is wrong, or has no effect on work that is done outside.
            HookFailed: ``concurrency_key`` raises what would stop a server, such as SystemExit.
            Exception: Any other that it raises, as with ``parent`` and ``exclusive_target``.
        """
        options = spec.options
        check_queueing("start", queueing)
        given = {name: value for name, value in queueing.items() if value is not None}
        if spec.function is None and given:
            name = next(iter(given))
            raise InvalidArgument(name, "has no effect on work that is done outside: leave it out")
        delay, at, expires = queueing.get("delay"), queueing.get("at"), queueing.get("expires")
        priority: Any = given.get("priority", options.priority)
        try:
            check_priority(priority)
            if delay is not None:
                check_span("delay", delay, zero=True)
            if expires is not None:
                check_span("expires", expires)
            if at is not None:
                at = _in_utc(at)
        except DeclarationError as exc:
            raise InvalidArgument(exc.subject, exc.description) from None
        if delay is not None and at is not None:
            raise InvalidArgument("at", "cannot be given together with delay")
        lane, key = 0, options.concurrency_key
        if key is not None:
            text = yield application_call("concurrency_key", key, request)
            _check_text("concurrency_key", text)
            lane = _lane(text)
        due: datetime | None = at if delay is None else self._runtime.store.now() + delay
        if due is not None and due <= self._runtime.store.now():
            due = None  # now
        return Turn(due, -priority, lane, expires or options.expires, origin)

    def _first_lease(
        self, spec: MethodSpec, now: datetime, due: datetime, *, begun: bool, sent: bool
    ) -> tuple[str, datetime | None, datetime | None]:
        if spec.function is None:
            return "", None, None
        if begun:
            return self._workers.owner, now + self._runtime.lease, None
        redelivery = self._runtime.executor.redelivery
        if redelivery is not None and sent and due <= now:
            return "", now + redelivery, now
        return "", due, None

    def _observe(self, inserted: Inserted, trace: StartTrace) -> None:
        record = inserted.record
        outcome: StartOutcome = "started" if inserted.fresh else "repeated"
        trace.stored(record.name, outcome)
        method = self._events.renamed.get(record.method, record.method)
        self._observe_start(method, outcome, record.name, record.caller)

    def observe_refusal(self, method: str, error: LroError) -> None:
        """Report a start that was refused, here or by the edge that could not read it."""
        self._observe_start(method, "refused", error_type=code_name(error))

    def _observe_start(
        self,
        method: str,
        outcome: StartOutcome,
        name: str = "",
        caller: str = "",
        error_type: str = "",
    ) -> None:
        events = self._events
        if events.statistics is not None:
            events.statistics.note(method, "starts", outcome, error_type)
        if events:
            events.emit(
                OperationStarted(
                    method=method, outcome=outcome, name=name, caller=caller, error_type=error_type
                )
            )

    def _encoded(self, notify: object) -> str:
        if isinstance(notify, list | tuple) and not notify:
            return ""
        if self._runtime.notifications is None:
            raise InvalidArgument("notify", "the service sends no webhooks: Service(webhooks=...)")
        return self._runtime.notifications.encode(notify)

    def _insert_within(self, connection: DatabaseConnection) -> Insert:
        store = self._runtime.store
        insert = getattr(store, "insert_within", None)
        if insert is None:
            able = "the PostgresStore and the SQLiteStore can"
            text = (
                f"a {type(store).__name__} cannot write in the application's transactions: {able}"
            )
            raise InvalidArgument("within", text)
        bound: Insert = functools.partial(insert, connection)
        return bound

    def _checked(
        self,
        record: Record,
        packed: AnyMessage,
        key: RequestKey | None,
        within: Insert | None = None,
    ) -> Flow[Inserted]:
        store = self._runtime.store
        check = functools.partial(within or store.insert, record, packed, key, check_only=True)
        found: Inserted = yield MayBlock(check, blocks=within is None and store.reads_block)
        return found

    def _started_as_alias(
        self,
        spec: MethodSpec,
        new: NewRecord,
        packed: AnyMessage,
        key: RequestKey | None,
        within: Insert | None,
    ) -> Flow[Inserted | None]:
        """Find the operation that an earlier release has started with this key; None if none has.

        Raises:
            RequestIdConflict: It was another request.
        """
        if key is not None:
            for alias in spec.options.aliases:
                # Its own work may be what has the target.
                record, before = attrs.evolve(new(), target=""), attrs.evolve(key, method=alias)
                found = yield from self._checked(record, packed, before, within)
                if not found.fresh:
                    return found
        return None

    def _insert_and_run(
        self,
        spec: MethodSpec,
        new: NewRecord,
        request: object,
        packed: AnyMessage,
        key: RequestKey | None,
        trace: StartTrace,
        waits: bool,
    ) -> Flow[Operation]:
        store, executor = self._runtime.store, self._runtime.executor
        remote, slot = executor.redelivery is not None, None
        # With a free worker, the record is stored as begun, in one write; unless other work is
        # older, or the store has to count how many run. Names are sent at once, unless it has to.
        limited = spec.options.is_limited
        later, waits = waits or (remote and limited), waits or remote or limited
        try:
            try:
                if not later:
                    slot = yield from self._free_worker()
                waits = waits or slot is None or self._background.ahead
                if waits:
                    yield from self._backlog.admit()
            except (ResourceExhausted, Unavailable):
                if key is None:
                    raise
                # A repeated start needs no room: it gets the operation that it has started before.
                known = yield from self._checked(new(), packed, key)
                if known.fresh or (remote and known.record.waits):
                    raise
                self._observe(known, trace)
                return known.record.operation
            record = new(begun=not waits, sent=not later)
            with self._workers.starting(record, request) as start:
                inserted: Inserted = yield InsertWrite(store, record, packed, key)
                self._observe(inserted, trace)
                record = inserted.record
                if slot is not None and (record.waits if remote else inserted.fresh and not waits):
                    # Also a name that is sent once more: the first may have been lost.
                    taken, slot = slot, None
                    begin = functools.partial(self._workers.begin, record, taken, start=start)
                    blocks = executor.submits_block
                    attempt: Attempt = (yield MayBlock(begin)) if blocks else begin()
                    # Over already: the inline executor, or very quick work (spec §9.8).
                    return (attempt.ended or record).operation
                if inserted.fresh:
                    if not self._workers.is_paused(spec):
                        self._workers.work_waits()
                    if record.begin_before is not None:
                        self._background.maintenance.look_at(record.begin_before)
                return record.operation
        finally:
            if slot is not None:
                slot.release()

    def _free_worker(self) -> Flow[Slot | None]:
        reserve = self._runtime.executor.reserve
        if not self._runtime.executor.submits_block:
            return reserve()
        slot: Slot | None = yield MayBlock(reserve)
        return slot


@functools.lru_cache(maxsize=256)
def _prefix(parent: str) -> str:
    # Whether a name is well-formed depends on its parent alone: new ids are all alike.
    probe = new_id(bytes, datetime.max.replace(tzinfo=UTC))
    return join_name(parent, probe).removesuffix(probe)


def _in_utc(at: object) -> datetime:
    moment: Any = None
    if isinstance(at, datetime):
        with contextlib.suppress(Exception):  # a time zone of the application's may raise anything
            moment = None if at.utcoffset() is None else at.astimezone(UTC)
    wanted = f"a datetime with a time zone, before the year {LATEST.year}"
    check("at", at, wanted, fine=moment is not None and moment <= LATEST)
    return typing.cast(datetime, moment)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(name, f"must be a text, got {got(value)}")


def _check_request(spec: MethodSpec, request: object) -> None:
    if not isinstance(request, spec.instances[spec.request]):
        wanted = f"must be a {spec.request.__name__}, got {got(request)}"
        raise InvalidArgument("request", wanted)


def _checked_parent(parent: str) -> str:
    try:
        return normalise_parent(parent)
    except InvalidParent as exc:  # List calls it name
        raise InvalidParent("parent", exc.description) from None


def _packed(spec: MethodSpec, request: object) -> AnyMessage:
    try:
        return spec.types.pack(request, spec.request)
    except EncodingError as exc:
        path = f"request.{exc.path}" if exc.path else "request"
        raise InvalidArgument(path, exc.description) from None


def _first_metadata(spec: MethodSpec, metadata: object) -> AnyMessage:
    packed_already = isinstance(metadata, AnyMessage)
    if not packed_already and not isinstance(metadata, spec.instances[spec.metadata]):
        wanted = f"must be a {spec.metadata.__name__}, got {got(metadata)}"
        raise InvalidArgument("metadata", wanted)
    packed = spec.types.pack(metadata, None if packed_already else spec.metadata)
    try:
        return spec.limits.check_metadata(packed)
    except MessageTooLarge as exc:  # it is mostly made of the request
        raise InvalidArgument("metadata", exc.description) from None


def _request_key(
    spec: MethodSpec,
    caller: str,
    request_id: str,
    scope: bytes,
    packed: AnyMessage,
    sent: Sent | None,
) -> RequestKey:
    text = request_id.lower()
    if not _UUID.fullmatch(text) or text == _NIL:
        wanted = "must be a UUID of 36 characters, not all zero"
        raise InvalidRequestId("request_id", f"{wanted}, got {got(request_id)}")
    # A release in between may have changed what the class makes of a request: what was sent counts,
    # and of the message what the class has not filled in. The whole message counts too: what was
    # said may have become the default, or be it no longer.
    payload = packed.payload
    if isinstance(payload, bytes):
        hashes = [_hash(b"", scope, payload)]
    else:
        shown = without_defaults(payload, spec.request, spec.types)
        hashes = [_hash(b"", scope, canonical(shown)), _hash(b"whole:", scope, canonical(payload))]
    if sent is not None:
        hashes.append(_hash(b"sent:", scope, sent()))
    return RequestKey(spec.full_name, caller, text, " ".join(hashes))


def _scope(parent: str, target: str, origin: str) -> bytes:
    """The part of a request beside its message; a target only if the call itself names it."""
    named = f"target:{len(target)}:{target}" if target else ""
    named += f"origin:{len(origin)}:{origin}" if origin else ""
    return f"{named}{len(parent)}:{parent}".encode()


def _hash(what: bytes, scope: bytes, payload: bytes) -> str:
    return hashlib.sha256(what + scope + payload).hexdigest()


Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")


class Methods:
    """The methods that a service declares, by full name.

    ``keep_for`` and ``limits`` are those of methods that say nothing else. ``around`` gives the
    context manager in which a function is called.
    """

    def __init__(
        self,
        runtime: Runtime,
        types: TypeRegistry,
        *,
        keep_for: timedelta,
        limits: Limits,
        around: Around | None,
    ) -> None:
        self.types = types
        self.infos: OperationInfoRegistry = OperationInfoRegistry()
        self.indexes: Indexes = Indexes(types)
        self.specs: dict[str, MethodSpec] = {}
        self.by_stored_name: dict[str, MethodSpec] = {}
        """The same, and each method by its aliases too, under which its work may be stored."""
        self._runtime = runtime
        self._keep_for = keep_for
        self._limits = limits
        self._around = around

    def register(
        self,
        full_name: str,
        function: Callable[..., object] | None,
        options: Options,
        *,
        request: type | None,
        response: type | None,
        metadata: type | None,
    ) -> MethodSpec:
        """Declare a method, in this process and at the store and executor.

        Raises:
            DeclarationError: The method or a message class cannot be declared so.
            Unavailable: There is an index to be made, and the store cannot be reached.
        """
        if isinstance(function, Method):  # that another service may have made
            known = function.spec
            function = known.function_for(full_name)
            request = request or known.request
            response, metadata = response or known.response, metadata or known.metadata
        self._check_names(full_name, options.aliases)
        spec = MethodSpec.build(
            full_name,
            function,
            request=request,
            response=response,
            metadata=metadata,
            options=options,
            types=self.types,
            keep_for=self._keep_for,
            indexes=self.indexes,
            limits=self._limits,
            around=self._around,
        )
        if options.indexed_paths:
            self.make_indexes()
        if function is not None:
            self._runtime.executor.admit(spec)
        info = OperationInfo("." + spec.info.response_type, "." + spec.info.metadata_type)
        for finding in self.infos.register(full_name, info):
            means = FINDINGS[finding].replace("<Method>", full_name.rpartition(".")[2])
            log.info("%s: %s: %s (AIP-151)", full_name, finding, means)
        self.specs[full_name] = spec
        self._runtime.events.renamed.update(dict.fromkeys(options.aliases, full_name))
        self.by_stored_name.update(dict.fromkeys((full_name, *options.aliases), spec))
        return spec

    def _check_names(self, full_name: str, aliases: Sequence[str]) -> None:
        MethodName.parse(full_name)
        if full_name not in self.specs and full_name in self.by_stored_name:
            other = self.by_stored_name[full_name].full_name
            text = f"is an alias of {other}: take it out of the aliases there"
            raise DeclarationError(full_name, f"{text}, or declare one of the two methods only")
        checked_aliases(full_name, aliases, MethodName.parse)
        for alias in aliases:
            if alias in self.specs:
                text = f"is declared as a method, so it is no alias of {full_name}"
                raise DeclarationError(
                    alias, f"{text}: leave it out, or do not declare that method"
                )
            if alias in self.by_stored_name:
                other = self.by_stored_name[alias].full_name
                text = f"is an alias of {other} already, so it is none of {full_name}"
                raise DeclarationError(alias, f"{text}: give it to one of them")

    def index_callers(self) -> None:
        """Have the store find operations by their caller."""
        self.indexes.declare_caller()
        self.make_indexes()

    def make_indexes(self) -> None:
        """Have the store make the indexes that the methods declare."""
        self._runtime.store.index(self.indexes.keys)

    def spec(self, full_name: str) -> MethodSpec:
        """Return what is declared of a method.

        Raises:
            DeclarationError: No such method is declared.
        """
        if full_name not in self.specs:
            raise DeclarationError(full_name, "is not declared by this service")
        return self.specs[full_name]

    def check_own(self, spec: MethodSpec) -> None:
        """Check that a method is one of this service.

        Raises:
            DeclarationError: Another service declares it, maybe under the same name.
        """
        if self.specs.get(spec.full_name) is not spec:
            raise DeclarationError(spec.full_name, "is not declared by this service")

    def reporter(self, name: str) -> Reporter:
        """See ``Service.reporter``."""
        try:
            method = self._runtime.store.get(name).method
        except OperationNotFound:
            method = next(iter(self.specs), "")
        spec = self.by_stored_name.get(method)
        runtime = self._runtime
        return Reporter(name, runtime.updater, spec or self.spec(method), runtime.domain)


class Method(Generic[Req, Resp, Meta]):
    """A method that returns an Operation. ``Service.method`` and ``Service.declare`` make it."""

    def __init__(self, spec: MethodSpec, starter: Starter, calls: HandleCalls) -> None:
        self.spec = spec
        self._starter = starter
        self._calls = calls

    @property
    def full_name(self) -> str:
        """``package.Service.Method``."""
        return self.spec.full_name

    def __call__(self, request: Req, job: Job[Meta] | None = None) -> Resp:
        """What the function returns, for a test: nothing is stored, started or validated.

        ``job`` takes its reports, as one of :func:`lro.testing.job` does; by default they are lost.

        Raises:
            TypeError: The method has no function, or an async one: await :meth:`call_async`.
        """
        if self.spec.is_async:
            raise TypeError(f"{self.full_name} is async: use `await method.call_async(...)`")
        return typing.cast(Resp, self._returned(self._called(request, job)))

    async def call_async(self, request: Req, job: Job[Meta] | None = None) -> Resp:
        """What the function returns, for a test, be it async or not: see :meth:`__call__`.

        Raises:
            TypeError: The method has no function.
        """
        found = self._called(request, job)
        return typing.cast(Resp, self._returned(await found if self.spec.is_async else found))

    def _called(self, request: Req, job: Job[Meta] | None) -> Any:
        spec = self.spec
        if spec.function is None:
            raise TypeError(f"{self.full_name} has no function: its work is done outside")
        if not spec.takes_job:
            return spec.function(request)
        if job is None:
            job = job_alone(spec.types, spec.limits, metadata=spec.first_metadata(""))
        return spec.function(request, job)

    def _returned(self, found: object) -> object:
        return Empty() if found is None and self.spec.response is Empty else found

    def start(
        self,
        request: Req,
        *,
        request_id: str = "",
        parent: str = "",
        metadata: Meta | None = None,
        target: str = "",
        caller: str = "",
        validate_only: bool = False,
        within: DatabaseConnection | None = None,
        notify: Sequence[Endpoint] = (),
        **queueing: Unpack[Queueing],
    ) -> Handle[Resp, Meta]:
        """Store a new operation, have its work begun, and return its handle at once.

        ``request_id``: a UUID that makes a repeated start harmless for 24 hours (spec §9.1).
        ``parent``: the resource whose operation it is, such as ``projects/p``. ``metadata``: what
        callers see before the first report. ``target``: a resource that the work needs alone. By
        default parent and target are what the method's options say. ``validate_only``: check
        everything, start nothing; the handle then has no name.

        ``within``: a connection or session of the application, of psycopg, sqlite3, Django or
        SQLAlchemy, to the database of the store. The start is then part of its transaction: nothing
        else sees the operation before the commit, the work begins after it, and after a rollback
        the operation never was.

        ``notify``: where the end of this operation is notified, beside the endpoints of the
        service's ``webhooks``. Of repeated starts that of the first one stands.

        ``delay``, a timedelta, or ``at``, a datetime with a time zone: when the work is due; by
        default now. It waits in the store until then. ``priority`` and ``expires``: as the options
        of the method say it, which hold by default.

        Raises:
            InvalidArgument: The request is refused, the request id malformed or used otherwise. Or
                ``notify`` is refused, by a service without webhooks always. Or
                ``within`` is of another kind, to another database, or has no transaction open; or
                the store cannot take part in one.
            TargetBusy: Another operation works on the target.
            ResourceExhausted: Too many operations wait already (``Limits.backlog``).
            Unavailable: The store or executor cannot be reached, or the service is stopping.
            PermissionDenied: The ``authorize`` hook refuses it.
            HookFailed: The ``authorize`` hook, or ``validate``, does not answer as it must.
        """
        if queueing:
            check_queueing("start", queueing)
        started = self._starter.start(
            self.spec,
            request,
            request_id=request_id,
            parent=parent,
            metadata=metadata,
            target=target,
            caller=caller,
            validate_only=validate_only,
            within=within,
            notify=notify,
            **queueing,
        )
        return self._handle(run(started))

    async def start_async(
        self,
        request: Req,
        *,
        request_id: str = "",
        parent: str = "",
        metadata: Meta | None = None,
        target: str = "",
        caller: str = "",
        validate_only: bool = False,
        within: DatabaseConnection | None = None,
        notify: Sequence[Endpoint] = (),
        **queueing: Unpack[Queueing],
    ) -> Handle[Resp, Meta]:
        """:meth:`start` for coroutines: no thread waits for the store.

        ``within`` takes no asynchronous connection; the statements on it hold up the event loop.

        If the task that awaits this is cancelled, the operation has been started, or it has not:
        what was handed to the store by then is stored, and its work is done.
        """
        if queueing:
            check_queueing("start", queueing)
        started = self._starter.start(
            self.spec,
            request,
            request_id=request_id,
            parent=parent,
            metadata=metadata,
            target=target,
            caller=caller,
            validate_only=validate_only,
            within=within,
            notify=notify,
            **queueing,
        )
        return self._handle(await on_loop(started))

    def start_many(
        self,
        requests: Sequence[Req],
        *,
        request_ids: Sequence[str] = (),
        parent: str = "",
        caller: str = "",
        **queueing: Unpack[Queueing],
    ) -> Sequence[Handle[Resp, Meta] | LroError]:
        """Start an operation for each of these requests; they are stored together.

        ``parent``, ``caller``, ``delay``, ``at``, ``priority`` and ``expires`` hold for each.

        Returns:
            For each request what :meth:`start` would return for it, or the error that it would
            raise: one that is refused does not keep the others from being started.

        Raises:
            InvalidArgument: There are request ids, but not one for each request; or an argument is
                no list or tuple.
        """
        return self._handles(run_all(self._flows(requests, request_ids, parent, caller, queueing)))

    async def start_many_async(
        self,
        requests: Sequence[Req],
        *,
        request_ids: Sequence[str] = (),
        parent: str = "",
        caller: str = "",
        **queueing: Unpack[Queueing],
    ) -> Sequence[Handle[Resp, Meta] | LroError]:
        """:meth:`start_many` for coroutines."""
        import asyncio

        flows = self._flows(requests, request_ids, parent, caller, queueing)
        return self._handles(await asyncio.gather(*map(on_loop, flows), return_exceptions=True))

    def _flows(
        self,
        requests: Sequence[Req],
        request_ids: Sequence[str],
        parent: str,
        caller: str,
        queueing: Queueing,
    ) -> Sequence[Flow[Operation]]:
        check_queueing("start_many", queueing)
        for name, given in (("requests", requests), ("request_ids", request_ids)):
            if not isinstance(given, list | tuple):
                raise InvalidArgument(name, f"must be a list or a tuple, got {got(given)}")
        if request_ids and len(request_ids) != len(requests):
            wanted = f"one for each of the {len(requests)} requests, got {len(request_ids)}"
            raise InvalidArgument("request_ids", f"must be {wanted}")
        ids = request_ids or [""] * len(requests)
        return [
            self._starter.start(
                self.spec, request, request_id=one, parent=parent, caller=caller, **queueing
            )
            for request, one in zip(requests, ids, strict=True)
        ]

    def _handles(
        self, found: Sequence[Operation | BaseException]
    ) -> Sequence[Handle[Resp, Meta] | LroError]:
        """Handles, and the errors of starts that were refused.

        Raises:
            BaseException: One that is not the service's: what a hook has raised, for instance.
        """
        answers: list[Handle[Resp, Meta] | LroError] = []
        for one in found:
            if isinstance(one, Operation):
                answers.append(self._handle(one))
            elif isinstance(one, LroError):
                answers.append(one)
            else:
                raise one
        return answers

    def _handle(self, operation: Operation) -> Handle[Resp, Meta]:
        return Handle(operation, self.spec, self._calls)


class MethodDecorator(Protocol):
    """Turns a function into a :class:`Method` of the classes in its annotations."""

    @overload
    def __call__(
        self, function: Callable[[Req, Job[Meta]], Coroutine[Any, Any, None]]
    ) -> Method[Req, Empty, Meta]: ...
    @overload
    def __call__(self, function: Callable[[Req, Job[Meta]], None]) -> Method[Req, Empty, Meta]: ...
    @overload
    def __call__(
        self, function: Callable[[Req], Coroutine[Any, Any, None]]
    ) -> Method[Req, Empty, Any]: ...
    @overload
    def __call__(self, function: Callable[[Req], None]) -> Method[Req, Empty, Any]: ...
    @overload
    def __call__(
        self, function: Callable[[Req, Job[Meta]], Coroutine[Any, Any, Resp]]
    ) -> Method[Req, Resp, Meta]: ...
    @overload
    def __call__(self, function: Callable[[Req, Job[Meta]], Resp]) -> Method[Req, Resp, Meta]: ...
    @overload
    def __call__(
        self, function: Callable[[Req], Coroutine[Any, Any, Resp]]
    ) -> Method[Req, Resp, Any]: ...
    @overload
    def __call__(self, function: Callable[[Req], Resp]) -> Method[Req, Resp, Any]: ...


class Reporter:
    """The worker's side of an operation whose work is done outside this library.

    Each report is applied or not: False means that it came too late, the operation being over,
    deleted or expired (spec §2.3, §2.7, §2.8). A message may also come packed.

    Raises (each of them):
        DeclarationError: A message is not of the class that the method declares.
        EncodingError: It cannot be encoded.
    """

    def __init__(self, name: str, updater: RecordUpdater, spec: MethodSpec, domain: str) -> None:
        self.name = name
        self._updater = updater
        self._spec = spec
        self._domain = domain

    def report(self, metadata: object) -> bool:
        """Replace the metadata.

        Raises:
            MessageTooLarge: It has more bytes than the service keeps; nothing changes.
        """
        change = report(self._metadata(metadata), None, self._updater.store.now())
        if not self._apply(change):
            return False
        if events := self._updater.events:
            method = self._spec.full_name
            events.emit(MetadataReported(name=self.name, method=method, attempt=0))
        return True

    def complete(self, response: object, *, metadata: object | None = None) -> bool:
        """End the operation with a response, and maybe the last metadata.

        Raises:
            MessageTooLarge: The response has more bytes than the service keeps: the operation has
                ended with INTERNAL. Or the metadata has: nothing changes.
        """
        return self._end(self._pack("response", response, self._spec.response), metadata)

    def fail(
        self, error: Status | LroError, *, metadata: object | None = None, domain: str = ""
    ) -> bool:
        """End the operation with an error.

        Raises:
            InvalidArgument: The error's code is not from 1 to 16.
            DeclarationError: ``error`` is not an error, or the domain not a text.
            MessageTooLarge: As for :meth:`complete`.
            EncodingError: One of its details has no JSON form. The work goes on.
        """
        check_instance("error", error, (Status, LroError), "a Status or an LroError")
        check_text("domain", domain)
        if isinstance(error, LroError):
            error = self._spec.types.status_of(error, domain or self._domain)
        return self._end(error, metadata)

    def finish(self, *, metadata: object | None = None) -> bool:
        """End the operation without a result (spec §2.5)."""
        return self._end(None, metadata)

    def acknowledge_cancel(self, *, metadata: object | None = None) -> bool:
        """End the operation as cancelled, because that was asked for.

        Raises:
            CancellationNotRequested: That was not asked for.
        """
        cancelled = self._spec.types.status_of(Cancelled(), self._domain)
        return self._end(cancelled, metadata, acknowledge=True)

    @property
    def cancel_requested(self) -> bool:
        """Whether the work was asked to stop."""
        try:
            return self._updater.store.get(self.name).cancel_requested
        except OperationNotFound:
            return False

    def _pack(self, role: str, message: object, cls: type) -> AnyMessage:
        if isinstance(message, self._spec.instances[cls]):
            return self._spec.types.pack(message, cls)
        check_instance(role, message, AnyMessage, f"a {cls.__name__}, or one packed")
        return self._spec.types.pack(message)

    def _metadata(self, message: object) -> AnyMessage:
        packed = self._pack("metadata", message, self._spec.metadata)
        return self._spec.limits.check_metadata(packed)

    def _end(
        self,
        result: AnyMessage | Status | None,
        metadata: object | None,
        *,
        acknowledge: bool = False,
    ) -> bool:
        last = None if metadata is None else self._metadata(metadata)
        too_large = None
        try:
            self._spec.limits.check_result(result)
        except MessageTooLarge as exc:
            result, too_large = self._spec.types.status_of(exc, self._domain), exc
        applied = self._apply(
            end(
                result,
                now=self._updater.store.now(),
                keep_for=self._spec.keep_for,
                metadata=last,
                acknowledge=acknowledge,
            )
        )
        if too_large is not None:
            raise too_large
        return applied

    def _apply(self, change: Change) -> bool:
        try:
            after = self._updater.apply(self.name, change, self._spec.stamp)
        except (NotApplied, LeaseLost, OperationNotFound):
            return False
        if after is not None and after.done:
            self._updater.events.look()  # it may be the first that this process has to do
            emit_end(self._updater.events, after)
        # A record that a change removes was deleted before: its result is dropped (spec §2.7).
        return after is not None and after.state is not State.HIDDEN
