"""No request of at most 1 MB holds the event loop for long (spec §5.9(6), defects 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.security.held import (
    MB,
    Asked,
    measure,
    of_bodies,
    of_characters,
    of_filters,
    of_headers,
    of_targets,
)

BOUND_SECONDS = 1.0
"""Twenty times what is wanted: only a defect takes so long."""

KINDS: dict[str, tuple[tuple[str, ...], Callable[[str], Iterator[Asked]]]] = {
    "headers": (("get:", "cancel:", "start:"), lambda name: of_headers(name, [MB])),
    "targets": (("get:", "start:"), lambda name: of_targets(name, [MB])),
    "bodies": (("cancel:", "watch:", "start:"), lambda name: of_bodies(name, [MB])),
    "characters": (("list:", "cancel:"), lambda name: of_characters(name, ";%/\xe9", [MB])),
    "filters": (("filter:",), lambda _: of_filters("", [8192])),
}
"""What is varied: the verbs that read it, each in another way, and the requests."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_request_holds_the_event_loop(kind: str) -> None:
    """A task on the same loop goes on meanwhile; python -m tests.security.held measures all."""
    verbs, make = KINDS[kind]
    found = measure(
        lambda name: (one for one in make(name) if one.what.startswith(verbs)), operations=100
    )
    longest = max(found, key=lambda one: one.seconds)
    assert longest.seconds < BOUND_SECONDS, longest
    assert {one.status for one in found} <= {200, 400, 403, 404, 405, 413, 415}
