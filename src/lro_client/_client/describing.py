"""Describe calls, written once for both faces: split, ask, put together (spec §3.11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from lro import Code, DescribeOperationsResponse, OperationDescription, Status
from lro.errors import InvalidOperationName, OperationNotFound
from lro.types import ErrorInfo
from lro.wire import parse_name
from lro_client._arguments import check_name
from lro_client._client.state import ClientState
from lro_client._errors import CallError, check, too_many_bytes
from lro_client._flow import single
from lro_client._flow.steps import DescribeOperationsRequest, Flow
from lro_client._watch.registry import MAX_BATCH_NAMES

VERB: Final = "DescribeOperations"
_ABSENT: Final = frozenset({Code.NOT_FOUND, Code.UNIMPLEMENTED})
_METHOD_NOT_ALLOWED: Final = 405


def describe_many(state: ClientState, names: Iterable[str]) -> Flow[DescribeOperationsResponse]:
    """Describe operations, with a call for each thousand of a collection.

    Raises:
        DeclarationError: ``names`` is one text, or has one that is not a name; nothing was sent.
        CallError: A call failed; UNIMPLEMENTED where the server has no such call.
    """
    several = isinstance(names, Iterable) and not isinstance(names, str)
    check("names", names, "a list of names", fine=several)
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        check_name(name)
    collections: dict[str, list[str]] = {}
    for name in wanted:
        collections.setdefault(_collection(name), []).append(name)
    found: dict[str, OperationDescription] = {}
    for collection, members in collections.items():
        found |= yield from _described(state, collection, members)
    listed = tuple(found[name] for name in wanted if name in found)
    return DescribeOperationsResponse(listed, tuple(name for name in wanted if name not in found))


def describe(state: ClientState, name: str) -> Flow[OperationDescription]:
    """Describe one operation.

    Raises:
        CallError: As for :func:`describe_many`; NOT_FOUND where there is no such operation.
    """
    reply = yield from describe_many(state, [name])
    if not reply.descriptions:
        raise CallError(VERB, Status(Code.NOT_FOUND, str(OperationNotFound(name))))
    return reply.descriptions[0]


def _collection(name: str) -> str:
    try:
        parent = parse_name(name).parent
    except InvalidOperationName:
        parent = ""  # the server says what is wrong with it
    return f"{parent}/operations" if parent else "operations"


def _described(
    state: ClientState, collection: str, names: Sequence[str]
) -> Flow[dict[str, OperationDescription]]:
    found: dict[str, OperationDescription] = {}
    batches = deque(
        names[first : first + MAX_BATCH_NAMES] for first in range(0, len(names), MAX_BATCH_NAMES)
    )
    while batches:
        some = batches.popleft()
        try:
            request = DescribeOperationsRequest(collection, tuple(some))
            reply = (yield from single.single(state.config, request)).value
        except CallError as exc:
            if len(some) > 1 and too_many_bytes(exc):
                half = len(some) // 2
                batches.extendleft((some[half:], some[:half]))
                continue
            if _is_absent(exc):
                raise _not_offered(exc) from exc
            raise
        assert isinstance(reply, DescribeOperationsResponse)
        found |= {one.name: one for one in reply.descriptions}
    return found


def _is_absent(error: CallError) -> bool:
    """Whether a server has no such call; one that has it says more of what is missing."""
    if error.http_status == _METHOD_NOT_ALLOWED:
        return True
    reasons = [detail.reason for detail in error.details() if isinstance(detail, ErrorInfo)]
    return error.code in _ABSENT and reasons in ([], ["ROUTE_NOT_FOUND"])


def _not_offered(error: CallError) -> CallError:
    text = "the server does not describe operations, which servers of this library do over HTTP"
    status = Status(Code.UNIMPLEMENTED, f"{text}: {error.status.message}", error.status.details)
    return CallError(VERB, status, error.http_status)
