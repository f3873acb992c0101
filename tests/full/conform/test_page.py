"""The page of the kit agrees with the code: its checks, and the results of servers."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("grpc")
pytest.importorskip("numpy")
pytest.importorskip("skimage")

from lro_conform import Level, Verdict
from lro_conform._report import as_text
from lro_conform.server._judge import CHECKS
from tests.conform.page import AREAS, tables
from tests.conform.servers import SERVERS, UNHURRIED, row

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/reference/conformance.md"
BRIEFLY: Final = [
    ("a small service on lro", "ASGI", "SQLite"),
    ("a small service on lro", "WSGI", "memory"),
    ("a small service on lro", "WSGI", "PostgreSQL"),
    ("a small service on lro", "gRPC", "SQLite"),
    ("a servicer by hand", "gRPC", "a dict"),
    ("the same behind a gateway", "HTTP", "a dict"),
]
"""The rows of the results table that are checked here; the other rows take longer."""


def test_page_lists_every_check() -> None:
    """The page has the list that ``python -m tests.conform.page`` prints."""
    text = PAGE.read_text("utf-8")
    listed = text.partition("<!-- checks -->\n\n")[2].partition("\n\n<!-- end of checks -->")[0]
    assert listed == tables()


def test_page_has_each_area_once() -> None:
    """Every area of a check has a heading on the page."""
    assert {one.area for one in CHECKS} == set(AREAS)


def test_page_counts_the_checks() -> None:
    """The page has the number of checks of each level."""
    numbers = Counter(one.level for one in CHECKS)
    counted = ", ".join(f"{numbers[level]} {level}" for level in Level)
    assert f"{len(CHECKS)} checks: {counted}" in PAGE.read_text("utf-8")


def test_ids_of_checks_are_words() -> None:
    """A check's id is an area and hyphenated words, is unique, and belongs to no client check."""
    ids = [one.id for one in CHECKS]
    assert len(ids) == len(set(ids))
    assert [one for one in ids if not re.fullmatch(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*", one)] == []
    assert not any(one.startswith("client.") for one in ids)


def test_each_rule_is_a_sentence_with_a_source() -> None:
    assert [one.id for one in CHECKS if not one.says.endswith(".") or not one.sources] == []


@pytest.mark.parametrize("key", BRIEFLY, ids=" ".join)
def test_server_gets_the_counts_shown_on_the_page(
    key: tuple[str, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The counts by level and verdict are those on the page; the duration is not compared."""
    caplog.set_level(logging.CRITICAL)
    with SERVERS[key](*key[1:]) as served:
        report = served.judge(UNHURRIED)
    assert row(key, report) in PAGE.read_text("utf-8"), as_text(report)


def test_reference_server_passes_the_checks_of_the_main_rules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reference server passes the checks of the main rules; the page has all results."""
    caplog.set_level(logging.CRITICAL)
    checks = [one for one in CHECKS if one.area in ("names", "result", "any", "cancel", "errors")]
    with SERVERS["the reference server", "ASGI", "memory"]("ASGI", "memory") as served:
        report = served.judge(UNHURRIED, checks)
    assert {one.verdict for one in report.outcomes} == {Verdict.PASSED}, as_text(report)
