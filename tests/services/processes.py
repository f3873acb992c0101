"""Processes that a test starts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def killed_at_end(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes of text, killed after the block: a test that fails must not wait."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
