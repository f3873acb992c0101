"""The list of checks in the documentation: ``python -m tests.conform.page`` prints it."""

from __future__ import annotations

from typing import Final

from lro_conform import Check
from lro_conform._checks import GRPC, HTTP
from lro_conform.server._judge import CHECKS

AREAS: Final = {
    "start": "Starts",
    "names": "Names",
    "result": "Results",
    "any": "Packed messages",
    "states": "States",
    "metadata": "Metadata",
    "calls": "The five methods",
    "wait": "Waiting",
    "cancel": "Cancelling",
    "delete": "Deleting",
    "pages": "Pages",
    "filters": "Filters",
    "routes": "Routes",
    "forms": "Queries and bodies",
    "robust": "Malformed requests",
    "auth": "Credentials",
    "json": "JSON",
    "http": "Headers",
    "replies": "Replies",
    "errors": "Errors",
    "grpc": "gRPC",
}
"""The heading of each area, in the order of the page."""


def source_links(check: Check) -> str:
    """Return the sources of a check as links."""
    return ", ".join(f"[{one}]({one.url})" for one in check.sources)


def table(area: str) -> str:
    """Return the table of the checks of an area."""
    rows = ["| check | level | over | rule | source |", "|---|---|---|---|---|"]
    for one in CHECKS:
        if one.area == area:
            over = {frozenset({HTTP}): "HTTP", frozenset({GRPC}): "gRPC"}.get(
                one.transports, "both"
            )
            level = f"{one.level}, optional" if one.optional else str(one.level)
            rows.append(f"| `{one.id}` | {level} | {over} | {one.says} | {source_links(one)} |")
    return "\n".join(rows)


def tables() -> str:
    return "\n\n".join(f"### {title}\n\n{table(area)}" for area, title in AREAS.items())


if __name__ == "__main__":
    print(tables())
