"""Writers who change a list all the time, and a walk through it: in threads, and in processes."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs

from lro import ListOperationsRequest, Service
from lro._model.operation import delete, end, report
from lro.testing import START
from tests.places import Place
from tests.stores.list_walks import EMPTY, insert, metadata

ROOT: Final = Path(__file__).parent.parent.parent
SECONDS: Final = 20
"""Over so many moments the creation times are strewn, so that many are equal."""

STEADY: Final = 40
"""This number of operations, which no writer touches."""

FILTERS: Final = ("", "done = false", "metadata.percent = 1", "state() = IN_PROGRESS stage-1")
"""All match what is in progress with 1 percent, as the steady operations are."""


@attrs.frozen
class Strewn:
    """An operation of a list that is walked; its name holds its creation time and its writer."""

    second: int
    writer: str

    @classmethod
    def named(cls, name: str) -> Strewn:
        """The values in a name."""
        second, writer, _ = name.rpartition("/")[2].split(".")
        return cls(int(second), writer)

    def insert(self, store: Any, parent: str, number: int, percent: int) -> str:
        """Store one; its name."""
        name = f"{parent}/operations/{self.second:03}.{self.writer}.{number:04}"
        insert(store, parent, name, START + timedelta(seconds=self.second), percent)
        return name


def fill(store: Any, parent: str) -> set[str]:
    """Store the steady operations; their names."""
    return {
        Strewn(number % SECONDS, "steady").insert(store, parent, number, 1)
        for number in range(STEADY)
    }


def write(
    store: Any,
    parent: str,
    writer: int,
    count: int,
    deleted: Callable[[str], None] = lambda _: None,
) -> None:
    """Insert so many operations anywhere; complete, report on and delete others in between."""
    chosen, now, mine = random.Random(writer), store.now, []
    for number in range(count):
        one = Strewn(chosen.randrange(SECONDS), f"w{writer}")
        mine.append(one.insert(store, parent, number, chosen.randrange(2)))
        chosen.shuffle(mine)
        if number % 3 == 0:
            name = mine.pop()
            store.update(name, delete(now()))
            deleted(name)
        elif number % 3 == 1:
            store.update(mine[-1], report(metadata(chosen.randrange(2)), None, now()))
        else:
            store.update(mine.pop(), end(EMPTY, now=now(), keep_for=timedelta(days=1)))


def walk(service: Service, parent: str, text: str, sizes: random.Random, gone: set[str]) -> int:
    """Walk through the list once while it changes, and check it; how many operations it showed.

    ``gone`` holds what has been deleted, each from when the deletion is over.
    """
    shown: list[str] = []
    token = ""
    for _ in range(10_000):
        over = set(gone)
        request = ListOperationsRequest(
            name=parent, filter=text, page_size=sizes.randint(1, 30), page_token=token
        )
        page = service.list(request)
        names = [operation.name for operation in page.operations]
        assert not over & set(names), "shown after it was deleted"
        if "done" in text or "state" in text:
            assert not any(operation.done for operation in page.operations), "does not match"
        shown += names
        token = page.next_page_token
        if not token:
            break
    assert not token, "the walk does not end"
    keys = [(-Strewn.named(name).second, name) for name in shown]
    assert keys == sorted(set(keys)), "out of order, or shown twice"
    steady = [name for name in shown if Strewn.named(name).writer == "steady"]
    assert len(steady) == STEADY, "not all that was there throughout was shown"
    return len(shown)


@contextlib.contextmanager
def writing_process(place: Place, parent: str, writer: int, count: int) -> Iterator[Any]:
    """Another process which writes; ``poll()`` takes its reports."""
    arguments = [*attrs.astuple(place), parent, str(writer), str(count)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.stores.list_writers", *arguments], cwd=ROOT
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main(kind: str, where: str, schema: str, parent: str, writer: str, count: str) -> None:
    """Write, as a process of its own."""
    with contextlib.closing(Place(kind, where, schema).open()) as store:
        write(store, parent, int(writer), int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
