"""Progress bars of rich and tqdm, drawn while a real operation runs."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro_client import Client, OperationFailed, Polling, Update, progress
from lro_client.progress import Progress
from lro_client.testing import ScriptedServer
from lro_client.transports import LocalTransport
from tests.client.messages import TYPES, Phase, ResizeMetadata, ResizeRequest, ResizeResponse
from tests.client.real_service import FULL_NAME, Harness


def started(harness: Harness, *steps: Any) -> Any:
    """Start an operation whose work takes these steps."""
    harness.say(*steps)
    client = Client(transport=LocalTransport(harness.service))
    return client.start(FULL_NAME, ResizeRequest(source="a"), **TYPES)


def console(width: int = 200) -> tuple[Any, io.StringIO]:
    """Return a rich console, and the buffer to which the console writes."""
    rich = pytest.importorskip("rich.console")
    written = io.StringIO()
    return rich.Console(file=written, width=width, force_terminal=True), written


def state(percent: int | None = None, *, done: bool = False, **more: Any) -> Update[Any]:
    """Make an update of an operation with this progress."""
    metadata = (
        None if percent is None else lro.AnyMessage("x/acme.Meta", {"percent": percent, **more})
    )
    operation = lro.Operation(
        name="operations/a",
        metadata=metadata,
        done=done,
        result=lro.AnyMessage("x/google.protobuf.Empty") if done else None,
    )
    client = Client(transport=LocalTransport(lro.Service(MemoryStore(), InlineExecutor())))
    handle = client.operation(operation, response=lro.Struct, metadata=lro.Struct)
    return Update(handle, operation)


def test_rich_bar_is_full_at_the_end(harness: Harness) -> None:
    """The bar ends at 100 %, and the call returns the result."""
    where, written = console()
    operation = started(harness, ResizeMetadata(40, Phase.READING), ResizeResponse(7))
    assert progress.show_rich(operation, 10, every=0.05, console=where) == ResizeResponse(7)
    assert operation.name in written.getvalue()
    assert "100%" in written.getvalue()


def test_rich_bar_shows_percentage_message_and_remaining_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The bar shows percentage, message and remaining time, even if metadata has another class.

    By default the bar is drawn on standard error, because standard output is for data.
    """
    where, written = console()
    for options in ({"console": where}, {}):
        with progress.RichBar("copy [b]x[/b]\x1b", **options) as bar:
            bar.update(state())
            bar.update(state(29, message="[red]a\x1b[2J"))
            bar.update(state(30))
    shown = written.getvalue()
    assert "copy [b]x[/b]" in shown
    assert "29%" in shown or "30%" in shown
    assert "\x1b[2J" not in shown
    assert " left" in shown
    out, err = capsys.readouterr()
    assert out == ""
    assert "copy [b]x[/b]" in err


def test_tqdm_bar_is_full_at_the_end(harness: Harness) -> None:
    """The bar ends at 100 %, and the call returns the result."""
    pytest.importorskip("tqdm")
    written = io.StringIO()
    operation = started(harness, ResizeMetadata(40), ResizeResponse(7))
    found = progress.show_tqdm(operation, 10, every=0.05, file=written, description="resize")
    assert found == ResizeResponse(7)
    assert "resize: 100%" in written.getvalue()


def test_tqdm_bar_shows_the_units_of_a_total() -> None:
    """The bar shows units of a total, a percentage, or a count alone, each with the message."""
    pytest.importorskip("tqdm")
    written = io.StringIO()
    states = iter(
        [
            Progress(),
            Progress(done=2.0),
            Progress(0.5, message="half\r"),
            Progress(0.75, 3.0, 4.0),
            Progress(0.75, 3.0, 4.0),
        ]
    )
    bar = progress.TqdmBar(progress_of=lambda _: next(states), file=written, ncols=80)
    bar.update(state(1))  # outside its block, a bar draws nothing and reads no progress
    with bar:
        for _ in range(4):
            bar.update(state(1))
        bar.update(state(1, done=True))
    lines = written.getvalue().split("\r")
    assert any("2.0it" in line for line in lines)
    assert any("50.0/100" in line and "half" in line for line in lines)
    assert any("3.0/4.0" in line for line in lines)
    assert "4.0/4.0" in lines[-1]


def test_failed_operation_ends_the_bar_and_raises(harness: Harness) -> None:
    """If the operation fails, its error is raised as by ``result``, and the drawing threads end."""
    where, _ = console()
    operation = started(harness, lro.StatusError(lro.Code.ABORTED, "no"))
    with pytest.raises(OperationFailed):
        progress.show_rich(operation, 10, every=0.05, console=where, description="x")
    drawing = [one for one in threading.enumerate() if type(one).__module__.startswith("rich")]
    for thread in drawing:  # the last thread may still be ending
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.parametrize("calls", ["show_rich", "show_tqdm"])
def test_bar_makes_as_few_calls_as_result(calls: str) -> None:
    """Without WaitOperation, an hour's bar polls no more often than ``result``, unless asked to."""
    pytest.importorskip("rich")
    pytest.importorskip("tqdm")
    show = getattr(progress, calls)
    output = {"show_rich": {"console": console()[0]}, "show_tqdm": {"file": io.StringIO()}}[calls]

    def called(follow: Any) -> int:
        server = ScriptedServer(wait=False)
        server.operation("operations/a", ends_after=3600.0, metadata=metadata_after)
        follow(server.client(polling=Polling(jitter=0.0)).operation("operations/a"))
        return len(server.calls)

    few = called(lambda operation: operation.result())
    assert called(lambda operation: show(operation, **output)) == few
    assert called(lambda operation: show(operation, every=2.0, **output)) > 3600 / 2


def metadata_after(seconds: float) -> Any:
    return lro.AnyMessage("x/acme.Meta", {"percent": int(seconds / 36)})


@pytest.mark.parametrize(
    ("name", "library"),
    [("RichBar", "rich"), ("show_rich", "rich"), ("TqdmBar", "tqdm"), ("show_tqdm", "tqdm")],
)
def test_import_of_a_bar_without_its_library_names_the_extra(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import fails, and not a call that comes after the start of an operation."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(vars(progress), name, raising=False)  # an earlier test may have loaded it
    with pytest.raises(lro.errors.MissingExtra, match=r"lro\[progress\]"):
        exec(f"from lro_client.progress import {name}", {})
    assert name in dir(progress)
    assert progress.Estimate().seconds_left is None


def test_progress_module_without_a_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'show_curses'"):
        getattr(progress, "show_curses")  # noqa: B009  # type checkers refuse the attribute


@pytest.mark.parametrize("name", ["RichBar", "TqdmBar"])
def test_missing_bar_library_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a part of the library is missing, the bar cannot be made."""
    pytest.importorskip("rich")
    pytest.importorskip("tqdm")
    make = getattr(progress, name)
    for module in ("rich.progress", "tqdm"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(lro.errors.MissingExtra, match=r"lro\[progress\]"):
        make()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (61, "1m 01s"), (7265, "2h 01m"), (200_000, "2d 7h")],
)
def test_time_spans_show_two_units(seconds: float, text: str) -> None:
    """A time span is shown in at most two units."""
    from lro_client.progress._bars import span_text

    assert span_text(seconds) == text
