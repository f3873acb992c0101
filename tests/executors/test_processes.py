"""The process executor in short, with real children; ``tests/full/executors`` has the rest."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from lro import Code, Service
from lro.executors.processes import ProcessExecutor
from lro.stores.memory import MemoryStore
from tests.executors import process_methods
from tests.executors.named_pipe import Mail
from tests.service_steps import answer, ended, reason
from tests.work_messages import WorkRequest


@pytest.fixture(scope="module")
def service():
    with process_methods.service_of(ProcessExecutor(1), MemoryStore(), maintenance=True) as made:
        yield made


def start(service: Service, do: str, **fields):
    """Start a task; ``pipe`` and ``how`` are parts of its request."""
    rest = {"do": do, **{key: fields.pop(key) for key in ("pipe", "how") if key in fields}}
    return service.start("acme.v1.Works.Task", WorkRequest(rest=rest, **fields)).name


def test_function_in_a_child_reports_and_responds(service):
    found = ended(service, start(service, "report_once"))
    assert answer(service, found) == ",1,False,half"
    assert answer(service, ended(service, start(service, "who"))) != f"{os.getpid()},True"


def test_error_of_a_function_in_a_child_ends_its_operation(service):
    found = ended(service, start(service, "fail", how="status"))
    assert reason(found) == (Code.DATA_LOSS, "LOST_IT")


def test_cancelled_function_in_a_child_stops(service, tmp_path):
    with closing(Mail(tmp_path / "pipe")) as mail:
        name = start(service, "look", pipe=mail.path)
        assert mail.line() == "begun"
        service.cancel(name)
        assert mail.line() == "Cancelled"
        assert reason(ended(service, name)) == (Code.CANCELLED, "CANCELLED")


def test_killed_child_is_a_lost_worker_and_is_replaced(service):
    found = ended(service, start(service, "kill_itself", size=int(signal.SIGKILL)))
    assert reason(found) == (Code.ABORTED, "WORKER_LOST")
    assert answer(service, ended(service, start(service, "echo", text="next"))) == "next 0"
