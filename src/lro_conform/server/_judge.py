"""Judge a server by all selected rules, over one transport or both."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Final

import attrs

from lro_conform._checks import Check, ConformanceReport, Outcome, Verdict
from lro_conform.server import (
    _rules_grpc,
    _rules_http,
    _rules_lists,
    _rules_log,
    _rules_operations,
    _rules_verbs,
)
from lro_conform.server._answers import Answer
from lro_conform.server._bench import USUAL_PACE, Bench, JudgedRule, NotJudged, NotOffered, Pace
from lro_conform.server._starts import OperationStarter, StartFailed, StartKind
from lro_conform.server._target import Target

RULES: Final[tuple[JudgedRule, ...]] = tuple(
    chain.from_iterable(
        book.rules
        for book in (
            _rules_operations.RULES,
            _rules_verbs.RULES,
            _rules_lists.RULES,
            _rules_http.RULES,
            _rules_grpc.RULES,
            _rules_log.RULES,
            _rules_log.HTTP_RULES,
            _rules_lists.LAST_RULES,
        )
    )
)
"""All rules for servers, in the order of judging."""

CHECKS: Final[tuple[Check, ...]] = tuple(rule.check for rule in RULES)
"""The checks of :data:`RULES`, in the same order."""

_LOST_AT_MOST: Final = 3
"""Consecutive requests without an answer after which the server counts as gone."""
_PARTING_SECONDS: Final = 5.0
_UNJUDGED: Final = (Verdict.ABSENT, Verdict.SKIPPED)
_MOST_BYTES: Final = 128 * 1024 * 1024
"""Maximum total size of the replies in bytes; they are kept for the rules about all replies."""


class ServerUnreachable(Exception):
    """Raised if the server cannot be judged at all; the message is the reason."""


async def judge(
    target: Target,
    log: list[Answer],
    starter: OperationStarter,
    *,
    checks: Collection[Check] = CHECKS,
    pace: Pace = USUAL_PACE,
    parent: str | None = None,
    required: Collection[Check] = (),
) -> ConformanceReport:
    """Judge a server by the given checks that apply to the target's transport.

    ``required`` checks fail if their feature is absent, or if they cannot be judged.

    The target keeps its answers in ``log``. Operations that were started are cancelled and deleted
    at the end, even if the run itself is cancelled, for example by Ctrl-C.

    Raises:
        ServerUnreachable: The first start fails: there is no server, or it refuses the request.
    """
    bench = Bench(target=target, log=log, starter=starter, pace=pace, parent=parent)
    began = time.monotonic()
    await _reach(bench)
    outcomes = []
    try:
        for rule in RULES:
            if rule.check in checks and target.transport in rule.check.transports:
                outcome = await _judged(bench, rule, began)
                if rule.check in required:
                    outcome = attrs.evolve(outcome, required=True)
                    if outcome.verdict in _UNJUDGED:
                        facts = ("it is required", *outcome.facts)
                        outcome = attrs.evolve(outcome, verdict=Verdict.FAILED, facts=facts)
                outcomes.append(outcome)
        cut = _cut(bench, began + pace.total - time.monotonic())
    finally:
        await _clean(bench)
    return ConformanceReport(
        target=target.address, outcomes=tuple(outcomes), seconds=time.monotonic() - began, cut=cut
    )


async def _reach(bench: Bench) -> None:
    try:
        first = await bench.starter.start(StartKind.LONG)
    except StartFailed as exc:
        raise ServerUnreachable(str(exc)) from exc
    bench.keep_long(first)
    if bench.started:
        answer = await bench.target.get(bench.started[0])
        if answer.lost:
            raise ServerUnreachable(f"the server is not there: {answer}")


async def _judged(bench: Bench, rule: JudgedRule, began: float) -> Outcome:
    start = time.monotonic()
    bench.notes.clear()
    verdict, facts = Verdict.PASSED, list[str]()
    left = began + bench.pace.total - start
    if cut := _cut(bench, left):
        verdict, facts = Verdict.SKIPPED, [cut]
    elif _gone(bench.log) and rule.check.id != "robust.answers":
        verdict, facts = Verdict.SKIPPED, ["the server no longer answers"]
    if verdict is Verdict.PASSED:
        try:
            async with asyncio.timeout(left):
                async for fact in rule.judge(bench):
                    verdict = Verdict.FAILED
                    facts.append(fact)
        except TimeoutError:
            verdict = Verdict.SKIPPED if verdict is Verdict.PASSED else verdict
            facts.append(_cut(bench, 0))
        except (NotOffered, NotJudged) as exc:  # earlier failures still count
            if verdict is Verdict.PASSED:
                absent = isinstance(exc, NotOffered)
                verdict = Verdict.ABSENT if absent else Verdict.SKIPPED
            facts.append(str(exc))
        await bench.release()
    return Outcome(
        check=rule.check,
        transport=bench.target.transport,
        verdict=verdict,
        facts=(*facts, *bench.notes),
        seconds=time.monotonic() - start,
    )


def _cut(bench: Bench, left: float) -> str:
    """Return the reason to end the run early; empty to continue."""
    if left <= 0:
        return f"the {bench.pace.total:g} s of the run are over"
    if sum(one.size for one in bench.log) > _MOST_BYTES:
        return f"the replies of the run have more than {_MOST_BYTES} bytes"
    return ""


def _gone(log: list[Answer]) -> bool:
    last = log[-_LOST_AT_MOST:]
    return len(last) == _LOST_AT_MOST and all(one.lost for one in last)


async def _clean(bench: Bench) -> None:
    """Try for a few seconds to cancel and delete the started operations."""
    if not _gone(bench.log):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING_SECONDS):
                await bench.release(everything=True)
                await asyncio.gather(*map(bench.target.delete, dict.fromkeys(bench.started)))


def merged(reports: Iterable[ConformanceReport]) -> ConformanceReport:
    """Merge several reports into one, such as those of both transports."""
    given = list(reports)
    return attrs.evolve(
        given[0],
        target=", ".join(one.target for one in given),
        outcomes=tuple(chain.from_iterable(one.outcomes for one in given)),
        seconds=sum(one.seconds for one in given),
        cut="; ".join(dict.fromkeys(one.cut for one in given if one.cut)),
    )
