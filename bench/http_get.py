"""GET of an operation over HTTP, CPU of the server process; against a bare ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from bench.load import Server, get, load
from bench.measure import Figure, Sample, compare

REQUESTS: Final = 4000
CONNECTIONS: Final = 16


def sample_of(server: Server) -> Sample:
    """Return a function that measures the seconds of server CPU per request."""
    request = get(f"/v1/{server.said}")
    return lambda: load(server.port, request, CONNECTIONS, REQUESTS).cpu


def run() -> Iterator[Figure]:
    with contextlib.closing(Server("serving", "bare")) as bare:
        for kind, target in (("starlette", None), ("memory", 0.7), ("sqlite", 0.5)):
            with contextlib.closing(Server("serving", kind)) as server:
                what = f"GET, {kind}"
                found = compare(what, sample_of(server), sample_of(bare), measure="CPU")
                yield found
                yield Figure(
                    what=what,
                    measure="share of the floor's rate",
                    ours=1e6 / found.ours,
                    floor=1e6 / (found.floor or 1),
                    rounds=[1 / one for one in found.rounds],
                    unit="/s",
                    target=target,
                )
