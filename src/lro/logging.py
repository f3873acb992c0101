"""Facts of the operation at hand on every log record that is made within its function."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lro._engine.events import about
from lro._engine.job import CURRENT_JOB

__all__ = ["OperationFilter", "about", "operation_facts"]


def operation_facts() -> Mapping[str, object]:
    """What is known of the operation whose function runs in this thread or task; else nothing.

    The keys are ``lro.operation`` (its name), ``lro.method`` and ``lro.attempt`` (from 1): those
    that log lines of this library have as attributes. For structlog: a processor that merges it.
    Threads that the function starts itself know it if they run in a copy of its context.
    """
    control = CURRENT_JOB.get()
    return {} if control is None else about(control.name, control.method, control.attempt)


class OperationFilter(logging.Filter):
    """Lets every record pass, and gives it the attributes of :func:`operation_facts`.

    Add it to handlers: filters of a logger do not see the records of loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes that the record does not have yet."""
        record.__dict__.update({**operation_facts(), **record.__dict__})
        return True
