"""The state table: each cell, and how each change affects a record."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import attrs
import pytest

from lro import AnyMessage, Code, InvalidArgument, Operation, State, Status
from lro._model.operation import (
    TRANSITIONS,
    Event,
    claim,
    delete,
    end,
    lose,
    next_state,
    release,
    report,
    request_cancel,
    with_derived,
    withdraw,
)
from lro.adapters import Record
from lro.errors import CancellationNotRequested, LeaseLost, NotApplied, OperationNotFound
from lro.testing import START as NOW

LATER = NOW + timedelta(seconds=30)
DAY = timedelta(days=1)
DONE = AnyMessage("x/a.Done", {})
META = AnyMessage("x/a.Meta", {})
ABORTED = Status(Code.ABORTED, "lost")


def record(**fields):
    return Record(
        name="operations/a", parent="", method="M", create_time=NOW, update_time=NOW, **fields
    )


def finish(result, **options):
    return end(result, now=LATER, keep_for=DAY, **options)


CHANGES = {
    Event.CLAIM: claim("us", LATER, NOW),
    Event.RELEASE: release(0, LATER),
    Event.REPORT: report(META, None, LATER),
    Event.REQUEST_CANCEL: request_cancel(LATER),
    Event.COMPLETE: finish(DONE),
    Event.FAIL: finish(ABORTED),
    Event.ACKNOWLEDGE_CANCEL: finish(Status(Code.CANCELLED, ""), acknowledge=True),
    Event.DELETE: delete(LATER),
    Event.HIDE: delete(LATER),
}


@pytest.mark.parametrize("state", State)
def test_event_without_an_entry_in_the_state_table_is_refused(state):
    """An event without an entry in the state table is refused."""
    for event in Event:
        wanted = TRANSITIONS[state].get(event)
        one = record(state=state)
        if wanted is not None:
            assert next_state(one, event, NOW) is wanted
            continue
        with pytest.raises((NotApplied, OperationNotFound)) as caught:
            next_state(one, event, NOW)
        by_caller = event in (Event.REQUEST_CANCEL, Event.DELETE, Event.HIDE)
        unseen = state in (State.HIDDEN, State.GONE)
        assert (type(caught.value) is OperationNotFound) is (by_caller and unseen)


@pytest.mark.parametrize(("state", "event"), list(product(State, CHANGES)))
def test_change_moves_the_record_by_the_state_table_or_is_refused(state, event):
    """A change moves the record to the state in the table, or is refused."""
    target = "t" if event is Event.HIDE else ""
    due = NOW if event is Event.CLAIM else None
    asked = event is Event.ACKNOWLEDGE_CANCEL
    one = record(state=state, target=target, cancel_requested=asked, lease_until=due)
    if event is Event.HIDE and state.done:
        event = Event.DELETE  # an operation that is done holds no target
    wanted = TRANSITIONS[state].get(event)
    if wanted is None:
        with pytest.raises((NotApplied, OperationNotFound)):
            CHANGES[event](one)
        return
    changed = CHANGES[event](one)
    assert (State.GONE if changed is None else changed.state) is wanted
    if changed is not None and changed is not one:
        assert changed.version == one.version + 1


def test_done_states_have_no_successor():
    for state in State:
        ways = set(TRANSITIONS[state].values()) - {state}
        assert state.done is (state in (State.SUCCEEDED, State.FAILED, State.CANCELLED))
        assert not state.done or ways == {State.GONE}


def test_end_sets_result_times_and_metadata_in_one_change():
    """One change sets result, times and metadata, and removes the owner (spec §2.2)."""
    one = record(owner="us", lease_until=LATER, attempt=2, target="t")
    changed = finish(DONE, attempt=2, metadata=META)(one)
    assert changed == attrs.evolve(
        one,
        state=State.SUCCEEDED,
        result=DONE,
        metadata=META,
        owner="",
        lease_until=None,
        update_time=LATER,
        end_time=LATER,
        expire_time=LATER + DAY,
        version=2,
    )
    assert (changed.done, changed.response, changed.error) == (True, DONE, None)
    operation = Operation(name="operations/a", metadata=META, done=True, result=DONE)
    assert changed.operation == operation


def test_result_decides_the_final_state():
    """An error's code decides the final state (§2.1). A worker may cancel its operation (§2.3)."""
    for result, state in (
        (DONE, State.SUCCEEDED),
        (None, State.SUCCEEDED),
        (ABORTED, State.FAILED),
        (Status(Code.CANCELLED, "self"), State.CANCELLED),
    ):
        changed = finish(result)(record(metadata=META))
        assert (changed.state, changed.metadata) == (state, META)
        assert changed.operation.state == state.value
        assert changed.error == (result if isinstance(result, Status) else None)


@pytest.mark.parametrize("code", [0, 17, -1, 404])
def test_error_with_an_invalid_code_is_refused(code):
    """Only codes from 1 to 16 are accepted, and a refusal changes nothing (spec §2.3)."""
    with pytest.raises(InvalidArgument, match="from 1 to 16"):
        finish(Status(code, ""))


def test_cancellation_without_a_cancel_request_is_refused():
    """A worker cannot acknowledge a cancellation that nobody requested (spec §2.3)."""
    acknowledge = finish(Status(Code.CANCELLED, ""), acknowledge=True)
    with pytest.raises(CancellationNotRequested, match="no caller asked"):
        acknowledge(record())
    assert acknowledge(record(cancel_requested=True)).state is State.CANCELLED
    assert acknowledge(record(state=State.HIDDEN, cancel_requested=True)) is None


@pytest.mark.parametrize(
    "change",
    [report(META, 1, LATER), release(1, LATER), lose(1, NOW, LATER), finish(None, attempt=1)],
)
def test_a_stale_attempt_writes_nothing(change):
    """A write of an attempt that has lost its lease is refused because of its attempt number."""
    with pytest.raises(LeaseLost, match="attempt 1 lost its lease to attempt 2"):
        change(record(attempt=2))
    assert change(record(attempt=1)) is not None


def test_a_cancellation_is_marked_once():
    """A cancel that is repeated, or comes after the end, changes nothing (spec §2.6)."""
    marked = request_cancel(LATER)(record())
    assert (marked.cancel_requested, marked.update_time) == (True, LATER)
    assert request_cancel(LATER)(marked) is marked
    over = finish(DONE)(record())
    assert request_cancel(LATER)(over) is over


def test_claim_begins_a_new_attempt():
    """A second claim keeps the first start time and gives the lease to the new owner."""
    once = claim("us", LATER, NOW)(record(lease_until=NOW))
    assert (once.attempt, once.start_time, once.owner, once.waits) == (1, NOW, "us", False)
    back = release(1, LATER)(once)
    assert (back.owner, back.lease_until, back.lost_attempts, back.waits) == ("", NOW, 0, True)
    again = claim("them", LATER + DAY, NOW + timedelta(seconds=1))(back)
    assert (again.attempt, again.start_time, again.lease_until) == (2, NOW, LATER + DAY)


def test_only_waiting_records_are_claimed():
    """A record that has an owner, or whose work is done outside, cannot be claimed."""
    for fields in ({"owner": "them", "lease_until": NOW}, {"owner": "us", "lease_until": NOW}, {}):
        one = record(attempt=3, **fields)
        assert not one.waits
        with pytest.raises(LeaseLost, match="a worker holds attempt 3"):
            claim("us", LATER + DAY, LATER)(one)


def test_lost_worker_is_counted_and_the_work_waits_again():
    """The work of a lost worker waits again. Only the current attempt can be lost."""
    one = record(owner="them", lease_until=NOW, attempt=3, lost_attempts=1)
    lost = lose(3, LATER, NOW)(one)
    assert (lost.owner, lost.lease_until, lost.waits) == ("", LATER, True)
    assert (lost.lost_attempts, lost.attempt, lost.version) == (2, 3, 2)
    with pytest.raises(LeaseLost):
        lose(2, LATER, NOW)(one)


def test_cancelled_work_without_owner_ends_at_once():
    """Only work without an owner and with a cancel request is ended at once (spec §2.6)."""
    change = withdraw(Status(Code.CANCELLED, "stop"), NOW, DAY)
    waiting = record(owner="", lease_until=LATER, cancel_requested=True)
    assert change(waiting).state is State.CANCELLED
    with pytest.raises(CancellationNotRequested):
        change(record(owner="", lease_until=LATER))
    for other in ({"owner": "us", "lease_until": LATER}, {"owner": "", "lease_until": None}):
        with pytest.raises(LeaseLost):
            change(record(cancel_requested=True, **other))


def test_hidden_gone_and_expired_records_are_invisible():
    """A record becomes invisible exactly at its expiry (spec §9.4)."""
    assert record().visible(NOW + 1000 * DAY)
    expiring = finish(DONE)(record())
    assert expiring.visible(LATER + DAY - timedelta(microseconds=1))
    assert not expiring.visible(LATER + DAY)
    for change in (request_cancel(LATER + DAY), delete(LATER + DAY)):
        with pytest.raises(OperationNotFound):
            change(expiring)
    assert not record(state=State.HIDDEN).visible(NOW)
    assert not record(state=State.GONE).visible(NOW)


def test_derived_metadata_is_set_with_the_change():
    """Derived metadata is set in the same step as a change, and only if the record changes."""
    other = AnyMessage("x/a.Meta", {"a": 1})

    def stamp(changed):
        return changed.with_metadata(other)

    assert with_derived(report(META, None, NOW), stamp)(record()).metadata == other
    assert with_derived(delete(NOW), stamp)(record()) is None
    over = finish(DONE)(record())
    assert with_derived(request_cancel(NOW), stamp)(over) is over
    one = record(metadata=META)
    assert one.with_metadata(META) is one
