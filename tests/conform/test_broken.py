"""A server that is broken on purpose is found out, by the checks that it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import attrs
import pytest

from lro.asgi import OperationsApp
from lro_conform import Check, ConformanceReport, Level, Verdict
from lro_conform._checks import HTTP
from lro_conform._report import as_text
from lro_conform.server._bench import Pace
from lro_conform.server._judge import CHECKS, judge
from tests.conform.broken import FAULTS, Broken, Fault, Layer, nothing
from tests.conform.works import PATIENT, http_starter, http_target, serving_works


def judged(
    layer: Layer, checks: Collection[Check], pace: Pace, **options: Any
) -> ConformanceReport:
    """The report on the correct server with a layer around it."""

    async def run(app: object) -> ConformanceReport:
        target = http_target(app, **options)
        try:
            starter = http_starter(target)
            return await judge(target, target.log, starter, checks=checks, pace=pace)
        finally:
            await target.aclose()

    with serving_works() as works:
        return asyncio.run(run(Broken(OperationsApp(works.service, starts=True), layer)))


def test_correct_server_passes_every_check() -> None:
    """Nothing fails; what is absent or cannot be judged is as expected."""
    report = judged(nothing, CHECKS, PATIENT, call_seconds=60)
    verdicts = {one.check.id: one.verdict for one in report.outcomes}
    assert {id: v for id, v in verdicts.items() if v is not Verdict.PASSED} == {
        "auth.anonymous": Verdict.SKIPPED,
        "auth.challenge": Verdict.ABSENT,
        "json.retry-info": Verdict.ABSENT,
    }


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_broken_server_is_found_out(fault: Fault) -> None:
    """Each of the expected checks fails, and says what it has found."""
    checks = [one for one in CHECKS if one.id in fault.found_by]
    pace = attrs.evolve(PATIENT, end=fault.end_seconds, slack=0.4)
    report = judged(
        fault.layer, checks, pace, headers=fault.headers, call_seconds=fault.call_seconds
    )
    failed = {one.check.id: one for one in report.outcomes if one.verdict is Verdict.FAILED}
    assert set(failed) == set(fault.found_by), as_text(report, verbose=True)
    assert all(one.facts for one in failed.values())


def test_each_check_of_http_has_a_fault_that_it_finds() -> None:
    """A check that finds nothing would be no check."""
    found = {id for fault in FAULTS for id in fault.found_by}
    assert {one.id for one in CHECKS if HTTP in one.transports} - found == set()


def test_more_than_thirty_faults_break_a_must() -> None:
    """They end the command with 1, also without ``--strict``."""
    musts = {one.id for one in CHECKS if one.level is Level.MUST}
    assert sum(bool(musts & set(fault.found_by)) for fault in FAULTS) >= 30
