"""Whether this process is a server, or only the hands of one.

A worker process of another process's executor imports the application to find its functions. The
services that come into being thereby must not begin to live: leases and orphans are the parent's.
"""

from __future__ import annotations

_role = {"hands": False}


def hands_only() -> bool:
    """Whether this process does only the work that its parent gives it."""
    return _role["hands"]


def become_hands() -> None:
    """This process is a worker of its parent's, from now on."""
    _role["hands"] = True
