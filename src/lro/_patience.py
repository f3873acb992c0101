"""Trying again, by tenacity: the work of a method, and what a store cannot do just now.

tenacity is imported with the first retry: it brings asyncio along, and the import of this package
is to stay cheap for those who need neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from lro._errors import Cancelled, LeaseLost, Unavailable

if TYPE_CHECKING:
    import tenacity

log = logging.getLogger("lro")

R = TypeVar("R")

_NEVER: Final = (Cancelled, LeaseLost)
"""What no method tries again, whatever it says: the work is to stop."""


def patiently(action: Callable[[], R], *, name: str, until: Callable[[], bool]) -> R:
    """Ask a store for something, again and again for as long as it is unavailable.

    Raises:
        Unavailable: The store has not come back before ``until`` said so.
    """
    try:
        return action()
    except Unavailable as exc:
        log.warning("%s: asked again until the store is there: %s", name, exc)
    import tenacity

    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Unavailable),
        wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
        stop=lambda _: until(),
        reraise=True,
    )
    return again(action)


def repeated(
    attempts: int, retry_on: tuple[type[Exception], ...], sleep: Callable[[float], None]
) -> tenacity.Retrying:
    """Calls of a function until one raises none of ``retry_on``, ``attempts`` at most."""
    import tenacity

    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=10),
        retry=tenacity.retry_if_exception(lambda exc: _retried(exc, retry_on)),
        sleep=sleep,
        reraise=True,
    )


def arepeated(attempts: int, retry_on: tuple[type[Exception], ...]) -> tenacity.AsyncRetrying:
    """The same for async functions."""
    import tenacity

    return tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=10),
        retry=tenacity.retry_if_exception(lambda exc: _retried(exc, retry_on)),
        reraise=True,
    )


def _retried(error: BaseException, retry_on: tuple[type[Exception], ...]) -> bool:
    return isinstance(error, retry_on) and not isinstance(error, _NEVER)
