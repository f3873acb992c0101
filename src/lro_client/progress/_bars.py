"""The estimated end of an operation, and progress bars in a terminal with rich and tqdm.

Both bars need the extra ``progress``.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from lro import Operation
from lro.errors import MissingExtra
from lro_client._errors import DecodingError
from lro_client.progress._reading import Progress, ProgressOf, one_line, progress_of

if TYPE_CHECKING:
    from rich.console import Console

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_PERCENT = 100.0


class Estimate:
    """An estimate of the seconds left, from fractions that are added from time to time.

    The estimate uses the recent rate: progress older than ``window_seconds`` has less and less
    weight. An unusually long pause makes the estimate grow. A fraction below the last one reduces
    the progress so far. If no progress is left, the estimate starts again. ``clock`` returns
    seconds that never decrease.
    """

    def __init__(
        self, *, window_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window = window_seconds
        self._clock = clock
        self._last: tuple[float, float] | None = None
        self._spent = 0.0
        self._gained = 0.0
        self._gap = 0.0

    def add(self, fraction: float | None, seconds: float | None = None) -> None:
        """Add the fraction that was done when the clock showed ``seconds``, by default now.

        None and NaN are ignored. Values below 0 or above 1 are clipped.
        """
        if fraction is None or math.isnan(fraction):
            return
        fraction = min(max(fraction, 0.0), 1.0)
        now = self._clock() if seconds is None else seconds
        if self._last is None:
            self._last = (now, fraction)
            return
        before, had = self._last
        if fraction == had or now < before:  # no progress, or a report from the past
            return
        fade = math.exp(-(now - before) / self._window)
        self._spent = self._spent * fade + (now - before)
        self._gained = self._gained * fade + (fraction - had)
        self._gap = now - before
        self._last = (now, fraction)
        if self._gained <= 0:
            self._spent = self._gained = 0.0

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the estimated end, never negative, or None if the end is not known."""
        if self._last is None:
            return None
        then, fraction = self._last
        if fraction == 1.0:
            return 0.0
        if not (self._spent > 0 and self._gained > 0):
            return None
        quiet = max(self._clock() - then, 0.0)
        stalled = max(quiet - self._gap, 0.0)  # the seconds by which the next step is overdue
        needed = (1.0 - fraction) * ((self._spent + stalled) / self._gained)
        left = needed - min(quiet, self._gap)
        return max(left, 0.0) if math.isfinite(left) else None


class ShownUpdate(Protocol):
    """The state that a bar shows: an ``Update``, or an object with the same members."""

    @property
    def operation(self) -> Operation:
        """The operation as the server sent it."""
        ...

    @property
    def metadata(self) -> object:
        """The decoded metadata.

        Raises:
            DecodingError: The metadata is not of the declared type.
        """
        ...


class Running(Protocol[R_co]):
    """The operation of a bar: an ``OperationHandle``, or an object with the same members."""

    @property
    def name(self) -> str:
        """The operation's name."""
        ...

    def updates(
        self, timeout: timedelta | float | None, *, every: float | None
    ) -> Iterator[ShownUpdate]:
        """Yield each changed state until the operation is done."""
        ...

    def result(self) -> R_co:
        """Return the result of an operation that is done."""
        ...


class RichBar:
    """A progress bar of rich, shown inside a ``with`` block: percent, message and time left.

    ``description`` is shown before the bar. ``console`` draws the bar, by default on standard
    error. ``progress_of`` reads the metadata. Without a terminal, only the last state is written.

    Raises:
        MissingExtra: rich is not installed.
    """

    def __init__(
        self,
        description: str = "",
        *,
        console: Console | None = None,
        progress_of: ProgressOf = progress_of,
    ) -> None:
        rich = _imported("rich.progress")
        self._read, self._estimate = progress_of, Estimate()
        where = console or _imported("rich.console").Console(stderr=True)
        plain = {"markup": False}  # a server's text must not be read as markup
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}", **plain),
            rich.BarColumn(),
            rich.TextColumn("{task.fields[percent]}", **plain),
            rich.TimeElapsedColumn(),
            rich.TextColumn("{task.fields[left]}", **plain),
            rich.TextColumn("{task.fields[message]}", **plain),
            console=where,
        )
        self._task = self._bar.add_task(
            one_line(description), total=None, percent="", left="", message=""
        )

    def __enter__(self) -> RichBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, update: ShownUpdate) -> None:
        """Show this state of the operation."""
        found = read_update(update, self._read)
        self._estimate.add(found.fraction)
        fields: dict[str, object] = {"message": found.message}
        if found.fraction is not None:
            fields["completed"], fields["total"] = found.fraction * _PERCENT, _PERCENT
            fields["percent"] = percent_text(found.fraction)
        left = None if update.operation.done else self._estimate.seconds_left
        fields["left"] = "" if left is None else f"{span_text(left)} left"
        self._bar.update(self._task, **fields)


class TqdmBar:
    """A progress bar of tqdm on standard error, shown inside a ``with`` block.

    ``description`` is shown first. ``progress_of`` reads the metadata. tqdm gets the ``options``.

    Raises:
        MissingExtra: tqdm is not installed.
    """

    def __init__(
        self, description: str = "", *, progress_of: ProgressOf = progress_of, **options: Any
    ) -> None:
        self._tqdm = _imported("tqdm").tqdm
        self._read = progress_of
        self._options = {"desc": one_line(description) or None, **options}
        self._bar: Any = None

    def __enter__(self) -> TqdmBar:
        self._bar = self._tqdm(**self._options)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, update: ShownUpdate) -> None:
        """Show this state of the operation. Before the ``with`` block is entered, do nothing."""
        if self._bar is None:
            return
        found = read_update(update, self._read)
        if found.done is not None and found.total is not None:
            self._bar.n, self._bar.total = found.done, found.total
        elif found.fraction is not None:
            self._bar.n, self._bar.total = round(found.fraction * _PERCENT, 1), _PERCENT
        elif found.done is not None:
            self._bar.n = found.done
        self._bar.set_postfix_str(found.message, refresh=False)
        self._bar.refresh()


def show_rich(
    operation: Running[R],
    timeout: timedelta | float | None = None,
    *,
    every: float | None = None,
    description: str | None = None,
    console: Console | None = None,
    progress_of: ProgressOf = progress_of,
) -> R:
    """Draw a progress bar of rich while an operation runs, and return its result.

    ``timeout`` and ``every`` are passed to ``operation.updates``. By default the bar makes as few
    calls as ``updates`` does. ``description`` defaults to the operation's name.

    Raises:
        MissingExtra: rich is not installed.
        ClientError: As for ``operation.result``.
    """
    named = operation.name if description is None else description
    return _shown(
        operation, timeout, every, RichBar(named, console=console, progress_of=progress_of)
    )


def show_tqdm(
    operation: Running[R],
    timeout: timedelta | float | None = None,
    *,
    every: float | None = None,
    description: str | None = None,
    progress_of: ProgressOf = progress_of,
    **options: Any,
) -> R:
    """Draw a progress bar of tqdm, which gets the ``options``, and return the result.

    Raises:
        MissingExtra: tqdm is not installed.
        ClientError: As for ``operation.result``.
    """
    named = operation.name if description is None else description
    return _shown(operation, timeout, every, TqdmBar(named, progress_of=progress_of, **options))


def _shown(
    operation: Running[R],
    timeout: timedelta | float | None,
    every: float | None,
    bar: RichBar | TqdmBar,
) -> R:
    with bar:
        for update in operation.updates(timeout, every=every):
            bar.update(update)
    return operation.result()


def read_update(update: ShownUpdate, read: ProgressOf) -> Progress:
    """Return the progress of an update.

    Metadata that is not of the declared class is read in packed form.
    """
    try:
        metadata: object = update.metadata
    except DecodingError:
        metadata = update.operation.metadata
    return at_the_end(read(metadata) or Progress(), update.operation)


def at_the_end(progress: Progress, operation: Operation) -> Progress:
    """Return the progress, changed to complete if the operation has succeeded."""
    if operation.state != "SUCCEEDED":
        return progress
    done = progress.done if progress.total is None else progress.total
    return attrs.evolve(progress, fraction=1.0, done=done)


def percent_text(fraction: float) -> str:
    """Return a fraction as a percentage, rounded down: 100 % means complete."""
    return f"{int(fraction * _PERCENT + 1e-9)}%"


def span_text(seconds: float) -> str:
    """Return a duration as text, in units from seconds to days."""
    whole = int(seconds + 0.5)
    if whole >= 86_400:
        return f"{whole // 86_400}d {whole % 86_400 // 3600}h"
    if whole >= 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    if whole >= 60:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole}s"


def check_library(name: str) -> None:
    """Raise ``MissingExtra`` if the package that draws a bar is not installed.

    The package is not imported, which would take longer than the rest of the import.
    """
    if importlib.util.find_spec(name) is None:
        raise MissingExtra("a progress bar", "progress")


def _imported(name: str) -> Any:
    # Imported by name, because tqdm's types are in a separate package.
    try:
        found: ModuleType = importlib.import_module(name)
    except ImportError as exc:
        raise MissingExtra("a progress bar", "progress") from exc
    return found
