"""What becomes of work that nobody holds: done again, or ended with the truth."""

from __future__ import annotations

import logging

from lro._base.errors import StatusError
from lro._base.status import Code
from lro._engine.ends import apply_settled
from lro._engine.method_spec import MethodSpec, Unsettled, WorkerLost
from lro._engine.record_updater import RecordUpdater
from lro._engine.workers import Workers
from lro._model.record import Record, State
from lro._model.transitions import abandon, if_unchanged_since

log = logging.getLogger("lro")


def recover(record: Record, spec: MethodSpec, running: Workers, updater: RecordUpdater) -> None:
    """Take over an orphan, or end it with ABORTED, reason WORKER_LOST.

    Work that was handed back by a process that stopped, or never begun, is always done. Work whose
    worker died is done again if its method allows that, and it has not cost too many workers.

    Raises:
        LeaseLost, NotApplied, OperationNotFound: Somebody was quicker.
        ResourceExhausted, Unavailable: There is no room for it now.
    """
    handed_back = record.owner == "" or record.attempt == 0
    options = spec.options
    lost = record.lost_attempts + 1
    may_retry = options.worker_lost is WorkerLost.RETRY and lost < options.max_lost
    if handed_back or may_retry:
        running.resume(spec, record)
        log.log(
            logging.INFO if handed_back else logging.WARNING,
            "%s: taken over after attempt %d",
            record.name,
            record.attempt,
        )
        return
    text = f"the worker of the operation was lost in attempt {record.attempt}"
    error = StatusError(Code.ABORTED, text, why="WORKER_LOST")
    status = spec.types.status_of(error, running.domain)
    fail = if_unchanged_since(record, abandon(status, updater.store.now(), spec.expiry))
    try:
        apply_settled(record.name, fail, State.FAILED, spec=spec, updater=updater)
    except Unsettled:
        log.exception("%s: the last metadata could not be made", record.name)
        updater.apply(record.name, fail, spec.stamp)
    log.warning("%s: ended, worker %d of it was lost", record.name, lost)
