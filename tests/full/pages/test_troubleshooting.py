"""The page on troubleshooting: the page's table, and cases that need several processes."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.page_texts import ROOT, rows, text_of
from tests.waiting import PATIENCE

PAGE: Final = "how-to/troubleshooting.md"
WORK: Final = """
import os, threading
from datetime import timedelta
import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore

go, never = threading.Event(), threading.Event()
LEASE = timedelta(seconds=2)
service = lro.Service(SQLiteStore("operations.db"), ThreadExecutor(), lease=LEASE)

@service.method("acme.counts.v1.Counts.Count")
def count(request: lro.Empty) -> None:
    go.wait()  # so that the name is printed
    os._exit(9)

print(count.start(lro.Empty()).name, flush=True)
go.set()
never.wait()
"""


def test_each_section_of_the_page_is_in_its_table() -> None:
    sections = re.findall(r"^## (.*)$", text_of(PAGE), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in sections}
    linked = {at for _, cell in rows(PAGE, "symptom") for at in re.findall(r"\(#(.*?)\)", cell)}
    assert linked == anchors


def killed(folder: Path, *, at_most_once: bool = False) -> tuple[str, lro.Operation]:
    """Kill a process during an operation; return the operation's name and the ended operation."""
    ran = subprocess.run(
        [sys.executable, "-c", WORK], cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 9, ran.stderr
    store = SQLiteStore(folder / "operations.db")
    with lro.Service(store, ThreadExecutor(), lease=timedelta(seconds=2)) as service:

        @service.method("acme.counts.v1.Counts.Count", at_most_once=at_most_once)
        def count(request: lro.Empty, job: lro.Job) -> None:
            job.progress(1.0, f"attempt {job.attempt}")

        return ran.stdout.strip(), service.wait(ran.stdout.strip(), PATIENCE)


def test_work_of_a_killed_process_begins_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a kill, another process with the method retries the work and logs the page's line."""
    name, ended = killed(tmp_path)
    assert ended.state == "SUCCEEDED"
    assert "attempt 2" in str(ended.metadata)
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    (line,) = [one for one in said if one.startswith(name)]
    assert f"`{line.removeprefix(f'{name}: ')}`" in text_of(PAGE)


def test_at_most_once_work_of_a_killed_process_fails(tmp_path: Path) -> None:
    """The at-most-once operation of a killed process fails with the error on the page."""
    _, ended = killed(tmp_path, at_most_once=True)
    assert ended.error is not None
    assert ended.error.code == lro.Code.ABORTED
    assert f"`{ended.error.message}`" in text_of(PAGE)


def test_quoted_errors_of_lost_work_are_in_the_source() -> None:
    source = (ROOT / "src/lro/_engine/endings.py").read_text(encoding="utf-8")
    texts = re.findall(r"^\| [A-Z_]+, `([^`]+)` \|", text_of(PAGE), re.MULTILINE)
    assert len(texts) == 3
    for text in texts:
        assert re.sub(r"\b20\b|(?<=attempt )1\b", "{attempt}", text) in source
