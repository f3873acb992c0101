"""Functions that run in child processes, wrapped by the service's ``around`` hook."""

from __future__ import annotations

from typing import Any

import pytest

from lro import Code, Retry, Service
from lro.executors.processes import ProcessExecutor
from lro.stores.sqlite import SQLiteStore
from tests.executors import process_methods
from tests.service_steps import WORK, answer, ended, reason
from tests.work_messages import WorkRequest


@pytest.mark.parametrize(
    "function", ["known", "await_known", "flaky_known", "unwelcome", "await_unwelcome"]
)
def test_around_hook_wraps_functions_in_children(tmp_path, function):
    """The child imports ``around`` by its path, and log records have the operation's facts."""
    store = SQLiteStore(tmp_path / "operations.db")
    with Service(store, ProcessExecutor(1), around=process_methods.noted) as service:
        options: dict[str, Any] = {}
        if function == "flaky_known":
            options = {"retry": Retry(on=process_methods.Flaky, first_pause=process_methods.SOON)}
        method: Any = service.method(WORK, **options)(getattr(process_methods, function))
        found = ended(service, method.start(WorkRequest()).name)
        if "unwelcome" in function:
            assert reason(found)[0] == Code.INTERNAL
        else:
            attempt = 2 if function == "flaky_known" else 1
            assert answer(service, found) == f"{found.name} {WORK} {attempt} noted"
