"""Correct servers with other habits: what a server may leave out, or do in its own way."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from typing import Any
from urllib.parse import unquote

import attrs
import pytest

import lro
from lro_conform import ConformanceReport, Verdict
from lro_conform._report import as_text
from lro_conform.server import _rules_lists
from lro_conform.server._judge import CHECKS, judge
from lro_conform.server._starts import (
    CommandStarter,
    HttpStarter,
    RequestTemplate,
    StartFailed,
    StartKind,
)
from tests.conform.broken import (
    Asked,
    Forward,
    Reply,
    cancel_of_all,
    gets_that_are_refused,
    refusal,
    replying,
)
from tests.conform.test_broken import judged
from tests.conform.works import PATH, PATIENT, http_target, serving_works


def verdicts(report: ConformanceReport) -> dict[str, Verdict]:
    """What came of each check."""
    return {one.check.id: one.verdict for one in report.outcomes}


def unusual(report: ConformanceReport, *areas: str) -> dict[str, Verdict]:
    """What did not pass of these areas, but for what needs something that is not there."""
    return {
        one.check.id: one.verdict
        for one in report.outcomes
        if one.verdict is not Verdict.PASSED and one.check.area in areas
    }


def chosen(*areas: str) -> list[Any]:
    return [one for one in CHECKS if one.area in areas or one.id in areas]


async def get_alone(asked: Asked, forward: Forward, memory: Any) -> Reply:
    wanted = asked.verb in ("get", "start", "") or asked.method in ("HEAD", "PUT", "PATCH")
    return await forward(asked) if wanted else refusal(501, "UNIMPLEMENTED")


def test_server_with_get_alone_conforms() -> None:
    """All other methods are optional."""
    report = judged(get_alone, CHECKS, PATIENT, call_seconds=60)
    found = verdicts(report)
    assert report.exit_status(strict=True) == 0, as_text(report)
    assert {found[f"calls.{rpc}"] for rpc in ("list", "cancel", "delete", "wait")} == {
        Verdict.ABSENT
    }
    assert found["result.success"] is Verdict.PASSED


async def no_cancel(asked: Asked, forward: Forward, memory: Any) -> Reply:
    optional = asked.verb in ("cancel", "wait")
    return refusal(501, "UNIMPLEMENTED") if optional else await forward(asked)


def test_delete_is_judged_without_cancel_and_wait() -> None:
    """Of what was deleted they are not asked."""
    assert unusual(judged(no_cancel, chosen("delete"), PATIENT), "delete") == {}


async def without_filters(asked: Asked, forward: Forward, memory: Any) -> Reply:
    refused = asked.parameter("filter")
    return refusal(400, "INVALID_ARGUMENT") if refused else await forward(asked)


def test_filters_are_optional() -> None:
    """A server that refuses the simplest one has none."""
    found = unusual(judged(without_filters, chosen("filters"), PATIENT), "filters")
    assert set(found.values()) == {Verdict.ABSENT}
    assert "filters.empty" not in found


async def pages_of_one(asked: Asked, forward: Forward, memory: Any) -> Reply:
    asked.query = re.sub(r"pageSize=\d{2,}", "pageSize=1", asked.query)
    return await forward(asked)


def test_pages_may_be_smaller_than_asked_for() -> None:
    """The maximum is the server's choice."""
    assert unusual(judged(pages_of_one, chosen("pages", "filters"), PATIENT), "pages") == {}


async def in_a_framework(asked: Asked, forward: Forward, memory: Any) -> Reply:
    unknown = "projects/lro-conform-unknown" in asked.path
    return replying({"detail": "Not Found"}, 404) if unknown else await forward(asked)


def test_a_framework_may_answer_for_other_parents() -> None:
    """It has no route for them, and its own form of errors, as it should not: no must fails."""
    found = unusual(judged(in_a_framework, chosen("pages", "errors"), PATIENT), "pages", "errors")
    assert found == {"errors.envelope-everywhere": Verdict.FAILED}


async def endless(asked: Asked, forward: Forward, memory: Any) -> Reply:
    if asked.verb != "list":
        return await forward(asked)
    memory["number"] = number = memory.get("number", 0) + 1
    return replying(
        {"operations": [{"name": f"operations/x{number}"}], "nextPageToken": f"t{number}"}
    )


def test_list_that_is_too_long_to_walk_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have millions of operations."""
    monkeypatch.setattr(_rules_lists, "_MOST_PAGES", 1)
    checks = chosen("pages.contains", "pages.walk", "filters.done")
    assert verdicts(judged(endless, checks, PATIENT)) == {
        "pages.contains": Verdict.SKIPPED,
        "pages.walk": Verdict.SKIPPED,
        "filters.done": Verdict.SKIPPED,
    }


async def later_pages_refused(asked: Asked, forward: Forward, memory: Any) -> Reply:
    later = asked.parameter("pageToken")
    return refusal(403, "PERMISSION_DENIED") if later else await forward(asked)


def test_pages_that_cannot_be_read_are_not_judged() -> None:
    """The refusal is in the facts."""
    report = judged(later_pages_refused, chosen("pages.walk"), PATIENT)
    assert verdicts(report) == {"pages.walk": Verdict.SKIPPED}
    assert "a page cannot be read: GET /v1/operations?pageSize=1" in report.outcomes[0].facts[0]


async def without_metadata(asked: Asked, forward: Forward, memory: Any) -> Reply:
    return (await forward(asked)).operations(lambda one: one.pop("metadata", None))


def test_metadata_are_optional() -> None:
    """So are the usual times in them."""
    areas = ("any", "metadata", "json")
    found = unusual(judged(without_metadata, chosen(*areas), PATIENT), *areas)
    assert found == {
        "any.metadata-type": Verdict.ABSENT,
        "metadata.times": Verdict.ABSENT,
        "json.retry-info": Verdict.ABSENT,
    }


async def numbered(asked: Asked, forward: Forward, memory: Any) -> Reply:
    """Names with numbers instead of the server's ids."""
    asked.path = unquote(asked.path, errors="surrogateescape")
    for number, name in memory.items():
        asked.path = asked.path.replace(number, name)
    reply = await forward(asked)

    def change(one: dict[str, Any]) -> None:
        known = {name: number for number, name in memory.items()}
        number = known.get(one["name"], f"operations/{1000 + len(memory)}")
        memory[number] = one["name"]
        one["name"] = number

    return reply.operations(change)


def test_ids_may_be_numbers() -> None:
    """They have no letters whose case could matter."""
    found = unusual(judged(numbered, chosen("names", "start"), PATIENT), "names", "start")
    assert found == {"names.case": Verdict.SKIPPED}


async def with_delays(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    reply.headers["retry-after"] = "Wed, 25 Nov 2026 20:00:00 GMT"
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"}
    return reply.errors(lambda one: one["details"].append(delay))


def test_delays_may_be_dates_and_durations() -> None:
    """HTTP has the one, protobuf the other."""
    checks = chosen("http.retry-after", "json.retry-info")
    assert set(verdicts(judged(with_delays, checks, PATIENT)).values()) == {Verdict.PASSED}


async def done_alone_is_deleted(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked) if asked.verb != "delete" or asked.name in memory else None
    if asked.verb == "get" and reply is not None and b'"done"' in reply.body:
        memory[asked.name] = True
    return reply or refusal(400, "FAILED_PRECONDITION")


def test_delete_of_an_operation_in_progress_may_be_refused() -> None:
    """Then nothing can come back."""
    checks = chosen("delete.empty", "delete.stays-gone")
    assert verdicts(judged(done_alone_is_deleted, checks, PATIENT)) == {
        "delete.empty": Verdict.PASSED,
        "delete.stays-gone": Verdict.SKIPPED,
    }


def test_operation_that_another_check_has_ended_is_replaced() -> None:
    """A check that needs one in progress starts the next."""
    checks = chosen("cancel.no-other", "cancel.empty", "routes.head", "http.poll-interval")
    found = verdicts(judged(cancel_of_all, checks, PATIENT))
    assert found.pop("cancel.no-other") is Verdict.FAILED
    assert set(found.values()) == {Verdict.PASSED}


async def all_at_once(asked: Asked, forward: Forward, memory: Any) -> Reply:
    reply = await forward(asked)
    return reply.operations(lambda one: one.update(done=True)) if asked.verb == "get" else reply


def test_operation_that_should_take_long_and_is_done_is_no_use() -> None:
    """The facts say what is wrong with the hook."""
    report = judged(all_at_once, chosen("names.same"), PATIENT)
    assert report.outcomes[0].verdict is Verdict.SKIPPED
    assert report.outcomes[0].facts == ("the operation that should take long is done at once",)
    assert "was not judged: no check passed and none failed" in as_text(report)
    assert report.exit_status() == 2


def test_run_that_is_cancelled_leaves_no_operation() -> None:
    """Ctrl-C cancels it: what it has started is cancelled and deleted all the same."""
    seen: list[tuple[str, str]] = []

    async def interrupted(asked: Asked, forward: Forward, memory: Any) -> Reply:
        if asked.verb == "list" and not memory:
            memory["interrupted"] = True
            raise asyncio.CancelledError
        reply = await forward(asked)
        name = reply.json.get("name") if asked.verb == "start" else asked.name
        seen.append((asked.verb, name))
        return reply

    with pytest.raises(asyncio.CancelledError):
        judged(interrupted, CHECKS, PATIENT)
    started, deleted = (
        {name for verb, name in seen if verb == wanted} for wanted in ("start", "delete")
    )
    assert len(started) > 1
    assert started <= deleted


def test_parent_can_be_given() -> None:
    """Else it is that of the operations that are started."""

    async def run(app: object) -> ConformanceReport:
        target = http_target(app)
        templates = {
            StartKind.LONG: RequestTemplate("POST", PATH, '{"seconds": 3600, "id": "$UUID"}')
        }
        return await judge(
            target,
            target.log,
            HttpStarter(target, templates),
            checks=chosen("pages.zero-size"),
            pace=PATIENT,
            parent="projects/p",
        )

    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], (await receive()).get("body")))
        body = b'{"name": "projects/p/operations/a"}'
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    asyncio.run(run(app))
    assert "/v1/projects/p/operations" in {path for path, _ in seen}
    assert re.fullmatch(rb'\{"seconds": 3600, "id": "[0-9a-f-]{36}"\}', seen[0][1])


def test_time_limit_ends_the_run() -> None:
    """What was not judged by then is skipped."""
    report = judged(get_alone, CHECKS, attrs.evolve(PATIENT, total=-1))
    assert set(verdicts(report).values()) == {Verdict.SKIPPED}
    assert "the -1 s of the run are over" in as_text(report)


def test_command_that_does_not_end_is_killed() -> None:
    """It has a minute, usually."""
    starter = CommandStarter(("sleep", "600"), "here", seconds=0.05)
    with pytest.raises(StartFailed, match=r"'sleep' has not ended within 0\.05 s"):
        asyncio.run(starter.start(StartKind.LONG))


def test_words_of_a_report_for_terminals_are_in_colour() -> None:
    """Each level has its own."""
    with serving_works():
        report = judged(gets_that_are_refused, chosen("calls.get"), PATIENT)
    assert "\x1b[31mFAILED must\x1b[0m calls.get" in as_text(report, styled=True)


def test_grpc_without_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import says what to install."""
    monkeypatch.setitem(sys.modules, "grpc", None)
    source = importlib.util.find_spec("lro_conform.server._grpc")
    assert source is not None
    assert source.loader is not None
    with pytest.raises(lro.errors.MissingExtra, match="judging over gRPC needs the extra 'grpc'"):
        source.loader.exec_module(importlib.util.module_from_spec(source))
