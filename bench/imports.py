"""CPU time of a fresh interpreter that imports us; against one that imports our dependencies."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

from bench.measure import compare

# As in an installed package, bytecode is cached between processes.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def cpu(statement: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def run() -> Iterator[str]:
    pairs = {
        "import lro / attrs + cattrs": ("import lro", "import attrs, cattrs"),
        "lro.Service / attrs + cattrs": ("import lro; lro.Service", "import attrs, cattrs"),
        "import lro_client / httpx + attrs": ("import lro_client", "import httpx, attrs"),
        "Client of lro_client / httpx + attrs + lro": (
            "from lro_client import Client",
            "import httpx, attrs, lro",
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
