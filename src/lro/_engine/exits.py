"""Close what is still open when the interpreter ends.

A server under WSGI tells its application of no end, and a script may simply come to its last line.
Python calls what is registered with :mod:`atexit` when the main thread and all threads that are no
daemons have ended; the threads of executors are daemons, so they still work then, and their work
can end or be handed back. Nothing is called where a process ends by ``os._exit`` or a signal that
no handler takes: then the lease tells.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from datetime import timedelta
from typing import Final, Protocol

log = logging.getLogger("lro")


class Closing(Protocol):
    """What can be closed, and takes a number of seconds for it."""

    drain: timedelta
    """How long that may take, roughly."""

    def close(self, drain: float) -> None:
        """Close it within ``drain`` seconds, roughly."""
        ...


_open: Final[weakref.WeakSet[Closing]] = weakref.WeakSet()


def close_at_exit(one: Closing) -> None:
    """Have this closed when the interpreter ends, unless it is collected before."""
    _open.add(one)
    # Registered again with each: what is registered last is called first, and so comes before the
    # exit functions of all that an open service uses, such as those of its executor's module.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def no_longer_open(one: Closing) -> None:
    """Do nothing about this when the interpreter ends."""
    _open.discard(one)


def _close_all() -> None:
    began = time.monotonic()
    for one in list(_open):
        try:  # all together take no longer than the longest of them
            one.close(max(0.0, one.drain.total_seconds() - (time.monotonic() - began)))
        except Exception:  # the others are to be closed all the same
            log.exception("a service could not be closed at the end of the process")
        except BaseException as exc:  # a second signal: there is no time left for it to drain
            log.warning("closing at the end of the process was interrupted: %r", exc)
