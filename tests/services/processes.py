"""Processes that tests start and that end with the test."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def killed_at_end(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process with text pipes; kill it after the block, so that no failed test hangs."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
