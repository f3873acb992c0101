"""``owner_only``: a caller without a name sees nothing that has an owner (spec §3.1(5))."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lro import Code
from tests.security.guarded import START, STORES, VERBS, Place, guarded

SEEN = {"BatchGetOperations", "ListOperations", "WatchOperations", "WatchMany", START}
"""Verbs that answer OK, and say that what the caller may not see is not there."""


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture(params=list(VERBS))
def place(request: pytest.FixtureRequest, store: str, tmp_path: Path) -> Iterator[Place]:
    """A service that hides operations from others than their owners, behind each edge."""
    with guarded(request.param, "function", store, tmp_path, owner_only=True) as made:
        yield made


@pytest.mark.parametrize("unnamed", ["", None])
def test_caller_without_name_does_not_see_operations_with_owner(place: Place, unnamed: Any) -> None:
    """Each verb says that it is not there, and changes nothing."""
    name = place.start("ann")
    before = place.house.service.store.get(name)
    place.script.authenticate = lambda headers: unnamed
    for verb in place.verbs:
        answer = place.call(verb, name)
        assert answer.code is (Code.OK if verb in SEEN else Code.NOT_FOUND), verb
        if verb == "BatchGetOperations":
            assert answer.text == f'{{"operations":[],"missing":["{name}"]}}'
        elif verb in ("WatchOperations", "WatchMany"):
            assert answer.text.startswith("id: 1\nevent: missing\n")
        elif answer.code is Code.OK:
            assert name not in answer.text, verb
    assert place.house.service.store.get(name) == before


@pytest.mark.parametrize("unnamed", ["", None])
def test_callers_with_and_without_name_see_their_own(place: Place, unnamed: Any) -> None:
    """What a caller without a name has started belongs to all callers without a name."""
    for caller in ("ann", unnamed):
        place.script.authenticate = lambda headers, caller=caller: caller
        name = place.start()
        place.house.finish(name)
        for verb in sorted(place.verbs, key=lambda verb: verb == "DeleteOperation"):
            answer = place.call(verb, name)
            assert answer.code is Code.OK, verb
            if verb not in ("DeleteOperation", "CancelOperation", START):
                assert name in answer.text, verb
