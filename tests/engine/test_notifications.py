"""Pending notifications of ended operations, and the service's calls to their sender."""

from __future__ import annotations

import json
import logging

import pytest

from lro import AnyMessage, Code, DeclarationError, InvalidArgument, Service, State, StatusError
from lro.errors import Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.testing._samples import held, insert
from lro.webhooks import Endpoint
from tests.engine.engine_parts import ID, declared, once, raising
from tests.recording_notifier import RecordingNotifier
from tests.service_steps import WORK, Step, ended, recovered, work
from tests.waiting import until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

ENDPOINT = Endpoint(url="https://hooks.acme.test/done", secrets=("whsec_c2VjcmV0",))
META = AnyMessage("type.googleapis.com/acme.v1.WorkMetadata", {})


def pending(store, name):
    record = store.get(name)
    assert record.done
    assert record.notify_at in (None, record.end_time)
    return record.notify_at is not None


def raised(service, store, clock):
    def body(request, job):
        raise StatusError(Code.ABORTED, "it fails")

    return ended(service, work(service, body).start(WorkRequest())).name


def withdrawn(service, store, clock):
    step = Step()
    method = work(service, step)
    method.start(WorkRequest())
    step.reached()
    waiting = method.start(WorkRequest()).name
    service.cancel(waiting)
    step.go.set()
    return ended(service, waiting).name


def lost(service, store, clock):
    work(service, at_most_once=True)
    insert(store, held(clock, method=WORK, owner="dead", attempt=1, metadata=META))
    clock.advance(60)
    recovered(service, clock)
    return "operations/a"


ENDS = {raised: State.FAILED, withdrawn: State.CANCELLED, lost: State.FAILED}


@pytest.mark.parametrize(("end", "state"), ENDS.items(), ids=[end.__name__ for end in ENDS])
def test_each_end_has_a_pending_notification(store, make_service, clock, end, state):
    """A pending notification is stored with the operation's end, and then the notifier is woken."""
    notifier = RecordingNotifier()
    name = end(make_service(store, ThreadExecutor(1), webhooks=notifier), store, clock)
    assert store.get(name).state is state
    assert pending(store, name)
    assert store.next_due() is not None
    until(lambda: "wake" in notifier.calls)


def test_reporter_end_has_a_pending_notification(store, make_service):
    """Each way in which a reporter ends an operation notifies. A second end changes nothing."""
    notifier = RecordingNotifier()
    service = make_service(store, webhooks=notifier)
    method = declared(service)
    ends = (
        lambda reporter: reporter.complete(WorkResponse()),
        lambda reporter: reporter.fail(StatusError(Code.INTERNAL, "broken")),
        lambda reporter: reporter.finish(),
        lambda reporter: reporter.acknowledge_cancel(),
    )
    for end in ends:
        name = method.start(WorkRequest()).name
        reporter = service.reporter(name)
        assert reporter.report(WorkMetadata(5))
        service.cancel(name)
        assert store.get(name).notify_at is None
        assert end(reporter)
        assert pending(store, name)
        assert notifier.calls.pop() == "wake"
        before = store.get(name)
        assert not reporter.finish()
        service.cancel(name)
        assert store.get(name) == before


def test_notifier_selects_the_ends_to_notify(store, make_service):
    """The notifier gets the ended record. If it wants no notification, it is not woken."""
    notifier = RecordingNotifier(lambda record: record.state is State.FAILED)
    service = make_service(store, InlineExecutor(), webhooks=notifier)

    def body(request, job):
        if request.text:
            raise StatusError(Code.ABORTED, request.text)

    method = work(service, body)
    assert not pending(store, method.start(WorkRequest()).name)
    assert notifier.calls == []
    assert pending(store, method.start(WorkRequest("fails")).name)
    assert notifier.calls == ["wake"]


def test_delete_is_logged_with_caller_and_pending_webhooks(store, make_service, caplog):
    """The log line of a delete names the caller but not the URLs of pending webhooks."""
    caplog.set_level(logging.INFO, "lro")
    service = make_service(store, InlineExecutor(), webhooks=RecordingNotifier())
    method = work(service)
    name = method.start(WorkRequest(), notify=[ENDPOINT]).name
    service.delete(name, caller="ann")
    (line,) = [r for r in caplog.records if "deleted" in r.getMessage()]
    text = f"{name}: deleted by ann, with its pending webhooks"
    assert line.getMessage() == text
    assert line.levelno == logging.INFO
    assert vars(line)["lro.operation"] == name
    assert store.next_due() is None


def test_a_start_keeps_its_endpoints(store, make_service):
    """Webhook endpoints of a start are stored in the record but not shown to callers."""
    service = make_service(store, InlineExecutor(), webhooks=RecordingNotifier())
    method = work(service)
    name = method.start(WorkRequest(), notify=(ENDPOINT,)).name
    assert store.get(name).notify == json.dumps([ENDPOINT.url])
    assert ENDPOINT.url not in repr(service.get(name, view="FULL").description)
    operation = service.start(method.full_name, WorkRequest(), notify=[ENDPOINT])
    assert store.get(operation.name).notify == json.dumps([ENDPOINT.url])
    for none in ((), []):
        assert store.get(method.start(WorkRequest(), notify=none).name).notify == ""
    first = method.start(WorkRequest(), request_id=ID, notify=[ENDPOINT])
    assert method.start(WorkRequest(), request_id=ID).name == first.name  # the endpoints stay
    assert store.get(first.name).notify == json.dumps([ENDPOINT.url])


@pytest.mark.parametrize("wrong", ["https://hooks.acme.test", [1], None, 5])
def test_invalid_endpoint_is_refused(store, make_service, wrong):
    """An invalid endpoint is refused, even by a service without webhooks, and nothing is stored."""
    notifier = RecordingNotifier()
    for webhooks in (notifier, None):
        method = work(make_service(store, InlineExecutor(), webhooks=webhooks))
        with pytest.raises(InvalidArgument) as refused:
            method.start(WorkRequest(), notify=wrong)
        assert refused.value.field == "notify"
    with pytest.raises(InvalidArgument, match="the service sends no webhooks"):
        method.start(WorkRequest(), notify=[ENDPOINT])  # nobody would ever send the webhook
    assert list(store.page("", None, 9).records) == []
    assert method.start(WorkRequest(), notify=[]).operation.done


def test_refused_store_leaves_no_executor_or_exit_handler():
    """If the notifier refuses the store, the constructor raises and leaves no exit handler."""
    executor, notifier = InlineExecutor(), RecordingNotifier()
    once(notifier, "attach", raising(DeclarationError("store", "keeps no outbox")))
    with pytest.raises(DeclarationError, match="keeps no outbox"):
        Service(MemoryStore(), executor, webhooks=notifier)
    with Service(MemoryStore(), executor, webhooks=notifier) as service:
        assert work(service).start(WorkRequest()).operation.done


def test_the_thread_begins_and_ends_with_that_of_maintenance():
    """The notifier's thread begins once, at the first use, and stops before the store closes."""
    notifier, store = RecordingNotifier(), MemoryStore()
    store.close = lambda: notifier.calls.append("store closed")
    service = Service(store, ThreadExecutor(1), webhooks=notifier)
    method = work(service)
    assert notifier.calls == []
    ended(service, method.start(WorkRequest()))
    service.edges.start_maintenance()
    service.close()
    assert notifier.calls == ["begin", "wake", "stop", "store closed"]


def test_notifier_thread_is_retried_if_it_cannot_start(caplog):
    """If the notifier's thread cannot start, a later call of the service tries again."""
    notifier = RecordingNotifier()
    once(notifier, "begin", raising(RuntimeError("can't start new thread")), after=True)
    with Service(MemoryStore(), InlineExecutor(), webhooks=notifier) as service:
        assert "leases are not renewed now" in caplog.text
        work(service).start(WorkRequest())
        work(service, name="acme.v1.Works.Other").start(WorkRequest())
    assert notifier.calls == ["begin", "begin", "wake", "wake", "stop"]


def test_run_maintenance_sends_due_notifications(make_service):
    notifier = RecordingNotifier()
    service = make_service(webhooks=notifier)
    usual = service.run_maintenance()
    notifier.due_in = usual / 2
    assert service.run_maintenance() == usual / 2
    assert notifier.calls == ["run_due", "run_due"]


def test_notifier_stops_even_if_other_parts_fail(make_service):
    """If stopping the change listener raises, the notifier's thread still ends."""
    notifier = RecordingNotifier()
    service = make_service(webhooks=notifier)
    service.edges.background.change_listener.stop = raising(Unavailable("the connection is lost"))
    with pytest.raises(Unavailable):
        service.close()
    assert notifier.calls == ["stop"]
