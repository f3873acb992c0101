"""Delivery of webhooks: requests, retries, and deliveries that are deferred or abandoned."""

from __future__ import annotations

import functools
import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import attrs
import pytest

import lro
from lro import Operation
from lro.adapters import OutboxStore, Record, Store, keeps_outbox
from lro.errors import OperationNotFound, Unavailable
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.webhooks import Endpoint, EndpointDisabled, WebhookEvent, generate_secret, verify
from tests.client.sockets import serving
from tests.services.postgres import shared_server
from tests.waiting import joined, threads_from_now, until
from tests.webhooks import receivers
from tests.webhooks.hooked import METHOD, OTHER, SECRET, Here, end, endpoint, webhooks
from tests.webhooks.receivers import PATIENCE, Received, Reply, loopback, receiver
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

on_all_stores = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)


def payload(got: Received) -> Any:
    """Return the JSON of a received body."""
    return json.loads(got.body)


def outbox(store: Store) -> OutboxStore:
    """Return the store, typed as one that keeps pending deliveries."""
    assert keeps_outbox(store)
    return store


@on_all_stores
def test_end_of_an_operation_is_sent_once(store: Store, here: Here) -> None:
    with receiver() as good:
        service, sends = here.serve([endpoint(good.url)], store=store)
        name = end(service)
        assert sends.pending_of(name) == {"": 0}
        service.run_maintenance()
        got = good.next()
        assert sends.pending_of(name) == {}
        service.run_maintenance()
        assert good.all() == []
    assert payload(got) == {
        "type": "operation.succeeded",
        "timestamp": "2030-01-01T00:00:00.000Z",
        "data": {"name": name, "method": METHOD, "done": True},
    }
    assert got.headers["content-type"] == "application/json"
    signed = verify(got.body, got.headers, [SECRET], now=here.clock().timestamp())
    assert signed.timestamp == here.clock().timestamp()
    assert outbox(store).next_due() is None
    assert next(iter(store.find([name]).records)).notify == ""


@on_all_stores
def test_service_that_is_opened_again_sends_webhooks(store: Store, here: Here) -> None:
    """The threads of each start deliver the webhooks of the operations that end then."""
    with receiver() as good:
        sends = webhooks(here.clock, [endpoint(good.url)])
        service = here.make_service(store, InlineExecutor(), webhooks=sends, maintenance=True)

        @service.method(METHOD)
        def work(request: WorkRequest) -> WorkResponse:
            return WorkResponse()

        for _ in range(3):
            with service:
                name = end(service)
                assert payload(good.next())["data"]["name"] == name
        assert good.all() == []


def test_type_of_the_event_is_that_of_the_end(here: Here) -> None:
    with receiver() as good:
        service, _ = here.serve([endpoint(good.url)])
        for text, event in (("", "succeeded"), ("fail", "failed"), ("cancel", "cancelled")):
            end(service, text)
            service.run_maintenance()
            assert payload(good.next())["type"] == f"operation.{event}"


def test_endpoints_get_only_the_events_and_methods_that_they_want(here: Here) -> None:
    with receiver() as failures, receiver() as others:
        service, _ = here.serve(
            [
                endpoint(failures.url, events=("operation.failed",)),
                endpoint(others.url, methods=(OTHER,)),
            ]
        )
        quiet = end(service)
        assert next(iter(service.store.find([quiet]).records)).notify_at is None
        failed, other = end(service, "fail"), end(service, method=OTHER)
        service.run_maintenance()
        assert [payload(one)["data"]["name"] for one in failures.all()] == [failed]
        assert [payload(one)["data"]["name"] for one in others.all()] == [other]


def test_endpoint_wants_a_method_by_its_new_name_or_by_an_old_one(here: Here) -> None:
    """An operation that was started under a method's old name is sent with the new name."""
    classes = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
    store = MemoryStore(here.clock)
    old = here.make_service(store).declare("acme.v1.Works.Old", **classes)
    name = old.start(WorkRequest()).name
    with receiver() as first, receiver() as second, receiver() as third:
        wanted = ((first, "acme.v1.Works.New"), (second, "acme.v1.Works.Old"), (third, OTHER))
        endpoints = [endpoint(one.url, methods=(method,)) for one, method in wanted]
        service, _ = here.serve(endpoints, store=store)
        options = lro.Options(aliases=("acme.v1.Works.Old",))
        service.declare("acme.v1.Works.New", **classes, options=options)
        assert service.reporter(name).complete(WorkResponse())
        service.run_maintenance()
        for one in (first, second):
            (got,) = one.all()
            assert payload(got)["data"]["method"] == "acme.v1.Works.New"
        assert third.all() == []


@on_all_stores
def test_failed_try_is_repeated_after_the_schedule_with_the_same_id(
    store: Store, here: Here
) -> None:
    with receiver(lambda _: Reply(500)) as bad:
        service, sends = here.serve([endpoint(bad.url, id="one")], store=store)
        name = end(service)
        assert 0 < service.run_maintenance() <= 5
        first = bad.next()
        assert sends.pending_of(name) == {"one": 1}
        here.clock.advance(4.9)
        service.run_maintenance()
        assert bad.all() == []
        here.clock.advance(0.1)
        service.run_maintenance()
        second = bad.next()
        assert sends.pending_of(name) == {"one": 2}
        bad.script = lambda _: Reply()
        here.clock.advance(300)
        service.run_maintenance()
        third = bad.next()
        assert sends.pending_of(name) == {}
    assert len({one.headers["webhook-id"] for one in (first, second, third)}) == 1
    assert first.body == third.body
    stamps = [int(one.headers["webhook-timestamp"]) for one in (first, second, third)]
    assert [stamps[1] - stamps[0], stamps[2] - stamps[1]] == [5, 300]
    verify(third.body, third.headers, [SECRET], now=here.clock().timestamp())


def test_delivery_that_fails_for_the_whole_schedule_is_reported_once(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    disabled: list[EndpointDisabled] = []
    with receiver(lambda _: Reply(500)) as bad:
        service, sends = here.serve([endpoint(bad.url, id="one")], on_disabled=disabled.append)
        name = end(service)
        with caplog.at_level(logging.INFO, "lro"):
            for _ in range(12):
                service.run_maintenance()
                here.clock.advance(24 * 3600)
        assert len(bad.all()) == 10
        assert sends.pending_of(name) == {"one": -1}
        assert [(one.reason, one.endpoint.url, one.name) for one in disabled] == [
            ("FAILING", bad.url, name)
        ]
        warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert [one.getMessage() for one in warnings] == [
            f"{name}: its webhook to one is abandoned: it failed 10 times"
        ]
        assert SECRET not in caplog.text
        bad.script = lambda _: Reply()
        sends.retry(name)
        service.run_maintenance()
        assert len(bad.all()) == 1
        assert sends.pending_of(name) == {}
        sends.retry(name)
        service.run_maintenance()
        assert bad.all() == []


def test_status_410_ends_the_delivery_and_reports_the_endpoint(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    disabled: list[EndpointDisabled] = []

    def fail(_: EndpointDisabled) -> None:
        raise RuntimeError("no mail today")

    def leave(_: EndpointDisabled) -> None:
        raise SystemExit

    with receiver(lambda _: Reply(410)) as gone:
        for on_disabled in (disabled.append, None, fail, leave):
            service, sends = here.serve([endpoint(gone.url)], on_disabled=on_disabled)
            name = end(service)
            for _ in range(2):
                service.run_maintenance()
                here.clock.advance(3600)
            assert len(gone.all()) == 1
            assert sends.pending_of(name) == {}
    assert [one.reason for one in disabled] == ["GONE"]
    assert f"{name}: on_disabled failed" in caplog.text


def test_retry_after_is_waited_for(here: Here) -> None:
    date = (here.clock() + timedelta(seconds=180)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    for header, seconds in ((date, 180), ("120", 120), ("1", 5)):
        with receiver(lambda _, header=header: Reply(429, {"retry-after": header})) as busy:
            service, _ = here.serve([endpoint(busy.url)])
            end(service)
            for pause, tries in ((0, 1), (seconds - 0.1, 0), (0.1, 1)):
                here.clock.advance(pause)
                service.run_maintenance()
                assert len(busy.all()) == tries


def test_retry_after_holds_for_other_operations_without_costing_them_a_try(here: Here) -> None:
    with receiver(lambda _: Reply(503, {"retry-after": "600"})) as busy:
        service, sends = here.serve([endpoint(busy.url, id="one")])
        first = end(service)
        service.run_maintenance()
        second = end(service)
        service.run_maintenance()
        assert len(busy.all()) == 1
        assert sends.pending_of(first) == {"one": 1}
        assert sends.pending_of(second) == {"one": 0}
        busy.script = lambda _: Reply()
        here.clock.advance(600)
        service.run_maintenance()
        assert len(busy.all()) == 2


def test_numbers_of_remembered_hosts_and_claims_are_bounded(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limits, hosts that asked for a pause are forgotten, and further deliveries wait."""
    monkeypatch.setattr("lro._webhooks.delivery._HOSTS", 1)
    with receiver(lambda _: Reply(503, {"retry-after": "600"})) as busy:
        service, _ = here.serve([endpoint(f"{busy.url}/{n}") for n in range(3)])
        for calls in (3, 2):
            end(service)
            service.run_maintenance()
            assert len(busy.all()) == calls
    monkeypatch.setattr("lro._webhooks.delivery._HOSTS", 0)
    monkeypatch.setattr("lro._webhooks.delivery._CAPACITY", 2)
    with receiver() as good:
        store, claimed = MemoryStore(here.clock), []
        claim_due = store.claim_due

        def claim(until: datetime, limit: int) -> Sequence[Record]:
            records = claim_due(until, limit)
            claimed.append(len(records))
            return records

        monkeypatch.setattr(store, "claim_due", claim)
        service, _ = here.serve([endpoint(good.url)], store=store)
        for _ in range(7):
            end(service)
        service.run_maintenance()
        assert len(good.all()) == 7
        assert max(claimed) == 2


# -- endpoints by lookup, and per start -----------------------------------------------------------


def test_lookup_function_gets_the_operation_and_its_caller(here: Here) -> None:
    asked: list[tuple[Operation, str]] = []
    with receiver() as good:

        def lookup(operation: Operation, caller: str) -> Sequence[Endpoint]:
            asked.append((operation, caller))
            return [endpoint(good.url), endpoint(good.url, id="x", events=("operation.failed",))]

        service, sends = here.serve(lookup=lookup)
        name = end(service, "t", caller="ann")
        service.run_maintenance()
        assert len(good.all()) == 1
    assert sends.pending_of(name) == {}
    ((operation, caller),) = asked
    assert (operation.name, operation.description.method, operation.state, caller) == (
        *(name, METHOD, "SUCCEEDED"),
        "ann",
    )
    assert operation.response is not None


def failing_lookups(found: Endpoint) -> Iterator[Callable[..., Any]]:
    """Yield lookups that fail once, each in another way, and then return the endpoint `found`."""

    def raises(_: Operation, __: str) -> Any:
        raise RuntimeError("away")

    def leaves_midway(_: Operation, __: str) -> Any:
        yield found
        raise SystemExit

    def gives_what_cannot_be_called(_: Operation, __: str) -> Any:
        return [Endpoint(url="ftp://x", secrets=(SECRET,))]

    for fails in (raises, leaves_midway, gives_what_cannot_be_called):
        given = iter((fails,))
        yield lambda *asked, given=given: next(given, lambda *_: [found])(*asked)


def test_failed_lookup_is_retried_and_delays_no_other_endpoint(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    with receiver() as static, receiver() as found:
        for lookup in failing_lookups(endpoint(found.url)):
            service, sends = here.serve([endpoint(static.url)], lookup=lookup)
            name = end(service)
            service.run_maintenance()
            assert (len(static.all()), len(found.all())) == (1, 0)
            assert sends.pending_of(name) == {"": 1}
            here.clock.advance(5)
            service.run_maintenance()
            assert (len(static.all()), len(found.all())) == (0, 1)
            assert sends.pending_of(name) == {}
    service, sends = here.serve(lookup=lambda *_: 1 / 0, schedule=(5.0,), on_disabled=print)
    name = end(service)
    for _ in range(3):  # all tries of the schedule
        service.run_maintenance()
        here.clock.advance(60)
    assert sends.pending_of(name) == {"": -1}
    assert "its webhook to the endpoints of lookup is abandoned" in caplog.text


def test_looked_up_endpoint_is_looked_up_again_for_the_next_try(here: Here) -> None:
    with receiver(lambda _: Reply(500)) as old, receiver() as new:
        given = [endpoint(old.url, id="one"), endpoint(old.url, id="two")]
        service, sends = here.serve(lookup=lambda operation, caller: given)
        name = end(service)
        service.run_maintenance()
        assert sends.pending_of(name) == {"one": 1, "two": 1}
        given[:] = [endpoint(new.url, id="one"), endpoint(new.url, id="three")]
        here.clock.advance(5)
        service.run_maintenance()
        assert len(new.all()) == 1
        assert sends.pending_of(name) == {}


@pytest.mark.parametrize("way", ["endpoints", "lookup"])
def test_event_for_an_endpoint_of_another_release_is_left_to_it(way: str, here: Here) -> None:
    """If one release lacks an endpoint or a lookup, another release makes the delivery."""
    store, answer = MemoryStore(here.clock), Reply(500)
    with receiver(lambda _: answer) as new:
        one = endpoint(new.url, id="new")
        option = {"endpoints": [one]} if way == "endpoints" else {"lookup": lambda *_: [one]}
        service, _ = here.serve(store=store, **option)
        name = end(service)
        service.run_maintenance()
        other, sends = here.serve(store=store)
        for seconds in (5, 1, 1, 600):
            here.clock.advance(seconds)
            other.run_maintenance()
            assert sends.pending_of(name) == {"new": 1}
        here.clock.advance(3600)
        answer = Reply(204)
        service.run_maintenance()
        assert sends.pending_of(name) == {}
        assert len(new.all()) == 2


def test_retried_event_is_left_to_a_release_that_knows_its_endpoint(here: Here) -> None:
    """A release without the endpoint leaves a retried delivery pending for another release."""
    store, answer = MemoryStore(here.clock), Reply(500)
    with receiver(lambda _: answer) as new:
        service, sends = here.serve(store=store, endpoints=[endpoint(new.url, id="new")])
        other, _ = here.serve(store=store)
        name = end(service)
        service.run_maintenance()
        here.clock.advance(10 * 24 * 3600)
        other.run_maintenance()
        assert sends.pending_of(name) == {"new": -1}
        sends.retry(name)
        for seconds in (0, 600):
            here.clock.advance(seconds)
            other.run_maintenance()
            assert sends.pending_of(name) == {"new": 0}
        here.clock.advance(3600)
        answer = Reply(204)
        service.run_maintenance()
        assert sends.pending_of(name) == {}


def test_event_for_an_unknown_endpoint_is_abandoned_after_the_schedule(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    """After the schedule, a delivery that no process can make is abandoned with a warning."""
    store = MemoryStore(here.clock)
    service, first = here.serve(store=store, lookup=lambda operation, caller: 1 / 0)
    name = end(service)
    service.run_maintenance()
    assert first.pending_of(name) == {"": 1}
    service, sends = here.serve(store=store)
    for _ in range(2):
        here.clock.advance(10 * 24 * 3600)
        service.run_maintenance()
    assert sends.pending_of(name) == {"": -1}
    assert "the endpoints of lookup is abandoned: no process knows this endpoint" in caplog.text


@on_all_stores
def test_endpoints_of_a_start_are_notified_of_its_end(store: Store, here: Here) -> None:
    with receiver() as good:
        service, _ = here.serve(secrets=[SECRET], store=store)
        one = Endpoint(url=good.url, headers={"Authorization": "Bearer x"}, methods=(METHOD,))
        end(service)
        end(service, "fail", notify=[Endpoint(url=good.url, events=("operation.succeeded",))])
        name = end(service, notify=[one])
        service.run_maintenance()
        (got,) = good.all()
    assert payload(got)["data"]["name"] == name
    assert got.headers["authorization"] == "Bearer x"
    verify(got.body, got.headers, [SECRET], now=here.clock().timestamp())
    assert next(iter(store.find([name]).records)).notify == ""


@pytest.mark.parametrize("standing", [("operation.succeeded",), ("operation.failed",)])
def test_endpoint_of_a_start_is_called_beside_one_of_the_same_url(
    here: Here, standing: tuple[str, ...]
) -> None:
    """A start's endpoint must not replace an endpoint of the application with the same URL."""
    with receiver() as good:
        always = endpoint(good.url, events=standing)
        service, _ = here.serve([always])
        own = generate_secret()
        end(service, notify=[Endpoint(url=good.url, secrets=(own,))])
        service.run_maintenance()
        got = good.all()
    signers = [own, SECRET] if "operation.succeeded" in standing else [own]
    assert len({one.headers["webhook-id"] for one in got}) == len(signers)
    for one, secret in zip(got, signers, strict=True):
        verify(one.body, one.headers, [secret], now=here.clock().timestamp())


def test_endpoint_that_options_refuse_is_left_to_others_until_the_schedule_is_over(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    """A delivery that a release refuses waits for other releases until the schedule is over."""
    store, disabled = MemoryStore(here.clock), list[EndpointDisabled]()
    service, _ = here.serve(store=store)
    name = end(service, notify=[endpoint("http://127.0.0.1:1/", id="one")])
    options: dict[str, Any] = {"allow_http": False, "on_disabled": disabled.append}
    service, strict = here.serve(store=store, **options)
    for seconds, attempts in ((0, 0), (60, 0), (10 * 24 * 3600, -1)):
        here.clock.advance(seconds)
        service.run_maintenance()
        assert strict.pending_of(name) == {"start.one": attempts}
        assert [one.reason for one in disabled] == ["FAILING"] * -attempts
    assert "must be an absolute https URL; allow_http=True allows http" in caplog.text


# -- bad receivers, bad stores --------------------------------------------------------------------


class Holding:
    """A raw receiver that counts the requests it takes, and never replies."""

    def __init__(self) -> None:
        self.taken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self, connection: Any, over: threading.Event) -> None:
        connection.recv(65_536)
        self.taken.put(None)
        over.wait(PATIENCE)


@pytest.fixture
def short_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the grace period for requests in progress when webhooks stop."""
    monkeypatch.setattr("lro._webhooks.delivery._STOP_SECONDS", 0.2)


@pytest.mark.usefixtures("short_stop")
@pytest.mark.parametrize("hosts", [1, 60])
def test_hanging_hosts_do_not_delay_one_that_answers(hosts: int, here: Here) -> None:
    """One host gets one connection, and all hosts of a domain get half of all connections."""
    holding = Holding()
    with receiver() as good, serving(holding) as slow:
        port = slow.rpartition(":")[2]
        service, sends = here.serve(
            [endpoint(good.url, methods=(OTHER,))], resolve=loopback, timeout=60.0, connections=4
        )
        names = [end(service, method=OTHER)]
        service.run_maintenance()
        urls = [f"http://h{number % hosts}.example.test:{port}" for number in range(60)]
        late = [end(service, notify=[endpoint(url, id="one")]) for url in urls]
        sends.begin()
        for _ in range(min(hosts, 2)):  # half of the connections if there are many hosts
            holding.taken.get(timeout=PATIENCE)
        names += [end(service, method=OTHER) for _ in range(5)]
        assert {payload(good.next())["data"]["name"] for _ in names} == {*names}
        sends.stop()
        assert holding.taken.empty()
    assert [sends.pending_of(name) for name in late] == [{"start.one": 0}] * len(late)


@pytest.mark.usefixtures("short_stop")
def test_hanging_hosts_of_one_caller_do_not_delay_those_of_another(here: Here) -> None:
    """While the hosts of one caller hang, a connection is kept for webhooks of other callers."""
    holding = Holding()
    with receiver() as good, serving(holding) as slow:
        port, fine = slow.rpartition(":")[2], good.url.rpartition(":")[2].partition("/")[0]
        service, sends = here.serve(resolve=loopback, timeout=60.0, connections=8)
        for number in range(60):
            hanging = endpoint(f"http://h{number}.example.test:{port}", id="one")
            end(service, caller="eve", notify=[hanging])
        prompt = endpoint(f"http://fine.example.test:{fine}", id="one")
        names = {end(service, caller="ann", notify=[prompt]) for _ in range(3)}
        sends.begin()
        assert {payload(good.next())["data"]["name"] for _ in names} == names
        sends.stop()


def test_hosts_that_wait_for_a_connection_are_called_in_turn(here: Here) -> None:
    with receiver() as good:
        service, _ = here.serve(connections=1, resolve=loopback)
        for host in ("a", "a", "b"):
            to = endpoint(f"http://{host}.example.test:{good.port}/{host}")
            end(service, notify=[to, attrs.evolve(to, id="again")])
        service.run_maintenance()
        assert {one.path for one in good.all()[:2]} == {"/a", "/b"}


@pytest.mark.parametrize("hosts", [1, 40])
def test_delivery_to_a_slow_host_is_deferred_in_the_store(
    hosts: int, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery to a slow host is deferred in the store, where it survives a process's death."""
    monkeypatch.setattr("lro._webhooks.delivery._WAITING", 20)
    hold = threading.Event()

    def script(_: Received) -> Reply:
        hold.wait(PATIENCE)
        return Reply()

    store = MemoryStore(here.clock)
    with receiver(script) as slow:
        service, sends = here.serve(store=store, resolve=loopback)
        urls = [f"http://h{number % hosts}.example.test:{slow.port}" for number in range(40)]
        names = [end(service, notify=[endpoint(url, id="one")]) for url in urls]
        thread = threading.Thread(target=service.run_maintenance)
        thread.start()

        def put_off() -> list[Any]:
            due = [one.notify_at for one in store.find(names).records]
            late = here.clock() + timedelta(seconds=30)
            return [at for at in due if at is not None and here.clock() < at < late]

        # all deliveries except the ones that are in progress or wait in memory
        moments = until(put_off, lambda found: len(found) >= 17)
        assert len({*moments}) == len(moments)
        hold.set()
        joined(thread)
        here.clock.advance(3600)
        service.run_maintenance()
        assert len(slow.all()) == len(names)
    assert [sends.pending_of(name) for name in names] == [{}] * len(names)


def test_receiver_that_does_not_answer_counts_as_a_failed_try(here: Here) -> None:
    with serving(receivers.hang) as url:
        service, sends = here.serve([endpoint(url, id="one")], timeout=0.3)
        name = end(service)
        service.run_maintenance()
        assert sends.pending_of(name) == {"one": 1}


def test_format_function_that_raises_counts_as_a_failed_try(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(operation: Operation, to: Endpoint, event: WebhookEvent) -> tuple[str, bytes]:
        raise SystemExit(1)

    service, sends = here.serve(
        [Endpoint(url="http://x/", id="x", format="own")], formats={"own": fail}
    )
    name = end(service)
    service.run_maintenance()
    assert sends.pending_of(name) == {"x": 1}
    assert f"{name}: its webhook cannot be made" in caplog.text


def test_custom_format_is_sent_unsigned_without_a_secret(here: Here) -> None:
    def own(operation: Operation, to: Endpoint, event: WebhookEvent) -> tuple[str, bytes]:
        return "text/plain", f"{operation.name} {to.id} {event.type}".encode()

    with receiver() as good:
        one = Endpoint(url=good.url, id="x", format="own", headers={"X-Token": "t"})
        service, _ = here.serve([one], formats={"own": own})
        name = end(service)
        service.run_maintenance()
        got = good.next()
    assert got.body.decode() == f"{name} x operation.succeeded"
    assert got.headers["content-type"] == "text/plain"
    assert got.headers["x-token"] == "t"
    assert got.headers["webhook-id"].startswith("op_")
    assert "webhook-signature" not in got.headers


def test_delivery_of_an_operation_deleted_meanwhile_is_dropped(here: Here) -> None:
    with receiver() as good:
        store = MemoryStore(here.clock)
        service, sends = here.serve([endpoint(good.url)], store=store)

        def script(_: Received) -> Reply:
            service.delete(name)
            return Reply(500)

        good.script = script
        name = end(service)
        service.run_maintenance()
        with pytest.raises(OperationNotFound):
            sends.pending_of(name)
    assert store.next_due() is None


def test_unreadable_record_does_not_block_other_deliveries(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    with receiver() as good:
        service, _ = here.serve([endpoint(good.url)])
        outside = service.declare("acme.v1.Works.Outside", request=lro.Empty, response=lro.Empty)
        for notify in ("{", "[]", '{"endpoints":[{"uri":""}]}'):
            name = outside.start(lro.Empty()).name
            change = functools.partial(Record.next_version, notify=notify)
            service.store.update(name, change)
            assert service.reporter(name).complete(lro.Empty())
        broken = end(service)
        service.store.update(broken, lambda record: record.next_version(notify="{"))
        other = end(service)
        service.run_maintenance()
        names = [payload(one)["data"]["name"] for one in good.all()]
        assert (broken in names, other in names) == (False, True)
    assert f"{broken}: its webhooks cannot be sent now" in caplog.text


def test_repr_of_a_record_hides_its_webhook_secrets(here: Here) -> None:
    service, _ = here.serve()
    name = end(service, notify=[endpoint("http://127.0.0.1/")])
    (record,) = service.store.find([name]).records
    assert SECRET in record.notify
    assert SECRET not in repr(record)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_locked_record_is_claimed_again_after_a_pause(store: Store, here: Here) -> None:
    """A due record that is locked is claimed again after a pause, so that no CPU stays busy."""
    import psycopg  # not every environment has psycopg

    with receiver() as good:
        service, sends = here.serve([endpoint(good.url)], store=store)
        end(service)
        schema = cast("Any", store).schema
        with psycopg.connect(shared_server().url) as other:
            cast("Any", other).execute(f'SELECT 1 FROM "{schema}".lro_operations FOR UPDATE')
            assert sends.run_due() == 1.0
            other.rollback()
        assert sends.run_due() > 1.0
        assert len(good.all()) == 1


class AwayStore(MemoryStore):
    """A store whose methods fail when the test says so."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away: set[str] = set()
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        if "update" in self.away:
            raise Unavailable("away")
        return super().update(name, change)

    def claim_due(self, until: Any, limit: int) -> Any:
        away = self.away
        self.asked.put("claim_due")  # the test changes `away` after this
        if "claim_due" in away:
            raise Unavailable("away")
        if "broken" in away:
            raise RuntimeError("broken")
        return super().claim_due(until, limit)


def test_deliveries_continue_after_an_outage_of_the_store(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    """A delivery whose result was not stored is sent again when its claim has expired."""
    store = AwayStore(here.clock)
    with receiver() as good:
        service, sends = here.serve([endpoint(good.url)], store=store)
        end(service)
        store.away = {"update"}
        service.run_maintenance()
        first = good.next()
        assert "cannot be stored: away" in caplog.text
        store.away = {"claim_due"}
        with pytest.raises(Unavailable):
            sends.run_due()
        while not store.asked.empty():
            store.asked.get()
        with caplog.at_level(logging.INFO, "lro"):
            sends.begin()
            sends.begin()
            for step in ({"claim_due"}, {"broken"}, set[str]()):
                store.away = step
                here.clock.advance(60)
                sends.wake()
                store.asked.get(timeout=PATIENCE)
            second = good.next()
        until(lambda: store.next_due() is None)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert "due deliveries cannot be read now: away" in caplog.text
    assert "sending webhooks failed and continues" in caplog.text


def test_record_claimed_by_another_process_is_left_to_it(here: Here) -> None:
    with receiver() as good:
        store = MemoryStore(here.clock)
        service, _ = here.serve([endpoint(good.url, id="one")], store=store)

        def script(_: Received) -> Reply:
            here.clock.advance(120)
            assert len(store.claim_due(here.clock() + timedelta(seconds=60), 10)) == 1
            return Reply()

        good.script = script
        name = end(service)
        service.run_maintenance()
        (record,) = store.find([name]).records
    assert record.notify_at == here.clock() + timedelta(seconds=60)


# -- start, stop and fork -------------------------------------------------------------------------


@pytest.mark.usefixtures("short_stop")
def test_close_releases_deliveries_in_progress_without_a_failed_try(here: Here) -> None:
    store, holding = MemoryStore(here.clock), Holding()
    with serving(holding) as url:
        service, sends = here.serve([endpoint(url, id="one")], timeout=60.0, store=store)
        sends.begin()
        names = [end(service) for _ in range(3)]
        holding.taken.get(timeout=PATIENCE)
        sends.stop()
        sends.stop()
        assert [sends.pending_of(name) for name in names] == [{"one": 0}] * 3
        assert store.next_due() == here.clock()
        sends.begin()
        assert sends.run_due() > 0


def test_close_lets_a_quick_receiver_finish(here: Here) -> None:
    taken, go = threading.Event(), threading.Event()

    def script(_: Received) -> Reply:
        taken.set()
        go.wait(PATIENCE)
        return Reply()

    with receiver(script) as good:
        service, sends = here.serve([endpoint(good.url)], timeout=60.0)
        sends.begin()
        name = end(service)
        assert taken.wait(PATIENCE)
        stopping = threading.Thread(target=sends.stop)
        stopping.start()
        go.set()
        joined(stopping)
    assert sends.pending_of(name) == {}


def test_forked_process_starts_without_claims_and_threads(here: Here) -> None:
    with receiver() as good:
        service, sends = here.serve([endpoint(good.url)])
        for _ in range(2):
            end(service)
            service.run_maintenance()
            good.next()
            sends.reset_after_fork()
        assert good.all() == []


@pytest.mark.usefixtures("short_stop")
def test_close_does_not_wait_for_a_lookup(here: Here) -> None:
    """After a close during a lookup, nothing is sent, and the delivery is still pending."""
    asked, go = threading.Event(), threading.Event()
    ours = threads_from_now("lro-webhook")

    def lookup(operation: Operation, caller: str) -> Sequence[Endpoint]:
        if asked.is_set():
            go.wait(PATIENCE)
        asked.set()
        return [endpoint(good.url, id="one")]

    with receiver() as good:
        service, sends = here.serve(lookup=lookup)
        sends.begin()
        end(service)
        good.next()  # the first request has started a thread
        name = end(service)
        until(ours, lambda found: len(found) == 2)
        sends.stop()
        go.set()
        until(ours, lambda found: not found)
        assert good.all() == []
    assert {*sends.pending_of(name).values()} == {0}


def test_delivery_waits_for_a_free_thread(
    here: Here, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, []

    def refuse_first(thread: threading.Thread) -> None:
        if thread.name == "lro-webhook" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_first)
    with receiver() as good:
        service, _ = here.serve([endpoint(good.url)])
        end(service)
        service.run_maintenance()
        assert len(good.all()) == 1
    assert "webhooks are sent by 0 threads" in caplog.text


def test_delivery_whose_claim_is_nearly_over_is_not_sent(here: Here) -> None:
    """A delivery is not sent if another process may claim it before the receiver replies."""

    def script(_: Received) -> Reply:
        here.clock.advance(59)
        return Reply()

    with receiver(script) as good:
        service, sends = here.serve([endpoint(good.url, id="one")])
        names = [end(service) for _ in range(3)]
        service.run_maintenance()
        assert len(good.all()) == 3
    assert [sends.pending_of(name) for name in names] == [{}] * 3
