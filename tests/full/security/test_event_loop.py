"""No request of at most 1 MB holds the event loop for long (spec §5.9(6))."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.security.held import (
    MB,
    Asked,
    Routes,
    measure,
    of_bodies,
    of_characters,
    of_filters,
    of_headers,
    of_targets,
    routes,
)

BOUND_SECONDS = 1.0
"""Twenty times what is wanted: only a defect takes so long."""

KINDS: dict[str, tuple[tuple[str, ...], Callable[[Routes], Iterator[Asked]]]] = {
    "headers": (("get", "cancel", "start"), lambda chosen: of_headers(chosen, [MB])),
    "targets": (("get", "start"), lambda chosen: of_targets(chosen, [MB])),
    "bodies": (("cancel", "watch", "start"), lambda chosen: of_bodies(chosen, [MB])),
    "characters": (("list", "cancel"), lambda chosen: of_characters(chosen, ";%/\xe9", [MB])),
    "filters": ((), lambda _: of_filters("", [8192])),
}
"""What is varied: the verbs that read it, each in another way, and the requests."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_request_holds_the_event_loop(kind: str) -> None:
    """A task on the same loop goes on meanwhile; python -m tests.security.held measures all."""
    verbs, make = KINDS[kind]
    found = measure(lambda name: make({verb: routes(name)[verb] for verb in verbs}), operations=100)
    longest = max(found, key=lambda one: one.seconds)
    assert longest.seconds < BOUND_SECONDS, longest
    assert {one.status for one in found} <= {200, 400, 403, 404, 405, 413, 415}
