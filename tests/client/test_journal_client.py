"""A client with a journal: what is noted when, and what a crash leaves, on both faces."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import respx

import lro
from lro_client import (
    CallError,
    DecodingError,
    Journal,
    JournalError,
    OperationFailed,
    OperationGone,
)
from lro_client._journal import observer
from lro_client._journal.observer import REPEATABLE
from lro_client.testing import VirtualClock as Clock
from tests.client.faces import AsyncFace, Awaited, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeMetadata,
    ResizeRequest,
    ResizeResponse,
    body_of,
    failed,
    packed,
    refusal,
    reply,
    running,
    succeeded,
)

TARGET = "/v1/images:resize"
REQUEST = ResizeRequest(source="a.png")
ID = str(uuid.UUID(int=7))
TOO_MANY = refusal(lro.Code.RESOURCE_EXHAUSTED, "too many")
AWAY = refusal(lro.Code.UNAVAILABLE, "away")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "pending.db") as made:
        yield made


def client_of(face: Face, journal: Journal, clock: Clock | None = None, **options: Any) -> Any:
    """A client of this face with the journal, in virtual time if that is given."""
    return face.client(journal=journal, clock=clock, **options)


def names_in(journal: Journal) -> list[str]:
    """The names that are pending."""
    return [one.name for one in journal.pending()]


def pending(face: Face, client: Any, types: Any = TYPES) -> list[Any]:
    """The handles of what is pending."""
    found = client.pending(**types)
    return [Awaited(face, one) if isinstance(face, AsyncFace) else one for one in found]


@contextlib.contextmanager
def held(journal: Journal) -> Iterator[None]:
    """Another process that writes, and does not come to an end with it."""
    connection = sqlite3.connect(journal.path, isolation_level=None, check_same_thread=False)
    with contextlib.closing(connection) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def test_the_life_of_a_start(face: Face, server: respx.Router, journal: Journal) -> None:
    """On disk before it is sent, with its name after, until the result is taken."""
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.extend(journal.pending())
        return reply(running())

    server.post(TARGET).mock(side_effect=answer)
    server.route().mock(return_value=reply(succeeded()))
    handle = client_of(face, journal).start(TARGET, REQUEST, **TYPES)
    assert [(one.target, one.name) for one in seen] == [(TARGET, "")]
    assert names_in(journal) == [NAME]
    assert handle.operation == lro.Operation(name=NAME)
    assert handle.result() == ResizeResponse(size_bytes=7)
    assert journal.pending() == []


def test_a_validation_is_not_noted(face: Face, server: respx.Router, journal: Journal) -> None:
    """It starts nothing (spec §9.7)."""
    server.post(TARGET).mock(return_value=reply({"done": True}))
    handle = client_of(face, journal).start(TARGET, REQUEST, **TYPES, validate_only=True)
    assert handle.result() is None
    assert journal.pending() == []


@attrs.frozen
class Plain:
    """A message class without a full name."""

    source: str = "a.png"


@pytest.mark.parametrize(
    ("message", "text", "type_url"),
    [
        (
            lro.Any("type.googleapis.com/acme.images.v1.ResizeRequest", {"source": "a.png"}),
            '{"source":"a.png"}',
            "type.googleapis.com/acme.images.v1.ResizeRequest",
        ),
        ({"source": "a.png"}, '{"source":"a.png"}', ""),
        (Plain(), '{"source":"a.png"}', ""),
        (REQUEST, '{"source":"a.png"}', "type.googleapis.com/acme.images.v1.ResizeRequest"),
    ],
)
def test_what_is_noted_is_sent_again(
    message: Any,
    text: str,
    type_url: str,
    face: Face,
    clock: Clock,
    server: respx.Router,
    journal: Journal,
) -> None:
    """The same body with the same id, from whatever message."""
    answers = [AWAY] * 5 + [reply(running())]
    route = server.post(TARGET).mock(side_effect=answers)
    client = client_of(face, journal, clock)
    with pytest.raises(CallError, match="away"):
        client.start(TARGET, message, **TYPES)
    (entry,) = journal.pending()
    assert (entry.message, entry.message_type) == (text, type_url)
    (handle,) = pending(face, client)
    assert handle.name == NAME
    assert names_in(journal) == [NAME]
    bodies = [body_of(call.request) for call in route.calls]
    assert bodies == [{"source": "a.png", "requestId": entry.request_id}] * 6


@pytest.mark.parametrize(
    ("answers", "stays"),
    [
        ([TOO_MANY], False),
        ([refusal(lro.Code.INVALID_ARGUMENT)], False),
        ([AWAY, TOO_MANY], True),
        ([httpx.ReadError("lost"), refusal(lro.Code.INVALID_ARGUMENT)], True),
        ([AWAY] * 5, True),
    ],
)
def test_a_start_is_dropped_if_each_attempt_was_refused(
    answers: list[Any],
    stays: bool,
    face: Face,
    clock: Clock,
    server: respx.Router,
    journal: Journal,
) -> None:
    """One that got no clear answer may have started it."""
    server.post(TARGET).mock(side_effect=answers)
    with pytest.raises(CallError):
        client_of(face, journal, clock).start(TARGET, REQUEST, **TYPES, request_id=ID)
    assert [one.request_id for one in journal.pending()] == [ID] * stays


@pytest.mark.parametrize("first", [[reply(running())], [AWAY] * 5])
def test_a_start_of_an_earlier_process_is_not_dropped(
    first: list[Any], face: Face, clock: Clock, server: respx.Router, journal: Journal
) -> None:
    """Its repetition is refused: that says nothing about the first one."""
    server.post(TARGET).mock(side_effect=[*first, TOO_MANY])
    client = client_of(face, journal, clock)
    start = functools.partial(client.start, TARGET, REQUEST, **TYPES, request_id=ID)
    with contextlib.suppress(CallError):
        start()
    (before,) = journal.pending()
    with pytest.raises(CallError, match="too many"):
        start()
    assert journal.pending() == [before]


def test_one_of_two_that_start_the_same_at_once_is_refused(
    face: Face, server: respx.Router, journal: Journal
) -> None:
    """What the other one has started is in the journal."""

    def answer(_: httpx.Request) -> httpx.Response:
        journal.dropped(ID)  # as the first does, who is refused meanwhile
        return reply(running())

    server.post(TARGET).mock(side_effect=answer)
    client_of(face, journal).start(TARGET, REQUEST, **TYPES, request_id=ID)
    assert names_in(journal) == [NAME]


def test_servers_are_kept_apart(face: Face, journal: Journal) -> None:
    """An operation of the same name on another server stays."""
    with respx.mock(assert_all_called=False) as router:
        router.post(path=TARGET).mock(return_value=reply(running()))
        router.route(path=f"/v1/{NAME}").mock(return_value=reply(succeeded()))
        router.route(path=f"/v1/{NAME}:wait").mock(return_value=reply(succeeded()))
        handles = [
            face.client(url, journal=journal).start(TARGET, REQUEST, **TYPES)
            for url in ("http://one.test", "http://two.test", "http://three.test")
        ]
        handles[0].result()
        assert [one.server for one in journal.pending()] == ["http://two.test", "http://three.test"]
        take(face, handles[1])
        assert [one.server for one in journal.pending()] == ["http://three.test"]


def take(face: Face, handle: Any) -> Any:
    """The result of a handle's future."""
    inner = face.inside(handle)

    async def awaited() -> Any:
        return await asyncio.wait_for(inner.future(), 120)

    return inner.future().result(120) if face.name == "sync" else face.run(awaited)


@pytest.mark.parametrize("way", ["result", "future"])
def test_done_at_once_without_a_name(
    way: str, face: Face, server: respx.Router, journal: Journal
) -> None:
    """There is no record of it: it stays until its result is taken, and is known by its id."""
    answer = {key: value for key, value in succeeded().items() if key != "name"}
    route = server.post(TARGET).mock(return_value=reply(answer))
    client = client_of(face, journal)
    client.start(TARGET, REQUEST, **TYPES)  # and here the process dies
    other = client.start(TARGET, REQUEST, **TYPES)
    assert names_in(journal) == ["", ""]
    taken = other.result() if way == "result" else take(face, other)
    assert taken == ResizeResponse(size_bytes=7)
    (handle,) = pending(face, client)
    assert handle.operation == other.operation
    assert (handle.name, handle.done) == ("", True)
    assert handle.result() == ResizeResponse(size_bytes=7)
    assert pending(face, client) == journal.pending() == []
    assert route.call_count == 3


def test_a_deadline_is_kept_while_the_journal_is_held(
    face: Face, server: respx.Router, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """The result is given, the log says what was not noted, which is done later."""
    server.post(TARGET).mock(return_value=reply(succeeded()))
    handle = client_of(face, journal).start(TARGET, REQUEST, **TYPES)
    with held(journal):
        began = time.monotonic()
        assert handle.result(timeout=0.1) == ResizeResponse(size_bytes=7)
        assert time.monotonic() - began < 20  # of the journal's 30
        assert f"{NAME}: not noted: the journal {journal.path}: other processes" in caplog.text
    assert journal.pending() == []


@pytest.mark.parametrize("answer", [reply(running()), reply(succeeded()), TOO_MANY])
def test_the_answer_is_given_while_the_journal_is_held(
    answer: httpx.Response,
    face: Face,
    server: respx.Router,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the server has started, or why not; that nothing can be noted of it does no harm."""
    monkeypatch.setattr(observer, "MAX_WRITE_SECONDS", 0.01)
    with contextlib.ExitStack() as holding:

        def hold(_: httpx.Request) -> httpx.Response:
            holding.enter_context(held(journal))
            return answer

        server.post(TARGET).mock(side_effect=hold)
        server.route().mock(return_value=reply(succeeded()))
        start = functools.partial(client_of(face, journal).start, TARGET, REQUEST, **TYPES)
        if answer is TOO_MANY:
            with pytest.raises(CallError, match="too many"):
                start(request_id=ID)
        else:
            handle = start()
            assert handle.name == NAME
        assert ": not noted: the journal" in caplog.text
        assert names_in(journal) == [""]
    monkeypatch.undo()
    if answer is not TOO_MANY:
        assert handle.result() == ResizeResponse(size_bytes=7)
        assert journal.pending() == []


def test_nothing_is_sent_that_cannot_be_noted(
    face: Face, server: respx.Router, tmp_path: Path
) -> None:
    """The one error of a journal that a start raises."""
    route = server.post(TARGET).mock(return_value=reply(running()))
    with Journal(tmp_path / "pending.db", busy_seconds=0.01) as journal:
        client = client_of(face, journal)
        with held(journal), pytest.raises(JournalError, match="did not let go"):
            client.start(TARGET, REQUEST, **TYPES)
    assert not route.called


def test_a_future_is_set_while_the_journal_is_held(
    face: Face, server: respx.Router, journal: Journal
) -> None:
    """It is resolved at once, on an event loop without a stall; a crash then leaves the entry."""
    server.post(TARGET).mock(return_value=reply(succeeded()))
    client = client_of(face, journal)
    handles = [face.inside(client.start(TARGET, REQUEST, **TYPES)) for _ in range(2)]

    async def prompt() -> list[bool]:
        return [handle.future().done() for handle in handles]

    with held(journal):
        began = time.monotonic()
        if face.name == "sync":
            for handle in handles:
                handle.future().result(120)
        else:
            assert face.run(prompt) == [True, True]
        assert time.monotonic() - began < 20
        with Journal(journal.path) as other:
            assert names_in(other) == [NAME, NAME]
    assert journal.pending() == []


def test_a_future_is_noted_by_itself(
    face: Face, server: respx.Router, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal need not be used again; another thread writes."""
    server.post(TARGET).mock(return_value=reply(succeeded()))
    handle = client_of(face, journal).start(TARGET, REQUEST, **TYPES)
    settled, writers = threading.Event(), []
    settle = journal.settle

    def spy(within: float | None = None) -> None:
        settle(within)
        writers.append(threading.current_thread())
        settled.set()

    monkeypatch.setattr(journal, "settle", spy)
    take(face, handle)
    assert settled.wait(120)
    assert threading.main_thread() not in writers
    with Journal(journal.path) as other:
        assert other.pending() == []


def test_each_use_of_a_start_that_is_refused(
    face: Face, server: respx.Router, journal: Journal
) -> None:
    """It raises the refusal, asks for nothing, and the start stays in the journal."""
    server.post(TARGET).mock(side_effect=[*[AWAY] * 5, TOO_MANY])
    client = client_of(face, journal, Clock())
    with pytest.raises(CallError, match="away"):
        client.start(TARGET, REQUEST, **TYPES)
    (handle,) = pending(face, client)
    server.route().mock(side_effect=AssertionError("asked for an operation that is none"))
    assert (handle.name, handle.done) == ("", False)
    group = client.group([face.inside(handle)])
    for use in (
        handle.result,
        handle.wait,
        lambda: handle.wait(1),
        lambda: next(iter(handle.updates())),
        handle.cancel,
        handle.cancel_and_wait,
        handle.delete,
        lambda: take(face, handle),
        lambda: group.results(timeout=30),
    ):
        for _ in range(2):
            with pytest.raises(CallError, match="Start failed with RESOURCE_EXHAUSTED: too many"):
                use()
    (outcome,) = group.outcomes(timeout=30)
    assert "too many" in str(outcome)
    with face.entering(handle):
        pass  # there is nothing to cancel on the way out
    assert len(server.calls) == 6
    assert names_in(journal) == [""]


def test_pending_is_of_the_declared_classes(
    face: Face, server: respx.Router, journal: Journal
) -> None:
    """Or of all, with Any for both; names come first."""
    answers = [reply(running(name="operations/1")), refusal(lro.Code.ABORTED)]
    route = server.post(TARGET).mock(side_effect=answers)
    client = client_of(face, journal)
    client.start(TARGET, REQUEST, **TYPES)
    other = {"response": lro.Empty, "metadata": ResizeMetadata}
    with pytest.raises(CallError):
        client.start(TARGET, REQUEST, **other)
    route.mock(return_value=reply(running(name="operations/2")))
    assert [one.name for one in pending(face, client)] == ["operations/1"]
    everything = {"response": lro.Any, "metadata": lro.Any}
    assert [one.name for one in pending(face, client, everything)] == [
        "operations/1",
        "operations/2",
    ]


def test_what_is_not_repeated(
    face: Face, server: respx.Router, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """A start of long ago might start twice (spec §9.2(2)); the log says so.

    A damaged message holds up no other: its handle says what the matter is.
    """
    route = server.post(TARGET).mock(return_value=refusal(lro.Code.ABORTED))
    client = client_of(face, journal)
    for _ in range(3):
        with pytest.raises(CallError):
            client.start(TARGET, REQUEST, **TYPES)
    with contextlib.closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        ticks = int(REPEATABLE.total_seconds() * 1e6)
        other.execute("UPDATE entries SET started = started - ? WHERE number = 1", (ticks,))
        other.execute("UPDATE entries SET message = '{\"sou' WHERE number = 2")
    route.mock(return_value=reply(running()))
    damaged, sound = pending(face, client)
    with pytest.raises(JournalError, match=r"the file is damaged: the message of .* is none"):
        damaged.result()
    assert sound.name == NAME
    assert "too long ago to be repeated" in caplog.text
    assert (route.call_count, names_in(journal)) == (4, ["", "", NAME])


def test_a_future_is_collected(face: Face, server: respx.Router, journal: Journal) -> None:
    """Also one that failed; both are noted at the latest when the journal is next looked into.

    What cannot be decoded stays: another program may be able to.
    """
    other = {"name": NAME, "done": True, "response": packed("google.protobuf.Duration", value="1s")}
    for answer, error in ((succeeded(), None), (failed(), OperationFailed), (other, DecodingError)):
        server.post(TARGET).mock(return_value=reply(answer))
        handle = client_of(face, journal).start(TARGET, REQUEST, **TYPES)
        with pytest.raises(error) if error else contextlib.nullcontext():
            assert take(face, handle) == ResizeResponse(size_bytes=7)
        assert names_in(journal) == [NAME] * (error is DecodingError)


def test_an_operation_that_is_gone_stays(
    face: Face, clock: Clock, server: respx.Router, journal: Journal
) -> None:
    """The reader of the journal decides what to do about it."""
    server.post(TARGET).mock(return_value=reply(running()))
    server.route().mock(return_value=refusal(lro.Code.NOT_FOUND))
    handle = client_of(face, journal, clock).start(TARGET, REQUEST, **TYPES)
    with pytest.raises(OperationGone):
        handle.result()
    assert names_in(journal) == [NAME]
    journal.collected(NAME)
    assert journal.pending() == []
