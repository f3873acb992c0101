"""The page on troubleshooting: its table, and what no program of one process can show."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.page_texts import rows, text_of
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

@service.method("acme.counts.v1.Counts.Count", at_most_once=True)
def count(request: lro.Empty) -> None:
    go.wait()  # so that the name is printed
    os._exit(9)

print(count.start(lro.Empty()).name, flush=True)
go.set()
never.wait()
"""


def test_each_section_is_in_the_table() -> None:
    sections = re.findall(r"^## (.*)$", text_of(PAGE), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in sections}
    linked = {
        at for _, cell in rows(PAGE, "what you see") for at in re.findall(r"\(#(.*?)\)", cell)
    }
    assert linked == anchors


def test_work_of_a_killed_process_is_lost_after_its_lease(tmp_path: Path) -> None:
    """It ends with the words of the page, once another process is there that declares it."""
    ran = subprocess.run(
        [sys.executable, "-c", WORK], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 9, ran.stderr
    store = SQLiteStore(tmp_path / "operations.db")
    with lro.Service(store, ThreadExecutor(), lease=timedelta(seconds=2)) as service:

        @service.method("acme.counts.v1.Counts.Count", at_most_once=True)
        def count(request: lro.Empty) -> None:
            """Is not called again."""

        ended = service.wait(ran.stdout.strip(), PATIENCE)
    assert ended.error is not None
    assert ended.error.code == lro.Code.ABORTED
    assert f"`{ended.error.message}`" in text_of(PAGE)
