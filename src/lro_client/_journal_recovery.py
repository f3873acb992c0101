"""What a journal gives back: operations that were started and not collected."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import Final

from lro import Any, LroError, Operation
from lro.wire import loads
from lro_client._client_state import ClientState
from lro_client._errors import CallError
from lro_client._flow import single
from lro_client._flow.steps import Emit, Flow, RunBlocking, StartRequest
from lro_client._handle_flows import AFTERWARDS_SECONDS, noted
from lro_client._handles import StartedOperation
from lro_client._journal.entries import Entry
from lro_client._journal.journal import Journal, JournalError
from lro_client._tokens import message_name
from lro_client._tracing import log_forgotten

ANSWERED_ONCE: Final = timedelta(hours=23)
"""So long a start may be repeated: a day later its server has forgotten it (spec §9.2(2))."""


def pending(state: ClientState, response: type | None, metadata: type | None) -> Flow[None]:
    """Shows the operations of this server that were declared with these classes, each with None.

    Those with a name come first, then those whose start has to be repeated. One that cannot be is
    an operation without a name, and comes with the error. One that was made too long ago for that
    is left out, which is logged: it might start twice.

    Raises:
        ValueError: There is no journal.
        JournalError: It cannot be read.
    """
    journal = state.journal
    if journal is None:
        raise ValueError("the client has no journal: give it one, as in Client(url, journal=...)")
    old = datetime.now(UTC) - ANSWERED_ONCE
    entries: list[Entry] = yield RunBlocking(lambda: journal.pending(server=state.address))
    asked = message_name(response), message_name(metadata)
    everything = response is Any and metadata is Any
    wanted = [one for one in entries if everything or (one.response, one.metadata) == asked]
    for entry in sorted(wanted, key=lambda one: not one.name):
        if entry.name:
            yield Emit((StartedOperation(name=entry.name, request_id=entry.request_id), None))
            continue
        if entry.started < old:
            log_forgotten(entry.target, entry.request_id)
            continue
        try:
            reply = yield from single.single(state.config, _again(journal, entry))
        except (CallError, JournalError) as exc:
            yield Emit((Operation(), exc))
            continue
        operation = single.read(reply)
        if operation.name:
            name = entry.request_id, operation.name
            named = functools.partial(journal.named, *name, within=AFTERWARDS_SECONDS)
            yield RunBlocking(functools.partial(noted, entry.request_id, named))
        yield Emit((StartedOperation.to(entry.request_id, operation), None))


def _again(journal: Journal, entry: Entry) -> StartRequest:
    try:
        message = Any(entry.message_type, loads(entry.message.encode()))
    except (ValueError, LroError) as exc:
        text = f"the file is damaged: the message of {entry.request_id} is none: {exc}"
        raise JournalError(journal.path, text) from exc
    return StartRequest(target=entry.target, message=message, request_id=entry.request_id)
