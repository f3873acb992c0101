"""A rolling update of one store's processes to another release, and back again."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import defaultdict
from contextlib import ExitStack

import pytest

from tests.full.stores.releases import GONE, NEW, OLD, REQUESTS, AnyPaper, Paper, Release
from tests.places import Place
from tests.services.processes import killed_at_end
from tests.waiting import PATIENCE, until
from tests.webhooks.receivers import receiver

EACH = 20
"""The number of operations of a method that each step starts."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return Place("sqlite", str(tmp_path / "prints.db"))
    pytest.importorskip("psycopg")
    from tests.services.postgres import shared_server

    server = shared_server()
    return Place("postgres", server.url, server.fresh_schema())


def test_upgrade_and_downgrade_lose_nothing_and_start_nothing_twice(place, tmp_path):
    """During an update and a downgrade, no operation is lost, and no repeated start runs twice."""
    log, names = tmp_path / "calls", {}

    def replaced(worker, number):
        """Start a process of this release, after stopping the process that it replaces."""
        if worker is not None:
            worker.stdin.close()
        where = [str(number), place.kind, place.where, place.schema, str(log), hook.url]
        command = [sys.executable, "-m", "tests.full.stores.releases", *where]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = stack.enter_context(killed_at_end(command, **pipes))
        assert process.stdout.readline()
        if worker is not None:
            assert worker.wait(PATIENCE) == 0
        return process

    def start(front, method, first, count=EACH, **options):
        """Start operations with these numbers as keys; a repeated key gets the same operation."""
        for number in range(first, first + count):
            key = {"request_id": str(uuid.UUID(int=number + 1))}
            name = front.methods[method].start(REQUESTS[method](f"{number}", **options), **key).name
            assert names.setdefault(number, name) == name

    with receiver() as hook, ExitStack() as stack:
        one, two = (Release(number, place, log, hook.url, threads=0) for number in (1, 2))
        for front in (one, two):
            stack.enter_context(front.service)
        workers = [replaced(None, 1), replaced(None, 1)]
        start(one, OLD, 0, paper=Paper.GLOSSY)
        start(one, GONE, 1000)
        workers[0] = replaced(workers[0], 2)
        start(two, NEW, 0, paper=AnyPaper.GLOSSY)  # the same starts as before, on the next release
        start(two, NEW, 2000, paper=AnyPaper.CANVAS, copies=2)
        start(one, OLD, 3000)
        workers[1] = replaced(workers[1], 2)
        start(two, NEW, 3000)
        start(one, GONE, 4000, 3)
        until(lambda: [one.service.get(names[number]).done for number in range(20)], all)
        assert {work.method for work in two.service.stranded()} == {GONE}
        assert not any(one.service.get(names[number]).done for number in range(4000, 4003))
        workers[0] = replaced(workers[0], 1)
        start(two, NEW, 5000)
        start(one, OLD, 6000)
        for number, name in names.items():
            found = until(lambda name=name: one.service.get(name), lambda seen: seen.done)
            assert found.response.payload == {"key": f"{number}"}
        for worker in workers:
            worker.stdin.close()
        callers = defaultdict(list)
        for line in log.read_text().splitlines():
            key, number = line.split()
            callers[key].append(number)
        ended_by_two = {names[int(key)] for key, by in callers.items() if set(by) == {"2"}}
        told = set()
        while not ended_by_two <= told:
            told.add(json.loads(hook.next().body)["data"]["name"])
    ended_by_one = {names[int(key)] for key, by in callers.items() if set(by) == {"1"}}
    assert ended_by_two
    assert ended_by_one.isdisjoint(told)  # the first release has no webhook endpoint
    assert len(set(names.values())) == len(names) == 6 * EACH + 3
    assert callers.keys() == {f"{number}" for number in names}
    stops = 3 * 2  # each of the replaced processes had two threads, which may have been working
    assert sum(map(len, callers.values())) <= len(names) + stops
