"""Adds facts about the current operation to every log record of its function."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lro._engine.events import about
from lro._engine.job import CURRENT_JOB

__all__ = ["OperationFilter", "about", "operation_facts"]


def operation_facts() -> Mapping[str, object]:
    """Return facts about the operation whose function runs in this thread or task.

    The keys are ``lro.operation`` (its name), ``lro.method`` and ``lro.attempt`` (from 1); log
    records of this library have the same attributes. Outside of a function there are no facts. For
    structlog, merge the facts in a processor. A thread that the function starts needs a copy of the
    function's context.
    """
    control = CURRENT_JOB.get()
    return {} if control is None else about(control.name, control.method, control.attempt)


class OperationFilter(logging.Filter):
    """Add the attributes of :func:`operation_facts` to every record.

    Add the filter to handlers: a logger's filters do not see the records of loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes that the record does not have yet, and let the record pass."""
        record.__dict__.update({**operation_facts(), **record.__dict__})
        return True
