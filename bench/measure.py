"""Measurements in interleaved rounds, and the median and spread of the ratios."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable

import attrs

Sample = Callable[[], float]
"""A measurement in seconds, or in any unit of which less is better."""


@attrs.frozen
class Ratio:
    """Our measurement and the floor's: both medians in ``unit``, and the ratio of each round."""

    name: str
    ours: float
    floor: float
    rounds: tuple[float, ...]
    unit: str = "us"

    @property
    def ratio(self) -> float:
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        low, high = min(self.rounds), max(self.rounds)
        return (
            f"{self.name:<52} {self.ours:>10.2f} {self.unit} / {self.floor:>9.2f} {self.unit}"
            f" = {self.ratio:>6.2f}  ({low:.2f} to {high:.2f})"
        )


def compare(
    name: str, ours: Sample, floor: Sample, *, rounds: int = 7, scale: float = 1e6, unit: str = "us"
) -> Ratio:
    """Take both samples alternately, after one round that is not counted."""
    ours(), floor()
    pairs = []
    for number in range(rounds):
        gc.collect()
        pair = (ours(), floor()) if number % 2 else tuple(reversed((floor(), ours())))
        pairs.append(pair)
    return Ratio(
        name,
        statistics.median(own for own, _ in pairs) * scale,
        statistics.median(low for _, low in pairs) * scale,
        tuple(own / low for own, low in pairs),
        unit,
    )


def percentile(values: list[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
