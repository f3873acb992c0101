"""What an application hands in is checked where it is handed in (spec §3.1(5) and its like)."""

from __future__ import annotations

import functools
from datetime import timedelta

import pytest

import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore


async def awaited(*_):
    """A coroutine function, which nobody awaits."""


class Awaited:
    """An object whose call gives a coroutine."""

    async def __call__(self, *_):
        """Nothing."""


WRONG_OPTIONS = [
    ("concurrency", 0, "a whole number from 1"),
    ("concurrency", True, "a whole number from 1"),
    ("attempts", 1.0, "a whole number from 1"),
    ("attempts", None, "a whole number from 1"),
    ("max_lost", "3", "a whole number from 1"),
    ("time_limit", 5, "a timedelta above zero, at most 36500 days"),
    ("expiry", timedelta(), "a timedelta above zero, at most 36500 days"),
    ("retry_on", ValueError, "a tuple of exception classes"),
    ("retry_on", (ValueError, "OSError"), "a tuple of exception classes"),
    ("retry_on", (BaseException,), "a tuple of exception classes"),
    ("worker_lost", "retry", "WorkerLost.FAIL or WorkerLost.RETRY"),
    ("target", "name", "a function"),
    ("validate", awaited, "a plain function, which no event loop awaits"),
    ("settle", functools.partial(awaited, 1), "a plain function, which no event loop awaits"),
    ("target", Awaited(), "a plain function, which no event loop awaits"),
    ("index", ("dataset", 5), "a tuple of paths"),
    ("path", None, "a text"),
]

WRONG_SERVICE = [
    ("types", {}, "a TypeRegistry"),
    ("domain", "", "a text that is not empty"),
    ("domain", None, "a text that is not empty"),
    ("verbs", "GetOperation", "several texts, in a tuple or list"),
    ("verbs", [1], "several texts, in a tuple or list"),
    ("verbs", ["GetOperatoin"], "some of GetOperation, ListOperations"),
    ("max_wait", 60, "a timedelta from zero, at most 36500 days"),
    ("expiry", "30d", "a timedelta from zero, at most 36500 days"),
    ("lease", timedelta(), "a timedelta above zero, at most 36500 days"),
    ("authorize", "nobody", "a function"),
    ("owner_only", 1, "True or False"),
    ("upkeep", "no", "True or False"),
    ("clock", 3.0, "a function"),
]


def told(name, value, wanted):
    """The beginning of the sentence that every wrong argument gets."""
    return f"{name}: must be {wanted}"


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG_OPTIONS)
def test_an_option_of_a_method_of_the_wrong_type_is_refused(name, value, wanted):
    """defects 2: ``worker_lost="retry"`` was taken, and meant FAIL."""
    with lro.Service(MemoryStore(), InlineExecutor(), upkeep=False) as service:
        with pytest.raises(lro.DeclarationError) as refused:
            service.method("acme.v1.Works.Work", **{name: value})
        assert str(refused.value).startswith(told(name, value, wanted))
        assert ", got " in str(refused.value)
        with pytest.raises(ValueError, match=name):
            lro.Options(**{name: value})


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG_SERVICE)
def test_an_option_of_the_service_of_the_wrong_type_is_refused(name, value, wanted):
    """Before a thread is started or the store is asked anything."""
    with pytest.raises(lro.DeclarationError) as refused:
        lro.Service(MemoryStore(), InlineExecutor(), **{name: value})
    assert str(refused.value).startswith(told(name, value, wanted))
