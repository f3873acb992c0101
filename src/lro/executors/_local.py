"""What the executors that do their work in the process that submits it have in common."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from lro._engine.executor_port import CancelSupport
from lro._engine.method_spec import MethodSpec


class LocalExecutor:
    """Tasks come whole, and any function can be called: there is nothing to be told."""

    @property
    def cancel_support(self) -> CancelSupport:
        """A function learns of a cancellation when it looks."""
        return CancelSupport.COOPERATIVE

    @property
    def redelivery(self) -> timedelta | None:
        """None: the work is done in this process."""
        return None

    def attach(
        self,
        work: Callable[[str], None],
        close: Callable[[timedelta], None],
        begin: Callable[[], None],
    ) -> None:
        """Not needed here: tasks come whole."""

    def admit(self, spec: MethodSpec) -> None:
        """Any function can be called in its own process."""
