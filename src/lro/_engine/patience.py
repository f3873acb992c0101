"""Trying again, by tenacity: the work of a method, and what a store cannot do just now.

tenacity is imported with the first retry: it brings asyncio along, and the import of this package
is to stay cheap for those who need neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lro._base.errors import Cancelled, LeaseLost, Unavailable
from lro._engine.job import Job
from lro._engine.method_spec import Options

if TYPE_CHECKING:
    import tenacity

log = logging.getLogger("lro")

R = TypeVar("R")

_NEVER: Final = (Cancelled, LeaseLost)
"""What no method tries again, whatever it says: the work is to stop."""


def retry_while_unavailable(action: Callable[[], R], *, name: str, until: Callable[[], bool]) -> R:
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


def repeated(options: Options, job: Job[Any]) -> tenacity.Retrying:
    """Calls of a function until one raises none of ``retry_on``, as often as the options say."""
    import tenacity

    return tenacity.Retrying(sleep=job._pause, **_rules(options, job))


def arepeated(options: Options, job: Job[Any]) -> tenacity.AsyncRetrying:
    """The same for async functions."""
    import tenacity

    return tenacity.AsyncRetrying(**_rules(options, job))


def _rules(options: Options, job: Job[Any]) -> dict[str, Any]:
    import tenacity

    def log_failure(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None  # a call has failed
        assert state.next_action is not None  # and there is to be another one
        log.warning(
            "%s: call %d of %d raised %s, the next one follows in %.2f s",
            job.name,
            state.attempt_number,
            options.calls,
            type(state.outcome.exception()).__qualname__,
            state.next_action.sleep,
        )

    return {
        "stop": tenacity.stop_after_attempt(options.calls),
        "wait": tenacity.wait_random_exponential(multiplier=0.1, max=10),
        "retry": tenacity.retry_if_exception(lambda exc: _retried(exc, options.retry_on)),
        "before_sleep": log_failure,
        "reraise": True,
    }


def _retried(error: BaseException, retry_on: tuple[type[Exception], ...]) -> bool:
    return isinstance(error, retry_on) and not isinstance(error, _NEVER)
