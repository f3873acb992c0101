"""CPU time of a fresh interpreter that imports us; against one that imports what we build on."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

from bench.measure import compare


def cpu(statement: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def run() -> Iterator[str]:
    pairs = {
        "import lro / attrs + cattrs": ("import lro", "import attrs, cattrs"),
        "lro.Service / attrs + cattrs": ("import lro; lro.Service", "import attrs, cattrs"),
        "import lro_client / httpx + tenacity + attrs + cattrs": (
            "import lro_client",
            "import httpx, tenacity, attrs, cattrs",
        ),
    }
    for name, (own, low) in pairs.items():
        found = compare(
            name,
            lambda own=own: cpu(own),  # type: ignore[misc]
            lambda low=low: cpu(low),  # type: ignore[misc]
            rounds=9,
            scale=1e3,
            unit="ms",
        )
        yield f"{found}  {found.ours - found.floor:+.1f} ms"
