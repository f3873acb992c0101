"""A store whose calls are measured."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from lro._base.errors import LroError
from lro._engine.events import code_name
from lro._engine.store_port import Store

Called: TypeAlias = Callable[[str, float, str], None]
"""Takes the verb of a call, its seconds, and the type of its error, empty for none."""

_VERBS: Final = frozenset((
    "add_counts", "claim_due", "expire", "find", "forget", "get", "index", "insert",
    "insert_within", "next_due", "orphans", "page", "poll_states", "read_counts", "read_load",
    "read_totals", "renew", "request", "update",
))  # fmt: skip
_LATER: Final = frozenset(("insert_later", "update_later"))
"""Verbs that return before they are done; the last argument is called then."""


def timed(store: Store, called: Called) -> Store:
    """The store, each of whose calls is reported to ``called`` when it is done."""
    return cast(Store, _TimedStore(store, called))


class _TimedStore:
    def __init__(self, store: Store, called: Called) -> None:
        self._store = store
        self._called = called

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _VERBS:
            found = functools.partial(self._call, name, found)
        elif name in _LATER:
            found = functools.partial(self._call_later, name, found)
        else:
            return found
        self.__dict__[name] = found  # asked for once
        return found

    def _call(self, verb: str, action: Callable[..., Any], *args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            answer = action(*args, **named)
        except BaseException as exc:
            self._called(verb, time.perf_counter() - began, _type_of(exc))
            raise
        self._called(verb, time.perf_counter() - began, "")
        return answer

    def _call_later(self, verb: str, action: Callable[..., Any], *args: Any) -> None:
        began = time.perf_counter()
        *first, done = args

        def over(answer: Any, error: BaseException | None) -> None:
            self._called(
                verb, time.perf_counter() - began, "" if error is None else _type_of(error)
            )
            done(answer, error)

        try:
            action(*first, over)
        except BaseException as exc:  # refused at once
            self._called(verb, time.perf_counter() - began, _type_of(exc))
            raise


def _type_of(error: BaseException) -> str:
    return code_name(error) if isinstance(error, LroError) else type(error).__qualname__
