"""What a running function holds: its job, where progress goes and cancellation arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from lro._errors import Cancelled, DeadlineExceeded

M = TypeVar("M")


class Job(Generic[M]):
    """One attempt at one operation, as its function sees it.

    Safe to use from several threads. ``M`` is the metadata class.
    """

    def __init__(
        self,
        *,
        name: str,
        attempt: int,
        publish: Callable[[M], None],
        clock: Callable[[], datetime],
        stop_at: datetime | None = None,
    ) -> None:
        self._name = name
        self._attempt = attempt
        self._publish = publish
        self._clock = clock
        self._stop_at = stop_at
        self._cancel = threading.Event()
        self._metadata: M | None = None

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._name

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._attempt

    @property
    def metadata(self) -> M | None:
        """What :meth:`report` was given last in this attempt."""
        return self._metadata

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for the work to stop."""
        return self._cancel.is_set()

    def report(self, metadata: M) -> None:
        """Replace the operation's metadata: progress for whoever asks.

        Raises:
            Cancelled: The work was asked to stop; let it pass and the operation ends CANCELLED.
            DeadlineExceeded: The method's time limit is over.
            LeaseLost: Another worker has this operation now; this attempt's work is void.
            EncodingError: The metadata cannot be encoded.
        """
        self.raise_if_cancelled()
        self._metadata = metadata
        self._publish(metadata)

    def raise_if_cancelled(self) -> None:
        """Do nothing, or stop the work; call it at every unit of it.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit is over.
        """
        if self._cancel.is_set():
            raise Cancelled()
        if self._stop_at is not None and self._clock() >= self._stop_at:
            raise DeadlineExceeded("the time limit of the method is over")

    def sleep(self, seconds: float) -> None:
        """Pause, but wake up for a cancellation.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit is over.
        """
        self._cancel.wait(seconds)
        self.raise_if_cancelled()

    def _stop(self) -> None:
        # By the service, when CancelOperation was called or the attempt has lost its lease.
        self._cancel.set()
