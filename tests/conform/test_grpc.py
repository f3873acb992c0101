"""gRPC servers: one written by hand on the stubs, and broken versions of that server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import attrs
import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning")

from lro_conform import Check, ConformanceReport, Verdict
from lro_conform._report import as_text
from lro_conform.server._bench import Pace
from lro_conform.server._grpc import GrpcTarget
from lro_conform.server._judge import CHECKS, ServerUnreachable, judge
from lro_conform.server._starts import FunctionStarter
from tests.conform.broken_grpc import GRPC_FAULTS, Handles
from tests.conform.handmade import Operations, serving_handmade
from tests.conform.test_broken import chosen
from tests.conform.works import PATIENT
from tests.services.ports import free_port


def judged(
    address: str,
    servicer: Operations,
    checks: Collection[Check] = CHECKS,
    pace: Pace = PATIENT,
    **options: Any,
) -> ConformanceReport:
    """Judge a gRPC server whose operations are started by a function."""

    async def run() -> ConformanceReport:
        target = GrpcTarget(address=address, **options)
        try:
            starter = FunctionStarter(servicer.start_name)
            return await judge(target, target.log, starter, checks=checks, pace=pace)
        finally:
            await target.aclose()

    return asyncio.run(run())


def test_server_written_by_hand_passes_every_check() -> None:
    """No check fails for a server that is written by hand, without this library."""
    servicer = Operations()
    with serving_handmade(servicer) as address:
        report = judged(address, servicer, call_seconds=60)
    verdicts = {one.check.id: one.verdict for one in report.outcomes}
    assert {id: v for id, v in verdicts.items() if v is not Verdict.PASSED} == {
        "metadata.times": Verdict.ABSENT
    }


@pytest.mark.parametrize("ids", GRPC_FAULTS)
def test_broken_server_fails_exactly_the_expected_checks(ids: str) -> None:
    """Each fault fails exactly the expected checks."""
    checks = chosen(*ids.split())
    for fault in GRPC_FAULTS[ids]:
        servicer, interceptors = Operations(), ()
        if isinstance(fault, Handles):
            interceptors = (fault,)
        else:
            fault(servicer)
        with serving_handmade(servicer, interceptors) as address:
            report = judged(address, servicer, checks, attrs.evolve(PATIENT, slack=0.4))
        failed = {one.check.id for one in report.outcomes if one.verdict is Verdict.FAILED}
        assert failed == set(ids.split()), as_text(report, verbose=True)


def test_each_grpc_check_finds_a_fault() -> None:
    """Every check that is only for gRPC has a fault here; the other checks have one over HTTP."""
    alone = {one.id for one in CHECKS if one.transports == {"grpc"}}
    assert alone - {id for ids in GRPC_FAULTS for id in ids.split()} == set()


def test_port_without_a_server_is_unreachable() -> None:
    with pytest.raises(ServerUnreachable, match="the server is not there: GetOperation"):
        judged(f"127.0.0.1:{free_port()}", Operations(), call_seconds=5)


def test_server_without_tls_is_unreachable_over_grpcs() -> None:
    """A ``grpcs://`` target does not accept a server without TLS."""
    servicer = Operations()
    with (
        serving_handmade(servicer) as address,
        pytest.raises(ServerUnreachable, match="the server is not there: GetOperation"),
    ):
        judged(address, servicer, secure=True, call_seconds=3)
