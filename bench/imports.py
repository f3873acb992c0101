"""CPU time of a fresh interpreter that imports us; against one that imports our dependencies."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

from bench.measure import Figure, compare

# As in an installed package, bytecode is cached between processes.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def cpu(statement: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def run() -> Iterator[Figure]:
    pairs = {
        "import lro / attrs, cattrs": ("import lro", "import attrs, cattrs", 20),
        "lro.Service / attrs, cattrs": ("import lro; lro.Service", "import attrs, cattrs", None),
        "import lro_client / httpx, attrs": ("import lro_client", "import httpx, attrs", 25),
        "lro_client.Client / httpx, attrs": (
            "from lro_client import Client",
            "import httpx, attrs",
            25,
        ),
    }
    for name, (own, low, target) in pairs.items():
        found = compare(
            name,
            lambda own=own: cpu(own),  # type: ignore[misc]
            lambda low=low: cpu(low),  # type: ignore[misc]
            rounds=9,
            scale=1e3,
            unit="ms",
        )
        yield found
        more = found.ours - (found.floor or 0)
        yield Figure(what=name, measure="more CPU", ours=more, unit="ms", target=target)
