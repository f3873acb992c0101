"""The output of commands that wait until their timeout."""

from __future__ import annotations

import json
import re
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("uvicorn")

from rich.console import Console

from tests.cli.asking import Asked, Lro, over, started
from tests.cli.test_client_tables import FAILURE, FULL, Exit, Screen, Viewing, plain
from tests.client import sockets
from tests.client.messages import ResizeMetadata, ResizeResponse
from tests.client.real_service import Harness

IN_TIME = "6s"
"""A timeout that is long enough for the first request, even on a busy machine."""


def test_watch_shows_age_that_server_describes(drawing: Lro, asked: Asked) -> None:
    """``watch`` shows the age since the creation time, read by one request with view FULL."""
    asked.app = server = Viewing(200, FULL)
    found = drawing("watch", "operations/a", "--timeout", IN_TIME, "--poll")
    assert found.status == Exit.RUNNING
    assert re.search(r"IN_PROGRESS .*50% +\d{4,}d \d+h", plain(found.out).splitlines()[-1])
    assert server.asked == 1


def test_last_table_of_a_watch_stays_on_the_screen(
    drawing: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When ``watch`` ends, its last table stays on the screen, as wide as the terminal is now."""
    monkeypatch.setattr("rich._console", Console(width=80))
    names = [over(harness, ResizeMetadata(40), FAILURE), over(harness, ResizeResponse())]
    found = drawing("watch", *names, started(harness), "operations/no", "--timeout", IN_TIME)
    assert found.status == Exit.CALL_FAILED
    last = plain(found.out).splitlines()[-5:]
    assert re.search(r"IN_PROGRESS +\d+s\s*$", last.pop(3).rstrip())
    assert last[0].split() == ["name", "state", "done", "age", "left", "message"]
    assert last[1].split()[:2] == [names[0], "FAILED"]
    assert "100%" in last[2]
    assert last[3].split() == ["operations/no", "not", "known"]


def test_age_counts_from_the_creation_time(drawing: Lro) -> None:
    """Age and estimated end are computed from the creation time in the metadata."""
    body = {
        "name": "operations/a",
        "metadata": {"@type": "x/acme.Meta", "createTime": "2020-01-01T00:00:00Z", "percent": 50},
    }
    with sockets.serving(sockets.answering("200 OK", json.dumps(body))) as url:
        found = drawing("watch", "operations/a", "--server", url, "--timeout", IN_TIME)
        assert found.status == Exit.RUNNING
        assert len(re.findall(r"\d{4,}d \d+h", plain(found.out).splitlines()[-1])) == 2
        listed = {"operations": [body]}
    with sockets.serving(sockets.answering("200 OK", json.dumps(listed))) as url:
        assert re.search(r"\d{4,}d \d+h", drawing("list", "--server", url).out)


def test_wait_shows_the_number_of_pending_operations(
    drawing: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While ``wait`` runs, a line on standard error has the number of pending operations."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    names = [over(harness, ResizeResponse()), started(harness)]
    found = drawing("wait", *names, "operations/no", "--timeout", IN_TIME, "--json")
    assert found.status == Exit.CALL_FAILED
    assert [one["name"] for one in found.json] == names[:1]
    drawn = screen.text.split("\r\x1b[K")
    assert drawn[:2] == ["", "waiting for 3 operations"]
    assert "waiting for 1 operation" in drawn
    assert "" in drawn[-1:] or drawn[-1].startswith("lro: ")
    assert "waiting" not in drawn[-1]


def test_message_names_operations_that_go_on(call: Lro, harness: Harness) -> None:
    """After a timeout, a message suggests how to wait again, and names at most 10 operations."""
    names = [started(harness) for _ in range(12)]
    found = call("wait", names[0], "--timeout", IN_TIME)
    assert (found.status, found.out) == (Exit.RUNNING, "")
    assert found.err == (
        f"lro: {names[0]} did not end in time\n"
        f"lro: the operation goes on; look again with: lro wait {names[0]}\n"
    )
    found = call("wait", *names, "--timeout", IN_TIME)
    assert found.status == Exit.RUNNING
    late, going_on = found.err.splitlines()
    assert late == "lro: 12 operations did not end in time"
    assert going_on.startswith("lro: 12 operations go on; ")
    assert going_on.endswith(" (and 2 more)")
