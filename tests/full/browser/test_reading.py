"""The page reads progress, estimates and numbers from messages as the client does."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from lro_client.progress import Estimate, progress_of

METADATA: tuple[Any, ...] = (
    None,
    [1],
    {},
    {"progress_percent": "40"},
    {"progressPercentage": 40.5},
    {"percent": 400},
    {"percentComplete": -1, "percentDone": 7},
    {"percent": True},
    {"percent": " 12 "},
    {"percent": "0x10"},
    {"percent": "inf"},
    {"fractionComplete": 1},
    {"progress": 1},
    {"progress": 1.0},
    {"progress": 0.4},
    {"progress": "0.4"},
    {"done": 3, "total": 4},
    {"done": "9007199254740993", "total": "18014398509481986"},
    {"completed": 3},
    {"done": 3, "total": 0},
    {"completedWork": 1, "estimatedWork": 3, "done": 1},
    {"items_done": 1, "itemsTotal": 2},
    {"progressWorkDocuments": {"completedWork": "2", "estimatedWork": "8"}, "state": "PROCESSING"},
    {"progress": {"progress": {"progress": {"progress": {"percent": 5}}}}},
    {"progress": {"progress": {"progress": {"percent": 5}}}},
    {"progress": {"message": "inside"}, "percent": 3},
    {"statusMessage": "  two\n lines\u202e "},
    {"state": "STATE_UNSPECIFIED", "verb": "create", "target": "disks/a"},
    {"stage": "COPYING", "requestedCancellation": True},
    {"cancelRequested": True},
    {"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"percent": 9}},
)


REPORTS: tuple[list[tuple[float, float | None]], ...] = (
    [],
    [(0, 0.5)],
    [(0, 0.0), (10, 0.1), (20, 0.2), (30, None)],
    [(0, 0.0), (10, 0.4), (20, 0.3)],
    [(0, 0.0), (1, 0.9), (2, 0.0), (11, 0.1)],
    [(0, 0.1), (0, 0.5)],
    [(0, 0.0), (10, 0.1), (500, 0.11)],
    [(0, 0.2), (5, 1.5)],
    [(10, 0.2), (5, 0.4), (20, 0.6)],
)
"""Sequences of progress reports: (seconds, fraction)."""

ESTIMATE = """all => all.map(reports => {
    const estimate = new Estimate();
    for (const [seconds, fraction] of reports) estimate.add(fraction, seconds);
    return estimate.left(600);
})"""

SHOWN = """text => {
    const parts = (value) => value instanceof Exact ? value.text
        : value && typeof value === "object" ? Object.values(value).map(parts).join() : `${value}`;
    return parts(readJson(text));
}"""


def test_page_reads_progress_as_the_client_does(page: Any) -> None:
    """For the same metadata, the page finds the same progress as ``lro_client.progress``."""
    texts = [json.dumps(one) for one in METADATA]
    found = page.evaluate("texts => texts.map(text => progressOf(readJson(text)))", texts)
    for metadata, shown in zip(METADATA, found, strict=True):
        inner = metadata
        if isinstance(metadata, dict) and "@type" in metadata:
            inner = metadata["value"]  # the client has unpacked well-known types
        wanted = progress_of(inner)
        assert shown == (None if wanted is None else attrs.asdict(wanted)), metadata


def test_page_estimates_the_end_as_the_client_does(page: Any) -> None:
    """For the same reports, page and client estimate the same number of seconds."""
    for reports, found in zip(REPORTS, page.evaluate(ESTIMATE, REPORTS), strict=True):
        estimate = Estimate(clock=lambda: 600.0)
        for seconds, fraction in reports:
            estimate.add(fraction, seconds)
        assert found == pytest.approx(estimate.seconds_left), reports


def test_numbers_are_shown_with_all_digits(page: Any) -> None:
    """The page keeps all digits, even of numbers that do not fit a double."""
    for text in ("9007199254740993", "1.0", "-0", "1e400"):
        assert page.evaluate(SHOWN, text) == text
    assert page.evaluate(SHOWN, '{"a": [1.50, 2, 12345678901234567890]}') == (
        "1.50,2,12345678901234567890"
    )
