"""The tables and the texts that commands print in a terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rich")

import lro
from lro_client.cli._printing import LiveTable
from lro_client.cli._terminal import Exit
from lro_client.testing import ScriptedServer
from tests.cli.asking import Asked, Lro, over, started
from tests.client.messages import ResizeMetadata, ResizeRequest, ResizeResponse
from tests.client.real_service import FULL_NAME, Harness
from tests.waiting import until

LONG = "x" * 300
FAILURE = lro.StatusError(lro.Code.ABORTED, LONG)
SHORT_NAME = ".".join(FULL_NAME.split(".")[-2:])
"""The name of the method without its package, as in tables."""


def plain(text: str) -> str:
    """Return the text without terminal control sequences."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def test_list_is_a_table(drawing: Lro, harness: Harness) -> None:
    """In a terminal ``list`` prints a table with headings and cuts long messages."""
    name = over(harness, ResizeMetadata(40), FAILURE)
    heading, row = plain(drawing("list").out).splitlines()
    assert heading.split() == ["name", "method", "state", "done", "age", "message"]
    assert re.match(rf"{name} +{re.escape(SHORT_NAME)} +FAILED +40% +\d+s +ABORTED: x", row)
    assert row.rstrip().endswith("xxx…")
    assert len(row.split()[-1]) < 200


def test_list_shows_when_waiting_work_is_due(drawing: Lro, harness: Harness) -> None:
    """In a terminal, ``list`` shows the state WAITING for delayed work, with its due time."""
    name = harness.resize.start(ResizeRequest(source="a"), delay=timedelta(hours=1)).name
    due = harness.service.get(name, view="FULL").description.due_time
    for arguments in (["list"], ["list", "--waiting"]):
        _, row = plain(drawing(*arguments).out).splitlines()
        assert re.match(rf"{name} +{re.escape(SHORT_NAME)} +WAITING +\d+s +due {due:%Y-%m-%d}", row)


LISTED = {"name": "operations/a", "metadata": {"@type": "x/acme.Meta", "percent": 50}}
"""An operation whose metadata has no creation time."""


class Viewing:
    """A server that lists operations, with a scripted reply to requests for the FULL view."""

    def __init__(self, status: int, body: Any, listed: int = 1) -> None:
        self.status, self.body = status, body
        self.listed = [LISTED] * listed
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status, body = 200, LISTED
        full = b"view=FULL" in scope["query_string"]
        self.asked += full
        if full and self.status != 200:
            status, body = self.status, self.body
        elif scope["path"].startswith("/v1/operations/"):
            body = self.body if full else LISTED
        else:
            body = {"operations": [self.body] if full else self.listed}
        kind = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": status, "headers": [kind]})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


DESCRIPTION = {
    "state": "IN_PROGRESS",
    "method": "acme.v1.Images.\x1b[31mResize",
    "createTime": "2020-01-01T00:00:00Z",
    "cancelRequested": True,
    "attempt": 3,
}
FULL = {**LISTED, "description": DESCRIPTION}


def test_list_shows_what_server_describes(drawing: Lro, asked: Asked) -> None:
    """``list`` takes age, method and state from the description; it escapes control characters."""
    asked.app = server = Viewing(200, FULL)
    heading, row = plain(drawing("list").out).splitlines()
    assert heading.split() == ["name", "method", "state", "done", "age", "message"]
    assert row.split()[:4] == ["operations/a", r"Images.\x1b[31mResize", "IN_PROGRESS", "50%"]
    assert re.search(r"\d{4,}d \d+h", row)
    assert server.asked == 1


NOT_FULL: list[tuple[int, Any]] = [
    (400, {"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}}),
    (501, {}),
    (200, LISTED),
]


def test_list_of_a_server_without_views_has_no_method_column(drawing: Lro, asked: Asked) -> None:
    """If the server refuses or ignores the FULL view, the table has no column of methods."""
    for status, body in NOT_FULL:
        asked.app = server = Viewing(status, body)
        found = drawing("list")
        heading, row = plain(found.out).splitlines()
        assert heading.split() == ["name", "state", "done", "age", "message"]
        assert row.split() == ["operations/a", "IN_PROGRESS", "50%"]
        assert (found.status, found.err) == (Exit.DONE, "")
        assert server.asked == 1


def test_list_that_is_refused_in_both_views_is_reported(drawing: Lro, asked: Asked) -> None:
    asked.app = Viewing(
        403, {"error": {"code": 403, "message": "no", "status": "PERMISSION_DENIED"}}
    )
    found = drawing("list", status=Exit.CALL_FAILED)
    assert "PERMISSION_DENIED" in found.err


def test_list_shows_methods_on_each_page(drawing: Lro, harness: Harness, asked: Asked) -> None:
    for _ in range(3):
        over(harness, ResizeResponse())
    rows = plain(drawing("list", "--page-size", "2").out).splitlines()[1:]
    assert [row.split()[1] for row in rows] == [SHORT_NAME] * 3
    assert [path for path, _ in asked.requests] == ["GET /v1/operations"] * 2


@pytest.mark.parametrize("width", ["80", "60"])
def test_list_keeps_names_and_states_whole(
    drawing: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    """In a narrow terminal only the message and the method are shortened, and columns align."""
    monkeypatch.setenv("COLUMNS", width)
    names = [over(harness, ResizeMetadata(40), FAILURE), started(harness, ResizeMetadata(7))]
    until(lambda: harness.service.get(names[1]).metadata)
    heading, *rows = plain(drawing("list").out).splitlines()
    place = heading.index("state")
    assert [row[:place].split()[0] for row in rows] == names[::-1]
    assert [row[place:].split()[0] for row in rows] == ["IN_PROGRESS", "FAILED"]
    assert max(map(len, rows)) <= int(width) or width == "60"
    if width == "80":
        assert [row.split()[1] for row in rows] == [SHORT_NAME] * 2


def test_get_shows_what_server_describes(drawing: Lro, asked: Asked) -> None:
    """``get`` prints the method, age, attempt, and whether a cancellation was requested."""
    asked.app = Viewing(200, FULL)
    lines = drawing("get", "operations/a").lines
    assert lines[:2] == ["name      operations/a", "state     IN_PROGRESS"]
    assert lines[3] == r"method    acme.v1.Images.\x1b[31mResize"
    assert re.fullmatch(r"age       \d{4,}d \d+h", lines[4])
    assert lines[5:7] == ["attempt   3", "cancel    requested"]


LASTING = {
    **DESCRIPTION,
    "dueTime": "2030-01-02T03:04:05.678Z",
    "beginBefore": "2030-01-02T04:04:05Z",
    "priority": -5,
    "failedAttempts": 2,
    "lostAttempts": 1,
    "origin": "schedule \x1b[2Jnightly",
    "workerHost": "worker\x1b[31m-1",
    "workerPid": 4711,
    "failures": [
        {"attempt": 1, "time": "2030-01-01T00:00:00Z", "error": "OSError", "text": "a\n\x1b[2Jb"},
        {"attempt": 2, "time": "2030-01-01T00:01:00Z", "error": "OSError", "text": ""},
    ],
}


@pytest.mark.parametrize("in_a_pipe", [False, True])
def test_get_shows_full_description(drawing: Lro, call: Lro, asked: Asked, in_a_pipe: bool) -> None:
    """``get`` in a terminal, or with ``--view FULL``, prints the whole description."""
    asked.app = Viewing(200, {**LISTED, "description": LASTING})
    command = call if in_a_pipe else drawing
    lines = command("get", "operations/a", *["--view", "FULL"] * in_a_pipe).lines
    assert lines[5:16] == [
        "due       2030-01-02 03:04:05+00:00",
        "begin by  2030-01-02 04:04:05+00:00",
        "priority  -5",
        "attempt   3",
        "failed    2",
        "lost      1",
        r"worker    process 4711 on worker\x1b[31m-1",
        r"origin    schedule \x1b[2Jnightly",
        "cancel    requested",
        r"failure   1 at 2030-01-01 00:00:00+00:00: OSError: a \x1b[2Jb",
        "failure   2 at 2030-01-01 00:01:00+00:00: OSError:",
    ]


def test_full_view_as_json_has_the_known_fields(call: Lro, asked: Asked) -> None:
    """With ``--json`` the description has only the fields that this release knows."""
    asked.app = Viewing(200, {**LISTED, "description": {**LASTING, "addedLater": 1}})
    found = call("get", "operations/a", "--view", "full", "--json")
    assert "\x1b" not in found.out
    (value,) = found.json
    description = value.pop("description")
    assert value == LISTED
    del description["failures"][1]  # this failure is printed without its empty text
    assert description == {**LASTING, "failures": LASTING["failures"][:1]}  # type: ignore[index]


def test_server_that_refuses_the_view_is_reported(call: Lro, asked: Asked) -> None:
    """If the server refuses the view of ``--view``, the command prints the error."""
    asked.app = Viewing(*NOT_FULL[0])
    found = call("get", "operations/a", "--view", "FULL", status=Exit.CALL_FAILED)
    assert "INVALID_ARGUMENT" in found.err


def test_get_leaves_out_unknown_fields(drawing: Lro, asked: Asked) -> None:
    """``get`` prints no line for a value that the server does not send."""
    asked.app = Viewing(200, LISTED)
    found = drawing("get", "operations/a").out
    assert not re.search("^(method|age|attempt|cancel)", found, re.MULTILINE)
    asked.app = Viewing(404, {})
    assert drawing("get", "operations/a").out == found


@pytest.mark.parametrize("command", [["get", "operations/a", "--json"], ["list", "--json"]])
def test_json_has_the_basic_view(command: list[str], drawing: Lro, asked: Asked) -> None:
    """With ``--json`` no FULL view is requested, and operations are printed as received."""
    asked.app = server = Viewing(200, FULL)
    assert drawing(*command).json == [LISTED]
    assert server.asked == 0


def test_row_shows_the_last_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table updates the row of an operation in place, and adds a row for a new name."""
    monkeypatch.setenv("COLUMNS", "80")
    link: Any = SimpleNamespace(types=lro.TypeRegistry(), client=ScriptedServer().client())
    with LiveTable(["operations/a"], link) as table:
        for percent in (40, 60):
            packed = lro.AnyMessage("x/acme.Meta", {"percent": percent})
            table.show(lro.Operation(name="operations/a", metadata=packed))
        table.show(lro.Operation(name="operations/other", done=True))
    out = plain(capsys.readouterr().out)
    assert "60%" in out
    assert "40%" not in out
    assert "operations/other" in out


def test_watched_names_and_states_are_whole_in_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    link: Any = SimpleNamespace(types=lro.TypeRegistry(), client=ScriptedServer().client())
    name = "operations/QYPlQjFcLVGlJ_m1VCJRsbW"
    with LiveTable([name], link) as table:
        packed = lro.AnyMessage("x/acme.Meta", {"percent": 40, "message": LONG})
        table.show(lro.Operation(name=name, metadata=packed))
    (row,) = [line for line in plain(capsys.readouterr().out).splitlines() if "40%" in line]
    assert row.split()[:2] == [name, "IN_PROGRESS"]
    assert len(row.rstrip()) <= 80


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


@pytest.mark.parametrize("kind", ["dumb", "unknown", ""])
def test_terminal_that_cannot_draw_gets_plain_lines(
    drawing: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A terminal without cursor movements gets plain lines, and no line that is erased later."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", kind)
    if not kind:
        monkeypatch.delenv("TERM")
    name = over(harness, ResizeResponse())
    assert drawing("wait", name).status == Exit.DONE
    assert screen.text == ""
    if kind:
        assert drawing("watch", name).lines[-1].startswith(f"{name}\tSUCCEEDED\t{{")
