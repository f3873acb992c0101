"""Writing down how an attempt ended, once and for all (spec §2.2)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from lro._base.any import Any
from lro._base.errors import EncodingError, InvalidArgument, LroError, MessageTooLarge
from lro._engine.job import FinalResult
from lro._engine.method_spec import MethodSpec, Unsettled
from lro._engine.outcomes import internal
from lro._engine.record_updater import RecordUpdater
from lro._model.record import Record, State
from lro._model.transitions import Change, end

log = logging.getLogger("lro")

T = TypeVar("T")


class RetryWhileUnavailable(Protocol):
    """Asks a store for something for as long as that makes sense."""

    def __call__(self, action: Callable[[], T]) -> T:
        """What the action gives."""
        ...


class _Outdated(Exception):
    """The metadata has changed since the last one was made of it."""


def apply_settled(
    name: str, change: Change, state: State, *, spec: MethodSpec, updater: RecordUpdater
) -> Record | None:
    """Apply a change that ends an operation in this state, with the method's last metadata.

    That is made beside the store, which the application's code must not keep from writing.

    Raises:
        Unsettled: The last metadata cannot be made.
        LroError: What the store or the change refuses.
    """
    if spec.options.settle is None:
        return updater.apply(name, change, spec.stamp)
    while True:
        seen = updater.store.get(name).metadata
        last = spec.settled(seen, state)

        def stamp(record: Record, seen: Any | None = seen, last: Any | None = last) -> Record:
            if record.metadata != seen:
                raise _Outdated
            return spec.stamp(record.with_metadata(last))

        try:
            return updater.apply(name, change, stamp)
        except _Outdated:
            continue  # a request to cancel may leave its mark in the metadata


def write_end(
    name: str,
    attempt: int,
    ending: FinalResult,
    *,
    spec: MethodSpec,
    updater: RecordUpdater,
    domain: str,
    retry_while_unavailable: RetryWhileUnavailable,
) -> Record | None:
    """End an operation, with its last metadata, in one step; the record then, None if it is gone.

    What cannot be encoded, or kept by the store, ends that operation with INTERNAL, and nothing
    else (design §5).

    Raises:
        NotApplied, OperationNotFound: It is over, or was deleted.
        LeaseLost: Another worker has it.
        Unavailable: The store has not come back.
    """

    def write(ending: FinalResult, *, settle: bool) -> Record | None:
        change = end(
            ending.result,
            now=updater.store.now(),
            expiry=spec.expiry,
            attempt=attempt,
            acknowledge=ending.acknowledge,
        )
        if settle:
            return apply_settled(name, change, ending.state, spec=spec, updater=updater)
        return updater.apply(name, change, spec.stamp)

    try:
        return retry_while_unavailable(lambda: write(ending, settle=True))
    except Exception as exc:
        if isinstance(exc, LroError) and not isinstance(exc, InvalidArgument):
            raise  # InvalidArgument: no store could keep what the method gave
        log.exception("%s: attempt %d: its end could not be written", name, attempt)
        text, why = "what the method gave cannot be encoded", EncodingError.reason
        if isinstance(exc, Unsettled):
            text, why = "the last metadata of the method cannot be made", "METHOD_FAILED"
        instead = FinalResult(internal(spec, domain, text, why))
        if isinstance(exc.__cause__, MessageTooLarge):
            instead = FinalResult(spec.types.status_of(exc.__cause__, domain))
        return retry_while_unavailable(lambda: write(instead, settle=False))
