"""Push notifications: the ends of tasks, sent by the webhooks of the service (A2A 3.1.7, 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs
from a2a.types import TaskPushNotificationConfig
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToJson

from lro._base.errors import InvalidArgument, NotApplied
from lro._engine.flow import Flow, UpdateWrite, read
from lro._engine.notifications import Endpoint
from lro._engine.service import Service
from lro._messages.registry import TypeRegistry
from lro._model.description import DescribedOperation
from lro._model.operation import Record
from lro._webhooks.debts import Debts
from lro._webhooks.payloads import MAX_BODY, WebhookEvent
from lro._webhooks.service_webhooks import Webhooks
from lro.a2a._tasks import TaskWriter

PUSH: Final = "a2a"
"""What the format of push notifications is called: ``Webhooks(formats={PUSH: ...})``."""

_TOKEN: Final = "X-A2A-Notification-Token"
_FIELD: Final = "task_push_notification_config"

Edit = Callable[[Sequence[Endpoint]], Sequence[Endpoint]]


@attrs.frozen
class PushFormat:
    """The body of a push notification: a StreamResponse with the task (A2A 4.3.3).

    ``types`` and ``domain`` are those of the service: ``Service(types=..., domain=...)``. A task
    that has more than 20,000 bytes is sent without its artifacts, which GetTask gives.
    """

    types: TypeRegistry
    domain: str

    def __call__(
        self,
        operation: DescribedOperation,
        endpoint: Endpoint,  # noqa: ARG002
        event: WebhookEvent,  # noqa: ARG002
    ) -> tuple[str, bytes]:
        """The content type and the body."""
        body = self._body(operation, artifacts=True)
        if len(body) > MAX_BODY:
            body = self._body(operation, artifacts=False)
        return "application/a2a+json", body

    def _body(self, operation: DescribedOperation, *, artifacts: bool) -> bytes:
        task = TaskWriter(self.types, self.domain).task(operation, artifacts=artifacts)
        return MessageToJson(to_stream_response(task), indent=None).encode()


class PushConfigs:
    """The endpoints of operations, as configurations of A2A: what clients have asked for."""

    def __init__(self, service: Service, webhooks: Webhooks) -> None:
        self._service = service
        self._webhooks = webhooks

    def endpoint(self, config: TaskPushNotificationConfig) -> Endpoint:
        """The endpoint of a configuration, checked.

        Raises:
            InvalidArgument: It cannot be called; its field is that of the configuration.
        """
        headers = {}
        if config.token:
            headers[_TOKEN] = config.token
        if config.HasField("authentication"):
            said = config.authentication
            headers["Authorization"] = f"{said.scheme} {said.credentials}".strip()
        made = Endpoint(url=config.url, id=config.id, format=PUSH, headers=headers)
        try:
            return Debts.of(self._webhooks.encode([made])).endpoints[0]
        except InvalidArgument as exc:
            field = exc.field.removeprefix("notify[0]").removeprefix("notify")
            text = exc.description.partition("; ")[0]  # without hints for the application
            raise InvalidArgument(_FIELD + field, text) from None

    def shown(self, task_id: str, endpoint: Endpoint) -> TaskPushNotificationConfig:
        """The configuration of an endpoint, without what is secret in it."""
        return TaskPushNotificationConfig(task_id=task_id, id=endpoint.id, url=endpoint.url)

    def of(self, name: str) -> Flow[list[Endpoint]]:
        """The endpoints that clients have asked for of an operation.

        Raises:
            OperationNotFound: There is no such operation.
        """
        record = yield from read(self._service.store, name)
        return [one for one in Debts.of(record.notify).endpoints if one.format == PUSH]

    def add(self, name: str, endpoint: Endpoint) -> Flow[None]:
        """Have the end of an operation pushed, too; an endpoint of the same id is replaced.

        Raises:
            NotApplied: It has ended.
            InvalidArgument: There are too many.
        """

        def edit(kept: Sequence[Endpoint]) -> Sequence[Endpoint]:
            added = [*(one for one in kept if one.id != endpoint.id), endpoint]
            self._webhooks.encode(added)
            return added

        return self._edit(name, edit, ended=False)

    def remove(self, name: str, endpoint_id: str) -> Flow[None]:
        """Have nothing more sent to an endpoint that a client has asked for. Idempotent."""

        def edit(kept: Sequence[Endpoint]) -> Sequence[Endpoint]:
            return [one for one in kept if one.id != endpoint_id or one.format != PUSH]

        return self._edit(name, edit, ended=True)

    def _edit(self, name: str, edit: Edit, *, ended: bool) -> Flow[None]:
        def change(record: Record) -> Record:
            if record.done and not ended:
                raise NotApplied(record.name, "push", record.state.value)
            debts = Debts.of(record.notify)
            kept = attrs.evolve(debts, endpoints=tuple(edit(debts.endpoints)))
            return record.next_version(notify=kept.to_text())

        yield UpdateWrite(self._service.store, name, change)
