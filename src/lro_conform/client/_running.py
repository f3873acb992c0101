"""Run the client in all scenarios, several at a time, and judge its behaviour."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from lro_conform._checks import GRPC, HTTP, Check, ConformanceReport, Outcome
from lro_conform._options import UnusableInput
from lro_conform.client._failures import ASKED_PAUSES, FINAL, PASSING, SILENT
from lro_conform.client._http_peer import HttpPeer
from lro_conform.client._judging import MARGIN_SECONDS, STARTUP_SECONDS, ClientRun, no_connection
from lro_conform.client._launch import Launch, read_said
from lro_conform.client._results import BROKEN_RESULTS, ERRORS, ODD_ANSWERS, ORDINARY, WAITS
from lro_conform.client._scenario import COLLECTION, Scenario
from lro_conform.client._spoilt_grpc import REPLIES, STREAMS
from lro_conform.client._spoilt_http import CUT, ENDLESS, MISLEADING
from lro_conform.client._steps import Performance, SeenCall, Verb
from lro_conform.client._tasks import CANCELS, DELETES, LISTS

SCENARIOS: Final[tuple[Scenario, ...]] = (
    *(*ORDINARY, *BROKEN_RESULTS, *ERRORS, *ODD_ANSWERS, *WAITS),
    *(*PASSING, *FINAL, *ASKED_PAUSES, *SILENT),
    *(*CUT, *ENDLESS, *MISLEADING, *STREAMS, *REPLIES),
    *(*CANCELS, *LISTS, *DELETES),
)

CLIENT_CHECKS: Final[tuple[Check, ...]] = tuple(
    one.check for scenario in SCENARIOS for one in scenario.checks
)


@attrs.define(eq=False)
class _Stage:
    played: Performance
    variables: Mapping[str, str]
    elsewhere: list[SeenCall]
    come: asyncio.Event


@contextlib.asynccontextmanager
async def _staged(scenario: Scenario, transport: str) -> AsyncIterator[_Stage]:
    token, come = secrets.token_hex(8), asyncio.Event()
    name = f"{COLLECTION}/{scenario.name}"
    played = Performance(scenario.scripts[transport], token, time.monotonic, come.set)
    variables = {
        "LRO_CONFORM_TRANSPORT": transport,
        "LRO_CONFORM_OPERATION": name,
        "LRO_CONFORM_PARENT": COLLECTION.rpartition("/")[0],
        "LRO_CONFORM_TASK": scenario.task,
        "LRO_CONFORM_TIMEOUT": f"{scenario.timeout:g}",
        "LRO_CONFORM_TOKEN": token,
        # The client must not reach the peer through a proxy from the environment.
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    async with contextlib.AsyncExitStack() as stack:
        elsewhere: list[SeenCall] = []
        if transport == HTTP:
            peer = HttpPeer(name, played)
            if scenario.elsewhere is not None:
                other = Performance({Verb.GET: (scenario.elsewhere,)}, token, time.monotonic)
                there = await stack.enter_async_context(HttpPeer(name, other))
                peer.elsewhere = f"http://localhost:{there.listener.port}"
                elsewhere = other.calls
            await stack.enter_async_context(peer)
            found = {"LRO_CONFORM_URL": peer.address}
        else:
            from lro_conform.client._grpc_peer import GrpcPeer  # needs an extra

            grpc_peer = GrpcPeer(name, played, scenario.mute)
            await stack.enter_async_context(grpc_peer)
            found = {"LRO_CONFORM_TARGET": grpc_peer.address}
        yield _Stage(played, {**variables, **found}, elsewhere, come)


async def run_scenario(launch: Launch, scenario: Scenario, transport: str) -> ClientRun:
    """Run the client once, for at most its timeout plus :data:`MARGIN_SECONDS`."""
    async with _staged(scenario, transport) as stage:
        process = await launch(stage.variables)
        ending = asyncio.ensure_future(process.wait())
        try:
            overdue = not await _ended(ending, stage, scenario.timeout)
        finally:
            process.kill()  # also kills processes that the client left behind
            exit_status = await ending
        said = read_said(process.output)
        return ClientRun(
            calls=tuple(stage.played.calls),
            elsewhere=tuple(stage.elsewhere),
            connected=stage.played.connected,
            said=said,
            finished=process.last_output if said.outcome else time.monotonic(),
            overdue=overdue and not said.outcome,
            timeout=scenario.timeout,
            task=scenario.task,
            exit_status=exit_status,
            errors=process.errors.decode("utf-8", "replace"),
            notes=stage.played.notes,
        )


async def _ended(ending: asyncio.Future[int], stage: _Stage, timeout: float) -> bool:
    """Return True if the client ends by itself in time after its first connection."""
    coming = asyncio.ensure_future(stage.come.wait())
    both: set[asyncio.Future[Any]] = {ending, coming}
    try:
        await asyncio.wait(both, timeout=STARTUP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            await asyncio.wait({ending}, timeout=timeout + MARGIN_SECONDS)
        return ending.done()
    finally:
        coming.cancel()


def _judged(
    scenario: Scenario, transport: str, run: ClientRun, wanted: Collection[str], seconds: float
) -> Iterator[Outcome]:
    for one in scenario.checks:
        if one.check.id in wanted:
            verdict, facts = one.judge(run)
            yield Outcome(
                check=one.check, transport=transport, verdict=verdict, facts=facts, seconds=seconds
            )


async def judge_client(
    launch: Launch,
    checks: Iterable[Check],
    *,
    target: str,
    transports: Sequence[str] = (HTTP,),
    jobs: int = 8,
) -> ConformanceReport:
    """Judge a client by these checks of :data:`CLIENT_CHECKS`.

    At most ``jobs`` processes run at a time. The first process runs alone: if it does not connect
    to its peer, later processes would not either.

    Raises:
        UnusableInput: The command cannot be run, or does not connect.
        MissingExtra: A transport needs the extra ``grpc``.
    """
    if GRPC in transports:
        import lro_conform.client._grpc_peer  # noqa: F401  # imported before any process starts
    wanted = {one.id for one in checks}
    began = time.monotonic()
    slots = asyncio.Semaphore(jobs)

    async def judged(scenario: Scenario, transport: str) -> Sequence[Outcome]:
        async with slots:
            start = time.monotonic()
            run = await run_scenario(launch, scenario, transport)
        if run.connected is None and not outcomes:
            raise UnusableInput(no_connection(run))
        return [*_judged(scenario, transport, run, wanted, time.monotonic() - start)]

    plan = [
        (scenario, transport)
        for transport in transports
        for scenario in SCENARIOS
        if transport in scenario.scripts and any(one.check.id in wanted for one in scenario.checks)
    ]
    outcomes: list[Outcome] = []
    for first in plan[:1]:
        outcomes += await judged(*first)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(judged(*one)) for one in plan[1:]]
    outcomes += [outcome for task in tasks for outcome in task.result()]
    seconds = time.monotonic() - began
    return ConformanceReport(target=target, outcomes=tuple(outcomes), seconds=seconds)
