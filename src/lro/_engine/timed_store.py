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
"""Called with the verb of a call, its seconds, and the type of its error or an empty text."""

_NOT_TIMED: Final = frozenset(("close", "listen", "notify_others", "now", "secret"))
"""Verbs that neither read nor write records."""
_LATER: Final = frozenset(("insert_later", "update_later", "checkpoint_later"))
"""Verbs that return before their work is done, and call their last argument when it is done."""


def timed(store: Store, called: Called) -> Store:
    """Return the store, with each of its calls reported to ``called`` when the call is done."""
    return cast(Store, _TimedStore(store, called))


class _TimedStore:
    def __init__(self, store: Store, called: Called) -> None:
        self._store = store
        self._called = called

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _NOT_TIMED or not callable(found):
            return found
        call = self._call_later if name in _LATER else self._call
        found = functools.partial(call, name, found)
        self.__dict__[name] = found  # so that __getattr__ runs once for each name
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
        except BaseException as exc:  # the store has refused the call at once
            self._called(verb, time.perf_counter() - began, _type_of(exc))
            raise


def _type_of(error: BaseException) -> str:
    return code_name(error) if isinstance(error, LroError) else type(error).__qualname__
