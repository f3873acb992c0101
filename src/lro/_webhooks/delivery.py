"""Delivery of webhooks: one thread schedules requests, and a few threads send them.

A process claims a record with pending deliveries in the store for as long as sending may take, and
then stores the results: deliveries that succeeded are removed, and failed deliveries are due later.
If the process dies, its claims expire, and another process sends these webhooks again. So each
event is delivered at least once.

Each host gets at most one request at a time, and hosts that are not known to be fast share half of
the connections. A caller may name many hosts that hang, so one of these connections is always left
for other callers. The callers take turns. Deliveries behind a slow host are deferred in the store,
so that they do not delay deliveries to other hosts.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
import httpx

from lro._webhooks.deliveries import LOOKUP, Deliveries, PendingDelivery
from lro._webhooks.endpoints import EndpointRules, event_of, is_subscribed
from lro._webhooks.options import EndpointDisabled, WebhookOptions
from lro._webhooks.payloads import Format, WebhookEvent, webhook_id
from lro._webhooks.schedule import pause_before, retry_after
from lro._webhooks.transport import WebhookReply, WebhookTransport
from lro.adapters import Endpoint, OutboxStore, Record, full_operation, settle_notifications
from lro.errors import InvalidArgument, LeaseLost, OperationNotFound, Unavailable, contained
from lro.logging import about
from lro.wire import WEBHOOK_HEADERS, sign_webhook

log = logging.getLogger("lro")

GONE: Final = "GONE"
FAILING: Final = "FAILING"

_BATCH: Final = 32
_CAPACITY: Final = 256
_QUEUE_SECONDS: Final = 2.0
"""Longest expected wait of a claimed delivery for its host, in seconds."""
_DEFER_SECONDS: Final = 3600.0
_WAITING: Final = 128
"""Most claimed deliveries that wait for one host, or for the slow hosts of one caller."""
_FAST_SECONDS: Final = 1.0
"""Longest average response time of a fast host, in seconds. Fast hosts may use any connection."""
_FIRST_PACE: Final = 0.005
"""Assumed response time of a host before its first response, in seconds."""
_POLL_SECONDS: Final = 15.0
"""Longest time until a process notices the pending deliveries of a dead process, in seconds."""
_RETRY_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 2.0
"""Grace period for requests in progress when the service is closed, in seconds."""
_GONE_STATUS: Final = 410
_HOSTS: Final = 1000
_FEW: Final = 2
"""If slow hosts share at most this number of connections, one caller may use all of them."""


@attrs.define(eq=False)
class _Claim:
    """A record that this process has claimed, with the number of requests in progress."""

    record: Record
    deliveries: Deliveries
    send_by: float
    pending: dict[str, PendingDelivery]
    failed: list[str]
    sending: int = 0


@attrs.define(eq=False)
class _Attempt:
    claim: _Claim
    endpoint: Endpoint
    delivery: PendingDelivery
    host: str
    slow: bool = False
    reply: WebhookReply | None = None
    """The result; None if the webhook was not sent, so that its delivery remains pending."""
    seconds: float = 0.0

    @property
    def caller(self) -> str:
        return self.claim.record.caller


@attrs.define(eq=False)
class _Pace:
    """The measured seconds between requests of a queue, and the last deferral of each caller."""

    seconds: float = _FIRST_PACE
    began: float | None = None
    """Start of the request that blocks the queue; None if no request does."""
    _deferred_until: dict[str, float] = attrs.field(factory=dict)

    def measure(self, seconds: float) -> None:
        self.seconds = (self.seconds + seconds) / 2

    def defer(
        self, ahead: int, waiting: int, at: float, longest: float, caller: str = ""
    ) -> float | None:
        """Return the seconds to defer one more request; None if it can wait in this queue."""
        pace = self.seconds if self.began is None else max(self.seconds, at - self.began)
        turn = ahead * pace
        if turn <= _QUEUE_SECONDS and waiting < _WAITING:
            return None
        # Defer each request until about its turn, so that few requests are claimed in vain.
        if len(self._deferred_until) >= _HOSTS:
            self._deferred_until.clear()
        last = self._deferred_until.get(caller, 0.0)
        until = self._deferred_until[caller] = min(max(last, at + turn) + pace, at + longest)
        return until - at


@attrs.define(eq=False)
class _Host:
    busy: bool = False
    fast: bool = False
    failed: bool = False
    queued: bool = False
    waiting: deque[_Attempt] = attrs.field(factory=deque)
    pace: _Pace = attrs.field(factory=_Pace)


@attrs.define(eq=False)
class _SlowHosts:
    """The hosts that are not known to be fast: their requests, and the queue for connections.

    Callers take turns, and no caller has all connections, unless there are very few connections.
    """

    room: int
    under_way: Counter[str] = attrs.field(factory=Counter)
    waiting: Counter[str] = attrs.field(factory=Counter)
    """``under_way`` and ``waiting`` count the requests in progress and in queues, by caller."""
    queue: deque[_Host] = attrs.field(factory=deque)
    pace: _Pace = attrs.field(factory=_Pace)

    def defer(self, host: _Host, caller: str, at: float, longest: float) -> float | None:
        """Return for how many seconds to defer a request; None if it can wait in the queue."""
        line = [] if host.busy else [one.caller for each in self.queue for one in each.waiting]
        ahead = line.count(caller) * len({*line})
        return self.pace.defer(ahead, self.waiting[caller], at, longest, caller)

    def has_room(self, caller: str) -> bool:
        each = self.room - 1 if self.room > _FEW else self.room
        return self.under_way.total() < self.room and self.under_way[caller] < each

    def pop(self) -> _Host | None:
        """Take the next host from the queue; None if no host may be called now.

        Hosts of callers with the fewest requests in progress come first. Among these hosts, the
        hosts that failed come last.
        """
        free = [one for one in self.queue if self.has_room(one.waiting[0].caller)]
        if not free:
            return None
        turn = min(free, key=lambda one: (self.under_way[one.waiting[0].caller], one.failed))
        self.queue.remove(turn)
        turn.queued = False
        return turn

    def move(self, caller: str, by: int, at: float) -> None:
        _move(self.under_way, caller, by)
        self.pace.began = at if self.under_way.total() >= self.room else None

    def wait(self, caller: str, by: int) -> None:
        _move(self.waiting, caller, by)


def _move(counts: Counter[str], caller: str, by: int) -> None:
    counts[caller] += by
    if not counts[caller]:
        del counts[caller]


class Delivery:
    """Send the pending deliveries of a store.

    :meth:`run_due` sends due deliveries; :meth:`begin` starts a thread that does so. ``renamed``
    maps aliases of methods to their present names.
    """

    def __init__(
        self,
        store: OutboxStore,
        transport: WebhookTransport,
        formats: Mapping[str, Format],
        options: WebhookOptions,
        rules: EndpointRules,
        endpoints: Sequence[Endpoint],
        renamed: Mapping[str, str],
    ) -> None:
        self._store = store
        self._renamed = renamed
        self._transport = transport
        self._formats = formats
        self._options, self._rules, self._endpoints = options, rules, endpoints
        self._clock = options.clock
        self._lease = 3 * options.timeout
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start over without the threads and claims of the parent process."""
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
        self._slow_hosts = _SlowHosts(max(1, self._options.connections // 2))
        self._paused_until: dict[str, float] = {}
        """End of the pause that a receiver asked for, by URL."""
        self._under_way = 0
        self._todo: queue.SimpleQueue[_Attempt | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Attempt] = queue.SimpleQueue()

    # -- start and stop -----------------------------------------------------------------------

    def begin(self) -> None:
        """Start a thread that sends due deliveries. Idempotent.

        Raises:
            RuntimeError: There are too many threads.
        """
        with self._starting:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._live, name="lro-webhooks", daemon=True)
                thread.start()
                self._thread = thread

    def wake(self) -> None:
        """Look for due deliveries now. Never waits."""
        if not self._due:
            self._due = True
            self._wake.set()

    def run_due(self) -> float:
        """Send due deliveries, and return the seconds until the next delivery is due.

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
        """Stop the threads, and release deliveries that are not sent soon. Idempotent."""
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
            # If the lock is not free, a function of the application blocks. The claims expire.
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
        wake = self._wake  # another event once the service was closed and opened again
        while not self._stopped and self._wake is wake:
            self._wake.clear()
            try:
                with self._turning:
                    seconds = self._turn()
            except Unavailable as exc:  # the service's maintenance reports this error too
                log.info("webhooks: due deliveries cannot be read now: %s", exc)
                seconds = _RETRY_SECONDS
            except BaseException:  # perhaps from a user function; other deliveries must go on
                log.exception("sending webhooks failed and continues")
                seconds = _RETRY_SECONDS
            self._wake.wait(seconds)

    # -- claims of due deliveries -------------------------------------------------------------

    def _turn(self) -> float:
        """Store results and claim due deliveries; return the seconds until the next turn."""
        self._finish()
        if self._stopped or len(self._claims) >= _CAPACITY:
            return _POLL_SECONDS
        self._start_workers()
        if self._due or self._look_at <= self._clock():
            self._due = False
            self._look_at = self._clock() + _RETRY_SECONDS  # in case the claim fails
            self._look_at = self._clock() + self._claim()
        seconds = max(0.0, self._look_at - self._clock())
        return min(seconds, _RETRY_SECONDS) if self._under_way and not self._workers else seconds

    def _claim(self) -> float:
        limit = min(_BATCH, _CAPACITY - len(self._claims))
        now, at = self._store.now(), self._clock()
        records = self._store.claim_due(now + timedelta(seconds=self._lease), limit)
        for record in records:
            try:
                self._begin_claim(record, at + self._lease - 1.5 * self._options.timeout, now)
            except Exception:  # such a record must not block other records
                log.exception("%s: its webhooks cannot be sent now", record.name)
        if len(records) == limit:
            return 0.0
        due = self._store.next_due()
        if due is None:
            return _POLL_SECONDS
        seconds = (due - self._store.now()).total_seconds()
        if seconds <= 0 and not records:  # another process has locked the record
            return _RETRY_SECONDS
        return min(_POLL_SECONDS, max(0.0, seconds))

    def _begin_claim(self, record: Record, send_by: float, now: datetime) -> None:
        deliveries = Deliveries.of(record.notify)
        pending, failed = dict(deliveries.pending or {}), list(deliveries.failed)
        claim = _Claim(record, deliveries, send_by, pending, failed)
        found = {one.id: one for one in (*deliveries.start_endpoints, *self._endpoints)}
        if deliveries.pending is None:
            wanted = [id for id, one in found.items() if is_subscribed(one, record, self._renamed)]
            claim.pending = {id: PendingDelivery(0, now) for id in wanted}
            if self._options.lookup is not None:
                claim.pending[LOOKUP] = PendingDelivery(0, now)
        due = {id: delivery for id, delivery in claim.pending.items() if delivery.at <= now}
        if self._options.lookup is not None and not due.keys() <= found.keys():
            found = self._with_lookup(claim, due, found, now)
        for id, delivery in due.items():
            if id in found:
                self._enqueue(claim, found[id], delivery, now)
            elif id in claim.pending and claim.pending[id].at <= now:
                self._defer(claim, id, delivery, now)
        if claim.sending:
            self._claims.add(claim)
        else:
            self._settle(claim, now)

    def _defer(
        self,
        claim: _Claim,
        id: str,
        delivery: PendingDelivery,
        now: datetime,
        endpoint: Endpoint | None = None,
        why: str = "no process knows this endpoint",
    ) -> None:
        """Leave a delivery to processes of another release, which may know its endpoint.

        The pause grows with the time for which the delivery has been pending. After the time of the
        whole schedule, the delivery is abandoned. If ``lookup`` no longer returns the endpoint, the
        delivery is dropped.
        """
        record = claim.record
        if endpoint is None and delivery.looked_up and self._options.lookup is not None:
            line = "%s: the endpoint %s no longer exists"
            log.info(line, record.name, id, extra=about(record.name, record.method))
            del claim.pending[id]
            return
        age = (now - (delivery.since or record.end_time or now)).total_seconds()
        if age >= sum(self._options.schedule):
            self._give_up(claim, endpoint, id, why)
            return
        later = min(max(age / 4, _RETRY_SECONDS), _DEFER_SECONDS)
        claim.pending[id] = attrs.evolve(delivery, at=now + timedelta(seconds=later))

    def _with_lookup(
        self,
        claim: _Claim,
        due: dict[str, PendingDelivery],
        found: dict[str, Endpoint],
        now: datetime,
    ) -> dict[str, Endpoint]:
        record = claim.record
        try:
            given = contained("lookup", self._looked_up, record)
            checked = (self._rules.checked("endpoint", one) for one in given)
            fresh = {one.id: one for one in checked}
        except Exception as exc:
            line = "%s: the endpoints of its webhooks cannot be looked up: %s"
            facts = about(record.name, record.method)
            log.warning(line, record.name, type(exc).__name__, extra=facts, exc_info=exc)
            for id, delivery in due.items():
                if id not in found:
                    self._fail(claim, None, id, delivery, 0.0, now)
            return found
        if claim.pending.pop(LOOKUP, None) is not None:
            for id, one in fresh.items():
                if id not in claim.pending and is_subscribed(one, record, self._renamed):
                    claim.pending[id] = due[id] = PendingDelivery(0, now, looked_up=True)
            due.pop(LOOKUP, None)
        return {**fresh, **found}

    def _looked_up(self, record: Record) -> Sequence[Endpoint]:
        assert self._options.lookup is not None
        shown = full_operation(record, self._renamed)
        return [*self._options.lookup(shown, record.caller)]  # ``lookup`` may return a generator

    # -- requests -----------------------------------------------------------------------------

    def _enqueue(
        self, claim: _Claim, endpoint: Endpoint, delivery: PendingDelivery, now: datetime
    ) -> None:
        try:
            endpoint = self._rules.with_secrets("endpoint", endpoint)
        except InvalidArgument as exc:  # processes of another release may allow the endpoint
            self._defer(claim, endpoint.id, delivery, now, endpoint, f"it cannot be called: {exc}")
            return
        at = self._clock()
        paused_until = self._paused_until.get(endpoint.url, 0.0)
        if paused_until > at:
            due = now + timedelta(seconds=paused_until - at)
            claim.pending[endpoint.id] = attrs.evolve(delivery, at=due)
            return
        name = httpx.URL(endpoint.url).host
        host = self._hosts.setdefault(name, _Host())
        # Defer at most by the delivery's age: the host may be quicker than was measured.
        age = (now - (claim.record.end_time or now)).total_seconds()
        longest = min(max(age, _RETRY_SECONDS), _DEFER_SECONDS)
        later = host.pace.defer(len(host.waiting), len(host.waiting), at, longest)
        if later is None and not host.fast:
            later = self._slow_hosts.defer(host, claim.record.caller, at, longest)
        if later is not None:
            claim.pending[endpoint.id] = attrs.evolve(delivery, at=now + timedelta(seconds=later))
            return
        claim.sending += 1
        one = _Attempt(claim, endpoint, delivery, name, slow=not host.fast)
        host.waiting.append(one)
        if one.slow:
            self._slow_hosts.wait(one.caller, 1)
        self._send_next(host)

    def _send_next(self, host: _Host) -> None:
        slow_hosts = self._slow_hosts
        if host.busy or not host.waiting or self._stopped:
            return
        if not host.fast and not slow_hosts.has_room(host.waiting[0].caller):
            if not host.queued:
                host.queued = True
                slow_hosts.queue.append(host)
            return
        one, at = host.waiting.popleft(), self._clock()
        if one.slow:
            slow_hosts.wait(one.caller, -1)
        one.slow = not host.fast
        if one.slow:
            slow_hosts.move(one.caller, 1, at)
        host.busy, host.pace.began = True, at
        self._under_way += 1
        self._todo.put(one)
        self._start_workers()

    def _free_host(self, one: _Attempt) -> None:
        """Measure an ended request, and send the next requests to its host and to slow hosts."""
        host, slow_hosts = self._hosts[one.host], self._slow_hosts
        host.busy, host.pace.began = False, None
        if one.slow:
            slow_hosts.move(one.caller, -1, self._clock())
        if one.reply is not None:
            host.pace.measure(one.seconds)
            host.failed = not one.reply.status
            host.fast = not host.failed and host.pace.seconds < _FAST_SECONDS
            if one.slow:
                slow_hosts.pace.measure(one.seconds / slow_hosts.room)
        while not self._stopped and (following := slow_hosts.pop()) is not None:
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
            except RuntimeError as exc:  # too many threads; the next turn tries again
                log.warning("webhooks are sent by %d threads: %s", len(self._workers), exc)
                return
            self._workers.append(thread)

    def _work(
        self, todo: queue.SimpleQueue[_Attempt | None], done: queue.SimpleQueue[_Attempt]
    ) -> None:
        while (one := todo.get()) is not None:
            began = time.monotonic()
            try:
                if self._clock() < one.claim.send_by and not self._stopped:
                    one.reply = self._sent(one)
            except BaseException as exc:  # a format function of the application may raise anything
                one.reply = WebhookReply(0, f"it cannot be made: {type(exc).__name__}")
                log.exception("%s: its webhook cannot be made", one.claim.record.name)
            one.seconds = time.monotonic() - began
            done.put(one)
            self._wake.set()

    def _sent(self, one: _Attempt) -> WebhookReply:
        record, endpoint = one.claim.record, one.endpoint
        kind = event_of(record)
        event = WebhookEvent(
            webhook_id(record.name, kind, endpoint.id), kind, record.end_time or record.update_time
        )
        shown = full_operation(record, self._renamed)
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
            self._free_host(one)
            now = self._store.now()
            if one.reply is not None and not (self._stopped and not one.reply.status):
                self._record_reply(one, one.reply, now)
            one.claim.sending -= 1
            if not one.claim.sending:
                self._settle(one.claim, now)

    def _record_reply(self, one: _Attempt, reply: WebhookReply, now: datetime) -> None:
        claim, endpoint, record = one.claim, one.endpoint, one.claim.record
        facts = about(record.name, record.method)
        if reply.success:
            log.debug("%s: its webhook to %s was sent", record.name, endpoint.id, extra=facts)
            del claim.pending[endpoint.id]
            return
        if reply.status == _GONE_STATUS:
            line = "%s: its webhook to %s was refused for good: %s"
            log.info(line, record.name, endpoint.id, reply, extra=facts)
            del claim.pending[endpoint.id]
            self._disable(claim, endpoint, GONE)
            return
        line = "%s: its webhook to %s failed: %s"
        log.info(line, record.name, endpoint.id, reply, extra=facts)
        later = retry_after(reply.status, reply.retry_after, now)
        if later:
            while len(self._paused_until) >= _HOSTS:
                del self._paused_until[next(iter(self._paused_until))]
            self._paused_until[endpoint.url] = self._clock() + later
        self._fail(claim, endpoint, endpoint.id, one.delivery, later, now)

    def _fail(
        self,
        claim: _Claim,
        endpoint: Endpoint | None,
        id: str,
        delivery: PendingDelivery,
        later: float,
        now: datetime,
    ) -> None:
        attempts = delivery.attempts + 1
        pause = pause_before(attempts, self._options.schedule, self._options.random())
        if pause is None:
            self._give_up(claim, endpoint, id, f"it failed {attempts} times")
        else:
            at = now + timedelta(seconds=max(pause, later))
            claim.pending[id] = attrs.evolve(delivery, attempts=attempts, at=at)

    def _give_up(self, claim: _Claim, endpoint: Endpoint | None, id: str, why: str) -> None:
        record = claim.record
        line = "%s: its webhook to %s is abandoned: %s"
        facts = about(record.name, record.method)
        log.warning(line, record.name, id or "the endpoints of lookup", why, extra=facts)
        del claim.pending[id]
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
        after = attrs.evolve(claim.deliveries, pending=claim.pending, failed=tuple(claim.failed))
        due = after.next_due

        def change(present: Record) -> Record | None:
            left = after.with_endpoints(Deliveries.of(present.notify).endpoints)  # some may be gone
            return settle_notifications(record, left.to_text(), left.next_due)(present)

        try:
            self._store.update(record.name, change)
        except (LeaseLost, OperationNotFound) as exc:  # claimed by another process, or deleted
            log.debug("%s: the results of its webhooks are not stored: %s", record.name, exc)
        except Unavailable as exc:  # the webhooks are sent again with the same ids
            line = "%s: the results of its webhooks cannot be stored: %s"
            log.warning(line, record.name, exc, extra=about(record.name, record.method))
        if due is not None:
            self._look_at = min(
                self._look_at, self._clock() + max(0.0, (due - now).total_seconds())
            )


def signed_headers(
    id: str, now: datetime, content_type: str, body: bytes, secrets: tuple[str, ...]
) -> dict[str, str]:
    """Return the headers of a webhook (Standard Webhooks 1.0.0), signed if there are secrets."""
    timestamp = int(now.timestamp())
    signed = [id, str(timestamp)]
    if secrets:
        signed.append(sign_webhook(body, id=id, timestamp=timestamp, secrets=secrets))
    headers = {"Content-Type": content_type, "User-Agent": "lro-webhooks"}
    return headers | dict(zip(WEBHOOK_HEADERS, signed, strict=False))
