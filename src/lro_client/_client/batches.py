"""BatchGet calls, written once for the blocking and the async client (spec §3.11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from lro import Code, Operation, Status
from lro.errors import InvalidOperationName
from lro.types import ErrorInfo
from lro.wire import BatchGetOperationsResponse, View, parse_name
from lro_client._arguments import check_name
from lro_client._client.state import ClientState
from lro_client._errors import CallError, check, too_many_bytes
from lro_client._flow import single
from lro_client._flow.steps import BatchGetOperationsRequest, Flow
from lro_client._watch.registry import MAX_BATCH_NAMES

_ABSENT: Final = frozenset({Code.NOT_FOUND, Code.UNIMPLEMENTED})
_METHOD_NOT_ALLOWED: Final = 405


def batch_get(
    state: ClientState, names: Iterable[str], view: View
) -> Flow[BatchGetOperationsResponse]:
    """Read operations, with one call for each thousand names of a collection.

    Raises:
        DeclarationError: ``names`` is a string, or contains an invalid name. Nothing was sent.
        CallError: A call failed, with UNIMPLEMENTED if the server has no BatchGet.
    """
    several = isinstance(names, Iterable) and not isinstance(names, str)
    check("names", names, "a list of names", fine=several)
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        check_name(name)
    collections: dict[str, list[str]] = {}
    for name in wanted:
        collections.setdefault(_collection(name), []).append(name)
    found: dict[str, Operation] = {}
    for collection, members in collections.items():
        found |= yield from _read(state, collection, members, view)
    listed = tuple(found[name] for name in wanted if name in found)
    return BatchGetOperationsResponse(listed, tuple(name for name in wanted if name not in found))


def _collection(name: str) -> str:
    try:
        parent = parse_name(name).parent
    except InvalidOperationName:
        parent = ""  # the server will reject the name with a reason
    return f"{parent}/operations" if parent else "operations"


def _read(
    state: ClientState, collection: str, names: Sequence[str], view: View
) -> Flow[dict[str, Operation]]:
    found: dict[str, Operation] = {}
    batches = deque(
        names[first : first + MAX_BATCH_NAMES] for first in range(0, len(names), MAX_BATCH_NAMES)
    )
    while batches:
        some = batches.popleft()
        try:
            request = BatchGetOperationsRequest(collection, tuple(some))
            reply = (yield from single.single(state.config, request, view=view)).value
        except CallError as exc:
            if len(some) > 1 and too_many_bytes(exc):
                half = len(some) // 2
                batches.extendleft((some[half:], some[:half]))
                continue
            if _is_absent(exc):
                raise _not_offered(exc) from exc
            raise
        assert isinstance(reply, BatchGetOperationsResponse)
        found |= {one.name: one for one in reply.operations}
    return found


def _is_absent(error: CallError) -> bool:
    """Return True if an error means that the server has no BatchGet."""
    if error.http_status == _METHOD_NOT_ALLOWED:
        return True
    reasons = [detail.reason for detail in error.details() if isinstance(detail, ErrorInfo)]
    return error.code in _ABSENT and reasons in ([], ["ROUTE_NOT_FOUND"])


def _not_offered(error: CallError) -> CallError:
    text = "the server has no BatchGet, which servers of this library have over HTTP"
    status = Status(Code.UNIMPLEMENTED, f"{text}: {error.status.message}", error.status.details)
    return CallError(error.verb, status, error.http_status)
