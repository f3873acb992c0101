"""Services created before a fork, as in preloading servers, work in parent and child."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PROGRAM = """
import asyncio, os, sys, threading
import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

EXECUTORS = {"threads": lambda: ThreadExecutor(2), "asyncio": AsyncioExecutor}
store = MemoryStore() if sys.argv[1] == "memory" else SQLiteStore(sys.argv[1])
service = lro.Service(store, EXECUTORS[sys.argv[2]]())
go = threading.Event()

@service.method("acme.v1.Works.Work")
def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    if request.text == "held":
        go.wait(120)
    return WorkResponse(f"{request.text} {os.getpid()}")

def result(operation):
    found = service.wait(operation.name, 20)
    return service.types.unpack(found.response, WorkResponse).text

def awaited(operation):
    found = asyncio.run(service.wait_async(operation.name, 20))
    return service.types.unpack(found.response, WorkResponse).text

before = os.getpid()
assert result(work.start(WorkRequest("before"))) == f"before {before}"
held = work.start(WorkRequest("held"))
owner = service.edges.work.owner
child = os.fork()
if child == 0:
    assert service.edges.work.owner != owner
    assert not service.edges.work.held()
    started = work.start(WorkRequest("child"))
    print(started.name, flush=True)
    assert result(started) == f"child {os.getpid()}"
    assert awaited(work.start(WorkRequest("loop"))) == f"loop {os.getpid()}"
    if sys.argv[1] != "memory":
        assert service.get(held.name).done is False
    service.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
go.set()
assert result(held) == f"held {before}"
started = work.start(WorkRequest("after"))
print(started.name)
assert result(started) == f"after {before}"
service.close()
"""


def ended_program(program, *arguments):
    """Run a program in its own process until it ends."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    command += map(str, arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=360)


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_parent_and_child_continue_after_a_fork(tmp_path, store, executor):
    """A forked child has its own threads, connections and leases; the parent keeps its work."""
    where = "memory" if store == "memory" else str(tmp_path / "operations.db")
    ran = ended_program(PROGRAM, where, executor)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(set(ran.stdout.split())) == 2  # parent and child never choose the same name


IMPORTING = """
import builtins, sys, threading
import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.service_steps import ended, work
from tests.waiting import until
from tests.work_messages import WorkRequest

real, known = builtins.__import__, []

def notifier(name, *arguments, **more):
    before = name in sys.modules
    found = real(name, *arguments, **more)
    if not before:
        known.append((threading.current_thread().name, name))
    return found

store = SQLiteStore(sys.argv[1])
service = lro.Service(store, ThreadExecutor(1))
method = work(service)
builtins.__import__ = notifier
ended(service, method.start(WorkRequest()))
until(store.workers)
service.close()
print([one for one in known if one[0] in ("lro-maintenance", "lro-claims")])
"""


def test_background_threads_import_no_module(tmp_path):
    """Background threads import nothing: a child forked during an import would wait for ever."""
    ran = ended_program(IMPORTING, tmp_path / "operations.db")
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "[]\n")


FORKED = """
import os, sys
import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro.testing._samples import held, insert
from tests.recording_notifier import RecordingNotifier
from tests.service_steps import ended, work
from tests.work_messages import WorkRequest

notifier = RecordingNotifier()
store = SQLiteStore(sys.argv[1])
service = lro.Service(store, ThreadExecutor(1), webhooks=notifier)
method = work(service)
if sys.argv[2] == "used":
    ended(service, method.start(WorkRequest()))
child = os.fork()
if child == 0:
    before = list(notifier.calls)
    name = method.start(WorkRequest()).name
    ended(service, name)
    due = store.get(name).notify_at
    service.close()
    print(before, notifier.calls[len(before):], due is not None, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
service.close()
print(notifier.calls)
"""


@pytest.mark.parametrize("use", ["preloaded", "used"])
def test_forked_process_starts_again_at_its_first_use(tmp_path, use):
    """A child sends webhooks once it uses the service; a parent that only preloads sends none."""
    ran = ended_program(FORKED, tmp_path / "operations.db", use)
    assert (ran.returncode, ran.stderr) == (0, "")
    used = ["begin", "wake"] if use == "used" else []
    child, parent = ran.stdout.splitlines()
    assert child == f"{[*used, 'reset_after_fork']} {['begin', 'wake', 'stop']} True"
    assert parent == str([*used, "stop"])


LEAVING = """
import os, sys
import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.work_messages import WorkRequest, WorkResponse

def fork(text):
    child = os.fork()
    if child:
        return WorkResponse(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    if text == "raise":
        raise ValueError("of the child")
    if text.startswith("exit"):
        sys.exit(int(text[4:]))
    return WorkResponse("of the child")

executor = ThreadExecutor(1) if sys.argv[2] == "threads" else AsyncioExecutor()
service = lro.Service(SQLiteStore(sys.argv[1]), executor)
if sys.argv[2] == "threads":
    @service.method("acme.v1.Works.Work")
    def work(request: WorkRequest) -> WorkResponse:
        return fork(request.text)
else:
    @service.method("acme.v1.Works.Work")
    async def work(request: WorkRequest) -> WorkResponse:
        return fork(request.text)
for text in ("return", "raise", "exit0", "exit3"):
    ended = service.wait(work.start(WorkRequest(text)).name, 60)
    print(text, service.types.unpack(ended.response, WorkResponse).text, flush=True)
service.close()
"""


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
def test_a_process_that_a_function_leaves_ends(tmp_path, executor):
    """A process forked by a function writes nothing to the operation and exits like a program."""
    ran = ended_program(LEAVING, tmp_path / "operations.db", executor)
    assert ran.stdout.splitlines() == ["return 0", "raise 1", "exit0 0", "exit3 3"]
    assert ran.returncode == 0
    assert ran.stderr.count("its function forked a process and failed there") == 2
    assert "ValueError: of the child" in ran.stderr
