"""What this process is for: all of a service, or only to run functions for another process."""

from __future__ import annotations

_is_worker_process = False


def is_worker_process() -> bool:
    """Whether this process runs functions for another one, and nothing else.

    It imports the application, whose service must not work here a second time: no maintenance, no
    operations of its own, no further processes.
    """
    return _is_worker_process


def mark_worker_process() -> None:
    """Make this process one that only runs functions, before it imports the application."""
    global _is_worker_process
    _is_worker_process = True
