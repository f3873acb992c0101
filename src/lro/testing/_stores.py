"""What every store promises (``lro._engine.store_port.Store``), one check a promise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from lro._base.arguments import check_function
from lro._engine.store_port import Store
from lro.testing import _finding, _keeping
from lro.testing._samples import ManualClock, StoreCheck

MakeStore = Callable[[ManualClock], Store]
"""Gives an empty store whose clock is the one given."""

STORE_CHECKS: Final[tuple[StoreCheck, ...]] = tuple(
    check
    for part in (_keeping, _finding)
    for check in vars(part).values()
    if inspect.isfunction(check)
    and check.__module__ == part.__name__
    and not check.__name__.startswith("_")
)
"""Every check; the name of its function says the promise."""


def check_store(make_store: MakeStore) -> None:
    """Run every check, each on a store of its own.

    Raises:
        AssertionError: The store breaks its contract; the text says where.
    """
    check_function("make_store", make_store)
    for check in STORE_CHECKS:
        run_store_check(check, make_store)


def run_store_check(check: StoreCheck, make_store: MakeStore) -> None:
    """Run one check on a new store, which is closed afterwards.

    Raises:
        AssertionError: The store breaks its contract; the text says where.
    """
    check_function("check", check)
    check_function("make_store", make_store)
    clock = ManualClock()
    store = make_store(clock)
    try:
        check(store, clock)
    except Exception as exc:
        raise AssertionError(f"{check.__name__}: {type(exc).__name__}: {exc}") from exc
    finally:
        store.close()
