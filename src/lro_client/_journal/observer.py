"""The observer that writes a client's starts and results to its journal, and reads them again."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, cast

import attrs

from lro import Any, Code, Operation
from lro.errors import DeclarationError, LroError
from lro.types import Json, TypeRegistry
from lro.wire import dumps, loads
from lro_client._errors import CallError
from lro_client._flow.drivers import CALL_THREADS
from lro_client._flow.single import FlowConfig, read, single
from lro_client._flow.steps import Emit, Flow, RunBlocking, StartRequest
from lro_client._journal.journal import Entry, Journal, JournalError
from lro_client._observer import ClientObserver, KnownOperation, StartObserver
from lro_client._tokens import message_name
from lro_client._tracing import log, log_forgotten

MAX_WRITE_SECONDS: Final = 5.0
"""How long a journal that others hold may delay a handle or a result that is here already."""

MIN_WRITE_SECONDS: Final = 0.02
"""The least time for a write: others write for a few ms each; deadlines are kept within 50 ms."""

REPEATABLE: Final = timedelta(hours=23)
"""The age up to which a start may be repeated: a day later its server has forgotten its request id
(spec §9.2(2))."""

_UNSURE: Final = frozenset(
    {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED}
    | {Code.ABORTED}
)
"""Codes of a failed start after which there may be an operation all the same."""


class JournalObserver(ClientObserver):
    """Writes starts and results to a journal; ``address`` is the server's, as tokens write it."""

    def __init__(self, journal: Journal, address: str, types: TypeRegistry) -> None:
        self._journal = journal
        self._address = address
        self._types = types

    def begin(
        self, request: StartRequest, response: type | None, metadata: type | None
    ) -> Flow[StartObserver]:
        """Write the start, unless it is only to be checked.

        Raises:
            JournalError: The journal cannot be written; nothing was sent.
        """
        if request.validate_only:
            return StartObserver(request)
        request = attrs.evolve(request, request_id=request.request_id or str(uuid.uuid4()))
        entry = self._entry(request, response, metadata)
        new: bool = yield RunBlocking(lambda: self._journal.begin(entry))
        return _JournaledStart(request, self._journal, entry, new=new)

    def taken(self, name: str, request_id: str, within: float) -> Flow[None]:
        """Remove the operation, waiting at most ``within`` seconds for a journal that is held."""
        if name or request_id:
            seconds = min(max(within, MIN_WRITE_SECONDS), MAX_WRITE_SECONDS)
            collected = functools.partial(self._journal.collected, server=self._address)
            write = functools.partial(collected, name, request_id=request_id, within=seconds)
            yield _write(name or request_id, write)

    def taking(self, name: str, request_id: str) -> Callable[[], object]:
        """Have the operation removed by what is returned, in another thread."""
        journal = self._journal
        known = name or request_id
        if not known or not journal.owe(name, server=self._address, request_id=request_id):
            return lambda: None
        # Results that are taken until that thread begins are removed by the same write.
        write = _write(known, functools.partial(journal.settle, MAX_WRITE_SECONDS)).function
        return lambda: CALL_THREADS.start(write, lambda _: None)

    def pending(
        self, config: FlowConfig, response: type | None, metadata: type | None
    ) -> Flow[None]:
        """Emit the operations of this server that were declared with these classes.

        Those with a name come first, then those whose start has to be repeated; where that fails,
        with the error. A start that is too old to be repeated is left out, which is logged: it
        might start twice.

        Raises:
            JournalError: The journal cannot be read.
        """
        oldest = datetime.now(UTC) - REPEATABLE
        pending = functools.partial(self._journal.pending, server=self._address)
        entries: list[Entry] = yield RunBlocking(pending)
        asked = message_name(response), message_name(metadata)
        everything = response is Any and metadata is Any
        wanted = [one for one in entries if everything or (one.response, one.metadata) == asked]
        for entry in sorted(wanted, key=lambda one: not one.name):
            if entry.name:
                named = Operation(name=entry.name)
                yield Emit(KnownOperation(operation=named, request_id=entry.request_id))
            elif entry.started < oldest:
                log_forgotten(entry.target, entry.request_id)
            else:
                yield Emit((yield from self._repeated(config, entry)))

    def _repeated(self, config: FlowConfig, entry: Entry) -> Flow[KnownOperation]:
        try:
            reply = yield from single(config, self._again(entry))
        except (CallError, JournalError) as exc:
            return KnownOperation(operation=Operation(), error=exc)
        operation = read(reply)
        if operation.name:
            named = functools.partial(self._journal.named, within=MAX_WRITE_SECONDS)
            ids = entry.request_id, operation.name
            yield _write(entry.request_id, functools.partial(named, *ids))
        return KnownOperation(operation=operation, request_id=entry.request_id)

    def _again(self, entry: Entry) -> StartRequest:
        try:
            message = Any(entry.message_type, loads(entry.message.encode()))
        except (ValueError, LroError) as exc:
            text = f"the file is damaged: the message of {entry.request_id} is none: {exc}"
            raise JournalError(self._journal.path, text) from exc
        return StartRequest(target=entry.target, message=message, request_id=entry.request_id)

    def _entry(self, request: StartRequest, response: type | None, metadata: type | None) -> Entry:
        try:
            message, message_type = self._noted(request.message)
        except DeclarationError:
            raise
        except LroError as exc:
            raise DeclarationError("message", str(exc)) from exc
        except (TypeError, ValueError) as exc:
            raise DeclarationError("message", f"has no JSON: {exc}") from exc
        return Entry(
            request_id=request.request_id,
            server=self._address,
            target=request.target,
            message=message,
            message_type=message_type,
            response=message_name(response),
            metadata=message_name(metadata),
            started=datetime.now(UTC),
        )

    def _noted(self, message: object) -> tuple[str, str]:
        types = self._types
        if isinstance(message, Any):
            packed = message
        elif isinstance(message, Mapping):
            packed = Any("", dict(message))
        elif types.knows(type(message)):
            packed = types.pack(message)
        else:
            packed = Any("", types.dump(message))
        return dumps(cast(Json, types.readable(packed).payload)).decode(), packed.type_url


class _JournaledStart(StartObserver):
    """A start in a journal; ``new`` says that no earlier call has written it."""

    def __init__(self, request: StartRequest, journal: Journal, entry: Entry, *, new: bool) -> None:
        super().__init__(request)
        self.request_id = entry.request_id
        self._journal = journal
        self._entry = entry
        # An earlier call, here or in another process, may have started it.
        self._unsure = not new

    def failed(self, error: CallError) -> None:
        self._unsure |= error.code in _UNSURE

    def dropped(self) -> Flow[None]:
        if not self._unsure:
            drop = functools.partial(self._journal.dropped, within=MAX_WRITE_SECONDS)
            yield _write(self.request_id, functools.partial(drop, self.request_id))

    def named(self, name: str) -> Flow[None]:
        if name:
            yield _write(name, functools.partial(self._name, name))

    def _name(self, name: str) -> None:
        if not self._journal.named(self.request_id, name, within=MAX_WRITE_SECONDS):
            # The same start was made twice at once, and the other call was refused and dropped it.
            self._journal.begin(attrs.evolve(self._entry, name=name))


def _write(about: str, write: Callable[[], object]) -> RunBlocking:
    """A write after the fact, which never raises: it must hide nothing that is here already.

    An operation that could not be written is found again by ``pending()``, where it starts nothing
    twice.
    """

    def function() -> None:
        try:
            write()
        except JournalError as exc:
            log.warning("%s: not noted: %s", about, exc)

    return RunBlocking(function)
