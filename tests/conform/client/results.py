"""The page with the results of clients: ``python -m tests.conform.client.results`` writes it.

The tests run the same clients, and compare their results with the page.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import attrs

from lro_conform import Check, Verdict
from lro_conform.client._running import CLIENT_CHECKS, judge_client
from tests.conform.client.fork_server import fork_server

PAGE: Final = Path(__file__).parents[3] / "docs/reference/client-conformance.md"
BEGIN: Final = "<!-- results -->\n"
END: Final = "<!-- end of the results -->\n"
ROW: Final = re.compile(r"\| `(?P<id>[\w.-]+)` \| (?P<level>\w+) \|(?P<cells>( [\w-]+ \|)+)")

GRPC_MODULES: Final = ("grpc", "grpc.aio", "lro_client.transports.grpc")
ADAPTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "adapter_lro": ("lro.types", "httpx"),
    "adapter_lro_async": ("lro.types", "httpx"),
    "adapter_google": (),
}
"""The modules that each adapter imports late, by the name of the adapter."""

COLUMNS: Final = (
    ("adapter_lro", "http", "lro, HTTP"),
    ("adapter_lro", "grpc", "lro, gRPC"),
    ("adapter_google", "http", "Google, HTTP"),
    ("adapter_google", "grpc", "Google, gRPC"),
)
"""The columns of the page. A test checks that AsyncClient has the results of Client."""

VARIES: Final = {
    ("adapter_google", f"client.{id}"): "varies"
    for id in (
        "deadlines.not-early",
        "deadlines.retry-after-far",
        "deadlines.unavailable",
        "pace.backs-off",
        "pace.unavailable-backs-off",
    )
}
"""Checks whose results depend on the random pauses of google-api-core."""

GOOGLE: Final = "google-api-core"

Verdicts = dict[str, str]
"""The texts of the table cells, by the id of the check."""


@attrs.frozen
class Found:
    """The results of one run: verdicts and facts by the id of the check."""

    verdicts: Verdicts
    facts: Mapping[str, tuple[str, ...]]


async def judge(adapter: str, transport: str) -> Found:
    """Run one adapter through all scenarios of a transport."""
    others = (*ADAPTERS[adapter], *(GRPC_MODULES if transport == "grpc" else ()))
    with fork_server(adapter, *others) as launch:
        report = await judge_client(
            launch, CLIENT_CHECKS, target=adapter, transports=[transport], jobs=16
        )
    verdicts = {one.check.id: str(one.verdict) for one in report.outcomes}
    varied = {id: VARIES.get((adapter, id), verdict) for id, verdict in verdicts.items()}
    return Found(varied, {one.check.id: one.facts for one in report.outcomes})


def run_clients(*wanted: tuple[str, str]) -> list[Found]:
    """Return the results of several pairs of adapter and transport, which run at the same time."""

    async def run() -> list[Found]:
        return await asyncio.gather(*(judge(*one) for one in wanted))

    return asyncio.run(run())


def cell(verdict: str | None) -> str:
    return "-" if verdict is None else verdict


def rows(found: Sequence[Verdicts]) -> Iterator[str]:
    titles = [title for _, _, title in COLUMNS]
    for area, checks in groupby(sorted(CLIENT_CHECKS, key=place), key=lambda one: one.area):
        yield f"### {area}\n\n"
        yield f"| check | level | {' | '.join(titles)} | rule |\n"
        yield "|---" * (len(titles) + 3) + "|\n"
        for one in checks:
            cells = " | ".join(cell(column.get(one.id)) for column in found)
            yield f"| `{one.id}` | {one.level} | {cells} | {one.says} ({sources(one)}) |\n"
        yield "\n"


def place(check: Check) -> int:
    """Return a sort key that groups checks by area, in the order of the areas' first checks."""
    return [one.area for one in CLIENT_CHECKS].index(check.area)


def sources(check: Check) -> str:
    return ", ".join(f"[{one}]({one.url})" for one in check.sources)


def counts(found: Sequence[Verdicts]) -> Iterator[str]:
    levels = {one.id: str(one.level) for one in CLIENT_CHECKS}
    yield "| client | must | should | info |\n|---|---|---|---|\n"
    for (_, _, title), column in zip(COLUMNS, found, strict=True):
        shown = []
        for level in ("must", "should", "info"):
            given = [verdict for id, verdict in column.items() if levels[id] == level]
            kinds = (*(str(one) for one in Verdict), "varies")
            numbers = [f"{given.count(kind)} {kind}" for kind in kinds if kind in given]
            shown.append(", ".join(numbers))
        yield f"| {title} | {' | '.join(shown)} |\n"
    yield "\n"


def rendered(found: Sequence[Verdicts]) -> str:
    return "\n" + "".join([*counts(found), *rows(found)])


def on_page() -> list[Verdicts]:
    """Return the columns of the page as it is now."""
    found: list[Verdicts] = [{} for _ in COLUMNS]
    for row in ROW.finditer(PAGE.read_text()):
        given = [one.strip() for one in row["cells"].strip(" |").split("|")]
        for column, verdict in zip(found, given, strict=True):
            if verdict != "-":
                column[row["id"]] = verdict
    return found


def results_on_page() -> str:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def google_version() -> str:
    return f"{GOOGLE} {importlib.metadata.version(GOOGLE)}"


def write() -> None:
    found = run_clients(*((adapter, transport) for adapter, transport, _ in COLUMNS))
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    head = re.sub(rf"{GOOGLE} [\d.]+\d", google_version(), head)
    PAGE.write_text(f"{head}{BEGIN}{rendered([one.verdicts for one in found])}{END}{tail}")


if __name__ == "__main__":
    write()
