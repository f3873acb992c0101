"""Checks of arguments at declarations, and calls of an application's functions.

Unchecked, a wrong option would fail much later, far from the line with the mistake. So constructors
and declarations check the types and bounds of their arguments, and raise an error whose message is
one sentence. Other calls leave the types to type checkers. If a function of the application
raises, the call that uses it fails, but the server goes on.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Final, TypeVar

from lro._base.errors import LONGEST, DeclarationError, HookFailed, got, interrupts


def check(name: str, value: object, wanted: str, *, fine: bool) -> None:
    """Raise an error that says what an argument must be (``wanted``), unless ``fine`` is true.

    Raises:
        DeclarationError: ``fine`` is false.
    """
    if not fine:
        raise DeclarationError(name, f"must be {wanted}, got {got(value)}")


def check_keywords(call: str, given: Mapping[str, object], allowed: type) -> None:
    """Check that the keyword arguments of a call are keys of the TypedDict ``allowed``.

    Raises:
        TypeError: A keyword argument is not a key of ``allowed``. The message names a similar key.
    """
    refuse_keywords(call, given, vars(allowed)["__optional_keys__"])


def refuse_keywords(call: str, given: Mapping[str, object], names: Collection[str]) -> None:
    """Refuse keyword arguments that are not in ``names``.

    Raises:
        TypeError: An argument has another name. The message suggests a similar name.
    """
    if unknown := given.keys() - names:
        name = min(unknown)
        raise TypeError(f"{call} takes no argument {name!r}{meant(name, names)}")


_OTHER_WORDS: Final[Mapping[str, str]] = {
    "acks_late": "at_most_once",
    "apply_async": "start",
    "autoretry_for": "retry on",
    "backoff": "retry factor",
    "backoff_factor": "factor",
    "countdown": "delay first_pause",
    "default_retry_delay": "retry first_pause",
    "delay": "start first_pause",
    "enqueue": "start",
    "eta": "at",
    "exceptions": "on",
    "idempotency_key": "request_id",
    "max_attempts": "attempts",
    "max_delay": "max_pause",
    "max_interval": "max_pause",
    "max_retries": "retry attempts",
    "max_time": "within",
    "max_tries": "attempts",
    "max_workers": "workers",
    "multiplier": "factor",
    "rate_limit": "rate",
    "retries": "retry attempts",
    "retry_backoff": "retry factor",
    "retry_backoff_max": "retry max_pause",
    "retry_on": "on",
    "send": "start",
    "soft_time_limit": "time_limit",
    "timeout": "time_limit within",
    "tries": "attempts",
    "ttl": "keep_for",
    "worker_lost": "at_most_once",
}
"""Words of other libraries for arguments and methods of this one, by their call."""

_WRITTEN: Final[Mapping[str, str]] = {"retry": "retry=lro.Retry(...)"}
"""How to write arguments whose values are not obvious."""


def meant(name: str, names: Collection[str]) -> str:
    """Return ": did you mean ...?" with a similar name, or an empty text."""
    from difflib import get_close_matches  # imported only for an error

    known = [word for word in _OTHER_WORDS.get(name, "").split() if word in names]
    found = known or get_close_matches(name, sorted(names), 1, 0.7)
    return f": did you mean {_WRITTEN.get(found[0], repr(found[0]))}?" if found else ""


def check_instance(name: str, value: object, cls: type | tuple[type, ...], wanted: str) -> None:
    """Check that a value is an instance of ``cls``; ``wanted`` describes such a value in the error.

    Raises:
        DeclarationError: The value is of another type.
    """
    check(name, value, wanted, fine=isinstance(value, cls))


def check_class(name: str, value: object, wanted: str = "a class") -> None:
    """Check that a value is a class.

    Raises:
        DeclarationError: The value is not a class; it may be an instance of one.
    """
    check_instance(name, value, type, wanted)


def check_flag(name: str, value: object) -> None:
    """Check that a value is a bool.

    Raises:
        DeclarationError: The value is not a bool.
    """
    check_instance(name, value, bool, "True or False")


def check_text(name: str, value: object, *, empty: bool = True) -> None:
    """Check that a value is a str, which may be empty only if ``empty`` is True.

    Raises:
        DeclarationError: The value is of another type, or is empty although it must not be.
    """
    fine = isinstance(value, str) and (empty or value != "")
    check(name, value, "a text" if empty else "a text that is not empty", fine=fine)


def check_texts(name: str, value: object) -> None:
    """Check that a value is a tuple, list, set or other collection of str, not a single str.

    An iterator is refused too, because the check would use it up.

    Raises:
        DeclarationError: The value is anything else.
    """
    fine = (
        isinstance(value, Collection)
        and not isinstance(value, (str, bytes))
        and all(isinstance(text, str) for text in value)
    )
    check(name, value, "several texts, in a tuple or list", fine=fine)


def check_count(name: str, value: object, *, least: int = 1, most: int | None = None) -> None:
    """Check that a value is a whole number from ``least`` to ``most``.

    Raises:
        DeclarationError: The value is not an int, is a bool, or is out of bounds.
    """
    fine = type(value) is int and value >= least and (most is None or value <= most)
    bounds = f"from {least}" if most is None else f"from {least} to {most}"
    check(name, value, f"a whole number {bounds}", fine=fine)


def check_seconds(name: str, value: object, *, zero: bool = False, most: float = math.inf) -> None:
    """Check a finite number of seconds above 0, at most ``most``; ``zero`` allows 0 too.

    Raises:
        DeclarationError: The value is not a number, or is out of bounds.
    """
    fine = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (0 < value <= most or (zero and value == 0))
        and value < math.inf
    )
    above = "seconds from 0" if zero else "seconds above 0"
    check(name, value, above if most == math.inf else f"{above}, at most {most:g}", fine=fine)


def check_span(
    name: str, value: object, *, zero: bool = False, least: timedelta = timedelta()
) -> None:
    """Check a timedelta from ``least`` to a hundred years; only ``zero`` allows a timedelta of 0.

    Raises:
        DeclarationError: The value is not a timedelta, or is out of bounds.
    """
    fine = isinstance(value, timedelta) and least <= value <= LONGEST
    fine = fine and (zero or value != timedelta())
    above = f"of {least.total_seconds():g} s or more" if least else "above zero"
    above = "from zero" if zero else above
    hint = ""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9:
        hint = f", such as timedelta(seconds={value})"
    check(name, value, f"a timedelta {above}, at most {LONGEST.days} days{hint}", fine=fine)


def check_function(name: str, value: object) -> None:
    """Check that a value can be called.

    Raises:
        DeclarationError: The value cannot be called.
    """
    check(name, value, "a function", fine=callable(value))


def check_takes(name: str, value: object, count: int, wanted: str) -> None:
    """Check that a value can be called with this number of arguments, as far as Python knows.

    Raises:
        DeclarationError: The value cannot be called with this number of arguments; the error quotes
            ``wanted``.
    """
    fine = callable(value)
    if callable(value):
        try:
            inspect.signature(value).bind(*range(count))
        except TypeError:
            fine = False
        except ValueError:  # a C function whose parameters Python does not know
            pass
    check(name, value, wanted, fine=fine)


def check_plain_function(name: str, value: object) -> None:
    """Check that a value is a plain function, whose result is not awaited.

    Raises:
        DeclarationError: The value cannot be called, or is a coroutine function.
    """
    check_function(name, value)
    plain = not is_coroutine_function(value)
    check(name, value, "a plain function, which no event loop awaits", fine=plain)


def needs(function: Callable[..., object], count: int) -> bool:
    """True if a function requires at least ``count`` positional arguments."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a C function whose parameters Python does not know
        return False
    required = [one for one in parameters if one.kind in places and one.default is one.empty]
    return len(required) >= count


def is_coroutine_function(function: object) -> bool:
    """True if calling a function, method, partial or callable object returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - its kind is asked
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


R = TypeVar("R")


def contained(name: str, function: Callable[..., R], *arguments: object) -> R:
    """Call a function of the application and return its result.

    An exception from a signal handler propagates unchanged, because it must end the program.

    Raises:
        HookFailed: The function raised an exception that would stop a server, such as SystemExit.
        Exception: An exception of the function, unchanged.
    """
    try:
        return function(*arguments)
    except BaseException as exc:
        if passes(exc):
            raise
        raise failed(name, exc) from exc


def failed(name: str, error: BaseException) -> HookFailed:
    """Return the error for a function called ``name`` that raised ``error``."""
    failure = HookFailed(name, f"raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


def passes(error: BaseException) -> bool:
    """True if an error may propagate, because it cannot stop a server or must end the program."""
    return isinstance(error, Exception) or interrupts(error)
