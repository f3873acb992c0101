"""Spans of time on a command line: ``90``, ``1.5s``, ``10m``, ``2h``."""

from __future__ import annotations

import re
from typing import Final

import click

_SPAN: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h|d|)", re.ASCII)
_UNITS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST_SECONDS: Final = 1e9


def span(text: str) -> float:
    """The type of options that take a span of time: its seconds.

    Raises:
        click.BadParameter: The text is none, or says no time at all.
    """
    found = _SPAN.fullmatch(text)
    seconds = float(found["number"]) * _UNITS[found["unit"]] if found else 0.0
    if not seconds:
        raise click.BadParameter(f"{text!r} is no span such as 90, 1.5s, 10m or 2h")
    return min(seconds, _LONGEST_SECONDS)
