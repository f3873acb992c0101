"""What ends a command from outside, in this process; test_client_pipes has it in one of its own."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("uvicorn")

import click
from click.testing import CliRunner

from lro.cli._app import app
from lro_client import Client
from lro_client._group import Group
from lro_client.cli import _exits
from lro_client.cli._exits import Exit
from lro_client.transports.http import HttpTransport
from tests.cli.asking import Asked, Lro, over, started
from tests.client.house import House
from tests.client.messages import ResizeMetadata, ResizeResponse


def raising(error: BaseException) -> Any:
    """A function that raises this."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def test_interrupted(call: Lro, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something was waited for, it is named; names are quoted for the shell."""
    name = started(house)
    with monkeypatch.context() as patch:
        patch.setattr(Group, "as_completed", raising(KeyboardInterrupt()))
        found = call("wait", name)
        assert (found.status, found.out) == (Exit.INTERRUPTED, "")
        assert found.err.endswith(f"look again with: lro wait {name}\n")
        patch.setattr(Client, "get", raising(KeyboardInterrupt()))
        assert (call("get", name).status, call("get", name).err) == (Exit.INTERRUPTED, "")


def test_an_odd_name_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """What is to be typed again may be pasted into a shell."""
    with click.Context(app):
        _exits.set_going_on(["operations/a b$(c)"])
        _exits.tell_going_on()
    assert capsys.readouterr().err.endswith("lro wait 'operations/a b$(c)'\n")


def test_nobody_reads_on(call: Lro, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is said."""
    monkeypatch.setattr("lro_client.cli._list.state_line", raising(BrokenPipeError()))
    over(house, ResizeResponse())
    found = call("list")
    assert (found.status, found.out, found.err) == (Exit.CUT_OFF, "", "")


def test_what_is_written_afterwards(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes nowhere, so that the end of the process finds nothing to complain about."""
    with (here / "out").open("w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        _exits._write_nowhere()
        out.write("late")
    assert (here / "out").read_text(encoding="utf-8") == ""


def test_a_defect_is_not_hidden(call: Lro, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is none of a call is raised as it is."""
    names = [started(house) for _ in range(2)]
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


def test_output_that_is_no_text_stream(asked: Asked, house: House) -> None:
    """The command can be called by others, as click's own test runner does."""
    name = over(house, ResizeMetadata(40), ResizeResponse())
    found = CliRunner().invoke(app, ["get", "--json", name, "--server", asked.url])
    assert found.exit_code == 0
    assert name in found.output


def test_standard_output_of_another_kind(
    asked: Asked, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it cannot be told how to write what it has no letters for."""
    from lro.cli import main

    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["list", "--server", asked.url]) == 0
