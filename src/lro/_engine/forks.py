"""Life after a fork: threads do not come along, and connections and leases must not be shared.

Servers fork after they have loaded the application (Celery's prefork pool, gunicorn's preload).
What holds threads, connections or an owner's name makes new ones in the child.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger("lro")

T = TypeVar("T")

_holders: weakref.WeakKeyDictionary[object, Callable[[Any], None]]
_holders = weakref.WeakKeyDictionary()


def after_fork(holder: T, reset: Callable[[T], None]) -> None:
    """Have ``reset(holder)`` called in every child, for as long as the holder lives.

    Holders are reset in the order in which they came; ``reset`` must take no lock that a thread
    of the parent may have held, and must not touch what the parent goes on to use.
    """
    _holders[holder] = reset


def _reset_all() -> None:
    for holder, reset in list(_holders.items()):
        try:
            reset(holder)
        except Exception:  # the others must live on
            log.exception("%r could not be reset after a fork", holder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
