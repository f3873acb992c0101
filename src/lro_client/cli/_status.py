"""How many operations are still waited for: a line on standard error that is drawn over itself."""

from __future__ import annotations

import os
import sys
from types import TracebackType

import click

_ERASED = "\r\x1b[K"


class StatusLine:
    """The line, where standard error is a terminal that can erase one; elsewhere nothing at all.

    What is printed meanwhile begins with :meth:`clear`.
    """

    def __init__(self, wanted: bool) -> None:
        dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        self._drawn = wanted and not dumb and sys.stderr.isatty()

    def show(self, left: int) -> None:
        """Say how many operations are left."""
        if self._drawn and left:
            things = "1 operation" if left == 1 else f"{left} operations"
            click.echo(f"{_ERASED}waiting for {things}", err=True, nl=False)

    def clear(self) -> None:
        """Take it from the screen."""
        if self._drawn:
            click.echo(_ERASED, err=True, nl=False)

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
