"""A notifier that sends nothing and records how the service calls it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import cast

from lro import InvalidArgument, Service
from lro.adapters import OutboxStore, Record
from lro.webhooks import Endpoint


class RecordingNotifier:
    """The ``webhooks`` of a service in tests; ``notifies`` selects which ends are notified."""

    def __init__(self, notifies: Callable[[Record], bool] = lambda _: True) -> None:
        self.notifies = notifies
        self.calls: list[str] = []
        self.store: OutboxStore | None = None
        self.due_in = math.inf

    def attach(self, service: Service) -> None:
        self.store = cast("OutboxStore", service.store)

    def encode(self, notify: object) -> str:
        if not isinstance(notify, list | tuple) or not all(isinstance(e, Endpoint) for e in notify):
            raise InvalidArgument("notify", f"must be endpoints, got {notify!r}")
        return json.dumps([endpoint.url for endpoint in notify])

    def begin(self) -> None:
        self.calls.append("begin")

    def wake(self) -> None:
        self.calls.append("wake")

    def run_due(self) -> float:
        self.calls.append("run_due")
        return self.due_in

    def stop(self) -> None:
        self.calls.append("stop")

    def reset_after_fork(self) -> None:
        self.calls.append("reset_after_fork")
