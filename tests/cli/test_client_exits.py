"""Interrupts and closed outputs in this process; test_client_pipes tests a child process."""

from __future__ import annotations

import errno
import io
import re
import sys
from typing import Any

import pytest

pytest.importorskip("rich")

import click
from click.testing import CliRunner

from lro.cli import _app, main
from lro.cli._app import app
from lro_client import Client, Group
from lro_client.cli import _terminal
from lro_client.cli._terminal import Exit
from lro_client.transports import HttpTransport
from tests.cli.asking import Asked, Lro, over, started
from tests.client.messages import ResizeMetadata, ResizeResponse
from tests.client.real_service import PATH, Harness

ID = "0c5b2a3e-5f1d-4b8f-9d55-6d4a3f3f5b11"


def raising(error: BaseException) -> Any:
    """Return a function that raises this error."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def test_interrupt_names_the_operation(
    call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt of a wait prints how to continue; an interrupt of ``get`` prints nothing."""
    name = started(harness)
    with monkeypatch.context() as patch:
        patch.setattr(Group, "as_completed", raising(KeyboardInterrupt()))
        found = call("wait", name)
        assert (found.status, found.out) == (Exit.INTERRUPTED, "")
        assert found.err.endswith(f"look again with: lro wait {name}\n")
        patch.setattr(Client, "get", raising(KeyboardInterrupt()))
        assert (call("get", name).status, call("get", name).err) == (Exit.INTERRUPTED, "")


def test_an_odd_name_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """A name with shell characters is quoted in the command that a message suggests."""
    with click.Context(app):
        _terminal.set_going_on(["operations/a b$(c)"])
        _terminal.print_going_on()
    assert capsys.readouterr().err.endswith("lro wait 'operations/a b$(c)'\n")


def test_unexpected_error_is_raised(
    call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that is not an error of the client is raised unchanged."""
    names = [started(harness) for _ in range(2)]
    send = HttpTransport.send
    calls: list[Any] = []

    def fail_later(self: Any, asked: Any, *_: object) -> Any:
        calls.append(asked)
        if len(calls) > 1:
            raise ZeroDivisionError
        return send(self, asked)

    monkeypatch.setattr(HttpTransport, "send", fail_later)
    monkeypatch.setattr(HttpTransport, "stream", fail_later)
    with pytest.raises(ZeroDivisionError):
        call("wait", *names)


def test_command_accepts_an_output_that_is_not_a_text_stream(
    asked: Asked, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command works if standard output is a StringIO or the stream of click's test runner."""
    name = over(harness, ResizeMetadata(40), ResizeResponse())
    found = CliRunner().invoke(app, ["get", "--json", name, "--server", asked.url])
    assert (found.exit_code, name in found.output) == (0, True)
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # a StringIO cannot be reconfigured
    assert main(["list", "--server", asked.url]) == 0


def test_interrupt_during_imports_exits_quietly(call: Lro, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt before the command has begun its work prints nothing."""
    quiet = (Exit.INTERRUPTED, "", "")
    for place in ("importlib.metadata.EntryPoint.load", "lro.cli._app._App.invoke"):
        with monkeypatch.context() as patch:
            patch.setattr(place, raising(KeyboardInterrupt()))
            found = call("get", "operations/a")
            assert (found.status, found.out, found.err.strip()) == quiet
    monkeypatch.setattr(_app, "run", raising(KeyboardInterrupt()))
    found = call("get", "operations/a")
    assert (found.status, found.out, found.err) == quiet


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ([], "may have been started: look for it with: lro list"),
        (["--request-id", ID], f"the same command with --request-id {ID} starts nothing twice"),
    ],
)
def test_interrupt_during_a_start_says_how_to_find_the_operation(
    call: Lro, monkeypatch: pytest.MonkeyPatch, given: list[str], shown: str
) -> None:
    """The message after an interrupted start says how to find the operation, if there is one."""
    monkeypatch.setattr(Client, "start", raising(KeyboardInterrupt()))
    found = call("start", PATH, *given)
    assert (found.status, found.out) == (Exit.INTERRUPTED, "")
    assert found.err.startswith("lro: interrupted; the operation may have been started: ")
    assert found.err.endswith(f"{shown}\n")
    found = call("start", PATH, "--validate-only", *given)
    assert (found.status, found.err) == (Exit.INTERRUPTED, "")


def test_interrupt_after_the_start_names_the_operation(
    call: Lro, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.say()
    monkeypatch.setattr("lro_client.cli._commands.print_operation", raising(KeyboardInterrupt()))
    found = call("start", PATH, '{"source": "a.png"}')
    assert found.status == Exit.INTERRUPTED
    assert re.fullmatch(r"lro: interrupted; the .* with: lro wait operations/\S+\n", found.err)


def test_command_with_closed_output_sends_no_request(
    call: Lro, asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If standard output is closed, the command fails without a request."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["list"]) == Exit.MISUSED
    assert capsys.readouterr().err == "lro: standard output is closed\n"
    assert asked.requests == []


def test_command_without_standard_error_returns_its_status(
    call: Lro, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without standard error, a failed command only returns its exit status."""
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["get", "operations/no"]) == Exit.CALL_FAILED
    sys.stderr.close()
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["get"]) == Exit.MISUSED
    sys.stderr.close()


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (BrokenPipeError(), Exit.CUT_OFF, ""),  # the reader closed the pipe
        (OSError(errno.ENOSPC, "No space left on device"), Exit.MISUSED, "No space left on device"),
        (OSError(errno.ENOENT, "No such", "roots.pem"), Exit.MISUSED, "roots.pem: No such"),
        (OSError("odd"), Exit.MISUSED, "odd"),
    ],
)
def test_failing_output_ends_the_command(
    call: Lro,
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    status: int,
    shown: str,
) -> None:
    over(harness, ResizeResponse())
    monkeypatch.setattr("lro_client.cli._commands.state_line", raising(error))
    found = call("list")
    assert (found.status, found.out) == (status, "")
    assert found.err == (shown and f"Error: input or output failed: {shown}\n")
