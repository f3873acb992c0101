"""Hooks fail closed: their possible results in each verb, behind each edge (spec §3.1(5)).

Functions and coroutine functions are tested with every case of the tables below, and other kinds
of hooks with a few cases. Each case calls every second verb. Functions are tested with a SQLite
store, and other kinds with a memory store.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

import lro
from lro import Code
from tests.security.guarded import PLACES, START, UNREADABLE, VERBS, guarded

SECRET: Final = "s3cret"
"""A text in the values that hooks return or raise by mistake; callers must never see it."""


class Odd:
    """An object that is true, and equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return f"Odd {SECRET}"


class Unprintable:
    """An object whose ``repr`` raises, so that it cannot be logged."""

    def __repr__(self) -> str:
        raise ZeroDivisionError(SECRET)


class Grave(BaseException):
    """An error that ``except Exception`` does not catch."""


async def forgotten() -> str:
    """Return a name; a hook returns this coroutine without awaiting it."""
    return "ann"


@attrs.frozen
class Case:
    """A hook's behaviour, the code that the caller gets, and the text that is logged."""

    act: Callable[[], Any]
    code: Code
    logged: str = ""


def gives(make: Callable[[], Any], logged: str) -> Case:
    """Make the case of a hook that returns an invalid value."""
    return Case(make, Code.INTERNAL, f"got {logged}")


def raises(make: Callable[[], BaseException], code: Code = Code.INTERNAL, logged: str = "") -> Case:
    """Make the case of a hook that raises this error."""

    def act() -> Any:
        raise make()

    return Case(act, code, logged)


RAISED: Final[Mapping[str, Case]] = {
    "Unauthenticated": raises(lambda: lro.errors.Unauthenticated(), Code.UNAUTHENTICATED),
    "PermissionDenied": raises(
        lambda: lro.errors.PermissionDenied("not you"), Code.PERMISSION_DENIED
    ),
    "Unavailable": raises(lambda: lro.errors.Unavailable("no directory"), Code.UNAVAILABLE),
    "OperationNotFound": raises(
        lambda: lro.errors.OperationNotFound("operations/x"), Code.NOT_FOUND
    ),
    "INTERNAL": raises(lambda: lro.StatusError(Code.INTERNAL, SECRET), logged=SECRET),
    "ValueError": raises(lambda: ValueError(SECRET), logged=SECRET),
    "TimeoutError": raises(lambda: TimeoutError(SECRET), logged=SECRET),
    "StopIteration": raises(lambda: StopIteration(SECRET), logged="StopIteration"),
    "StopAsyncIteration": raises(lambda: StopAsyncIteration(SECRET), logged=SECRET),
    "a group": raises(lambda: ExceptionGroup(SECRET, [ValueError(SECRET)]), logged=SECRET),
    "SystemExit": raises(lambda: SystemExit(SECRET), logged="SystemExit"),
    "CancelledError": raises(lambda: asyncio.CancelledError(SECRET), logged="CancelledError"),
    "GeneratorExit": raises(lambda: GeneratorExit(SECRET), logged="GeneratorExit"),
    "BaseException": raises(lambda: Grave(SECRET), logged="Grave"),
}
AUTHENTICATE: Final[Mapping[str, Case]] = {
    "text": Case(lambda: "ann", Code.OK),
    "empty text": Case(lambda: "", Code.OK),
    "None": Case(lambda: None, Code.OK),
    "coroutine": gives(forgotten, "<coroutine object forgotten"),
    "7": Case(lambda: 7, Code.OK),
    "7.0": gives(lambda: 7.0, "7.0"),
    "True": gives(lambda: True, "True"),
    "False": gives(lambda: False, "False"),
    "bytes": gives(lambda: SECRET.encode(), f"b'{SECRET}'"),
    "list": gives(lambda: [SECRET], f"['{SECRET}']"),
    "object": gives(Odd, f"Odd {SECRET}"),
    "unprintable": Case(Unprintable, Code.INTERNAL, "got some Unprintable"),
    **RAISED,
}
AUTHORIZE: Final[Mapping[str, Case]] = {
    "None": Case(lambda: None, Code.OK),
    "True": Case(lambda: True, Code.OK),
    "False": Case(lambda: False, Code.PERMISSION_DENIED),
    "coroutine": gives(forgotten, "<coroutine object forgotten"),
    "0": gives(lambda: 0, "0"),
    "1": gives(lambda: 1, "1"),
    "no": gives(lambda: "no", "'no'"),
    "empty text": gives(lambda: "", "''"),
    "list": gives(list, "[]"),
    "object": gives(Odd, f"Odd {SECRET}"),
    "unprintable": Case(Unprintable, Code.INTERNAL, "got some Unprintable"),
    **RAISED,
}
TABLES: Final = {"authenticate": AUTHENTICATE, "authorize": AUTHORIZE}


FEW: Final = ("None", "coroutine", "False", "Unauthenticated", "ValueError", "SystemExit")
"""The titles of the cases for hooks that are not functions or coroutine functions."""


@pytest.fixture
def short_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log exceptions without tracebacks, which would take half of the test's time."""
    monkeypatch.setattr(logging.Formatter, "formatException", lambda _, info: repr(info[1]))


@pytest.mark.usefixtures("short_tracebacks")
@pytest.mark.parametrize("hook", TABLES)
@pytest.mark.parametrize(("edge", "kind"), PLACES)
def test_hook_decides_each_verb_and_fails_closed(
    edge: str, kind: str, hook: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless a hook permits it, a call changes and reveals nothing; faults of hooks are logged."""
    wrong, starts = [], 2
    store = "sqlite" if kind == "function" else "memory"
    whole = kind in ("function", "coroutine function")
    cases = [(title, case) for title, case in TABLES[hook].items() if whole or title in FEW]
    with caplog.at_level(logging.ERROR, "lro"), guarded(edge, kind, store, tmp_path) as place:
        unfinished, over = place.start(), place.start()
        place.counting.finish(over)
        record = place.counting.service.store.get(unfinished)
        for row, (title, case) in enumerate(cases):
            allowed = case.code is Code.OK
            for verb in place.verbs[row % 2 :: 2]:
                name = over if allowed else unfinished
                if allowed and verb == "DeleteOperation":
                    name = place.start()
                caplog.clear()
                answer = place.call_with(hook, case.act, verb, name)
                log = caplog.text
                starts += allowed and verb == START
                if answer.code is not case.code:
                    wrong.append((title, verb, answer))
                if SECRET in answer.text:
                    wrong.append((title, verb, "answered the caller", answer))
                if case.logged not in log or bool(log) != (case.code is Code.INTERNAL):
                    wrong.append((title, verb, "logged", log))
        assert wrong == []
        assert place.counting.service.store.get(unfinished) == record
        listed = place.call("ListOperations", "").text
    assert len(set(re.findall(r"operations/[\w-]+", listed))) == starts


@pytest.mark.parametrize("edge", VERBS)
def test_unreadable_error_is_internal(
    edge: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If a hook raises an error whose own methods fail, the caller gets INTERNAL."""

    def raising(make: Callable[[], lro.LroError]) -> Callable[[], Any]:
        def act() -> Any:
            raise make()

        return act

    wrong = []
    with guarded(edge, "function", "memory", tmp_path) as place:
        name = place.start()
        for title, make in UNREADABLE.items():
            for verb in ("GetOperation", START):
                caplog.clear()
                answer = place.call_with("authorize", raising(make), verb, name)
                if answer.code is not Code.INTERNAL or SECRET in answer.text:
                    wrong.append((title, verb, answer))
                if "cannot be described" not in caplog.text:
                    wrong.append((title, verb, caplog.text))
        assert wrong == []
        assert place.call("GetOperation", name).code is Code.OK
