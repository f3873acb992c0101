"""The rows of the benches' table, and measurements in interleaved rounds."""

from __future__ import annotations

import gc
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

Sample = Callable[[], float]
"""A measurement in seconds, or in any unit of which less is better."""

MISSING: Final[list[str]] = []
"""What this run could not measure, and why."""


class Absent(Exception):
    """Something that a bench needs is not installed; the text says what."""


@attrs.frozen(kw_only=True)
class Figure:
    """A row of the table: our figure, beside that of a floor or a peer, and the target.

    ``rounds`` has the ratio to the floor in each round or, without a floor, our figure. ``target``
    is the worst good value of what the rounds have or, if ``absolute``, of our figure. ``exact``
    figures are counted, not timed.
    """

    what: str
    measure: str = ""
    ours: float
    floor: float | None = None
    unit: str
    rounds: tuple[float, ...] = attrs.field(default=(), converter=tuple)
    target: float | None = None
    absolute: bool = False
    exact: bool = False

    @property
    def key(self) -> str:
        """Return the name of the row in its bench."""
        return ".".join(
            re.sub(r"\W+", "_", text.lower()).strip("_")
            for text in (self.what, self.measure)
            if text
        )

    @property
    def value(self) -> float:
        """Return the median of the rounds: the ratio or, without a floor, our figure."""
        return statistics.median(self.rounds) if self.rounds else self.ours

    @property
    def spread(self) -> tuple[float, float]:
        """Return the lowest and the highest value."""
        return (min(self.rounds), max(self.rounds)) if self.rounds else (self.value, self.value)

    @property
    def more_is_better(self) -> bool:
        """Return True for a rate."""
        return self.unit.endswith("/s")

    def worse(self, value: float, than: float) -> bool:
        """Compare two values of this row."""
        return value < than if self.more_is_better else value > than

    @property
    def reached(self) -> bool | None:
        """Return True if the target is reached, None without a target."""
        if self.target is None:
            return None
        return not self.worse(self.ours if self.absolute else self.value, self.target)

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON value, with four digits of each number."""
        row = attrs.asdict(self, filter=lambda field, value: value != field.default)
        return {name: _rounded(value) for name, value in row.items()}

    def __str__(self) -> str:
        title = ", ".join(filter(None, (self.what, self.measure)))
        cells = [f"{amount(self.ours)} {self.unit}", "", "", ""]
        if self.floor is not None:
            cells[1] = f"{amount(self.floor)} {self.unit}"
        if self.floor is not None or len(self.rounds) > 1:
            cells[2] = spread(self)
        if self.target is not None:
            cells[3] = f"{amount(self.target)} {'reached' if self.reached else 'missed'}"
        figures = "{:>15} {:>13} {:>19} {:>12}".format(*cells).rstrip()
        return f"{title:<37}{figures}" if len(title) < 37 else f"{title}\n{'':<37}{figures}"


HEAD: Final = f"{'':<37}{'ours':>15} {'floor or peer':>13} {'ratio or spread':>19} {'target':>12}"


def amount(number: float) -> str:
    """Return a number as text, with three digits or all before the point."""
    size = abs(number)
    if size >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if size >= 10 else f"{number:.2f}" if size >= 0.1 else f"{number:.2g}"


def spread(figure: Figure) -> str:
    """Return the ratio and its spread, or the spread of our figure."""
    low, high = figure.spread
    between = f"{amount(low)} to {amount(high)}"
    return between if figure.floor is None else f"{amount(figure.value)} ({between})"


def _rounded(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def compare(
    what: str, ours: Sample, floor: Sample, *, rounds: int = 7, scale: float = 1e6,
    unit: str = "µs", measure: str = "", target: float | None = None, absolute: bool = False,
) -> Figure:  # fmt: skip
    """Take both samples alternately, after one round that is not counted.

    With the unit ``/s``, the row has the rates: the samples are still seconds.
    """
    ours(), floor()
    pairs = []
    for number in range(rounds):
        gc.collect()
        pair = (ours(), floor()) if number % 2 else tuple(reversed((floor(), ours())))
        pairs.append(pair)
    if unit == "/s":
        pairs, scale = [(1 / own, 1 / low) for own, low in pairs], 1.0
    found = against(what, pairs, scale=scale, unit=unit, measure=measure, target=target)
    return attrs.evolve(found, absolute=absolute)


def against(
    what: str, pairs: Iterable[tuple[float, float]], *, unit: str, measure: str = "",
    scale: float = 1.0, target: float | None = None,
) -> Figure:  # fmt: skip
    """Return a row of pairs of our figure and the floor's, one pair for each round."""
    own, low = zip(*pairs, strict=True)
    return Figure(
        what=what,
        measure=measure,
        ours=statistics.median(own) * scale,
        floor=statistics.median(low) * scale,
        unit=unit,
        rounds=tuple(one / other for one, other in zip(own, low, strict=True)),
        target=target,
    )


def alone(
    what: str, values: Sequence[float], *, unit: str, measure: str = "", scale: float = 1.0,
    target: float | None = None,
) -> Figure:  # fmt: skip
    """Return a row of figures that have no floor, one for each round."""
    rounds = tuple(value * scale for value in values)
    ours = statistics.median(rounds)
    return Figure(what=what, measure=measure, ours=ours, unit=unit, rounds=rounds, target=target)


def late(
    what: str, seconds: Sequence[float], *, shares: Sequence[float] = (0.5, 0.99),
    targets: Sequence[float | None] = (None, None), unit: str = "ms", scale: float = 1e3,
) -> Iterator[Figure]:  # fmt: skip
    """Yield rows of percentiles of times."""
    for share, target in zip(shares, targets, strict=True):
        ours = percentile(seconds, share) * scale
        measure = f"p{share * 100:.0f}" if share < 1 else "most"
        yield Figure(what=what, measure=measure, ours=ours, unit=unit, target=target)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
