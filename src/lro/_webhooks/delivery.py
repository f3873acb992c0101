"""Delivery: one thread that decides what is sent when, and a few that send.

A record that owes notifications is claimed in the store for as long as sending may take, and then
settled: what was sent is owed no more, and what failed is due later. A process that dies leaves its
claims to end, and another one sends again. So each notification is sent at least once.

At most one request at a time is under way to a host, and hosts that are not known to answer soon
share half of the connections. A caller may name many that hang: one of these connections is always
left to other callers, who take turns. What would have to wait for a slow host is put off in the
store, so that it does not hold up what goes to others.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
import httpx

from lro import DescribedOperation
from lro._webhooks.debts import LOOKUP, Debt, Debts
from lro._webhooks.endpoints import EndpointRules, event_of, wants
from lro._webhooks.payloads import Format, WebhookEvent, webhook_id
from lro._webhooks.schedule import pause_before, retry_after
from lro._webhooks.transport import WebhookReply, WebhookTransport
from lro.adapters import Endpoint, OutboxStore, Record, described, settle_notifications
from lro.errors import InvalidArgument, LeaseLost, OperationNotFound, Unavailable, contained
from lro.logging import about
from lro.wire import WEBHOOK_HEADERS, sign_webhook

log = logging.getLogger("lro")

GONE: Final = "GONE"
FAILING: Final = "FAILING"

_BATCH: Final = 32
"""How many records are claimed at once."""
_CAPACITY: Final = 256
"""How many claimed records are held at most."""
_QUEUE_SECONDS: Final = 2.0
"""For how long a claimed notification may wait for its host, as far as can be foreseen."""
_PUT_OFF_SECONDS: Final = 3600.0
_WAITING: Final = 128
"""How many claimed notifications may wait for one host, and for all that are not quick."""
_QUICK_SECONDS: Final = 1.0
"""How soon a host answers, on average, that may use every connection."""
_FIRST_PACE: Final = 0.005
"""The seconds that a host is thought to take for a request before it has answered one."""
_POLL_SECONDS: Final = 15.0
"""How soon a process notices what another one owed that has died."""
_RETRY_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 2.0
"""The grace that requests under way have when the service is closed."""
_GONE_STATUS: Final = 410
_HOSTS: Final = 1000
_FEW: Final = 2
"""Connections of which one caller may have all: else there would be little left for one."""


@attrs.frozen
class EndpointDisabled:
    """What ``on_disabled`` is given: an endpoint, why it should not be called again, for what.

    ``reason`` is GONE if the receiver has answered 410, FAILING if a notification has failed for
    the whole schedule. ``name`` is that of the operation. Nothing is kept of it: it is for the
    application to disable the endpoint.
    """

    endpoint: Endpoint
    reason: str
    name: str


@attrs.define(eq=False)
class _Claim:
    """A record that this process has claimed, what it owes, and what is being sent."""

    record: Record
    debts: Debts
    send_by: float
    owed: dict[str, Debt]
    failed: list[str]
    pending: int = 0


@attrs.define(eq=False)
class _Try:
    """A notification that is being sent, and what has come of it."""

    claim: _Claim
    endpoint: Endpoint
    debt: Debt
    host: str
    doubted: bool = False
    """Whether its host is not known to be quick."""
    reply: WebhookReply | None = None
    """None: it was not sent, and is owed as before."""
    seconds: float = 0.0

    @property
    def caller(self) -> str:
        """Who has started the operation."""
        return self.claim.record.caller


@attrs.define(eq=False)
class _Pace:
    """The seconds between two of those that wait in one place, and until when more is put off."""

    seconds: float = _FIRST_PACE
    began: float | None = None
    """Since when the place has not been free; None: it is."""
    _put_off_until: dict[str, float] = attrs.field(factory=dict)
    """By caller, where callers have turns."""

    def measure(self, seconds: float) -> None:
        """Take note of how long one has taken."""
        self.seconds = (self.seconds + seconds) / 2

    def put_off(
        self, ahead: int, waiting: int, at: float, longest: float, caller: str = ""
    ) -> float | None:
        """By how many seconds, at most, to put off one more request; None: it can wait here."""
        pace = self.seconds if self.began is None else max(self.seconds, at - self.began)
        turn = ahead * pace
        if turn <= _QUEUE_SECONDS and waiting < _WAITING:
            return None
        # Each until about its turn, so that few are claimed in vain.
        if len(self._put_off_until) >= _HOSTS:
            self._put_off_until.clear()
        last = self._put_off_until.get(caller, 0.0)
        until = self._put_off_until[caller] = min(max(last, at + turn) + pace, at + longest)
        return until - at


@attrs.define(eq=False)
class _Host:
    """A host that is called: what waits for it, and how long it takes for one."""

    busy: bool = False
    quick: bool = False
    failed: bool = False
    """True if its last request got no answer."""
    in_line: bool = False
    waiting: deque[_Try] = attrs.field(factory=deque)
    pace: _Pace = attrs.field(factory=_Pace)


@attrs.define(eq=False)
class _Doubted:
    """The hosts that are not known to be quick: their requests, and who waits for a connection.

    Callers have turns, and none has all connections, unless there are very few.
    """

    room: int
    under_way: Counter[str] = attrs.field(factory=Counter)
    waiting: Counter[str] = attrs.field(factory=Counter)
    """How many requests of each caller are under way, and wait."""
    line: deque[_Host] = attrs.field(factory=deque)
    pace: _Pace = attrs.field(factory=_Pace)

    def put_off(self, host: _Host, caller: str, at: float, longest: float) -> float | None:
        """By how many seconds to put off a request to such a host; None: it can wait."""
        line = [] if host.busy else [one.caller for each in self.line for one in each.waiting]
        ahead = line.count(caller) * len({*line})
        return self.pace.put_off(ahead, self.waiting[caller], at, longest, caller)

    def has_room(self, caller: str) -> bool:
        """Return True if one more request of this caller may be under way."""
        each = self.room - 1 if self.room > _FEW else self.room
        return self.under_way.total() < self.room and self.under_way[caller] < each

    def pop(self) -> _Host | None:
        """The host whose turn it is: of the caller with the fewest requests, not one that failed.

        None if no host in the line may be called now.
        """
        free = [one for one in self.line if self.has_room(one.waiting[0].caller)]
        if not free:
            return None
        turn = min(free, key=lambda one: (self.under_way[one.waiting[0].caller], one.failed))
        self.line.remove(turn)
        turn.in_line = False
        return turn

    def move(self, caller: str, by: int, at: float) -> None:
        """Take note that one more request of a caller, or one less, is under way."""
        _move(self.under_way, caller, by)
        self.pace.began = at if self.under_way.total() >= self.room else None

    def wait(self, caller: str, by: int) -> None:
        """Take note that one more request of a caller, or one less, waits."""
        _move(self.waiting, caller, by)


def _move(counts: Counter[str], caller: str, by: int) -> None:
    counts[caller] += by
    if not counts[caller]:
        del counts[caller]


@attrs.frozen(kw_only=True)
class DeliveryOptions:
    """What :class:`Delivery` goes by; see ``Webhooks``."""

    rules: EndpointRules
    endpoints: tuple[Endpoint, ...]
    lookup: Callable[[DescribedOperation, str], Iterable[Endpoint]] | None
    on_disabled: Callable[[EndpointDisabled], object] | None
    schedule: tuple[float, ...]
    timeout: float
    connections: int
    clock: Callable[[], float]
    random: Callable[[], float]


class Delivery:
    """Sends what the records of a store owe.

    :meth:`run_due` does what is due; :meth:`begin` has a thread do that. ``renamed`` has the
    present names of methods, by their aliases.
    """

    def __init__(
        self,
        store: OutboxStore,
        transport: WebhookTransport,
        formats: Mapping[str, Format],
        options: DeliveryOptions,
        renamed: Mapping[str, str],
    ) -> None:
        self._store = store
        self._renamed = renamed
        self._transport = transport
        self._formats = formats
        self._options = options
        self._clock = options.clock
        self._lease = 3 * options.timeout
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin again without threads and claims: those of the parent process are the parent's."""
        self._thread: threading.Thread | None = None
        self._workers: list[threading.Thread] = []
        self._turning = threading.Lock()
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._due = True
        self._stopped = False
        self._look_at = 0.0
        self._claims: set[_Claim] = set()
        self._hosts: dict[str, _Host] = {}
        self._doubted = _Doubted(max(1, self._options.connections // 2))
        self._silent: dict[str, float] = {}
        """Until when receivers have asked to be left alone, by URL."""
        self._under_way = 0
        self._todo: queue.SimpleQueue[_Try | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Try] = queue.SimpleQueue()

    # -- life ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Do what is due in a thread. Idempotent.

        Raises:
            RuntimeError: There are too many threads.
        """
        with self._starting:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._live, name="lro-webhooks", daemon=True)
                thread.start()
                self._thread = thread

    def wake(self) -> None:
        """Look for what is due now. Never waits."""
        if not self._due:
            self._due = True
            self._wake.set()

    def run_due(self) -> float:
        """Send what is due, and return the seconds until more will be.

        Raises:
            Unavailable: The store cannot be reached.
        """
        with self._turning:
            self._due = True
            while True:
                self._wake.clear()
                seconds = self._turn()
                if not self._under_way and seconds > 0:
                    return seconds
                self._wake.wait(seconds)

    def stop(self) -> None:
        """End the threads; what is not sent within a short grace is given back. Idempotent."""
        with self._starting:
            self._stopped = True
        end = time.monotonic() + _STOP_SECONDS
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)
        try:
            if self._turning.acquire(timeout=max(0.0, end - time.monotonic())):
                try:
                    self._give_back(end)
                finally:
                    self._turning.release()
            # Else a function of the application holds it up: its claims end by themselves.
        finally:
            self._transport.close()
            for _ in self._workers:
                self._todo.put(None)

    def _give_back(self, end: float) -> None:
        self._finish_until(end)
        self._transport.close()
        self._finish_until(time.monotonic() + _STOP_SECONDS / 4)
        for claim in list(self._claims):
            self._settle(claim, self._store.now())

    def _finish_until(self, end: float) -> None:
        while self._under_way and time.monotonic() < end:
            self._wake.clear()
            self._finish()
            if self._under_way:
                self._wake.wait(max(0.0, end - time.monotonic()))

    def _live(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                with self._turning:
                    seconds = self._turn()
            except Unavailable as exc:  # the maintenance reports it too
                log.info("webhooks: what is due cannot be read now: %s", exc)
                seconds = _RETRY_SECONDS
            except BaseException:  # whatever code of others has raised: the rest is to be sent
                log.exception("sending of webhooks failed and goes on")
                seconds = _RETRY_SECONDS
            self._wake.wait(seconds)

    # -- the turn -----------------------------------------------------------------------------

    def _turn(self) -> float:
        """Do what can be done without waiting for receivers; the seconds until more can be."""
        self._finish()
        if self._stopped or len(self._claims) >= _CAPACITY:
            return _POLL_SECONDS
        self._start_workers()
        if self._due or self._look_at <= self._clock():
            self._due = False
            self._look_at = self._clock() + _RETRY_SECONDS  # unless it can be read
            self._look_at = self._clock() + self._claim()
        seconds = max(0.0, self._look_at - self._clock())
        return min(seconds, _RETRY_SECONDS) if self._under_way and not self._workers else seconds

    def _claim(self) -> float:
        """Claim a batch of what is due, and have it sent; the seconds until the next look."""
        limit = min(_BATCH, _CAPACITY - len(self._claims))
        now, at = self._store.now(), self._clock()
        records = self._store.claim_due(now + timedelta(seconds=self._lease), limit)
        for record in records:
            try:
                self._begin_claim(record, at + self._lease - 1.5 * self._options.timeout, now)
            except Exception:  # one that cannot be read must not be in the way of the others
                log.exception("%s: its webhooks cannot be sent now", record.name)
        if len(records) == limit:
            return 0.0
        due = self._store.next_due()
        if due is None:
            return _POLL_SECONDS
        seconds = (due - self._store.now()).total_seconds()
        if seconds <= 0 and not records:  # it is due, and locked by another process
            return _RETRY_SECONDS
        return min(_POLL_SECONDS, max(0.0, seconds))

    def _begin_claim(self, record: Record, send_by: float, now: datetime) -> None:
        debts = Debts.of(record.notify)
        claim = _Claim(record, debts, send_by, dict(debts.owed or {}), list(debts.failed))
        found = {one.id: one for one in (*debts.of_start, *self._options.endpoints)}
        if debts.owed is None:
            wanted = [id for id, one in found.items() if wants(one, record, self._renamed)]
            claim.owed = {id: Debt(0, now) for id in wanted}
            if self._options.lookup is not None:
                claim.owed[LOOKUP] = Debt(0, now)
        due = {id: debt for id, debt in claim.owed.items() if debt.at <= now}
        if self._options.lookup is not None and not due.keys() <= found.keys():
            found = self._with_lookup(claim, due, found, now)
        for id, debt in due.items():
            if id in found:
                self._enqueue(claim, found[id], debt, now)
            elif id in claim.owed and claim.owed[id].at <= now:
                self._leave(claim, id, debt, now)
        if claim.pending:
            self._claims.add(claim)
        else:
            self._settle(claim, now)

    def _leave(
        self,
        claim: _Claim,
        id: str,
        debt: Debt,
        now: datetime,
        endpoint: Endpoint | None = None,
        why: str = "no process knows this endpoint",
    ) -> None:
        """Leave a notification to processes of another release, which may know its endpoint.

        For as long as the schedule lasts; the longer it has been owed, the later is the next look.
        An endpoint that the application does not give any more is not called any more.
        """
        record = claim.record
        if endpoint is None and debt.looked_up and self._options.lookup is not None:
            line = "%s: the endpoint %s is not there any more"
            log.info(line, record.name, id, extra=about(record.name, record.method))
            del claim.owed[id]
            return
        age = (now - (debt.since or record.end_time or now)).total_seconds()
        if age >= sum(self._options.schedule):
            self._give_up(claim, endpoint, id, why)
            return
        later = min(max(age / 4, _RETRY_SECONDS), _PUT_OFF_SECONDS)
        claim.owed[id] = attrs.evolve(debt, at=now + timedelta(seconds=later))

    def _with_lookup(
        self, claim: _Claim, due: dict[str, Debt], found: dict[str, Endpoint], now: datetime
    ) -> dict[str, Endpoint]:
        """Ask the application; what depends on that is due later if it cannot say."""
        record = claim.record
        try:
            given = contained("lookup", self._looked_up, record)
            checked = (self._options.rules.checked("endpoint", one) for one in given)
            fresh = {one.id: one for one in checked}
        except Exception as exc:
            line = "%s: the endpoints of its webhooks cannot be looked up: %s"
            facts = about(record.name, record.method)
            log.warning(line, record.name, type(exc).__name__, extra=facts, exc_info=exc)
            for id, debt in due.items():
                if id not in found:
                    self._fail(claim, None, id, debt, 0.0, now)
            return found
        if claim.owed.pop(LOOKUP, None) is not None:
            for id, one in fresh.items():
                if id not in claim.owed and wants(one, record, self._renamed):
                    claim.owed[id] = due[id] = Debt(0, now, looked_up=True)
            due.pop(LOOKUP, None)
        return {**fresh, **found}

    def _looked_up(self, record: Record) -> Sequence[Endpoint]:
        assert self._options.lookup is not None
        shown = described(record, self._renamed)
        return [*self._options.lookup(shown, record.caller)]  # it may be a generator

    # -- requests -----------------------------------------------------------------------------

    def _enqueue(self, claim: _Claim, endpoint: Endpoint, debt: Debt, now: datetime) -> None:
        try:
            endpoint = self._options.rules.callable("endpoint", endpoint)
        except InvalidArgument as exc:  # processes of another release have other options
            self._leave(claim, endpoint.id, debt, now, endpoint, f"it cannot be called: {exc}")
            return
        at = self._clock()
        silent = self._silent.get(endpoint.url, 0.0)
        if silent > at:
            claim.owed[endpoint.id] = attrs.evolve(debt, at=now + timedelta(seconds=silent - at))
            return
        name = httpx.URL(endpoint.url).host
        host = self._hosts.setdefault(name, _Host())
        # At most by as long as it has waited: the host may be quicker than it seems now.
        age = (now - (claim.record.end_time or now)).total_seconds()
        longest = min(max(age, _RETRY_SECONDS), _PUT_OFF_SECONDS)
        later = host.pace.put_off(len(host.waiting), len(host.waiting), at, longest)
        if later is None and not host.quick:
            later = self._doubted.put_off(host, claim.record.caller, at, longest)
        if later is not None:
            claim.owed[endpoint.id] = attrs.evolve(debt, at=now + timedelta(seconds=later))
            return
        claim.pending += 1
        one = _Try(claim, endpoint, debt, name, doubted=not host.quick)
        host.waiting.append(one)
        if one.doubted:
            self._doubted.wait(one.caller, 1)
        self._send_next(host)

    def _send_next(self, host: _Host) -> None:
        doubted = self._doubted
        if host.busy or not host.waiting or self._stopped:
            return
        if not host.quick and not doubted.has_room(host.waiting[0].caller):
            if not host.in_line:
                host.in_line = True
                doubted.line.append(host)
            return
        one, at = host.waiting.popleft(), self._clock()
        if one.doubted:
            doubted.wait(one.caller, -1)
        one.doubted = not host.quick
        if one.doubted:
            doubted.move(one.caller, 1, at)
        host.busy, host.pace.began = True, at
        self._under_way += 1
        self._todo.put(one)
        self._start_workers()

    def _go_on(self, one: _Try) -> None:
        """Take note of the time that a try took, and have sent what waited for that."""
        host, doubted = self._hosts[one.host], self._doubted
        host.busy, host.pace.began = False, None
        if one.doubted:
            doubted.move(one.caller, -1, self._clock())
        if one.reply is not None:
            host.pace.measure(one.seconds)
            host.failed = not one.reply.status
            host.quick = not host.failed and host.pace.seconds < _QUICK_SECONDS
            if one.doubted:
                doubted.pace.measure(one.seconds / doubted.room)
        while not self._stopped and (following := doubted.pop()) is not None:
            self._send_next(following)
        self._send_next(host)
        if not host.busy and not host.waiting and len(self._hosts) > _HOSTS:
            del self._hosts[one.host]

    def _start_workers(self) -> None:
        while len(self._workers) < min(self._options.connections, self._under_way):
            thread = threading.Thread(
                target=self._work, args=(self._todo, self._done), name="lro-webhook", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as exc:  # too many threads: the next turn tries again
                log.warning("webhooks are sent by %d threads: %s", len(self._workers), exc)
                return
            self._workers.append(thread)

    def _work(self, todo: queue.SimpleQueue[_Try | None], done: queue.SimpleQueue[_Try]) -> None:
        while (one := todo.get()) is not None:
            began = time.monotonic()
            try:
                if self._clock() < one.claim.send_by and not self._stopped:
                    one.reply = self._sent(one)
            except BaseException as exc:  # a format of the application may raise anything
                one.reply = WebhookReply(0, f"it cannot be made: {type(exc).__name__}")
                log.exception("%s: its webhook cannot be made", one.claim.record.name)
            one.seconds = time.monotonic() - began
            done.put(one)
            self._wake.set()

    def _sent(self, one: _Try) -> WebhookReply:
        record, endpoint = one.claim.record, one.endpoint
        kind = event_of(record)
        event = WebhookEvent(
            webhook_id(record.name, kind, endpoint.id), kind, record.end_time or record.update_time
        )
        shown = described(record, self._renamed)
        content_type, body = self._formats[endpoint.format](shown, endpoint, event)
        headers = signed_headers(event.id, self._store.now(), content_type, body, endpoint.secrets)
        return self._transport.send(endpoint.url, {**endpoint.headers, **headers}, body)

    def _finish(self) -> None:
        while True:
            try:
                one = self._done.get_nowait()
            except queue.Empty:
                return
            self._under_way -= 1
            self._go_on(one)
            now = self._store.now()
            if one.reply is not None and not (self._stopped and not one.reply.status):
                self._note(one, one.reply, now)
            one.claim.pending -= 1
            if not one.claim.pending:
                self._settle(one.claim, now)

    def _note(self, one: _Try, reply: WebhookReply, now: datetime) -> None:
        claim, endpoint, record = one.claim, one.endpoint, one.claim.record
        facts = about(record.name, record.method)
        if reply.success:
            log.debug("%s: its webhook to %s was sent", record.name, endpoint.id, extra=facts)
            del claim.owed[endpoint.id]
            return
        if reply.status == _GONE_STATUS:
            line = "%s: its webhook to %s is not wanted: %s"
            log.info(line, record.name, endpoint.id, reply, extra=facts)
            del claim.owed[endpoint.id]
            self._disable(claim, endpoint, GONE)
            return
        line = "%s: its webhook to %s failed: %s"
        log.info(line, record.name, endpoint.id, reply, extra=facts)
        later = retry_after(reply.status, reply.retry_after, now)
        if later:
            while len(self._silent) >= _HOSTS:
                del self._silent[next(iter(self._silent))]
            self._silent[endpoint.url] = self._clock() + later
        self._fail(claim, endpoint, endpoint.id, one.debt, later, now)

    def _fail(
        self,
        claim: _Claim,
        endpoint: Endpoint | None,
        id: str,
        debt: Debt,
        later: float,
        now: datetime,
    ) -> None:
        attempts = debt.attempts + 1
        pause = pause_before(attempts, self._options.schedule, self._options.random())
        if pause is None:
            self._give_up(claim, endpoint, id, f"it failed {attempts} times")
        else:
            at = now + timedelta(seconds=max(pause, later))
            claim.owed[id] = attrs.evolve(debt, attempts=attempts, at=at)

    def _give_up(self, claim: _Claim, endpoint: Endpoint | None, id: str, why: str) -> None:
        record = claim.record
        line = "%s: its webhook to %s is given up: %s"
        facts = about(record.name, record.method)
        log.warning(line, record.name, id or "what is looked up", why, extra=facts)
        del claim.owed[id]
        claim.failed.append(id)
        if endpoint is not None:
            self._disable(claim, endpoint, FAILING)

    def _disable(self, claim: _Claim, endpoint: Endpoint, reason: str) -> None:
        if self._options.on_disabled is None:
            return
        try:
            event = EndpointDisabled(endpoint, reason, claim.record.name)
            contained("on_disabled", self._options.on_disabled, event)
        except Exception:
            log.exception("%s: on_disabled failed", claim.record.name)

    def _settle(self, claim: _Claim, now: datetime) -> None:
        self._claims.discard(claim)
        record = claim.record
        after = attrs.evolve(claim.debts, owed=claim.owed, failed=tuple(claim.failed))
        due = after.next_due

        def change(present: Record) -> Record | None:
            left = after.with_endpoints(Debts.of(present.notify).endpoints)  # some may be gone
            return settle_notifications(record, left.to_text(), left.next_due)(present)

        try:
            self._store.update(record.name, change)
        except (LeaseLost, OperationNotFound) as exc:  # another process has it now, or it is gone
            log.debug("%s: what was sent of its webhooks is not noted: %s", record.name, exc)
        except Unavailable as exc:  # its claim ends, and it is sent again, with the same id
            line = "%s: what was sent of its webhooks cannot be noted: %s"
            log.warning(line, record.name, exc, extra=about(record.name, record.method))
        if due is not None:
            self._look_at = min(
                self._look_at, self._clock() + max(0.0, (due - now).total_seconds())
            )


def signed_headers(
    id: str, now: datetime, content_type: str, body: bytes, secrets: tuple[str, ...]
) -> dict[str, str]:
    """The headers of a webhook (Standard Webhooks 1.0.0), signed where there are secrets."""
    timestamp = int(now.timestamp())
    signed = [id, str(timestamp)]
    if secrets:
        signed.append(sign_webhook(body, id=id, timestamp=timestamp, secrets=secrets))
    headers = {"Content-Type": content_type, "User-Agent": "lro-webhooks"}
    return headers | dict(zip(WEBHOOK_HEADERS, signed, strict=False))
