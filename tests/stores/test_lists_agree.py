"""Every store lists what the bare evaluator says, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lro import State
from lro._filters import narrow
from lro.adapters import Record
from lro.testing import ManualClock
from tests.filters.messages import Row, row
from tests.stores.list_agreement import (
    EXPORT,
    PATHS,
    Comparison,
    compare,
    declared,
    keep,
    stores_of,
)
from tests.vector_files import vectors

EVAL = vectors("filter_eval")
EMBEDDED = ("memory", "sqlite")
KINDS = pytest.mark.parametrize("kinds", [EMBEDDED, ("postgres",)], ids=["embedded", "postgres"])


@KINDS
def test_stores_agree_with_the_evaluator(kinds: tuple[str, ...]) -> None:
    assert sum(compare(kinds, seed) for seed in range(16)) > 50


def record_of(one: Row) -> Record:
    """A record of the vectors."""
    return Record(
        name=one.name,
        parent="",
        method=EXPORT,
        state=State(one.state),
        metadata=one.metadata,
        result=one.response if one.error is None else one.error,
        create_time=one.create_time,
        update_time=one.end_time or one.create_time,
        end_time=one.end_time,
        cancel_requested=one.cancel_requested,
    )


@contextmanager
def of_the_vectors(kinds: tuple[str, ...], *, structs: bool = False) -> Iterator[Comparison]:
    """The records of the vectors in stores of these kinds, with every index."""
    clock = ManualClock()
    with stores_of(kinds, clock) as made:
        records = [record_of(row(one)) for one in EVAL["records"]]
        records = [*keep(records, made.values(), PATHS)]
        services = {kind: declared(store, PATHS, structs=structs) for kind, store in made.items()}
        yield Comparison(records=records, services=services)


@pytest.mark.parametrize("structs", [False, True])
@KINDS
def test_stores_agree_on_the_vectors(kinds: tuple[str, ...], structs: bool) -> None:
    """All filters of the vectors, over their records, in pages of odd sizes."""
    with of_the_vectors(kinds, structs=structs) as both:
        for case in EVAL["cases"]:
            both.check(case["filter"])
        both.check('name = "operations/a" AND name = "operations/b"')
    assert both.tally["filters"] > 240
    assert both.tally["match something"] > 150


@KINDS
def test_stores_agree_on_the_longest_filters(kinds: tuple[str, ...]) -> None:
    """Which are too long to be said in SQL, or nearly so."""
    tests = [f"metadata.verb = export{number}" for number in range(400)]
    names = [f"name = operations/export-{number:03}" for number in range(400)]
    with of_the_vectors(kinds) as both:
        for some in (tests, names):
            for count in (60, 99, 400):
                both.check(" OR ".join([*some[:count], "metadata.verb = sync"]))
                both.check(" OR ".join(some[:count]))
                both.check(" ".join([f"NOT {one}" for one in some[:count]]))
    assert both.tally["match something"] > 6


def test_a_disagreement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: of stores that look for a field's name where a filter asks for the default."""
    monkeypatch.setattr(narrow, "_default_holds", lambda route: False)

    def compare_all() -> None:
        with of_the_vectors(("sqlite",)) as both:
            for case in EVAL["cases"]:
                both.check(case["filter"])

    with pytest.raises(AssertionError, match=r"sqlite: .* wanted"):
        compare_all()
