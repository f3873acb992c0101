"""Correct servers with unusual behaviour, which the interface leaves open or makes optional."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import attrs
import pytest

from lro_conform import ConformanceReport, Level, Verdict
from lro_conform._report import as_text
from lro_conform.server import _http, _rules_lists
from lro_conform.server._bench import Pace
from lro_conform.server._judge import CHECKS, judge
from lro_conform.server._starts import HttpStarter, RequestTemplate, StartKind
from tests.conform.broken import (
    DENIED,
    EMPTY,
    FAILED,
    FAULTS,
    INVALID,
    TOKENS,
    TYPE,
    Asked,
    Layer,
    Reply,
    acts_on_all,
    answers,
    at,
    each,
    refusal,
    refuses,
    refuses_by_state,
    replaces,
    replying,
    sleeps,
    spoils,
)
from tests.conform.test_broken import chosen, judged, verdicts
from tests.conform.works import PATH, PATIENT, http_target

PASSED, FAILS, SKIPPED, ABSENT = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED, Verdict.ABSENT
MUSTS = [one for one in CHECKS if one.level is Level.MUST]
UNSUPPORTED = (501, "UNIMPLEMENTED")
EMPTY_REPLY = Reply(204, {}, b"")


def other_ids(make: Callable[[int], str], form: str) -> Layer:
    """Replace ids with other ids in replies; refuse invalid ids, as AIP-193 allows."""

    async def layer(asked: Asked) -> Reply:
        path, memory = unquote(asked.path, errors="surrogateescape"), asked.memory
        if found := re.match(r"/v1/(operations/[^/:]+)", path):
            if not re.fullmatch(f"operations/{form}", found[1]):
                return refusal(*INVALID)
            path = path.replace(found[1], memory.get(found[1], "operations/x"))
        reply = await asked.forward(path=path)

        def change(one: dict[str, Any]) -> None:
            known = {name: id for id, name in memory.items()}
            id = known.get(one["name"]) or f"operations/{make(len(memory))}"
            memory[id], one["name"] = one["name"], id

        return reply.operations(change)

    return layer


async def padded_tokens(asked: Asked) -> Reply:
    """Pad page tokens with equals signs like Base64, which AIP-158 does not forbid."""
    reply = await asked.forward(query=asked.query.replace("%3D%3D", ""))
    token = reply.json.get("nextPageToken")
    return reply.saying({**reply.json, "nextPageToken": f"{token}=="}) if token else reply


async def empty_first_page(asked: Asked) -> Reply:
    """Return an empty first page; AIP-158 allows empty pages before the last."""
    reply = await asked.forward(query=re.sub("&?pageToken=Qx7fK2", "", asked.query))
    first = asked.verb == "list" and not asked.token and "done" not in asked.query
    return replying({"nextPageToken": "Qx7fK2"}) if first and reply.status == 200 else reply


async def packed_replies(asked: Asked) -> Reply:
    """Compress replies with gzip, which the kit accepts, in several members (RFC 1952 §2.2)."""
    reply = await asked.forward()
    if "gzip" in asked.headers.get("accept-encoding", "") and reply.body:
        headers = {**reply.headers, "content-encoding": "gzip"}
        packed = b"".join(map(gzip.compress, (reply.body[:9], b"", reply.body[9:])))
        return Reply(reply.status, headers, packed)
    return reply


async def methods_not_allowed(asked: Asked) -> Reply:
    """Answer like a router that lacks routes for these paths and methods."""
    if asked.verb == "list":
        return replying({"detail": "Not Found"}, 404)
    if asked.verb in ("cancel", "delete", "wait"):
        reply = refusal(405, "NOT_FOUND")
        reply.headers["allow"] = "GET"
        return reply
    return await asked.forward()


def completes(one: dict[str, Any]) -> None:
    """Let a cancelled operation succeed, because a cancel is only best effort."""
    if one.get("error", {}).get("code") == 1:
        del one["error"]
        one["response"] = EMPTY


LEGAL: dict[str, Layer] = {
    # FastAPI has this path only for GET.
    "no route for wait": answers(
        lambda asked: asked.verb == "wait",
        Reply(405, {"allow": "GET"}, b'{"detail": "Method Not Allowed"}'),
    ),
    "no route for lists, in a framework with envelopes of its own": answers(
        lambda asked: asked.path.startswith("/v1/operations") and "/" not in asked.path[4:],
        replying({"error": {"code": 404, "message": "No path.", "status": "NOT_FOUND"}}, 404),
    ),
    "padded tokens": padded_tokens,
    "empty first page": empty_first_page,
    "uuids": other_ids(lambda _: str(uuid.uuid4()), "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    # ProtoJSON accepts null for a field that is not set.
    "nulls": each(lambda one: one.update(dict.fromkeys(("error", "response", "metadata")) | one)),
    # operations.proto: "Some services might not provide the result."
    "no results": each(lambda one: one.pop("response", None)),
    # Go's ServeMux redirects paths with double slashes.
    "cleaned paths": answers(
        lambda asked: "//" in asked.path or "%2F" in asked.path,
        Reply(301, {"location": "/v1/elsewhere"}, b""),
    ),
    "methods not allowed": methods_not_allowed,
    "packed replies": packed_replies,
    "no name beside the path": refuses(
        lambda asked: asked.parameter("name") or (asked.name and b'"name"' in asked.body), *INVALID
    ),
    "completing": each(completes),
}


@pytest.mark.parametrize("layer", LEGAL.values(), ids=LEGAL)
def test_legal_server_passes_every_must(layer: Layer) -> None:
    """A legal server passes every check of the level MUST."""
    report = judged(layer, MUSTS)
    assert report.exit_status() == 0, as_text(report)


async def with_delays(asked: Asked) -> Reply:
    """Send a date as Retry-After, and a duration in RetryInfo."""
    reply = await asked.forward()
    reply.headers["retry-after"] = "Wed, 25 Nov 2026 20:00:00 GMT"
    value = reply.json
    if "error" in value:
        delay = {"@type": f"{TYPE}google.rpc.RetryInfo", "retryDelay": "1.5s"}
        value["error"]["details"].append(delay)
    return reply.saying(value) if value else reply


HABITS: dict[str, tuple[Layer, str, dict[str, Verdict]]] = {
    "cancel and wait are optional": (
        refuses(lambda asked: asked.verb in ("cancel", "wait"), *UNSUPPORTED),
        "delete",
        {},
    ),
    "filters are optional": (
        refuses(lambda asked: asked.filter, *INVALID),
        "filters",
        {one.id: ABSENT for one in chosen("filters") if one.id != "filters.empty"},
    ),
    "pages may be smaller": (replaces("query", r"pageSize=\d{2,}", "pageSize=1"), "pages", {}),
    "a framework may answer for other parents, in its own form": (
        answers(
            lambda asked: "projects/lro-conform-unknown" in asked.path,
            replying({"detail": "Not Found"}, 404),
        ),
        "pages errors",
        {"errors.envelope-everywhere": FAILS},
    ),
    "what is not served may be refused with 400": (
        answers(
            lambda asked: asked.method in ("PUT", "PATCH") or "lro-conform" in asked.path,
            refusal(*INVALID),
        ),
        "routes",
        {"routes.unknown-path": FAILS},
    ),
    "metadata are optional": (
        each(lambda one: one.pop("metadata", None)),
        "any metadata json",
        dict.fromkeys(("any.metadata-type", "metadata.times", "json.retry-info"), ABSENT),
    ),
    "ids may be numbers, whose case does not matter": (
        other_ids(lambda number: f"{1000 + number}", r"\d+"),
        "names start",
        {"names.case": SKIPPED},
    ),
    "delays may be dates and durations": (with_delays, "http.retry-after json.retry-info", {}),
    "delete of what is in progress may be refused": (
        refuses_by_state("delete", False, refusal(*FAILED)),
        "delete.empty delete.stays-gone",
        {"delete.stays-gone": SKIPPED},
    ),
    "what a server may die of is asked last": (
        refuses(lambda one: "a" in one.memory or ("=100000" in one.query and one.times("a"))),
        "pages filters robust.answers errors.no-defect",
        {"pages.large-size": FAILS},
    ),
    "what another check has ended is replaced": (
        acts_on_all("cancel", "POST", ":cancel", ":wait"),
        "cancel.no-other cancel.empty routes.head http.poll-interval",
        {"cancel.no-other": FAILS},
    ),
}


@pytest.mark.parametrize(("layer", "wanted", "expected"), HABITS.values(), ids=HABITS)
def test_unusual_server_gets_the_expected_verdicts(
    layer: Layer, wanted: str, expected: dict[str, Verdict]
) -> None:
    report = judged(layer, chosen(*wanted.split()))
    assert verdicts(report) == expected, as_text(report)


@pytest.mark.parametrize("error", [None, "no", [], {"code": 4}])
def test_running_work_that_ends_with_an_error_fails_no_check(error: object) -> None:
    """If running work ends with an error of any form, such as a timeout, no check fails."""

    def end(one: dict[str, Any]) -> None:
        one.pop("response", None)
        one.update(done=True, error=error)

    report = judged(each(end), chosen("states.goes-on"))
    assert verdicts(report).get("states.goes-on") is not FAILS, as_text(report)


GET_ALONE = refuses(lambda asked: asked.verb in ("list", "cancel", "wait", "delete"), *UNSUPPORTED)


def test_server_with_only_get_conforms() -> None:
    report = judged(GET_ALONE, CHECKS)
    assert report.exit_status(strict=True) == 0, as_text(report)
    found = verdicts(report)
    assert {found[f"calls.{rpc}"] for rpc in ("list", "cancel", "delete", "wait")} == {ABSENT}
    assert "result.success" not in found


async def endless(asked: Asked) -> Reply:
    if asked.verb != "list":
        return await asked.forward()
    number = asked.times()
    page = {"operations": [{"name": f"operations/x{number}"}], "nextPageToken": f"t{number}"}
    return replying(page)


def test_list_with_too_many_pages_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rules_lists, "_MOST_PAGES", 1)
    ids = ("pages.contains", "pages.walk", "filters.done")
    assert verdicts(judged(endless, chosen(*ids))) == dict.fromkeys(ids, SKIPPED)


@pytest.mark.parametrize(
    ("layer", "check", "verdict", "fact"),
    [
        (refuses(TOKENS, *DENIED), "pages.walk", SKIPPED, "a page cannot be read: GET /v1/op"),
        (answers("delete", EMPTY_REPLY), "calls.delete", FAILS, "with 200; an empty one is {}"),
    ],
)
def test_facts_of_a_verdict_quote_the_reply(
    layer: Layer, check: str, verdict: Verdict, fact: str
) -> None:
    report = judged(layer, chosen(check))
    assert verdicts(report) == {check: verdict}
    assert fact in report.outcomes[0].facts[0]


def test_slow_operation_of_the_hook_that_is_done_at_once_is_reported() -> None:
    """If a hook's slow operation is done at once, the facts of a skipped check say so."""
    report = judged(each(lambda one: one.update(done=True), "get"), chosen("names.same"))
    assert verdicts(report) == {"names.same": SKIPPED}
    assert report.outcomes[0].facts == ("the operation that should take long is done at once",)
    assert "was not judged: no check passed and none failed" in as_text(report)
    assert report.exit_status() == 2


def test_server_whose_work_ends_at_once_fails_no_check() -> None:
    """If work ends at once, checks that need running work are skipped; other checks are judged."""

    def end(one: dict[str, Any]) -> None:
        one.pop("error", None)
        one.update(done=True, response=EMPTY)

    report = judged(each(end), chosen("names", "cancel", "delete", "routes", "forms"))
    found = verdicts(report)
    assert report.exit_status() == 0, as_text(report)
    assert "names.unknown" not in found
    assert found["cancel.no-other"] is SKIPPED


@pytest.mark.parametrize(
    ("usual", "waits", "failed"), [(60, 60, False), (0, 60, True)], ids=["slow", "late"]
)
def test_slow_server_is_not_judged_late(
    monkeypatch: pytest.MonkeyPatch, usual: float, waits: float, failed: bool
) -> None:
    """A Wait counts as late only if it takes longer than the server's other replies."""
    clock = SimpleNamespace(passed=0.0, monotonic=lambda: time.monotonic() + clock.passed)
    monkeypatch.setattr(_http, "time", clock)

    async def late(asked: Asked) -> Reply:
        clock.passed += waits if asked.verb == "wait" else usual
        return await asked.forward()

    ids = ("wait.zero", "wait.timeout", "wait.done-at-once")
    report = judged(late, chosen(*ids), Pace(end=60, slack=20, hold=0.1, rounds=1))
    assert verdicts(report) == (dict.fromkeys(ids, FAILS) if failed else {}), as_text(report)


WRONG_TYPES: list[tuple[Layer, str, Verdict]] = [
    (each(lambda one: one.get("done") and one.pop("name")), "names.present", FAILS),
    (each(lambda one: one.get("error", {}).update(details=7)), "errors.no-defect", PASSED),
    (spoils(at("list"), {"nextPageToken": "\ud800"}), "replies.readable", FAILS),
    (
        spoils(at("get"), lambda _, reply: Reply(200, {"content-encoding": "br"}, reply.body)),
        "replies.readable",
        FAILS,
    ),
]


@pytest.mark.parametrize(("layer", "check", "expected"), WRONG_TYPES)
def test_reply_of_wrong_types_does_not_crash_the_kit(
    layer: Layer, check: str, expected: Verdict
) -> None:
    """A reply with wrong types does not stop the kit, and the affected check gets its verdict."""
    areas = ("names", "states", "any", "pages", "result", "replies", "errors")
    checks = [one for one in chosen(*areas) if "http" in one.transports]
    report = judged(layer, checks, attrs.evolve(PATIENT, end=0.5))
    assert len(report.outcomes) == len(checks)
    assert verdicts(report).get(check, PASSED) is expected, as_text(report)


def test_run_with_too_many_reply_bytes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the replies of a run, all of which the kit keeps, are too large, the exit status is 2."""
    monkeypatch.setattr("lro_conform.server._judge._MOST_BYTES", 1_000_000)
    heavy = each(lambda one: one["metadata"].update(more="x" * 100_000))
    report = judged(heavy, chosen("names", "states"))
    assert report.exit_status() == 2
    told = "was not judged whole: the replies of the run have more than 1000000 bytes"
    assert told in as_text(report)


def test_time_limit_ends_a_running_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lro_conform.server._judge._PARTING_SECONDS", 0.1)
    stuck = sleeps("cancel", 60)
    ids = ("calls.cancel", "cancel.empty")
    report = judged(stuck, chosen(*ids), attrs.evolve(PATIENT, total=0.5))
    assert verdicts(report) == dict.fromkeys(ids, SKIPPED)
    assert report.exit_status() == 2
    assert json.dumps([one.facts for one in report.outcomes]).count("the 0.5 s of the run are") == 2


def test_time_limit_ends_the_run() -> None:
    """Checks that were not judged before the time limit of the run are skipped."""
    report = judged(GET_ALONE, CHECKS, attrs.evolve(PATIENT, total=-1))
    assert set(verdicts(report).values()) == {SKIPPED}
    assert "the -1 s of the run are over" in as_text(report)


def test_run_that_is_cancelled_leaves_no_operation() -> None:
    """Ctrl-C cancels the run, which still cancels and deletes the operations that it started."""
    seen: list[tuple[str, str]] = []

    async def interrupted(asked: Asked) -> Reply:
        if asked.verb == "list" and asked.times() == 1:
            raise asyncio.CancelledError
        reply = await asked.forward()
        seen.append((asked.verb, reply.json["name"] if asked.verb == "start" else asked.name))
        return reply

    with pytest.raises(asyncio.CancelledError):
        judged(interrupted, CHECKS)
    started, deleted = (
        {name for verb, name in seen if verb == wanted} for wanted in ("start", "delete")
    )
    assert len(started) > 1
    assert started <= deleted


def test_parent_can_be_given() -> None:
    """The given parent is listed, although the started operation has another parent."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], (await receive()).get("body")))
        body = b'{"name": "projects/p/operations/a"}'
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def run() -> ConformanceReport:
        target, sent = http_target(app), '{"seconds": 3600, "id": "$UUID"}'
        starter = HttpStarter(target, {StartKind.LONG: RequestTemplate("POST", PATH, sent)})
        options: Any = {"checks": chosen("pages.zero-size"), "pace": PATIENT}
        return await judge(target, target.log, starter, parent="projects/q", **options)

    asyncio.run(run())
    assert "/v1/projects/q/operations" in {path for path, _ in seen}
    assert re.fullmatch(rb'\{"seconds": 3600, "id": "[0-9a-f-]{36}"\}', seen[0][1])


def test_report_for_terminals_is_coloured() -> None:
    report = judged(FAULTS["calls.get"], chosen("calls.get"))  # type: ignore[arg-type]
    assert "\x1b[31mFAILED must\x1b[0m calls.get" in as_text(report, styled=True)
