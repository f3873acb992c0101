"""What ends a command from outside: Ctrl-C, a reader that has gone, an output that is full."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

import click
from click.exceptions import Exit

INTERRUPTED: Final = 130
"""The exit status of Ctrl-C, as shells have it."""
CUT_OFF: Final = 141
"""That when whoever read the output has stopped reading, as shells have it."""


class Unusable(click.ClickException):
    """What was given cannot be used, or is not there."""

    exit_code = 2


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Turn what comes from outside into the exit status that it stands for; write all before.

    Raises:
        Exit: With :data:`INTERRUPTED` or :data:`CUT_OFF`.
        Unusable: Something cannot be read or written.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _write_nowhere()
        raise Exit(CUT_OFF) from None
    except OSError as exc:
        _write_nowhere()
        about = "" if exc.filename is None else f"{exc.filename}: "
        raise Unusable(f"input or output failed: {about}{exc.strerror or exc}") from exc


def _write_nowhere() -> None:
    # What is still to be written at exit would fail again, with a message of the interpreter.
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
