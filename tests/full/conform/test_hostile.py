"""Servers that try to make the kit hang or crash: each run ends with a report or an error."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from lro_conform import ConformanceReport, Verdict
from lro_conform._report import as_junit, as_text
from lro_conform.server import _http
from lro_conform.server._http import HttpTarget
from lro_conform.server._judge import ServerUnreachable, judge
from lro_conform.server._starts import FunctionStarter, HttpStarter, RequestTemplate, StartKind
from tests.conform.hostile import HOSTILE, LOST, Behaviour, serving_hostile
from tests.conform.works import PATIENT
from tests.services.ports import free_port

START = {StartKind.LONG: RequestTemplate("POST", "/start", "")}


def judged(url: str, call_seconds: float) -> ConformanceReport:
    """Judge the server at this URL, with this timeout for calls."""

    async def run() -> ConformanceReport:
        target = HttpTarget(address=url, call_seconds=call_seconds)
        try:
            pace = attrs.evolve(PATIENT, end=0.2, slack=0.2)
            return await judge(target, target.log, HttpStarter(target, START), pace=pace)
        finally:
            await target.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("behaviour", LOST.values(), ids=LOST)
def test_server_that_never_answers_is_unreachable(behaviour: Behaviour) -> None:
    """A run ends, even if the server never answers."""
    with (
        serving_hostile(behaviour) as url,
        pytest.raises(ServerUnreachable, match="the server is not there: GET /v1/operations/"),
    ):
        judged(url, call_seconds=5)


@pytest.mark.parametrize("behaviour", HOSTILE.values(), ids=HOSTILE)
def test_hostile_server_does_not_hang_or_crash_the_kit(
    behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid replies are reported, without characters that could harm a terminal."""
    monkeypatch.setattr(_http, "MAX_REPLY", 1024 * 1024)
    with serving_hostile(behaviour) as url:
        report = judged(url, call_seconds=5)
    assert report.exit_status() == 1
    for text in (as_text(report, verbose=True), as_junit(report)):
        lines = text.replace("§", "").splitlines()
        assert [line for line in lines if not line.isprintable() or not line.isascii()] == []


def test_port_without_a_server_is_unreachable() -> None:
    """If no server listens on the port, the run ends with ServerUnreachable."""
    with pytest.raises(ServerUnreachable, match="not start an operation: POST /start: no reply"):
        judged(f"http://127.0.0.1:{free_port()}", call_seconds=30)  # the machine may be busy


def test_checks_are_skipped_once_the_server_stops_answering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After three requests without a reply, one check fails and the remaining ones are skipped."""

    async def run() -> ConformanceReport:
        target = HttpTarget(address="http://127.0.0.1:9", call_seconds=0.25)
        answers = iter([True])

        async def get(name: str) -> object:
            if next(answers, False):
                return attrs.evolve(await target.ask("GET", "/x", rpc="get"), lost=False)
            return await target.ask("GET", "/x", rpc="get")

        async def start(kind: StartKind) -> str:
            return "operations/abcdefgh"

        monkeypatch.setattr(HttpTarget, "get", lambda self, name: get(name))
        try:
            return await judge(target, target.log, FunctionStarter(start), pace=PATIENT)
        finally:
            await target.aclose()

    report = asyncio.run(run())
    verdicts = {one.check.id: one.verdict for one in report.outcomes}
    assert verdicts["robust.answers"] is Verdict.FAILED
    assert list(verdicts.values()).count(Verdict.SKIPPED) > 100
