"""Retries: after which errors a function is called again, and when."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import attrs

from lro._base.arguments import check, check_count, check_span, refuse_keywords
from lro._base.by_fields import ByFields
from lro._base.errors import LroError, Retryable
from lro._base.status import Code

_MOST_DOUBLINGS: Final = 1_000


def _listed(on: type[Exception] | tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    return on if isinstance(on, tuple) else (on,)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Retry(ByFields):
    """Says after which errors a method is called again, how often, and when.

    ``attempts`` is how many times the function may fail; after the last failure the operation ends
    with its error. ``on`` is the exception class to retry, or a tuple of classes. Most errors of
    ``lro`` mean that the request is wrong or the work must end, so of these errors ``Exception``
    covers only those that are ``Retryable`` or have the code UNAVAILABLE. :class:`lro.Cancelled` is
    never retried. The first pause is ``first_pause``; each further pause is ``factor`` times the
    pause before, and at most ``max_pause``. Each pause is shortened at random, by at most the
    fraction ``jitter``. No retry is due later than ``within`` after the beginning of the first
    attempt; None allows any time. During a pause the operation waits in the store, not in a worker.

    Raises:
        DeclarationError: A value is out of range or has the wrong type.
    """

    attempts: int = 5
    on: tuple[type[Exception], ...] = attrs.field(default=(Exception,), converter=_listed)
    first_pause: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    max_pause: timedelta = timedelta(minutes=10)
    jitter: float = 0.2
    within: timedelta | None = None

    if not TYPE_CHECKING:  # a type checker reads the signature of the fields

        def __new__(cls, *_: object, **given: object) -> Retry:
            """Refuse arguments that do not exist, such as ``tries``, with the right name."""
            refuse_keywords("Retry", given, attrs.fields_dict(cls))
            return object.__new__(cls)

    def __attrs_post_init__(self) -> None:
        check_count("attempts", self.attempts)
        fine = bool(self.on) and all(map(_is_exception, self.on))
        check("on", self.on, "an exception class, or a tuple of such", fine=fine)
        check_span("first_pause", self.first_pause)
        check_span("max_pause", self.max_pause)
        if self.within is not None:
            check_span("within", self.within)
        for name, low, high in (("factor", 1.0, 100.0), ("jitter", 0.0, 1.0)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            wanted = f"a number from {low:g} to {high:g}"
            check(name, value, wanted, fine=number and low <= value <= high)

    def covers(self, error: BaseException) -> bool:
        """Return True if a method may be called again after this error."""
        classes = [cls for cls in self.on if isinstance(error, cls)]
        if isinstance(error, LroError) and not _may_pass(error):
            return any(issubclass(cls, LroError) for cls in classes)
        return bool(classes)

    def pause(self, failures: int) -> timedelta:
        """Return the pause after this number of failures, which is at least 1."""
        import random

        longest, pause = self.max_pause.total_seconds(), self.first_pause.total_seconds()
        for _ in range(min(failures - 1, _MOST_DOUBLINGS)):
            if pause >= longest or self.factor == 1:
                break
            pause *= self.factor
        share = 1 - self.jitter * random.random()  # not for security: it spreads calls
        return timedelta(seconds=min(pause, longest) * share)


def _may_pass(error: LroError) -> bool:
    return isinstance(error, Retryable) or error.status_code == Code.UNAVAILABLE


def _is_exception(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, Exception)
