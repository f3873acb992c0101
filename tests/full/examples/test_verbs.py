"""Rules for all ten analyses: stages, units, cancellation and reproducible results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

import pytest

from examples.analysis import messages
from examples.analysis.router import NAMES
from tests.full.examples.conftest import Recorder, cancelled_everywhere, refused, through_json
from tests.full.examples.serving import TYPES
from tests.full.examples.spoiled import good

UNITS: Final[dict[str, dict[str, int]]] = {
    "detect": {"DECODING": 1},
    "verify": {"DECODING": 2, "EXTRACTING": 2},
    "compare": {"DECODING": 2},
    "segment": {"DECODING": 1},
    "classify": {"DECODING": 1, "LEARNING": 2, "DESCRIBING": 1, "PREDICTING": 1},
    "authenticate": {"DECODING": 1, "HASHING": 1, "VERIFYING": 1},
    "score": {"DECODING": 1, "MEASURING": 7},
    "explain": {"DECODING": 1, "LEARNING": 2, "PERTURBING": 100},
    "extract": {"DECODING": 1, "PALETTE": 1, "FINGERPRINT": 1, "METADATA": 1},
    "track": {"DECODING": 2, "TRACKING": 1},
}
"""The units of the stages of a small request, for each analysis."""


def request_of(verb: str) -> Any:
    """Return a small request for this analysis."""
    sampled = {"sampleCount": 100} if verb == "explain" else {}
    kind = getattr(messages, f"{verb.capitalize()}Request")
    return TYPES.load(good(verb) | sampled, kind)


def work_of(verb: str) -> Callable[[Any, Recorder], Any]:
    work: Callable[[Any, Recorder], Any] = getattr(
        import_module(f"examples.analysis.verbs.{verb}"), verb
    )
    return work


@pytest.mark.parametrize("verb", NAMES)
def test_stages_are_reported_in_order_with_their_units(verb: str) -> None:
    """Decoding is the first stage, followed by the module's own stages in order."""
    progress = Recorder()
    work_of(verb)(request_of(verb), progress)
    own = import_module(f"examples.analysis.verbs.{verb}").STAGES
    assert progress.stages == ["DECODING", *own]
    for stage in progress.stages:
        done, announced = progress.units(stage)
        assert announced in (0, done)
    counted = {stage: progress.units(stage)[0] for stage in UNITS[verb]}
    assert counted == UNITS[verb]


@pytest.mark.parametrize("verb", NAMES)
def test_cancellation_at_any_progress_call_ends_the_work(verb: str) -> None:
    """A cancellation at any progress call is raised, and no further progress is reported."""
    work, request, progress = work_of(verb), request_of(verb), Recorder()
    work(request, progress)
    cancelled_everywhere(partial(work, request), range(len(progress.calls)))


@pytest.mark.parametrize("verb", NAMES)
def test_same_request_has_the_same_finite_response(verb: str) -> None:
    """The same request has an equal response, in which no number is NaN or infinite."""
    work, request = work_of(verb), request_of(verb)
    first = work(request, Recorder())
    assert work(request, Recorder()) == first
    assert through_json(first) == first


@pytest.mark.parametrize("verb", NAMES)
def test_work_refuses_a_request_without_pictures(verb: str) -> None:
    """The work itself refuses a request without pictures, even if no check ran before."""
    empty = getattr(messages, f"{verb.capitalize()}Request")()
    assert refused(lambda: work_of(verb)(empty, Recorder())).field
