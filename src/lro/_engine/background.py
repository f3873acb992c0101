"""What goes on in a service between calls: its work, its leases, its ear for other processes."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from lro._engine.change_listener import ChangeListener
from lro._engine.executor_port import Executor
from lro._engine.maintenance import Maintenance
from lro._engine.method_spec import MethodSpec
from lro._engine.orphans import recover
from lro._engine.record_updater import RecordUpdater
from lro._engine.workers import Workers
from lro._model.record import Record

log = logging.getLogger("lro")


class Background:
    """The work of one process, under a random name of its own, and the threads that see to it."""

    def __init__(
        self,
        updater: RecordUpdater,
        executor: Executor,
        specs: Callable[[], Mapping[str, MethodSpec]],
        *,
        lease: timedelta,
        domain: str,
        clock: Callable[[], float],
        upkeep: bool,
    ) -> None:
        self._updater = updater
        self._specs = specs
        self._wanted = upkeep
        self._started = self._stopped = False
        self._starting = threading.Lock()
        owner = _new_owner()
        self.running = Workers(
            updater=updater,
            executor=executor,
            owner=owner,
            lease=lease,
            domain=domain,
            clock=clock,
            nudge=self._nudge,
            scan_orphans=lambda: self.upkeep.request_orphan_scan(),
            renew=lambda: self.upkeep.request_renewal(),
        )
        self.upkeep = Maintenance(
            updater,
            owner=owner,
            lease=lease,
            patience=min(lease, executor.redelivery or lease),
            held=self.running.held,
            cancel=self.running.cancel,
            recover=self._recover,
            methods=self._methods,
            not_started=self.running.release_not_started,
            clock=clock,
        )
        self.change_listener = ChangeListener(
            updater, held=self.running.held, cancel=self.running.cancel
        )

    def start(self) -> None:
        """Begin the upkeep in a thread of its own, unless it has begun, or is not wanted here."""
        if self._started or not self._wanted:
            return
        with self._starting:
            if self._started or self._stopped:
                return
            try:
                self.upkeep.start()
            except RuntimeError as exc:  # too many threads: the next call tries again
                log.warning("leases are not renewed now: %s", exc)
                return
            self._started = True

    def stop(self) -> None:
        """End the threads."""
        with self._starting:
            self._stopped = True
        try:
            self.change_listener.stop()
        finally:
            self.upkeep.stop()

    def forked(self) -> None:
        """Begin anew in a forked process: what the parent holds is the parent's.

        The upkeep begins when the child is used: it may serve nobody, or only run a function.
        """
        owner = _new_owner()
        self._started = False
        self._starting = threading.Lock()
        self.running.forked(owner)
        self.upkeep.forked(owner)
        self.change_listener.forked()

    def _nudge(self) -> None:
        self.start()
        self.change_listener.ensure_running()

    def _methods(self) -> list[str]:
        return [name for name, spec in self._specs().items() if spec.function is not None]

    def _recover(self, record: Record) -> None:
        if record.owner == self.running.owner and self.running.has(record.name):
            return  # alive in this process: the lease ran out while the store was away
        recover(record, self._specs()[record.method], self.running, self._updater)


def _new_owner() -> str:
    return secrets.token_urlsafe(12)
