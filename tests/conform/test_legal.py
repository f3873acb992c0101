"""What a server may do and few servers do: it conforms, by the words of the sources."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
import uuid
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import attrs
import pytest

from lro_conform import ConformanceReport, Level, Verdict
from lro_conform._checks import HTTP
from lro_conform._report import as_text
from lro_conform.server import _http
from lro_conform.server._bench import Pace
from lro_conform.server._judge import CHECKS
from tests.conform.broken import Asked, Forward, Layer, Reply, refusal
from tests.conform.test_broken import judged
from tests.conform.works import PATIENT

EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}


def read(reply: Reply) -> Any:
    """The body of a success; nothing for others, and for those of HEAD."""
    return reply.json if reply.status == 200 and reply.body else {}


async def padded_tokens(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """Base64 ends in equals signs, which AIP-158 does not forbid."""
    asked.query = asked.query.replace("%3D%3D", "")
    reply = await forward(asked)
    token = read(reply).get("nextPageToken")
    return reply.saying({**reply.json, "nextPageToken": f"{token}=="}) if token else reply


async def empty_first_page(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """AIP-158: a page may be empty though there are more."""
    if asked.verb == "list" and not asked.parameter("pageToken") and "done" not in asked.query:
        reply = await forward(asked)
        return reply.saying({"nextPageToken": "Qx7fK2"}) if read(reply) else reply
    asked.query = re.sub(r"&?pageToken=Qx7fK2", "", asked.query)
    return await forward(asked)


async def uuids(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """An id that is not one cannot exist: AIP-193 lets that be an INVALID_ARGUMENT."""
    asked.path = unquote(asked.path, errors="surrogateescape")
    found = re.match(r"/v1/operations/([^/:]+)", asked.path)
    if found:
        if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found[1]):
            return refusal(400, "INVALID_ARGUMENT")
        asked.path = asked.path.replace(
            f"operations/{found[1]}", memory.get(found[1], "operations/x")
        )
    reply = await forward(asked)
    if not read(reply):
        return reply

    def change(one: dict[str, Any]) -> None:
        known = {name: id_ for id_, name in memory.items()}
        id_ = known.get(one["name"]) or str(uuid.uuid4())
        memory[id_] = one["name"]
        one["name"] = f"operations/{id_}"

    return reply.operations(change)


async def nulls(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """ProtoJSON takes a null for a field that is not set."""
    unset = {"error": None, "response": None, "metadata": None}
    reply = await forward(asked)
    return reply.operations(lambda one: one.update(unset | one)) if read(reply) else reply


async def no_results(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """Some services might not provide the result, says operations.proto."""
    reply = await forward(asked)
    return reply.operations(lambda one: one.pop("response", None)) if read(reply) else reply


async def cleaned_paths(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """Go's ServeMux redirects paths with two slashes to those with one."""
    if "//" in asked.path or "%2F" in asked.path:
        return Reply(301, {"location": "/v1/elsewhere"}, b"")
    return await forward(asked)


async def methods_not_allowed(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """A router answers for paths and methods that the server does not have."""
    if asked.verb == "list":
        return refusal(404, "NOT_FOUND")
    if asked.verb in ("cancel", "delete", "wait"):
        reply = refusal(405, "NOT_FOUND")
        reply.headers["allow"] = "GET"
        return reply
    return await forward(asked)


async def packed_replies(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """The kit says that it reads gzip."""
    reply = await forward(asked)
    if "gzip" in asked.headers.get("accept-encoding", "") and reply.body:
        return Reply(
            reply.status, {**reply.headers, "content-encoding": "gzip"}, gzip.compress(reply.body)
        )
    return reply


async def completing(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """A cancel is a best effort: the operation may complete in spite of it."""
    reply = await forward(asked)

    def change(one: dict[str, Any]) -> None:
        if one.get("error", {}).get("code") == 1:
            del one["error"]
            one["response"] = EMPTY

    return reply.operations(change) if read(reply) else reply


LEGAL: list[Layer] = [
    padded_tokens,
    empty_first_page,
    uuids,
    nulls,
    no_results,
    cleaned_paths,
    methods_not_allowed,
    packed_replies,
    completing,
]


@pytest.mark.parametrize("layer", LEGAL, ids=lambda one: one.__name__)
def test_legal_server_fails_no_must(layer: Layer) -> None:
    """What failed would be a false verdict."""
    checks = [one for one in CHECKS if one.level is Level.MUST]
    report = judged(layer, checks, PATIENT, call_seconds=60)
    assert report.exit_status() == 0, as_text(report)


def verdicts(report: ConformanceReport) -> dict[str, Verdict]:
    """What came of each check."""
    return {one.check.id: one.verdict for one in report.outcomes}


@pytest.mark.parametrize(
    ("usual", "waits", "verdict"), [(60, 60, Verdict.PASSED), (0, 60, Verdict.FAILED)]
)
def test_slow_server_is_not_late(
    monkeypatch: pytest.MonkeyPatch, usual: float, waits: float, verdict: Verdict
) -> None:
    """What it is late by is measured against what its other replies take."""
    clock = SimpleNamespace(passed=0.0, monotonic=lambda: time.monotonic() + clock.passed)
    monkeypatch.setattr(_http, "time", clock)

    async def late(asked: Asked, forward: Forward, memory: Any) -> Reply:
        clock.passed += waits if asked.verb == "wait" else usual
        return await forward(asked)

    checks = [one for one in CHECKS if one.id in ("wait.zero", "wait.timeout", "wait.done-at-once")]
    pace = Pace(end=60, slack=20, hold=0.1, rounds=1)
    report = judged(late, checks, pace, call_seconds=60)
    assert set(verdicts(report).values()) == {verdict}, as_text(report)


async def ending_at_once(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """All work is done when the start is answered."""
    reply = await forward(asked)
    ended = {"done": True, "response": EMPTY}

    def change(one: dict[str, Any]) -> None:
        one.pop("error", None)
        one.update(ended)

    return reply.operations(change) if read(reply) else reply


def test_server_whose_work_ends_at_once_fails_nothing() -> None:
    """What needs work in progress is not judged; names are."""
    checks = [one for one in CHECKS if one.area in ("names", "cancel", "delete", "routes", "forms")]
    report = judged(ending_at_once, checks, PATIENT, call_seconds=60)
    found = verdicts(report)
    assert report.exit_status() == 0, as_text(report)
    assert found["names.unknown"] is Verdict.PASSED
    assert found["cancel.no-other"] is Verdict.SKIPPED


async def nameless_ends(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply.operations(lambda one: one.pop("name") if one.get("done") else None)


async def odd_details(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply.operations(lambda one: one.get("error", {}).update(details=7))


async def broken_text(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "list":
        return reply.saying({"operations": [], "nextPageToken": "\ud800"})
    return reply


async def other_coding(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    if asked.verb == "get":
        reply.headers["content-encoding"] = "br"
    return reply


@pytest.mark.parametrize(
    ("layer", "check"),
    [
        (nameless_ends, "names.present"),
        (odd_details, "errors.no-defect"),
        (broken_text, "replies.readable"),
        (other_coding, "replies.readable"),
    ],
)
def test_reply_of_wrong_types_does_not_crash_the_kit(layer: Layer, check: str) -> None:
    """All checks are judged, and the one that it is about is not passed over."""
    areas = ("names", "states", "any", "pages", "result", "replies", "errors")
    checks = [one for one in CHECKS if one.area in areas and HTTP in one.transports]
    report = judged(layer, checks, attrs.evolve(PATIENT, end=0.5), call_seconds=60)
    assert len(report.outcomes) == len(checks)
    expected = Verdict.PASSED if check == "errors.no-defect" else Verdict.FAILED
    assert verdicts(report)[check] is expected, as_text(report)


async def heavy(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply.operations(lambda one: one["metadata"].update(more="x" * 100_000))


def test_run_of_too_many_bytes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """All replies are kept; so their sum has a bound, and the status is neither 0 nor 1."""
    monkeypatch.setattr("lro_conform.server._judge._MOST_BYTES", 1_000_000)
    report = judged(heavy, [one for one in CHECKS if one.area in ("names", "states")], PATIENT)
    assert report.exit_status() == 2
    assert "was not judged whole: the replies of the run have more than 1000000 bytes" in as_text(
        report
    )


async def stuck(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb == "cancel":
        await asyncio.sleep(60)
    return await forward(asked)


def test_time_limit_ends_a_check_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many calls could take long beyond it."""
    monkeypatch.setattr("lro_conform.server._judge._PARTING_SECONDS", 0.1)
    report = judged(
        stuck,
        [one for one in CHECKS if one.id in ("calls.cancel", "cancel.empty")],
        attrs.evolve(PATIENT, total=0.5),
        call_seconds=60,
    )
    assert set(verdicts(report).values()) == {Verdict.SKIPPED}
    assert report.exit_status() == 2
    assert json.dumps([one.facts for one in report.outcomes]).count("the 0.5 s of the run are") == 2
