"""How a child process finds a method's function, and the errors if it cannot find one."""

from __future__ import annotations

import errno
import functools
import importlib
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack
from datetime import timedelta

import attrs
import pytest

from lro import Code, DeclarationError, InvalidArgument, Job, Retry, Service
from lro.executors.processes import ProcessExecutor, _executor, _function_reference, _process
from lro.stores.memory import MemoryStore
from tests.executors import process_methods
from tests.service_steps import answer, ended, reason
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"
CLASSES = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
UNFIT = (Code.INTERNAL, "METHOD_FAILED")

HEAD = """
import lro, os, sys
from lro._engine.process import is_worker_process
from lro.executors.processes import ProcessExecutor
from lro.stores.memory import MemoryStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module, which this process and its children can import."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, text):
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    made = []
    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def service():
    """A service with one child; a test may close it and make other services."""
    with ExitStack() as stack:

        def close(one):
            stack.callback(one.close, timedelta(0))
            return one

        made = close(Service(MemoryStore(), ProcessExecutor(1), domain="acme.test"))
        made.closing = close
        yield made


def refusal_error(service, function, caplog, **classes):
    """Run an operation whose function the child cannot find; return the log."""
    method = service.method(NAME, **{**CLASSES, **classes})(function)
    operation = ended(service, method.start(WorkRequest(rest={"do": "echo"})))
    assert reason(operation) == UNFIT
    assert operation.error.message == "the method cannot be run by the worker process"
    return caplog.text


# -- custom codecs and names ----------------------------------------------------------------------


DECLARED = """
import attrs
from lro._messages.registry import ClassCodec

class Plain:
    def __init__(self, text):
        self.text = text

class PlainCodec:
    python = Plain
    shape = None
    def dump(self, message):
        return {"text": message.text}
    def load(self, payload, *, strict):
        return Plain(payload["text"])

def codec(cls):
    return PlainCodec() if cls is Plain else None

service = lro.Service(
    MemoryStore(), ProcessExecutor(1), types=lro.TypeRegistry(factories=[codec])
)

def other(request: Plain, job: lro.Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse(text="other " + request.text)

undecorated = service.method("acme.v1.Works.Other")(other)

@service.method("acme.v1.Works.Twice")
def twice(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse(text=2 * request.text)

@service.method("acme.v1.Works.Plain")
def plain(request: Plain, job: lro.Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse(text="plain " + request.text)
"""


def test_child_uses_the_registry_of_the_decorated_function(module, service, caplog):
    """A child knows the codecs of the decorated function's registry, and no other codecs."""
    made = module("declared_place", DECLARED)
    service.closing(made.service)
    operation = made.plain.start(made.Plain("text"))
    assert answer(made.service, ended(made.service, operation)) == "plain text"
    again = service.method("acme.v1.Works.Again")(made.twice.spec.function)  # in a second service
    for one, method in ((service, again), (made.service, made.twice)):
        assert answer(one, ended(one, method.start(WorkRequest(text="x")))) == "xx"
    other = made.undecorated.start(made.Plain("text"))
    assert reason(ended(made.service, other)) == UNFIT
    assert "a codec that only the registry of its service has" in caplog.text


def test_classes_keep_their_names(module, service):
    """Classes with custom names in the registry keep these names in the child."""
    made = module(
        "named_place",
        """
        import attrs
        from lro._base.errors import StatusError
        from lro._base.status import Code

        @attrs.frozen
        class Wish:
            text: str = ""

        @attrs.frozen
        class Detail:
            text: str = ""

        def wish(request: Wish, job: lro.Job[WorkMetadata]) -> WorkResponse:
            raise StatusError(Code.DATA_LOSS, request.text, (Detail("here"),))
        """,
    )
    service.types.register(made.Wish, "acme.other.Wish")
    service.types.register(made.Detail, "acme.other.Detail")
    local = type("Local", (), {"__annotations__": {}})
    service.types.register(attrs.frozen(local), "acme.other.Local")
    operation = ended(service, service.method(NAME)(made.wish).start(made.Wish("lost")))
    assert operation.error.message == "lost"
    assert operation.error.details[1].type_name == "acme.other.Detail"
    assert operation.error.details[1].payload == {"text": "here"}


# -- functions that no child can ever find ---------------------------------------------------------


class Callable:
    """An object that can be called like a function but cannot be imported."""

    def __call__(self, request: WorkRequest) -> WorkResponse:
        return WorkResponse()

    def bound(self, request: WorkRequest) -> WorkResponse:
        return WorkResponse()

    @staticmethod
    def static(request: WorkRequest) -> WorkResponse:
        return WorkResponse(text="static")


def local():
    def function(request: WorkRequest) -> WorkResponse:
        return WorkResponse()

    return function


class Local(Exception):
    """An error class that is bound to another name than its own."""


Hidden, Local = Local, None


def spec_of(function, **options):
    service = Service(MemoryStore(), None, maintenance=False)
    service.method(NAME, **CLASSES, **options)(function)
    return service.edges.specs[NAME]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda request: WorkResponse(), "<lambda>, which no other process can import; define"),
        (local(), "local.<locals>.function, which no other process can import; define it"),
        (Callable().bound, "no other process can import"),
        (Callable(), "no other process can import"),
        (functools.partial(process_methods.short), "no other process can import"),
    ],
)
def test_function_that_cannot_be_imported_is_refused_at_declaration(function, why):
    """A function that no other process can import is refused by its declaration."""
    spec = attrs.evolve(spec_of(process_methods.task), function=function)
    with pytest.raises(DeclarationError, match=f"{NAME}: needs .*{why}"):
        ProcessExecutor(1).check_method(spec)


def test_retryable_error_class_must_be_importable():
    error = type("Local", (Exception,), {"__qualname__": "here.<locals>.Local"})
    with pytest.raises(DeclarationError, match=r"here.<locals>.Local"):
        ProcessExecutor(1).check_method(spec_of(process_methods.task, retry=Retry(on=error)))


@pytest.mark.parametrize("function", [None, process_methods.task, Callable.static, Hidden])
def test_function_that_may_be_found_later_is_accepted(function):
    """A declaration succeeds if its function may be found later, and also without a function."""
    spec = spec_of(None if function is Hidden else function)
    ProcessExecutor(1).check_method(spec)


def test_a_static_method_is_found(service):
    """A static method is found by its path through the class."""
    method = service.method(NAME, metadata=WorkMetadata)(Callable.static)
    assert answer(service, ended(service, method.start(WorkRequest()))) == "static"


def replaced(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    raise AssertionError


kept, replaced = replaced, process_methods.task


def test_a_function_under_another_name_is_refused_when_used(service, caplog):
    """If another object is bound to a function's name, the operation fails."""
    text = refusal_error(service, kept, caplog)
    assert f"{NAME}: is done by a function that is not at {__name__}:replaced" in text


def test_a_class_under_another_name_is_refused_when_used(service, caplog):
    """If another object is bound to the name of an error class, the operation fails."""
    method = service.method(NAME, retry=Retry(on=Hidden))(process_methods.task)
    operation = ended(service, method.start(WorkRequest(rest={"do": "echo"})))
    assert reason(operation) == UNFIT
    assert f"which is not at {__name__}:Local" in caplog.text


def test_a_class_within_a_function_is_refused_when_used(service, caplog):
    @attrs.frozen
    class Answer:
        text: str = ""

    assert "<locals>.Answer" in refusal_error(
        service, process_methods.task, caplog, response=Answer
    )


# -- failures in the child -------------------------------------------------------------------------

BODY = """
def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    return WorkResponse(text="done")
"""


LOST = (Code.ABORTED, "WORKER_LOST")
DECORATED = f"""
service = lro.Service(MemoryStore(), ProcessExecutor(1))

@service.method("{NAME}")
{BODY.strip()}

if is_worker_process(): """
ELSEWHERE = "is not at other_place:work in a child process"
OTHER_PLACES = [
    (f"if is_worker_process(): raise ValueError('not here')\n{BODY}", "ValueError: not here"),
    (f"if is_worker_process(): import nothing_of_that\n{BODY}", "No module named 'nothing_of_that"),
    (f"if is_worker_process(): sys.exit('not here')\n{BODY}", "SystemExit: not here"),
    (f"{DECORATED}del work", "AttributeError: module 'other_place' has no attribute"),
    (f"{DECORATED}work = None", ELSEWHERE),
    (f"{DECORATED}work = service.method('a.B.C')(work.spec.function)", ELSEWHERE),
    (
        """
        import attrs

        @attrs.frozen
        class Wish:
            text: int if is_worker_process() else str = 0 if is_worker_process() else ""

        def work(request: Wish, job: lro.Job[WorkMetadata]) -> WorkResponse:
            return WorkResponse(text="done")
        """,
        InvalidArgument.__name__,
    ),
]


@pytest.mark.parametrize(("text", "said"), OTHER_PLACES)
def test_module_that_differs_in_the_child_fails_its_operations(module, service, caplog, text, said):
    """If a module differs in the child, its operations fail, and the log has the reason."""
    made = module("other_place", text)
    own = getattr(made, "service", service)
    service.closing(own)
    who = own.method(f"{NAME}Who", **CLASSES)(process_methods.who)
    child = answer(own, ended(own, who.start(WorkRequest())))
    method = made.work if own is not service else service.method(NAME)(made.work)
    request = getattr(made, "Wish", WorkRequest)(text="no number")
    for _ in range(2):
        assert reason(ended(own, method.start(request))) == UNFIT
        assert said in caplog.text
        caplog.clear()
    assert answer(own, ended(own, who.start(WorkRequest()))) == child


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("os._exit(3)", LOST),  # this ends the worker process
        ("import time; time.sleep(3600)", (Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")),
    ],
)
def test_endless_import_is_stopped(module, start, end):
    """An import that does not end is stopped like a function that does not end."""
    made = module("slow_place", f"if is_worker_process(): {start}\n{BODY}")
    with Service(MemoryStore(), ProcessExecutor(1, grace=timedelta(0))) as service:
        limit = None if end == LOST else timedelta(seconds=0.5)
        method = service.method(NAME, time_limit=limit)(made.work)
        assert reason(ended(service, method.start(WorkRequest()))) == end


# -- children that do not start ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "expected", "said"),
    [
        (None, UNFIT, "No such file or directory"),
        ("exit 3", UNFIT, "no process for it could start: its process ended with exit code 3"),
        ("kill -9 $$", (Code.ABORTED, "WORKER_LOST"), "its process was ended by SIGKILL"),
    ],
)
def test_child_that_cannot_start_fails_its_operation(
    service, tmp_path, monkeypatch, caplog, program, expected, said
):
    """If a child cannot start, its operation fails, and the next operation may succeed."""
    python = tmp_path / "python"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o700)
    method = service.method(NAME)(process_methods.task)
    with monkeypatch.context() as patch:
        patch.setattr(_process, "get_executable", lambda: str(python))
        operation = ended(service, method.start(WorkRequest(rest={"do": "echo"})))
    assert reason(operation) == expected
    assert said in caplog.text
    operation = ended(service, method.start(WorkRequest(rest={"do": "echo"})))
    assert answer(service, operation) == " 0"


def test_a_child_is_started_when_there_is_room_for_it(service, monkeypatch, caplog):
    """If too many files are open, the child starts later, and the operation succeeds."""
    monkeypatch.setattr(_executor, "_RETRY_SECONDS", 0.0)
    start, refusals = _process.ChildProcess, [errno.EMFILE, errno.EAGAIN]

    def process():
        if refusals:
            raise OSError(refusals.pop(), "not now")
        return start()

    monkeypatch.setattr(_process, "ChildProcess", process)
    method = service.method(NAME)(process_methods.task)
    operation = ended(service, method.start(WorkRequest(rest={"do": "echo"})))
    assert answer(service, operation) == " 0"
    assert caplog.text.count("waits until a process can be started") == 2


def test_work_that_waits_for_a_child_can_be_cancelled(service, monkeypatch):
    """Work that waits for a child can be cancelled like any other work."""
    asked = threading.Event()

    def process():
        asked.set()
        raise OSError(errno.EMFILE, "never")

    monkeypatch.setattr(_process, "ChildProcess", process)
    operation = service.method(NAME)(process_methods.task).start(WorkRequest(rest={"do": "echo"}))
    assert asked.wait(PATIENCE)
    service.cancel(operation.name)
    assert reason(ended(service, operation)) == (Code.CANCELLED, "CANCELLED")


def test_child_has_the_warnings_options_and_path_of_its_parent(service, monkeypatch):
    """A child has its parent's warning filters, options, arguments and first ``sys.path`` entry."""
    monkeypatch.setattr(sys, "warnoptions", ["error::FutureWarning"])
    monkeypatch.setattr(sys, "_xoptions", {"utf8": "1", "no_debug_ranges": True})
    monkeypatch.setattr(sys, "argv", ["program", "--option"])
    method = service.method(NAME)(process_methods.task)
    found = answer(service, ended(service, method.start(WorkRequest(rest={"do": "settings"}))))
    assert found == f"['error::FutureWarning'] 1 True ['program', '--option'] {sys.path[0]}"


# -- the main module ---------------------------------------------------------------------------

SCRIPT = (
    HEAD
    + """
import logging
from datetime import timedelta
from lro._engine.method_spec import Options

logging.getLogger("lro").setLevel(logging.ERROR)  # that a call is repeated is a warning

service = lro.Service(MemoryStore(), ProcessExecutor(1))

class Mine(Exception):
    pass

@service.method("acme.v1.Works.Work", retry=lro.Retry(on=Mine))
def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    if __name__ == "__main__":
        raise AssertionError("this is the parent")
    if not tried:
        tried.append(1)
        raise Mine
    same = sys.modules["__main__"] is sys.modules["__mp_main__"]
    return WorkResponse(text=f"{__name__} {is_worker_process()} {same} {sys.argv[1:]}")

tried = []
if __name__ == "__main__":
    for _ in range(2):
        done = service.wait(work.start(WorkRequest()).name, timedelta(seconds=20))
        print(done.response.payload["text"] if done.response else done.error.message)
    service.close()
"""
)


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        env={"PYTHONPATH": ":".join(sys.path)},
        **options,
    )


@pytest.mark.parametrize("file", ["program.py", "program", "package/program.py"])
def test_functions_of_a_main_module_are_found(tmp_path, file):
    """A child imports a main module as ``__mp_main__`` or, with ``-m``, by its own name.

    Code behind the ``__main__`` guard therefore does not run in the child.
    """
    (tmp_path / "package").mkdir()
    (tmp_path / file).write_text(SCRIPT)
    if "package" in file:
        ran, name = run("-m", "package.program", "--option", cwd=tmp_path), "package.program"
    else:
        ran, name = run(str(tmp_path / file), "--option"), "__mp_main__"
    assert (ran.stdout, ran.stderr) == (2 * f"{name} True True ['--option']\n", "")


MANY = """
import multiprocessing

import lro
from lro.executors.processes import ProcessExecutor
from lro.stores.memory import MemoryStore

service = lro.Service(MemoryStore(), ProcessExecutor(1))


def double(number):
    return 2 * number


@service.method("acme.v1.Works.Double")
def work(request: lro.Struct) -> lro.Struct:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return lro.Struct({"found": pool.map(double, [1, 2, 3])})


if __name__ == "__main__":
    print(service.wait(work.start(lro.Struct({})).name, 100).response.payload)
    service.close()
"""


def test_function_of_a_main_module_may_start_processes(tmp_path):
    """Processes that a main module's function spawns can import the main module from its file."""
    (tmp_path / "program.py").write_text(MANY)
    ran = run(str(tmp_path / "program.py"))
    assert "'found': [2" in ran.stdout, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "read"), [(["-m", "package"], None), (["-c", SCRIPT], None), (["-"], SCRIPT)]
)
def test_functions_of_other_main_modules_are_refused(tmp_path, arguments, read):
    """A function of a main module without a file, or of a package's ``__main__``, is refused."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(SCRIPT)
    ran = run(*arguments, cwd=tmp_path, input=read)
    assert ran.returncode == 1
    assert "Work: is in the main module, which no other process can import" in ran.stderr


UNGUARDED = SCRIPT.replace('if __name__ == "__main__":\n    for', "if True:\n    for")
BROKEN = SCRIPT.replace("tried = []", "tried = []\nif is_worker_process(): 1 / 0")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (UNGUARDED, "this process runs functions for another one, and starts none"),
        (UNGUARDED + "sys.exit(0)", "this process runs functions for another one, and starts none"),
        (BROKEN, "ZeroDivisionError: division by zero"),
    ],
)
def test_the_operation_says_that_the_main_module_needs_its_guard(tmp_path, text, why):
    """If the child runs a script without a guard, the operation's error names the reason."""
    script = tmp_path / "program.py"
    script.write_text(text)
    ran = run(str(script))
    wanted = (
        "the method cannot be run by the worker process, which cannot import the main module: "
        'it needs its guard, if __name__ == "__main__"\n'
    )
    assert ran.stdout == 2 * wanted
    assert ran.stderr.count(why) == 2


def test_a_main_module_need_not_be_importable(monkeypatch):
    """A function in another module does not need an importable main module."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert _function_reference.reference_to(spec_of(process_methods.task)).main is None
