"""A server that is broken on purpose fails exactly the expected checks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import attrs
import pytest

from lro.asgi import OperationsApp
from lro_conform import Check, ConformanceReport, Verdict
from lro_conform._report import as_text
from lro_conform.server._bench import Pace
from lro_conform.server._judge import CHECKS, judge
from tests.conform.broken import FAULTS, OPTIONS, Broken, Layer, nothing
from tests.conform.works import PATIENT, Works, http_starter, http_target, serving_works

CASES = [
    (ids.split(), layer)
    for ids, found in FAULTS.items()
    for layer in (found if isinstance(found, list) else [found])
]


def chosen(*wanted: str) -> list[Check]:
    """Return the checks that are in these areas or have these ids."""
    return [one for one in CHECKS if one.area in wanted or one.id in wanted]


async def judged_over(
    works: Works, layer: Layer, checks: Collection[Check], pace: Pace, **options: Any
) -> ConformanceReport:
    """Judge this server with a layer around it."""
    app = Broken(OperationsApp(works.service, starts=True), layer)
    target = http_target(app, **{"call_seconds": 60.0, **options})
    try:
        return await judge(target, target.log, http_starter(target), checks=checks, pace=pace)
    finally:
        await target.aclose()


def judged(
    layer: Layer, checks: Collection[Check], pace: Pace = PATIENT, **options: Any
) -> ConformanceReport:
    """Judge a new server with a layer around it."""
    with serving_works() as works:
        return asyncio.run(judged_over(works, layer, checks, pace, **options))


def verdicts(report: ConformanceReport) -> dict[str, Verdict]:
    """Return the verdicts of the checks that did not pass."""
    found = {one.check.id: one.verdict for one in report.outcomes}
    return {id: verdict for id, verdict in found.items() if verdict is not Verdict.PASSED}


def test_correct_server_passes_every_check() -> None:
    """No check fails for a correct server; one check is skipped and one is absent, as expected."""
    assert verdicts(judged(nothing, CHECKS)) == {
        "auth.anonymous": Verdict.SKIPPED,
        "auth.challenge": Verdict.ABSENT,
    }


@pytest.mark.parametrize("area", sorted({ids[0].partition(".")[0] for ids, _ in CASES}))
def test_broken_server_fails_exactly_the_expected_checks(area: str) -> None:
    """Each fault fails exactly the expected checks, and each failure has facts."""
    cases = [one for one in CASES if one[0][0].startswith(f"{area}.")]

    async def judge_all(works: Works) -> None:
        for ids, layer in cases:
            options = {"end": 60.0, **OPTIONS.get(" ".join(ids), {})}
            pace = attrs.evolve(PATIENT, end=options.pop("end"), slack=0.4)
            report = await judged_over(works, layer, chosen(*ids), pace, **options)
            failed = {one.check.id: one for one in report.outcomes if one.verdict is Verdict.FAILED}
            assert set(failed) == set(ids), as_text(report, verbose=True)
            assert all(one.facts for one in failed.values())

    with serving_works() as works:
        asyncio.run(judge_all(works))


def test_each_http_check_finds_a_fault() -> None:
    """Each HTTP check fails for at least one fault; otherwise the check might not work at all."""
    found = {id for ids, _ in CASES for id in ids}
    assert {one.id for one in CHECKS if "http" in one.transports} - found == set()
