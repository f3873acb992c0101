"""A helper that tells whether a process, which another process started, has ended."""

from __future__ import annotations

import os
import select
from typing import Final

_MOST_MILLISECONDS: Final = 30_000


def has_ended(number: int) -> bool:
    """Return whether the process has ended; if it still runs, wait up to 30 s for its end."""
    try:
        descriptor = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(_MOST_MILLISECONDS))
    finally:
        os.close(descriptor)
