"""Trying again, by tenacity: the work of a method, and results that a store cannot take now.

tenacity is imported with the first retry: it brings asyncio along, and the import of this package
is to stay cheap for those who need neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from lro._errors import Unavailable

if TYPE_CHECKING:
    import tenacity

R = TypeVar("R")

STORE_PATIENCE: Final = 10.0
"""Seconds for which a result is offered to a store that is not available."""


def offered(write: Callable[[], R]) -> R:
    """Make a write that a store has just refused as unavailable, again and again for a while.

    Raises:
        Unavailable: The store did not come back in time.
    """
    import tenacity

    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Unavailable),
        wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
        stop=tenacity.stop_after_delay(STORE_PATIENCE),
        reraise=True,
    )
    return again(write)


def repeated(
    attempts: int, retry_on: tuple[type[Exception], ...], sleep: Callable[[float], None]
) -> tenacity.Retrying:
    """Calls of a function until one raises none of ``retry_on``, ``attempts`` at most."""
    import tenacity

    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=10),
        retry=tenacity.retry_if_exception_type(retry_on),
        sleep=sleep,
        reraise=True,
    )


def arepeated(attempts: int, retry_on: tuple[type[Exception], ...]) -> tenacity.AsyncRetrying:
    """The same for async functions."""
    import tenacity

    return tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=10),
        retry=tenacity.retry_if_exception_type(retry_on),
        reraise=True,
    )
