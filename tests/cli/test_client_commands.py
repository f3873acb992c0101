"""The commands that call a server: output and exit status."""

from __future__ import annotations

import io
import json
import re
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rich")

import lro
from lro.http import VERBS
from lro_client.cli._terminal import Exit
from tests.cli.asking import Asked, Lro, over, started
from tests.client import sockets
from tests.client.messages import (
    NAME,
    PREFIX,
    ResizeMetadata,
    ResizeRequest,
    ResizeResponse,
    running,
)
from tests.client.real_service import PATH, Harness
from tests.waiting import until
from tests.work_messages import WorkRequest, WorkResponse

START = json.dumps({"source": "a.png"})
REFUSED: list[str] = []
"""Names of operations whose deletion is refused."""


def refuse_one(caller: str, verb: str, name: str) -> bool:
    """Refuse only the deletion of an operation in ``REFUSED``."""
    return verb != "DeleteOperation" or name not in REFUSED


FAILURE = lro.StatusError(lro.Code.FAILED_PRECONDITION, "no\x1b[2J disk")


def test_get_prints_all_fields_in_a_terminal(call: Lro, harness: Harness) -> None:
    """In a terminal, ``get`` prints all fields as text, with the progress of running work."""
    name = over(harness, ResizeMetadata(40), ResizeResponse(2**40))
    shown = Lro(call.capsys, terminal=True)
    found = shown("get", name)
    assert (found.status, found.err) == (0, "")
    assert found.lines[:2] == [f"name      {name}", "state     SUCCEEDED"]
    assert '"sizeBytes": 1099511627776' in found.out
    assert '"percent": 40' in found.out
    with sockets.serving(sockets.answering("200 OK", json.dumps(running(40)))) as url:
        found = shown("get", NAME, "--check", "--server", url, status=Exit.RUNNING)
        assert found.lines[2] == "progress  40%"


def test_get_and_start_print_one_tabbed_line_in_a_pipe(call: Lro, harness: Harness) -> None:
    """``get`` and ``start`` print name, state, and result or progress, separated by tabs."""
    names = [over(harness, ResizeMetadata(40), ResizeResponse(7)), over(harness, FAILURE)]
    assert call("get", *names).lines == [
        f'{names[0]}\tSUCCEEDED\t{{"@type":"{PREFIX}acme.images.v1.ResizeResponse","sizeBytes":7}}',
        f"{names[1]}\tFAILED\tFAILED_PRECONDITION: no\\x1b[2J disk",
    ]
    (line,) = call("start", PATH, START).lines
    assert line.split("\t")[0].startswith("operations/")


def test_get_prints_json_as_received(call: Lro, harness: Harness) -> None:
    """``get --json`` prints each operation as received, and only once if its name is repeated."""
    names = [over(harness, ResizeResponse(1)), over(harness, FAILURE)]
    found = call("get", "--json", *names, names[0], status=0)
    first, second = found.json
    assert (first["name"], first["response"]["sizeBytes"]) == (names[0], 1)
    assert second["error"]["message"] == "no\x1b[2J disk"
    assert "\x1b" not in found.out


def test_get_exits_with_the_status_of_the_worst_state(call: Lro, harness: Harness) -> None:
    """``--check`` sets the status by the worst state. Operations after a missing one are shown."""
    done, failed = over(harness, ResizeResponse()), over(harness, FAILURE)
    assert call("get", "--check", done).status == Exit.DONE
    assert call("get", "--check", done, failed).status == Exit.FAILED
    assert call("get", done, failed).status == Exit.DONE
    found = call("get", "operations/no", done, status=Exit.CALL_FAILED)
    assert found.err.startswith("lro: operations/no: GetOperation failed with NOT_FOUND: ")
    assert "SUCCEEDED" in found.out


def test_list_prints_one_tabbed_line_per_operation_in_a_pipe(call: Lro, harness: Harness) -> None:
    """In a pipe ``list`` prints a tabbed line per operation and escapes control characters."""
    names = [over(harness, ResizeMetadata(40), FAILURE), over(harness, ResizeResponse())]
    assert [line.split("\t") for line in call("list", status=0).lines] == [
        [names[1], "SUCCEEDED", "100%"],
        [names[0], "FAILED", "40%", "FAILED_PRECONDITION: no\\x1b[2J disk"],
    ]


def test_list_takes_a_filter_a_parent_and_a_limit(
    call: Lro, harness: Harness, asked: Asked
) -> None:
    """``list`` accepts a filter, a parent, a limit and a page size."""
    names = [over(harness, ResizeResponse()) for _ in range(3)]
    assert [one["name"] for one in call("list", "--json").json] == names[::-1]
    assert len(call("list", "--limit", "2", "--page-size", "1").lines) == 2
    assert call("list", "--filter", "state() = FAILED").out == ""
    assert call("list", "projects/p").out == ""
    assert asked.requests[-1][0] == "GET /v1/projects/p/operations"
    assert call("list", "--filter", "((").status == Exit.CALL_FAILED


def test_list_takes_only_work_that_waits(call: Lro, harness: Harness) -> None:
    """``--waiting`` lists delayed work and says when it is due; a filter narrows the list."""
    over(harness, ResizeResponse())
    request = ResizeRequest(source="a")
    names = [harness.resize.start(request, delay=timedelta(hours=1)).name for _ in range(2)]
    running = harness.resize.start(request).name
    until(lambda: harness.service.get(running, view="FULL").description.start_time)
    assert [one["name"] for one in call("list", "--waiting", "--json").json] == names[::-1]
    chosen = f'done = true OR name = "{names[0]}"'
    due = [harness.service.get(name, view="FULL").description.due_time for name in names]
    assert [line.split("\t") for line in call("list", "--waiting").lines] == [
        [name, "WAITING", "", f"due {at:%Y-%m-%d %H:%M:%S}+00:00"]
        for name, at in zip(names[::-1], due[::-1], strict=True)
        if at is not None
    ]
    assert call("list", "--waiting", "--limit", "1").lines[0].startswith(names[1])
    assert [
        one["name"] for one in call("list", "--waiting", "--filter", chosen, "--json").json
    ] == [names[0]]


def test_wait_prints_the_response_at_the_end(call: Lro, harness: Harness) -> None:
    """``wait`` prints the response on one line once the operation has ended."""
    name = started(harness, ResizeMetadata(40), ResizeResponse(7))
    found = call("wait", name)
    assert (found.status, found.err) == (0, "")
    state, response = found.out.removeprefix(f"{name}\t").split("\t")
    assert state == "SUCCEEDED"
    assert json.loads(response)["sizeBytes"] == 7


def test_wait_accepts_several_operations(call: Lro, harness: Harness) -> None:
    names = [over(harness, ResizeResponse(1)), over(harness, FAILURE)]
    names.append(started(harness, ResizeResponse()))
    found = call("wait", *names, "operations/no", "--timeout", "60", status=Exit.CALL_FAILED)
    assert sorted(line.split("\t")[0] for line in found.lines) == sorted(names)
    assert f"{names[1]}\tFAILED\tFAILED_PRECONDITION: no\\x1b[2J disk" in found.lines
    assert call("wait", "--json", *names).status == Exit.FAILED


def test_poll_option_calls_neither_wait_nor_watch(
    call: Lro, harness: Harness, asked: Asked
) -> None:
    """With the option ``--poll``, commands that wait call neither Wait nor Watch."""
    names = [started(harness) for _ in range(6)]
    harness.say(*[ResizeResponse(1)] * 8)
    assert call("wait", *names, "--poll").status == Exit.DONE
    assert call("start", PATH, START, "--wait", "--poll").status == Exit.DONE
    assert call("start", PATH, START, "--watch", "--poll").status == Exit.DONE
    assert call("watch", *names, "--poll").status == Exit.DONE
    assert not [line for line, _ in asked.requests if line.endswith((":wait", ":watch"))]


def test_unreachable_server_is_reported_at_once(call: Lro) -> None:
    """If the server cannot be reached, commands fail at once, despite a longer timeout."""
    with sockets.serving(sockets.closing) as url:
        for command in (["get"], ["wait", "--timeout", "1h"], ["cancel"], ["delete"]):
            found = call(*command, "operations/a", "--server", url)
            assert (found.status, found.out) == (Exit.CALL_FAILED, "")
            assert re.fullmatch(r"lro: operations/a: \w+ failed with UNAVAILABLE: .*\n", found.err)
            assert f"(asked was {url})" in found.err
        said = call("list", "--server", url, status=Exit.CALL_FAILED).err
        assert said.startswith("lro: ListOperations failed with UNAVAILABLE: ")
    with sockets.serving(sockets.silent) as url:  # --timeout and --call-timeout are obeyed
        slow = ("operations/a", "--server", url)
        found = call("wait", *slow, "--timeout", "100ms", status=Exit.CALL_FAILED)
        assert "DEADLINE_EXCEEDED" in found.err
        call("get", *slow, "--call-timeout", "100ms", status=Exit.CALL_FAILED)


def test_watch_prints_a_line_per_change_in_a_pipe(call: Lro, harness: Harness) -> None:
    """In a pipe ``watch`` prints a line for each change."""
    name = over(harness, ResizeMetadata(40), FAILURE)
    last = call("watch", name, status=Exit.FAILED).lines[-1]
    assert last == f"{name}\tFAILED\tFAILED_PRECONDITION: no\\x1b[2J disk"
    assert call("watch", "--json", name).json[-1]["name"] == name


def test_watch_follows_the_operations_that_match_a_filter(
    call: Lro, harness: Harness, asked: Asked
) -> None:
    """``watch --filter`` follows matching operations up to a limit, and reports if more match."""
    names = [over(harness, ResizeResponse()) for _ in range(3)]
    found = call("watch", "--filter", "done = true", "--limit", "2", status=0)
    assert {line.split("\t")[0] for line in found.lines} == set(names[1:])
    assert found.err == "lro: more than 2 match: only 2 are watched; give --limit for more\n"
    found = call("watch", "--filter", "done = true", "--limit", "3")
    assert (len(found.lines), found.err) == (3, "")
    found = call("watch", "--filter", "state() = FAILED", "--parent", "projects/p")
    assert (found.status, found.out, found.err) == (0, "", "lro: no operation matches\n")


def test_cancel_with_wait_succeeds_if_the_operation_is_cancelled(
    call: Lro, harness: Harness
) -> None:
    """``cancel --wait`` exits with 0 if the operation ends as cancelled, but not if it failed."""
    name, failed = started(harness, None), over(harness, FAILURE)
    assert call("cancel", name).status == Exit.DONE
    out = call("cancel", name, "--wait", status=Exit.DONE).out
    assert out.startswith(f"{name}\tCANCELLED\tCANCELLED: ")
    assert call("wait", name).status == Exit.CANCELLED
    assert call("cancel", name, failed, "--wait", "--json").status == Exit.FAILED
    assert call("cancel", "operations/no", "--wait").status == Exit.CALL_FAILED


def test_delete_removes_an_operation_and_reports_a_missing_one(call: Lro, harness: Harness) -> None:
    name = over(harness, ResizeResponse())
    found = call("delete", name, "operations/no")
    assert (found.status, found.out) == (Exit.CALL_FAILED, "")
    assert found.err.count("\n") == 1
    assert call("get", name).status == Exit.CALL_FAILED
    assert call("delete", over(harness, ResizeResponse())).status == Exit.DONE


def test_cancel_all_that_match(call: Lro, harness: Harness) -> None:
    """``cancel --filter`` cancels the matching operations in progress and prints their number."""
    ended = over(harness, ResizeResponse())
    names = [started(harness, None) for _ in range(3)]
    found = call("cancel", "--filter", "name:*", "--yes", "--wait", status=0)
    assert found.err == "lro: to cancel: 3\nlro: asked to stop: 3\n"
    assert {line.split("\t")[0] for line in found.lines} == set(names)
    assert call("get", ended).lines[0].split("\t")[1] == "SUCCEEDED"
    found = call("cancel", "--filter", "state() = IN_PROGRESS", "--yes", status=0)
    assert (found.out, found.err) == ("", "lro: to cancel: 0\n")


def test_delete_all_that_match(
    call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``delete --filter`` asks for confirmation; without a terminal it needs ``--yes``."""
    names = [over(harness, ResizeResponse()) for _ in range(2)]
    matching = ("delete", "--filter", "done = true")
    found = call(*matching, status=2)
    assert "lro: to delete: 2\n" in found.err
    assert "there is no terminal to ask at: give --yes" in found.err
    for answer, left in (("n", 2), ("y", 0)):
        terminal = io.StringIO(f"{answer}\n")
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        found = call(*matching, status=0)
        assert "Delete them? [y/N]" in found.err
        assert len(call("list").lines) == left
    assert len(names) == 2


def test_filter_of_many_is_checked(call: Lro, harness: Harness) -> None:
    """Actions on many operations refuse an invalid or empty filter, and a filter with names."""
    name = over(harness, ResizeResponse())
    for verb in ("cancel", "delete", "rerun"):
        assert "'name:*' matches all" in call(verb, "--filter", " ", "--yes", status=2).err
        assert "either names or --filter" in call(verb, status=2).err
        assert "either names or --filter" in call(verb, name, "--filter", "a", status=2).err
        refused = call(verb, "--filter", "done = ", "--yes", status=Exit.CALL_FAILED)
        assert "INVALID_ARGUMENT" in refused.err
        assert call(verb, "--filter", "name:*", "--parent", "../x", "--yes", status=2).err
    assert call("get", name, status=0).out


@pytest.mark.parametrize("harness", [{"authorize": refuse_one}], indirect=True)
def test_refusals_of_many_are_reported(call: Lro, harness: Harness) -> None:
    """If one of many deletions is refused, the other deletions succeed; the refusal is reported."""
    names = [over(harness, ResizeResponse()) for _ in range(3)]
    REFUSED.append(names[1])
    found = call("delete", "--filter", "name:*", "--yes", status=Exit.CALL_FAILED)
    assert f"lro: {names[1]}: DeleteOperation failed with PERMISSION_DENIED" in found.err
    assert found.err.endswith("lro: deleted: 2; left out: 1\n")
    assert [line.split("\t")[0] for line in call("list").lines] == [names[1]]


def test_start_with_wait_exits_by_the_result(call: Lro, harness: Harness) -> None:
    """``start --wait`` waits for the operation, whose result sets the exit status."""
    harness.say(ResizeResponse(7))
    assert call("start", PATH, START, "--wait", "--json").json[0]["response"]["sizeBytes"] == 7
    harness.say(FAILURE)
    assert call("start", PATH, START, "--wait").status == Exit.FAILED
    harness.say(ResizeResponse(7))
    assert call("start", PATH, START, "--watch").lines[-1].endswith('"sizeBytes":7}')


def test_start_with_a_request_id_starts_once(call: Lro, asked: Asked) -> None:
    """Two calls with the same ``--request-id`` start one operation; ``auto`` prints a new ID."""
    found = call("start", PATH, START, "--validate-only", "--json")
    assert (found.status, found.json[0]["done"], call("list").out) == (0, True, "")
    refused = call("start", PATH)
    assert (refused.status, refused.out) == (Exit.CALL_FAILED, "")
    assert "Start failed with INVALID_ARGUMENT" in refused.err
    assert call("start", f"{asked.url}{PATH}?prettyPrint=false", START).status == 0
    assert asked.requests[-1][0] == f"POST {PATH}"
    made = str(uuid.uuid4())
    names = {call("start", PATH, START, "--json", "--request-id", made).out for _ in range(2)}
    assert len(names) == 1
    found = call("start", PATH, START, "--json", "--request-id", "auto")
    (request_id,) = re.fullmatch(r"lro: the request id is (\S{36})\n", found.err).groups()  # type: ignore[union-attr]
    assert call("start", PATH, START, "--json", "--request-id", request_id).out == found.out


@pytest.mark.parametrize("harness", [{"verbs": (*VERBS, "RerunOperation")}], indirect=True)
def test_rerun_prints_or_awaits_the_new_operation(call: Lro, harness: Harness) -> None:
    """``rerun`` prints or awaits the new operation. A succeeded operation cannot be rerun."""
    name = over(harness, FAILURE)
    harness.say(ResizeResponse(7))
    found = call("rerun", name, "--wait", "--json", status=0).json[0]
    assert (found["name"] != name, found["response"]["sizeBytes"]) == (True, 7)
    assert call("rerun", name, "--json", status=0).json[0] == found
    lines = call("get", name, "--view", "FULL", status=0).lines
    assert f"rerun     started again as {found['name']}" in lines
    made = str(uuid.uuid4())
    names = {call("rerun", name, "--json", "--request-id", made).json[0]["name"] for _ in range(2)}
    assert len(names) == 1
    refused = call("rerun", found["name"], status=Exit.CALL_FAILED)
    assert "that of a success is not kept" in refused.err
    assert call("rerun", status=2).out == call("rerun", name, name, status=2).out == ""
    assert call("rerun", name, "--wait", "--watch", status=2).err


@pytest.mark.parametrize("harness", [{"verbs": (*VERBS, "RerunOperation")}], indirect=True)
def test_rerun_all_that_match(call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a confirmation, ``rerun --filter`` reruns failed operations, but each only once."""
    names = [over(harness, FAILURE) for _ in range(3)]
    harness.say(ResizeResponse(7))
    call("rerun", names.pop(), status=0)  # left out from now on
    over(harness, ResizeResponse(1))
    wanted = " OR ".join(f'name = "{name}"' for name in names)
    matching = ("rerun", "--filter", "name:*")
    assert "lro: to rerun: 2\n" in call(*matching, status=2).err
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    found = call(*matching, status=0)
    assert "Rerun them? [y/N]" in found.err
    assert (found.out, len(call("list").lines)) == ("", 5)
    harness.say(ResizeResponse(7))
    harness.say(ResizeResponse(7))
    found = call(*matching, "--yes", "--wait", "--json", status=0)
    assert found.err == "lro: to rerun: 2\nlro: started again: 2\n"
    assert [one["response"]["sizeBytes"] for one in found.json] == [7, 7]
    assert call(*matching, "--yes", status=0).err == "lro: to rerun: 0\n"
    assert harness.service.rerun_all(wanted) == 0
    assert len(call("list").lines) == 7
    made = str(uuid.uuid4())
    assert "has its own" in call(*matching, "--yes", "--request-id", made, status=2).err


@pytest.mark.parametrize("harness", [{"verbs": (*VERBS, "RerunOperation")}], indirect=True)
def test_rerun_of_many_reports_what_cannot_be_started_again(call: Lro, harness: Harness) -> None:
    """If one of many operations cannot be rerun, the error is printed, and the others are rerun."""
    failed = over(harness, FAILURE)
    other = lro.Service(harness.service.store, None, maintenance=False)
    method = other.declare("acme.v1.Works.Gone", request=WorkRequest, response=WorkResponse)
    gone = method.start(WorkRequest()).name
    assert other.reporter(gone).fail(lro.Status(lro.Code.INTERNAL, "why"))
    harness.say(ResizeResponse(7))
    found = call("rerun", "--filter", "state() = FAILED", "--yes", status=Exit.CALL_FAILED)
    assert f"lro: {gone}: RerunOperation failed with FAILED_PRECONDITION" in found.err
    assert found.err.endswith("lro: started again: 1; left out: 1\n")
    assert len(found.lines) == 1
    assert failed not in found.out


def test_request_is_read_from_a_file_or_standard_input(
    call: Lro, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``start`` reads the request from ``@FILE`` or, for ``-``, from standard input."""
    (here / "request.json").write_text(START, encoding="utf-8")
    assert call("start", PATH, "@request.json").status == 0
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(START.encode())))
    assert call("start", PATH, "-").status == 0
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in call("start", PATH, "-").err


def test_control_characters_of_server_are_escaped(call: Lro) -> None:
    """Control characters in a server's names and texts are escaped in every output."""
    body: Any = {
        "name": "operations/a\x1b]0;x\x07\u202e\u061c\u200b\U000e0041\n",
        "metadata": {"@type": "x/acme.Meta", "message": "\x9b2J\u200b"},
        "done": True,
        "error": {"code": 99, "message": "\r\nlro: all is well\u2066\U000e0041"},
    }
    with sockets.serving(sockets.answering("200 OK", json.dumps(body))) as url:
        for arguments in (["get"], ["get", "--json"], ["watch"], ["wait"]):
            found = call(*arguments, "operations/a", "--server", url)
            assert found.out.replace("\n", "").replace("\t", "").isprintable(), arguments
            assert "\nlro: all is well" not in found.out
            if "--json" in arguments:
                assert found.json == [body]


def test_operation_without_result_or_error_code_is_printed(call: Lro) -> None:
    """An operation without a result, or with an error that has no code, is printed."""
    for body, expected in (
        ({"name": "operations/a", "done": True}, "operations/a\tSUCCEEDED\n"),
        ({"done": True, "error": {}}, "FAILED\tUNKNOWN:\n"),
    ):
        with sockets.serving(sockets.answering("200 OK", json.dumps(body))) as url:
            assert call("wait", "operations/a", "--server", url).out == expected
