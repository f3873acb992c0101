"""Life after a fork: threads do not come along, and connections and leases must not be shared.

Servers fork after they have loaded the application (Celery's prefork pool, gunicorn's preload).
Whoever holds threads, connections or an owner's id makes new ones in the child.
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


def after_fork(holder: T, renew: Callable[[T], None]) -> None:
    """Have ``renew(holder)`` called in every child, for as long as the holder lives.

    Holders are renewed in the order in which they came; ``renew`` must take no lock that a thread
    of the parent may have held, and must not touch what the parent goes on to use.
    """
    _holders[holder] = renew


def _renew_all() -> None:
    for holder, renew in list(_holders.items()):
        try:
            renew(holder)
        except Exception:  # the others must live on
            log.exception("%r could not be renewed after a fork", holder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
