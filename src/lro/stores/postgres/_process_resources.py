"""What a store has per process: after a fork the child makes its own."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Sequence

from lro._base.errors import Unavailable
from lro._messages.json_text import dumps
from lro.stores.postgres._connection import ServerAddress, ServerClock
from lro.stores.postgres._connections import ConnectionPool
from lro.stores.postgres._notifications import Announcer, NotifySubscription
from lro.stores.postgres._records import RecordTable
from lro.stores.postgres._schema import channel_of
from lro.stores.postgres._statements import NOTIFY


class ProcessResources:
    """Connections and threads; each is opened or started when it is first needed."""

    def __init__(self, address: ServerAddress, clock: ServerClock, size: int) -> None:
        self._sender = secrets.token_hex(4)
        self._channel = channel_of(address.schema)
        self._lock = threading.Lock()
        self._subscriptions: weakref.WeakSet[NotifySubscription] = weakref.WeakSet()
        self._closed = False
        self.connections = ConnectionPool(address, clock, size)
        self.records = RecordTable(self.connections)
        self.announcer = Announcer(self._notify, self._sender)

    def listen(self) -> NotifySubscription:
        """Make a subscription, with a connection of its own.

        Raises:
            Unavailable: The store is closed or the database cannot be reached.
        """
        subscription = NotifySubscription(self.connections.connect(), self._channel, self._sender)
        with self._lock:
            self._subscriptions.add(subscription)
        if self._closed:
            subscription.close()
            raise Unavailable("the store is closed")
        return subscription

    def close(self) -> None:
        """Send what is to be announced, and close every connection."""
        self._closed = True
        self.announcer.stop()
        self.connections.close()
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()

    def _notify(self, payloads: Sequence[str]) -> None:
        self.connections.rows(NOTIFY, (self._channel, dumps(list(payloads)).decode()))
