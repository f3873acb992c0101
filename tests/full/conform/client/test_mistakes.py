"""A plain client passes; if it is told to make a mistake, the check for that mistake fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from lro_conform import ConformanceReport, Level, Verdict
from lro_conform.client._launch import ClientProcess, Launch
from lro_conform.client._running import CLIENT_CHECKS, judge_client
from tests.conform.client.fork_server import fork_server

MISTAKES: Final = {
    "any-type": "results.other-type",
    "call-is-operation": "failures.call-cancelled",
    "cancels-at-timeout": "deadlines.no-cancel",
    "cancels-twice": "cancels.once",
    "code-zero-is-ok": "errors.code-zero",
    "cut-is-whole": "spoilt.cut-body",
    "cut-list": "lists.not-cut",
    "denied-is-passing": "failures.denied-at-once",
    "drip": "deadlines.drip",
    "empty-page-is-last": "lists.all-pages",
    "gives-up": "deadlines.not-early",
    "hurries": "pace.backs-off",
    "ignores-refused-delete": "deletes.unimplemented",
    "invents": "results.neither",
    "never-cancels": "cancels.once",
    "no-deadline": "deadlines.never-done",
    "no-read-timeout": "deadlines.silent",
    "no-retry": "retries.unavailable",
    "no-retry-after": "retry-after.unavailable",
    "page-is-empty-operation": "spoilt.page",
    "polls-after-end": "results.quiet-after-end",
    "redirect": "redirects.token",
    "response-first": "results.both",
    "result-is-done": "results.only-done-counts",
    "retries-result": "errors.unavailable",
    "says-nothing": "results.response",
    "sleeps-past-deadline": "deadlines.retry-after-far",
    "spins": "pace.pauses",
    "spins-on-wait": "waits.at-once",
    "strict": "odd.unknown-fields",
    "truthy-done": "spoilt.text-done",
    "wait-is-done": "waits.at-once",
}
"""The mistakes of the client, each with the check that must fail."""

PACES: Final = {"gives-up", "hurries", "spins", "spins-on-wait"}
"""Mistakes that change how often a client calls; they run after the other mistakes.

While thirty other clients run, a client that never pauses makes few calls, and every pause of a
client is long.
"""


async def judged(launch: Launch, mistake: str, *only: str) -> ConformanceReport:
    async def mistaken(variables: Mapping[str, str]) -> ClientProcess:
        return await launch({**variables, "MISTAKE": mistake})

    checks = [one for one in CLIENT_CHECKS if not only or one.id in only]
    return await judge_client(mistaken, checks, target=mistake or "plain", jobs=30)


async def judge_all(launch: Launch) -> tuple[ConformanceReport, ...]:
    paces = [judged(launch, one, f"client.{MISTAKES[one]}") for one in sorted(PACES)]
    others = [
        judged(launch, one, f"client.{id}") for one, id in MISTAKES.items() if one not in PACES
    ]
    lawful = judged(launch, "own-type", "client.results.other-type")
    plain, own, *found = await asyncio.gather(judged(launch, ""), lawful, *others)
    return (plain, own, *found, *await asyncio.gather(*paces))


def test_a_plain_client_passes_and_each_mistake_is_found() -> None:
    with fork_server("plain_client") as launch:
        plain, own, *mistaken = asyncio.run(judge_all(launch))
    failed = [one for one in plain.outcomes if one.verdict is Verdict.FAILED]
    counted = [one for one in failed if one.check.level is not Level.INFO]
    assert {one.check.id: one.facts for one in counted} == {}
    assert [one.verdict for one in own.outcomes] == [Verdict.PASSED]
    found = {report.target: report.outcomes for report in mistaken}
    assert found.keys() == MISTAKES.keys()
    missed = {name: one.facts for name, (one,) in found.items() if one.verdict != Verdict.FAILED}
    assert missed == {}
