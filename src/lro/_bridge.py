"""Ids, times and failures of operations in other protocols: MCP, A2A, Azure and webhooks."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import attrs

from lro import Status
from lro.errors import (
    InvalidOperationName,
    OperationNotFound,
    PermissionDenied,
    check_plain_function,
)
from lro.http import Flow, Hook, detail_of
from lro.types import AnyMessage, ErrorInfo, TypeRegistry
from lro.wire import join_name, normalise_parent, parse_name

R = TypeVar("R")

_SERVICE_FAULTS: Final = frozenset(
    {"METHOD_FAILED", "ENCODING_FAILED", "WORKER_LOST", "TOO_MANY_ATTEMPTS", "DEADLINE_EXCEEDED"}
)
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
JSON_TYPE: Final = "application/json"
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://aip.dev/151")


def failed_by_service(error: Status, types: TypeRegistry, domain: str) -> bool:
    """Return True if a fault of the service made an operation fail, not an error of the work.

    The ErrorInfo of such an error has the service's own domain, and its reason is a crash of the
    method, a lost worker, a timeout or the like. Every other error was raised by a method on
    purpose.
    """
    info = detail_of(error, types, ErrorInfo)
    return info is not None and info.domain == domain and info.reason in _SERVICE_FAULTS


def has_value(response: AnyMessage | None) -> bool:
    """Return True if a response has content; an Empty has none."""
    return response is not None and response.type_name != "google.protobuf.Empty"


def rfc3339(moment: datetime) -> str:
    """Format a time in UTC with milliseconds: ``2026-11-22T09:00:00.000Z``."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def request_id_of(protocol: str, foreign: str) -> str:
    """Return the request id (spec §9.2) for the id that another protocol gives to a start.

    An empty id stays empty, and a UUID stays as it is. Any other text is converted to a UUID;
    equal texts give equal UUIDs.
    """
    if not foreign:
        return ""
    try:
        return str(uuid.UUID(foreign))
    except ValueError:
        return str(uuid.uuid5(uuid.uuid5(_NAMESPACE, protocol), foreign))


@contextlib.contextmanager
def hidden(name: str) -> Iterator[None]:
    """In the block, turn errors for invalid names and denied access into OperationNotFound."""
    try:
        yield
    except (InvalidOperationName, PermissionDenied) as exc:
        raise OperationNotFound(name) from exc


@attrs.frozen
class OperationIds:
    """Ids of operations for protocols whose ids have no slash.

    ``parent`` returns the parent of a caller's operations; without this function, operations have
    no parent.
    """

    parent: Callable[[str], str] | None = None

    def __attrs_post_init__(self) -> None:
        if self.parent is not None:
            check_plain_function("parent", self.parent)

    def id_of(self, name: str) -> str:
        """Return the id in an operation's name."""
        return parse_name(name).id

    def parent_of(self, caller: str) -> Flow[str]:
        """Return the parent of a caller's operations.

        Raises:
            InvalidParent: The function of the application did not return a parent.
        """
        if self.parent is None:
            return ""
        given: Any = yield from Hook("parent", self.parent).ask(caller)
        return normalise_parent(given)

    def name_of(self, operation_id: str, caller: str) -> Flow[str]:
        """Return the name of a caller's operation with this id.

        Raises:
            OperationNotFound: No operation can have this id.
            InvalidParent: As for :meth:`parent_of`.
        """
        if not isinstance(operation_id, str) or _ID.fullmatch(operation_id) is None:
            raise OperationNotFound(str(operation_id)[:128])
        return join_name((yield from self.parent_of(caller)), operation_id)
