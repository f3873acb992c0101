"""The contracts of stores and executors as checks that you can run on your own adapters.

The checks need no test framework. :func:`check_store` and :func:`check_executor` run all checks and
raise an AssertionError that names the broken promise. With pytest, parametrise over
``STORE_CHECKS`` and ``EXECUTOR_CHECKS`` to see each check as a test. :func:`job` makes a job for
tests that call a method's function directly.
"""

from lro.testing._executors import (
    EXECUTOR_CHECKS,
    FOREGROUND_CHECKS,
    REMOTE_CHECKS,
    ExecutorCheck,
    MakeExecutor,
    MakeRemoteExecutor,
    RemoteCheck,
    check_executor,
    check_remote_executor,
    run_executor_check,
    run_remote_check,
)
from lro.testing._samples import START, ManualClock, StoreCheck, job
from lro.testing._stores import STORE_CHECKS, MakeStore, check_store, run_store_check

__all__ = [
    "EXECUTOR_CHECKS",
    "FOREGROUND_CHECKS",
    "REMOTE_CHECKS",
    "START",
    "STORE_CHECKS",
    "ExecutorCheck",
    "MakeExecutor",
    "MakeRemoteExecutor",
    "MakeStore",
    "ManualClock",
    "RemoteCheck",
    "StoreCheck",
    "check_executor",
    "check_remote_executor",
    "check_store",
    "job",
    "run_executor_check",
    "run_remote_check",
    "run_store_check",
]
