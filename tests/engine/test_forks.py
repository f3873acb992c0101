"""Services that come into a forked process, as those of preloaded servers do."""

from __future__ import annotations

import os
import runpy

import pytest

from lro._engine import process
from lro._engine.process import after_fork
from tests.service_steps import listeners
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


class Holder:
    """An object that must be reset in a child."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_holders_are_reset_in_order_and_each_by_itself():
    """One that fails is not in the way of the others."""
    renewed = []

    def fail(holder):
        raise ZeroDivisionError

    holders = [Holder() for _ in range(3)]
    for holder, reset in zip(holders, (renewed.append, fail, renewed.append), strict=True):
        after_fork(holder, reset)
    child = os.fork()
    if child == 0:
        os._exit(0 if renewed == [holders[0], holders[2]] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert renewed == []


def test_a_system_that_cannot_fork(monkeypatch):
    """There is nothing to register then."""
    monkeypatch.delattr(os, "register_at_fork")
    assert "after_fork" in runpy.run_path(process.__file__)


def test_a_service_starts_again_in_a_child(make_service, store):
    """With another name, no work, and waiters of its own; what the parent has is the parent's."""
    service = make_service(store)
    method = service.declare(
        "acme.v1.Works.Work", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    name, owner = method.start(WorkRequest()).name, service.workers.owner
    service._reset_after_fork()
    assert service.workers.owner != owner
    assert (service.waiting, service.watching, listeners(service)) == (0, 0, 0)
    assert not service.get(name).done
    service.reporter(name).complete(WorkResponse("x"))
    assert service.wait(name, 20).done
