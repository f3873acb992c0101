"""Alerts: promtool accepts the rules file of the docs, and each alert fires when due."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("yaml")

import yaml

from lro.telemetry import METRICS
from tests.page_texts import DOCS, ROOT, fences, rows

PAGE: Final = "how-to/alerts.md"
FILE: Final = DOCS / "how-to/lro-alerts.yml"
GROUPS: Final = yaml.safe_load(FILE.read_text("utf-8"))["groups"]
RULES: Final[Mapping[str, Any]] = {
    rule["alert"]: rule for group in GROUPS for rule in group["rules"]
}
PANELS: Final = {panel: query.strip("`") for panel, query in rows(PAGE, "panel")}
NAMES: Final = {metric.prometheus_name: metric for metric in METRICS}
SERIES: Final = re.compile(r"\blro_\w+")
SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")
LABELS: Final = re.compile(r"\{([^}]*)\}|by \(([^)]*)\)")

METHOD: Final = 'lro_method="acme.work.v1.Works.Work"'
MINUTES: Final = 100

Series = Mapping[str, str]


def buckets(metric: str, labels: str, slowest: str) -> Series:
    """Return a histogram with one value a minute, in the bucket with the bound ``slowest``."""
    bounds = ["1", "5", "10", "30", "60", "300", "+Inf"]
    first = bounds.index(slowest)
    return {
        f'{metric}_bucket{{{labels}le="{bound}"}}': f"0+{int(number >= first)}x{MINUTES}"
        for number, bound in enumerate(bounds)
    }


def ends(good: int, bad: int, code: str = "INTERNAL") -> Series:
    """Return counters of operations that succeed and fail, at these rates per minute."""
    name = "lro_operation_duration_seconds_count"
    return {
        f'{name}{{{METHOD},lro_outcome="succeeded",error_type=""}}': f"0+{good}x{MINUTES}",
        f'{name}{{{METHOD},lro_outcome="failed",error_type="{code}"}}': f"0+{bad}x{MINUTES}",
    }


def refused(code: str) -> Series:
    """Return a counter of starts that are refused with this error code."""
    return {
        f'lro_starts_total{{{METHOD},lro_start_outcome="refused",error_type="{code}"}}': (
            f"0+1x{MINUTES}"
        )
    }


def busy(workers: int) -> Series:
    """Return the gauges of two processes in which this many of 100 workers are busy."""
    return {
        f'lro_executor_{what}{{job="work",process="{process}"}}': f"{number}x{MINUTES}"
        for process in (1, 2)
        for what, number in (("usage", workers), ("limit", 100))
    }


def due(seconds: int, served: str) -> Series:
    """Return the gauges of two processes on one store: how long the oldest work has been due."""
    series = f'lro_queue_max_age_seconds{{{METHOD},lro_served="{served}",process='
    return {f'{series}"{process}"}}': f"{seconds}x{MINUTES}" for process in (1, 2)}


def waits(due: int, later: int) -> Series:
    """Return the gauges of two processes on one store: the number of waiting operations."""
    return {
        f'lro_queue_operations{{job="work",lro_method="{method}",lro_served="true",'
        f'lro_due="{word}",process="{process}"}}': f"{number}x{MINUTES}"
        for method in ("A", "B")
        for process in (1, 2)
        for word, number in (("true", due), ("false", later))
    }


def steps(series: str, each: int) -> Series:
    """Return a counter that rises by ``each`` every minute."""
    return {series: f"0+{each}x{MINUTES}"}


def paused(value: int) -> Series:
    """Return the gauges of two processes on one store: whether a method is paused."""
    return {
        f'lro_method_paused{{{METHOD},process="{process}"}}': f"{value}x{MINUTES}"
        for process in (1, 2)
    }


def attempts(good: int, retried: int) -> Series:
    """Return counters of attempts that succeed and of attempts that fail and are retried."""
    name = "lro_attempt_duration_seconds_count"
    return {
        f'{name}{{{METHOD},lro_outcome="{outcome}",error_type=""}}': f"0+{number}x{MINUTES}"
        for outcome, number in (("succeeded", good), ("retried", retried))
    }


def scraped(*with_store: str) -> Series:
    """Return scrapes of servers ``a`` and ``b``; servers in ``with_store`` can read the store."""
    up = {f'up{{job="work",instance="{one}"}}': f"1x{MINUTES}" for one in "ab"}
    queue = f'lro_queue_operations{{job="work",{METHOD},lro_due="true",process="1",instance='
    return up | {f'{queue}"{one}"}}': f"0x{MINUTES}" for one in with_store}


STORE: Final = 'lro_store_verb="update",error_type="",'
LOST: Final = f'lro_lost_attempts_total{{{METHOD},lro_decision="failed"}}'
REFUSED: Final = f"lro_refused_writes_total{{{METHOD}}}"
EXPIRED: Final = f"lro_queue_expiries_total{{{METHOD}}}"
AGE: Final = f'lro_operation_max_age_seconds{{{METHOD},process="1"}}'
CASES: Final[Mapping[str, tuple[Series, Sequence[Series]]]] = {
    "LroNotScraped": (steps('up{job="work"}', 0), [{'up{job="work"}': f"1x{MINUTES}"}]),
    "LroStoreUnavailable": (scraped("a"), [scraped("a", "b"), steps('up{job="work"}', 0)]),
    "LroQueueSlow": (
        buckets("lro_queue_duration_seconds", f"{METHOD},", "60"),
        [buckets("lro_queue_duration_seconds", f"{METHOD},", "5")],
    ),
    "LroWorkersBusy": (busy(100), [busy(90)]),
    "LroStartsRefused": (refused("RESOURCE_EXHAUSTED"), [refused("INVALID_ARGUMENT")]),
    "LroFailing": (ends(90, 10), [ends(99, 1), ends(50, 50, "NOT_FOUND")]),
    "LroWorkerLost": (steps(LOST, 1), [steps(LOST, 0)]),
    "LroLeaseMarginLow": (
        buckets("lro_lease_margin_seconds", "", "5"),
        [buckets("lro_lease_margin_seconds", "", "10")],
    ),
    "LroLateWrites": (steps(REFUSED, 1), [steps(REFUSED, 0)]),
    "LroOperationOld": ({AGE: f"25000x{MINUTES}"}, [{AGE: f"300x{MINUTES}"}]),
    "LroCancelSlow": (
        buckets("lro_cancel_duration_seconds", f'{METHOD},lro_reach="cooperative",', "300"),
        [buckets("lro_cancel_duration_seconds", f'{METHOD},lro_reach="cooperative",', "1")],
    ),
    "LroStoreSlow": (
        buckets("lro_store_call_duration_seconds", STORE, "5"),
        [{f'lro_store_call_duration_seconds_bucket{{{STORE}le="0.1"}}': f"0+1x{MINUTES}"}],
    ),
    "LroWorkWaits": (
        due(700, "true") | paused(0),
        [due(500, "true"), due(700, "false"), due(700, "true") | paused(1)],
    ),
    "LroMethodPaused": (paused(1), [paused(0)]),
    "LroWorkExpires": (steps(EXPIRED, 1), [steps(EXPIRED, 0)]),
    "LroRetriesOften": (attempts(1, 9), [attempts(6, 4)]),
    "LroQueueFills": (waits(30_000, 20_000), [waits(20_000, 10_000)]),
    "LroNobodyWorks": (due(90, "false"), [due(30, "false"), due(90, "true")]),
}
"""For each alert: series for which the alert fires, and series for which it must not."""


def promtool(folder: Path, *arguments: str) -> None:
    """Run promtool, and check that promtool finds no error."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    ran = subprocess.run([found, *arguments], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_alert_fires_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    """Under Prometheus' own rule test, an alert fires on the first series of its case only."""
    assert CASES.keys() == RULES.keys()
    shutil.copy(FILE, tmp_path / "rules.yml")
    promtool(tmp_path, "check", "rules", "rules.yml")
    tests = []
    for alert, (failing, healthy) in CASES.items():
        for number, series in enumerate([failing, *healthy]):
            fires = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
            wanted = {"labels": "{}", "value": int(number == 0)}
            given = [{"series": name, "values": values} for name, values in series.items()]
            expected = {"expr": fires, "eval_time": "90m", "exp_samples": [wanted]}
            test = {"interval": "1m", "input_series": given, "promql_expr_test": [expected]}
            tests.append({"name": f"{alert} {number}", **test})
    cases = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "cases.yml").write_text(json.dumps(cases))
    promtool(tmp_path, "test", "rules", "cases.yml")


def test_queries_of_panels_are_valid(tmp_path: Path) -> None:
    queries = [*PANELS.values(), *fences("how-to/observe.md", "text")[-1].split("\nhistogram")]
    queries[-1] = f"histogram{queries[-1]}"
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(queries)]
    group = {"name": "panels", "rules": rules}
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [group]}))
    promtool(tmp_path, "check", "rules", "rules.yml")


QUERIES: Final = {**{name: rule["expr"] for name, rule in RULES.items()}, **PANELS}


@pytest.mark.parametrize("name", QUERIES)
def test_queries_use_existing_metrics_and_labels(name: str) -> None:
    """The queries of the page use metrics and labels that exist, by their Prometheus names."""
    labels = {"job", "le", "process"}
    for found in SERIES.findall(LABELS.sub(" ", QUERIES[name])):
        series = SUFFIX.sub("", found)
        assert series in NAMES, series
        labels |= {label.replace(".", "_") for label in NAMES[series].attributes}
    for selectors, groups in LABELS.findall(QUERIES[name]):
        used = re.findall(r"(\w+)(?==)", re.sub(r'"[^"]*"', "", selectors))
        used += re.findall(r"\w+", groups)
        assert {*used} <= labels, name


def test_each_alert_has_its_row_and_a_summary() -> None:
    """Each alert has a summary, and a row in the table that says what to do."""
    table = " ".join(cells[0] for cells in rows(PAGE, "alert"))
    named = {*re.findall(r"`(\w+)`", table)}
    assert named == RULES.keys()
    assert all(rule["annotations"]["summary"].endswith(".") for rule in RULES.values())


def test_quoted_log_lines_are_in_the_source() -> None:
    """Each fixed part of a log line on the page is in the source of the engine."""
    sources = [path.read_text() for path in (ROOT / "src/lro/_engine").glob("*.py")]
    lines = [cells[0].strip("`") for cells in rows(PAGE, "line of the logger `lro`")][1:]
    assert len(lines) > 5
    for line in lines:
        wanted = "%[^ ]*".join(map(re.escape, line.split("…")))
        assert any(re.search(wanted, source) for source in sources), line
