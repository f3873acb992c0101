"""Shell completion: the scripts, and the completions that a shell receives."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("rich")

from lro.cli import _app
from tests.cli.asking import Asked, Lro, over
from tests.client import sockets
from tests.client.messages import ResizeResponse
from tests.client.real_service import Harness

CLIENT_COMMANDS = ("list", "get", "wait", "watch", "cancel", "delete", "start", "completion")


@pytest.fixture
def complete(call: Lro, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the completions of the last word for bash."""

    def ask(*words: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setenv("_LRO_COMPLETE", "bash_complete")
            patch.setenv("COMP_WORDS", " ".join(("lro", *words)))
            patch.setenv("COMP_CWORD", str(len(words)))
            found = call()
        assert (found.status, found.err) == (0, "")
        return [line.partition(",")[2] for line in found.lines if line]

    return ask


@pytest.mark.parametrize(
    ("shell", "expected"),
    [("bash", "complete -o nosort"), ("zsh", "#compdef lro"), ("fish", "complete --no-files")],
)
def test_completion_scripts_are_printed(call: Lro, shell: str, expected: str) -> None:
    out = call("completion", shell, status=0).out
    assert expected in out
    assert f"_LRO_COMPLETE={shell}_complete" in out
    assert "'bash', 'zsh', 'fish'" in call("completion", "tcsh").err


def test_commands_and_options_are_completed(complete: Any) -> None:
    assert complete("wa") == ["wait", "watch"]
    assert complete("lis") == ["list"]
    assert complete("wait", "--time") == ["--timeout"]


def test_names_of_operations_are_completed(complete: Any, harness: Harness, asked: Asked) -> None:
    names = {over(harness, ResizeResponse()) for _ in range(3)}
    for command in ("get", "wait", "watch", "cancel", "delete"):
        assert set(complete(command, "op")) == names
    one = names.pop()
    assert complete("get", one[:-1])[0] == one
    assert complete("get", "nothing") == []


def test_names_with_shell_characters_are_not_completed(
    complete: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that a shell would interpret, or that has several lines, is not a completion."""
    bad = ["a;touch${IFS}/tmp/x", *(f"a{sign}" for sign in (" b", "\nb", "\x1b[2J", "\x9b"))]
    bad += ["a\u202e", "a'", "a~", "ä", "$(b)"]
    listed = [f"operations/{one}" for one in (*bad, "good-1_a.b")] + ["-rf", "~/operations", ""]
    body = json.dumps({"operations": [{"name": name} for name in listed]})
    with sockets.serving(sockets.answering("200 OK", body)) as url:
        monkeypatch.setenv("LRO_SERVER", url)
        assert complete("get", "op") == ["operations/good-1_a.b"]
        assert complete("get", "~") == []


def test_names_under_a_parent_are_completed(complete: Any, asked: Asked) -> None:
    """A name with a parent is completed from the list of that parent's operations."""
    assert complete("get", "projects/p/operations/a") == []
    assert asked.requests[-1][0] == "GET /v1/projects/p/operations"


def test_completion_without_a_server_prints_nothing(
    complete: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server that replies, there are no completions and no error messages."""
    monkeypatch.setenv("LRO_SERVER", "nonsense")
    assert complete("get", "op") == []
    monkeypatch.delenv("LRO_SERVER")
    assert complete("get", "op") == []
    pages = sockets.turning_pages
    for behaviour in (pages, sockets.closing, sockets.silent, sockets.answering("200 OK", "{")):
        with sockets.serving(behaviour) as url:
            monkeypatch.setenv("LRO_SERVER", url)
            assert complete("get", "op") == []


def test_help_of_lazily_loaded_commands_equals_their_own(call: Lro) -> None:
    """In the list of commands, each help text is read from source, but equals the command's own."""
    shown = call("--help").out
    added = _app.added_commands()
    assert set(CLIENT_COMMANDS) <= {*added}
    for name in CLIENT_COMMANDS:
        command = _app.app.get_command(
            _app.app.make_context("lro", [], resilient_parsing=True), name
        )
        assert command is not None
        assert command.name == name
        assert command.help is not None
        text = _app.short_help(added[name])
        assert text
        assert " ".join(command.help.split()).startswith(text)
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)
    assert call("lst").status == 2
