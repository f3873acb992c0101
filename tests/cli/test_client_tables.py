"""Tables, as they are drawn for a terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("uvicorn")

import lro
from lro_client.cli._printing import LiveTable
from lro_client.cli._terminal import Exit
from tests.cli.asking import Lro, over, started
from tests.client import sockets
from tests.client.messages import ResizeMetadata, ResizeResponse
from tests.client.real_service import Harness

LONG = "x" * 300
FAILURE = lro.StatusError(lro.Code.ABORTED, LONG)


@pytest.fixture
def call(call: Lro, monkeypatch: pytest.MonkeyPatch) -> Lro:
    """Calls the command, which takes standard output for a terminal."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return Lro(call.capsys, terminal=True)


def plain(text: str) -> str:
    """What is drawn, without what moves the cursor."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def test_a_list(call: Lro, harness: Harness) -> None:
    """A table with headings, in which long messages are cut."""
    name = over(harness, ResizeMetadata(40), FAILURE)
    heading, row = plain(call("list").out).splitlines()
    assert heading.split() == ["name", "state", "done", "age", "message"]
    assert row.split()[:4] == [name, "FAILED", "40%", "ABORTED:"]
    assert row.rstrip().endswith("xxx…")
    assert len(row.split()[-1]) < 200


def test_watching(call: Lro, harness: Harness) -> None:
    """The table stays on the screen as it was in the end."""
    names = [over(harness, ResizeMetadata(40), FAILURE), over(harness, ResizeResponse())]
    found = call("watch", *names, "operations/no")
    assert found.status == Exit.CALL_FAILED
    last = plain(found.out).splitlines()[-4:]
    assert last[0].split() == ["name", "state", "done", "age", "left", "message"]
    assert last[1].split()[:2] == [names[0], "FAILED"]
    assert "100%" in last[2]
    assert last[3].split() == ["operations/no", "not", "known"]


def test_row_of_operation_without_metadata(call: Lro, harness: Harness) -> None:
    """Its row has a name, a state and an age."""
    found = call("watch", started(harness), "--timeout", "50ms")
    assert found.status == Exit.RUNNING
    assert re.search(r"IN_PROGRESS +\d+s\s*$", plain(found.out).rstrip())


def test_ages(call: Lro) -> None:
    """The age is that since the creation, and the end is estimated from it."""
    body = {
        "name": "operations/a",
        "metadata": {
            "@type": "x/acme.Meta",
            "createTime": "2020-01-01T00:00:00Z",
            "percent": 50,
        },
    }
    with sockets.serving(sockets.answering("200 OK", json.dumps(body))) as url:
        found = call("watch", "operations/a", "--server", url, "--timeout", "100ms")
        assert found.status == Exit.RUNNING
        row = plain(found.out).splitlines()[-1]
        assert len(re.findall(r"\d{4,}d \d+h", row)) == 2
        listed = {"operations": [body]}
    with sockets.serving(sockets.answering("200 OK", json.dumps(listed))) as url:
        assert re.search(r"\d{4,}d \d+h", call("list", "--server", url).out)


def test_a_terminal_that_cannot_draw(
    call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are lines instead."""
    monkeypatch.setenv("TERM", "dumb")
    name = over(harness, ResizeResponse())
    assert call("watch", name).lines[-1] == f"{name}\tSUCCEEDED\t100%"


def test_rows_change(capsys: pytest.CaptureFixture[str]) -> None:
    """A row shows the last state; a server that calls an operation otherwise adds one."""
    link: Any = SimpleNamespace(types=lro.TypeRegistry())
    with LiveTable(["operations/a"], link) as table:
        for percent in (40, 60):
            packed = lro.Any("x/acme.Meta", {"percent": percent})
            table.show(lro.Operation(name="operations/a", metadata=packed))
        table.show(lro.Operation(name="operations/other", done=True))
    out = plain(capsys.readouterr().out)
    assert "60%" in out
    assert "40%" not in out
    assert "operations/other" in out


class Screen(io.TextIOWrapper):
    """Standard error as a terminal."""

    def __init__(self) -> None:
        self.written = io.BytesIO()
        super().__init__(self.written, encoding="utf-8")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.flush()
        return self.written.getvalue().decode()


def test_how_many_are_left(call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits, a line on standard error that is gone in the end."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    names = [over(harness, ResizeResponse()), started(harness)]
    found = call("wait", *names, "operations/no", "--timeout", "2s", "--json")
    assert found.status == Exit.CALL_FAILED
    assert [one["name"] for one in found.json] == names[:1]
    drawn = screen.text.split("\r\x1b[K")
    assert drawn[:2] == ["", "waiting for 3 operations"]
    assert "waiting for 1 operation" in drawn
    assert "" in drawn[-1:] or drawn[-1].startswith("lro: ")
    assert "waiting" not in drawn[-1]


@pytest.mark.parametrize("kind", ["dumb", "unknown", ""])
def test_no_line_where_it_cannot_be_erased(
    call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In a pipe there is none either, as the other tests show."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", kind)
    if not kind:
        monkeypatch.delenv("TERM")
    assert call("wait", over(harness, ResizeResponse())).status == Exit.DONE
    assert screen.text == ""
