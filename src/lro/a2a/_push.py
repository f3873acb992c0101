"""Push notifications of ended tasks by the webhooks of the service (A2A 3.1.7, 4.3)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import attrs
from a2a.types import TaskPushNotificationConfig
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToJson

from lro import Operation, Service
from lro._webhooks.deliveries import Deliveries
from lro._webhooks.endpoints import MAX_ENDPOINTS, derived_id
from lro._webhooks.options import MAX_NOTIFY
from lro._webhooks.payloads import MAX_BODY, WebhookEvent
from lro._webhooks.service_webhooks import Webhooks
from lro.a2a._tasks import TaskWriter
from lro.adapters import Endpoint, Record
from lro.errors import InvalidArgument, NotApplied
from lro.http import Flow, UpdateWrite, read_record
from lro.types import TypeRegistry

PUSH: Final = "a2a"
"""The name of the format of push notifications: ``Webhooks(formats={PUSH: ...})``."""

_TOKEN: Final = "X-A2A-Notification-Token"
_FIELD: Final = "task_push_notification_config"

_PREFIX: Final = "a2a_"

MAX_ID: Final = 110

MAX_OTHERS: Final = MAX_ENDPOINTS // 2
"""Maximum number of an operation's endpoints that callers other than its starter can add.

So other callers cannot use up the endpoints and bytes that the starter may need.
"""

Edit = Callable[[Sequence[Endpoint], str], Sequence[Endpoint]]
"""A function that takes an operation's endpoints and its starter, and returns new endpoints."""


@attrs.frozen
class PushFormat:
    """Format of push notifications: a StreamResponse with the task (A2A 4.3.3).

    ``types`` and ``domain`` are those of the service: ``Service(types=..., domain=...)``. A task of
    more than 20,000 bytes is sent without its artifacts, which GetTask returns.
    """

    types: TypeRegistry
    domain: str

    def __call__(
        self,
        operation: Operation,
        endpoint: Endpoint,  # noqa: ARG002
        event: WebhookEvent,  # noqa: ARG002
    ) -> tuple[str, bytes]:
        """Return the content type and the body of a notification."""
        body = self._body(operation, artifacts=True)
        if len(body) > MAX_BODY:
            body = self._body(operation, artifacts=False)
        return "application/a2a+json", body

    def _body(self, operation: Operation, *, artifacts: bool) -> bytes:
        task = TaskWriter(self.types, self.domain).task(operation, artifacts=artifacts)
        return MessageToJson(to_stream_response(task), indent=None).encode()


def _mark(caller: str) -> str:
    """Return the prefix of a caller, which is put before the endpoint ids that the caller chooses.

    If two endpoints had the same id, only one endpoint would be notified. With the prefix, no
    caller can replace an endpoint of another caller or of the application, and callers see only
    their own endpoints.
    """
    digest = hashlib.blake2b(caller.encode(), digest_size=9).digest()  # 12 characters in base64
    return f"{_PREFIX}{base64.urlsafe_b64encode(digest).decode()}_"


class PushConfigs:
    """The endpoints that clients have added, as push notification configs of A2A."""

    def __init__(self, service: Service, webhooks: Webhooks) -> None:
        self._service = service
        self._webhooks = webhooks

    def endpoint(self, config: TaskPushNotificationConfig, caller: str) -> Endpoint:
        """Return the checked endpoint of a caller's config.

        Raises:
            InvalidArgument: The endpoint is not allowed; the error names the field of the config.
        """
        headers = {}
        if config.token:
            headers[_TOKEN] = config.token
        if config.HasField("authentication"):
            said = config.authentication
            headers["Authorization"] = f"{said.scheme} {said.credentials}".strip()
        if len(config.id) > MAX_ID:
            raise InvalidArgument(f"{_FIELD}.id", f"must have at most {MAX_ID} characters")
        id = _mark(caller) + (config.id or derived_id(config.url))
        made = Endpoint(url=config.url, id=id, format=PUSH, headers=headers)
        try:
            return Deliveries.of(self._webhooks.encode([made])).endpoints[0]
        except InvalidArgument as exc:
            raise _of_config(exc) from None

    def shown(self, task_id: str, endpoint: Endpoint, caller: str) -> TaskPushNotificationConfig:
        """Return the push notification config of an endpoint, without its secrets."""
        id = endpoint.id.removeprefix(_mark(caller))
        return TaskPushNotificationConfig(task_id=task_id, id=id, url=endpoint.url)

    def of(self, name: str, caller: str) -> Flow[list[Endpoint]]:
        """Return the endpoints that a caller has added to an operation.

        Raises:
            OperationNotFound: There is no such operation.
        """
        record = yield from read_record(self._service.store, name)
        mark = _mark(caller)
        return [one for one in Deliveries.of(record.notify).endpoints if one.id.startswith(mark)]

    def add(self, name: str, endpoint: Endpoint) -> Flow[None]:
        """Add an endpoint to an operation; it replaces an endpoint with the same id.

        Raises:
            NotApplied: The operation has ended.
            InvalidArgument: The operation has too many endpoints, in total or from callers other
                than its starter.
        """

        def edit(kept: Sequence[Endpoint], starter: str) -> Sequence[Endpoint]:
            added = [*(one for one in kept if one.id != endpoint.id), endpoint]
            own = _mark(starter)
            others = [
                one for one in added if one.id.startswith(_PREFIX) and not one.id.startswith(own)
            ]
            try:
                self._webhooks.encode(added)
                size = len(self._webhooks.encode(others))
            except InvalidArgument as exc:
                raise _of_config(exc) from None
            if endpoint in others and (len(others) > MAX_OTHERS or size > MAX_NOTIFY // 2):
                wanted = f"must be at most {MAX_OTHERS}, of {MAX_NOTIFY // 2} bytes"
                raise InvalidArgument(_FIELD, f"{wanted}, from other callers than its starter")
            return added

        return self._edit(name, edit, ended=False)

    def remove(self, name: str, config_id: str, caller: str) -> Flow[None]:
        """Remove an endpoint of a caller from an operation, if the operation has it."""

        def edit(kept: Sequence[Endpoint], _: str) -> Sequence[Endpoint]:
            return [one for one in kept if one.id != _mark(caller) + config_id]

        return self._edit(name, edit, ended=True)

    def _edit(self, name: str, edit: Edit, *, ended: bool) -> Flow[None]:
        def change(record: Record) -> Record:
            if record.done and not ended:
                raise NotApplied(record.name, "push", record.state.value)
            deliveries = Deliveries.of(record.notify)
            kept = deliveries.with_endpoints(edit(deliveries.endpoints, record.caller))
            due = None if kept.pending == {} else record.notify_at
            return record.next_version(notify=kept.to_text(), notify_at=due)

        yield UpdateWrite(self._service.store, name, change)


def _of_config(error: InvalidArgument) -> InvalidArgument:
    field = error.field.removeprefix("notify[0]").removeprefix("notify")
    text = error.description.partition("; ")[0]  # without the hint, which is for the application
    return InvalidArgument(_FIELD + field, text)
