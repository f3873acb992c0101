"""The command ``lro conform client``, run with real processes."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lro_conform._command import conform
from lro_conform.client import _running
from lro_conform.client._running import CLIENT_CHECKS
from tests.conform.processes import has_ended
from tests.executors.named_pipe import Mail
from tests.services.processes import killed_at_end

PLAIN = [sys.executable, str(Path(__file__).with_name("plain_client.py"))]
PRINT = "import json; print(json.dumps({}))"


def call(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(conform, ["client", *arguments], env=variables)


def outcomes(result: Result) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in json.loads(result.output)["checks"]}


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


CONNECT = """
import contextlib, os, sys, urllib.request
url = os.environ["LRO_CONFORM_URL"] + "/v1/" + os.environ["LRO_CONFORM_OPERATION"]
with contextlib.suppress(OSError):
    urllib.request.urlopen(url)
"""


def test_list_shows_the_checks_of_both_protocols() -> None:
    over_http = call("--list", "--format", "json")
    over_both = call("--list", "--format", "json", "--http", "--grpc")
    assert [over_http.exit_code, over_both.exit_code] == [0, 0]
    ids = [one["id"] for one in json.loads(over_both.output)]
    assert ids == [one.id for one in CLIENT_CHECKS]
    assert len(ids) == len(set(ids)) > len(json.loads(over_http.output))


def test_conforming_client_gets_exit_status_0() -> None:
    only = ("--only", "client.results.response", "--only", "client.errors.unavailable")
    result = call(*only, "--format", "json", "--", *PLAIN)
    assert result.exit_code == 0
    found = outcomes(result)
    assert {one["verdict"] for one in found.values()} == {"passed"}
    assert len(found) == 2
    assert json.loads(result.output)["target"] == " ".join(PLAIN)


def test_failing_client_gets_exit_status_1() -> None:
    only = ("--only", "client.errors.code-zero")
    result = call(*only, "--", *PLAIN, MISTAKE="code-zero-is-ok")
    assert result.exit_code == 1
    assert 'the outcome must be "error", it is "lost"' in result.output
    assert "source: operations.proto Operation.result" in result.output


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["no-such-command"], "no-such-command cannot be run: No such file or directory"),
        (["a\0b"], "cannot be run: embedded null byte"),
        (["false"], "the client ended with exit status 1 without a connection to the server"),
        (
            python("raise SystemExit('wrong usage')"),
            'without a connection to the server; standard error ends with "wrong usage"',
        ),
        ([], "give the command that runs the client, after --"),
    ],
)
def test_command_that_cannot_be_judged_gets_exit_status_2(
    command: list[str], complaint: str
) -> None:
    result = call("--", *command)
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_client_that_never_connects_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_running, "STARTUP_SECONDS", 0.1)
    result = call("--", "sleep", "1000")
    assert result.exit_code == 2
    assert "the client was killed without a connection to the server" in result.output


def test_child_processes_of_a_killed_client_are_killed_too(tmp_path: Path) -> None:
    """When the kit kills a client that never ends, processes started by the client end too."""
    number = tmp_path / "number"
    line = f"{shlex.join(PLAIN)} & echo $! > {shlex.quote(str(number))}; wait"
    only = ("--only", "client.deadlines.silent", "--format", "json")
    result = call(*only, "--", "sh", "-c", line, MISTAKE="no-read-timeout")
    (found,) = outcomes(result).values()
    assert found["verdict"] == "failed"
    assert found["facts"][0] == "no outcome within 6 s, with a timeout of 4 s; it was killed"
    assert has_ended(int(number.read_text()))


@pytest.mark.parametrize(
    ("program", "verdict", "fact"),
    [
        ('print("hello")', "failed", "it ended with exit status 0 and no outcome"),
        (
            'print("{not json"); print("{}"); sys.exit("crashed")',
            "failed",
            'it ended with exit status 1 and no outcome; standard error ends with "crashed"',
        ),
        (
            'print(\'{"outcome": "unsupported"}\')',
            "failed",
            "the adapter says that it cannot wait, which is what clients are for",
        ),
        (
            'print(\'{"outcome": "response", "response": \' + \'[\' * 900 + \']\' * 900 + "}")',
            "failed",
            "it ended with exit status 0 and no outcome",
        ),
        (
            'print("{" * 100000); print(\'{"outcome": "response", "response": "\\x1b"}\')',
            "failed",
            None,
        ),
    ],
)
def test_invalid_output_of_a_client_fails_the_check(
    program: str, verdict: str, fact: str | None
) -> None:
    only = ("--only", "client.results.response", "--format", "json")
    (found,) = outcomes(call(*only, "--", *python(CONNECT + program))).values()
    assert found["verdict"] == verdict
    if fact is not None:
        assert found["facts"][0] == fact
    assert "\x1b" not in "".join(found["facts"])


def test_check_of_an_unsupported_task_is_absent() -> None:
    only = ("--only", "client.deletes.deleted", "--format", "json")
    program = 'print(\'{"outcome": "unsupported"}\')'
    (found,) = outcomes(call(*only, "--", *python(CONNECT + program))).values()
    assert found["verdict"] == "absent"
    assert found["facts"] == ["the adapter does not support the task"]


def test_last_line_of_a_flood_of_output_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lro_conform.client._launch._MAX_OUTPUT", 1000)
    program = 'print("x" * 100_000); print(\'{"outcome": "lost"}\')\n# \x1b[2J'
    only = ("--only", "client.results.response", "--format", "json")
    result = call(*only, "--", *python(CONNECT + program))
    (found,) = outcomes(result).values()
    assert found["facts"][0] == 'the outcome must be "response", it is "lost"'
    assert r"\n# \x1b[2J" in json.loads(result.output)["target"]


def test_unwritable_report_file_is_refused_before_the_client_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    result = call("-o", "/nowhere/report", "--", "touch", str(ran))
    assert result.exit_code == 2
    assert "/nowhere/report: No such file or directory" in result.output
    assert not ran.exists()


def test_SIGTERM_ends_the_clients_too(tmp_path: Path) -> None:
    """After SIGTERM, which CI systems send to stop a job, the clients end as well."""
    number = Mail(tmp_path / "number")
    script = f"trap '' TERM INT; echo $$ > {shlex.quote(number.path)}; sleep 600"
    command = [sys.executable, "-m", "lro.cli", "conform", "client", "--", "sh", "-c", script]
    with contextlib.closing(number), killed_at_end(command) as process:
        started = int(number.line())
        process.terminate()
        assert process.wait(120) == 143
    assert has_ended(started)


def test_client_without_a_token_skips_the_check_of_tokens() -> None:
    only = ("--only", "client.redirects.token", "--format", "json")
    program = CONNECT + 'print(\'{"outcome": "lost"}\')'
    (found,) = outcomes(call(*only, "--", *python(program))).values()
    assert found["verdict"] == "skipped"
    assert found["facts"] == ["the client sent no LRO_CONFORM_TOKEN to the first server"]
