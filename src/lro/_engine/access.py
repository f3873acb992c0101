"""Access of callers: the verbs offered, ``authorize``, and whose operations are whose."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import attrs

from lro._base.errors import (
    DeclarationError,
    MethodNotSupported,
    NameRefused,
    OperationNotFound,
    PermissionDenied,
)
from lro._engine.hooks import Flow, Hook, Question, ask_permission, on_loop
from lro._engine.store_port import Store
from lro._model.record import Record

log = logging.getLogger("lro")

INTERFACE: Final = (
    "GetOperation",
    "ListOperations",
    "DeleteOperation",
    "CancelOperation",
    "WaitOperation",
)
"""The five RPCs of google.longrunning."""

VERBS: Final = (*INTERFACE, "BatchGetOperations", "WatchOperations")
"""All that a service offers: the five, and the extensions of spec §3.11."""


class Authorize(Protocol):
    """The application's decision on who may do what: a plain function, or a coroutine function.

    Return None or True to allow. Return False or raise :class:`PermissionDenied` to refuse; any
    other error that is raised refuses too. Any other value is a mistake: the call ends with
    INTERNAL, and the log says what was returned.
    """

    def __call__(self, caller: str, verb: str, name: str) -> bool | Awaitable[bool | None] | None:
        """``verb`` is an RPC's name, or a method's full name where it is started.

        ``caller`` is empty for a caller without a name. ``name`` is the operation's, or the
        parent's for List and starts. BatchGet and Watch read operations: they ask for
        GetOperation, once for each name.
        """
        ...


@attrs.frozen
class Seen:
    """The records, by name, that a caller can see; and the names that were not looked at."""

    records: Mapping[str, Record]
    rest: Sequence[str] = ()


class Access:
    """Decides what callers may ask of a service, and what they can see of its store."""

    def __init__(
        self,
        store: Store,
        *,
        verbs: Iterable[str],
        authorize: Authorize | None,
        owner_only: bool,
    ) -> None:
        self._store = store
        self._verbs = frozenset(verbs) | {"GetOperation"}
        self._hook = None if authorize is None else Hook("authorize", authorize)
        self._owner_only = owner_only
        self.hook_blocks = self._hook is not None and not self._hook.awaited
        """Whether ``authorize`` may block the thread that asks it."""
        self.reads_block = store.reads_block or self.hook_blocks
        """Whether an event loop must leave verbs that read to a thread."""
        self.writes_block = store.writes_block or self.hook_blocks
        """The same of verbs that write."""
        self.immediate = self._hook is None and not store.reads_block
        """Whether an operation is read without asking or awaiting anything."""

    def check_plain(self, where: str) -> None:
        """Do nothing if ``where``, which has no event loop, can ask ``authorize``.

        Raises:
            DeclarationError: It is a coroutine function.
        """
        if self._hook is not None:
            self._hook.check_plain(where)

    def check_named(self, where: str, authenticate: object) -> None:
        """Do nothing for an edge that gives callers names, or of a service that asks for none.

        An ``authorize`` that is asked about callers without a name is only warned of in the log:
        it may go by the verb alone, or by a context variable that a middleware has set.

        Raises:
            DeclarationError: ``owner_only`` goes by the caller's name, which this edge never has.
        """
        if authenticate is not None:
            return
        if self._owner_only:
            wanted = "is needed, since owner_only goes by the name of the caller"
            instead = "authenticate=lambda headers: None says that callers here have none"
            raise DeclarationError("authenticate", f"{wanted}; {instead}")
        if self._hook is not None:
            log.warning("%s has no authenticate: authorize gets no names of callers", where)

    def require(self, verb: str) -> None:
        """Do nothing for a verb that is offered.

        Raises:
            MethodNotSupported: It is switched off (spec §3.9).
        """
        if verb not in self._verbs:
            raise MethodNotSupported(verb)

    def permit(self, caller: str, verb: str, name: str) -> Flow[None]:
        """Do nothing if ``authorize`` allows this, which may raise what it likes.

        Raises:
            PermissionDenied, HookFailed: As for :func:`ask_permission`.
        """
        if self._hook is not None:
            yield from ask_permission(self._hook, caller, verb, name)

    def permit_each(self, caller: str, verb: str, names: Sequence[str]) -> Flow[None]:
        """Do nothing if ``authorize`` allows this for each of these names.

        Raises:
            NameRefused: One of them is refused; the error says which.
        """
        if self._hook is None:
            return
        asking = _ask_each(self._hook, caller, verb, names)
        if self._hook.awaited:
            # All in one visit to the event loop, or each would cost a change of threads.
            ask = functools.partial(on_loop, asking, blocks=False)
            yield Question(self._hook.name, ask)
        else:
            yield from asking

    def visible(self, name: str, caller: str) -> Record:
        """Return the record of an operation that this caller can see.

        Raises:
            OperationNotFound: There is no such operation, or it belongs to another caller.
        """
        record = self._store.get(name)
        mine = not self._owner_only or record.caller == caller
        if not mine or not record.visible(self._store.now()):
            raise OperationNotFound(name)
        return record

    def seen(self, names: Sequence[str], caller: str, max_bytes: int) -> Seen:
        """Read those of these records that this caller can see, in one call of the store.

        They have at most ``max_bytes`` together, or it is only one: the rest is left.
        """
        found = self._store.find(names, max_bytes)
        now = self._store.now()
        records = {
            record.name: record
            for record in found.records
            if record.visible(now) and (not self._owner_only or record.caller == caller)
        }
        return Seen(records, found.rest)


def _ask_each(hook: Hook, caller: str, verb: str, names: Sequence[str]) -> Flow[None]:
    for name in names:
        try:
            yield from ask_permission(hook, caller, verb, name)
        except PermissionDenied as exc:
            if type(exc) is not PermissionDenied:
                raise  # an error of the application's own, with what it has to say
            raise NameRefused(name, exc.description) from exc
