"""Who may see what: the verbs on offer, the application's say, and whose operations are whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from lro._errors import OperationNotFound, PermissionDenied
from lro._faults import MethodNotSupported, NameRefused
from lro._ports import Store
from lro._record import Record

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
    """The application's say on who may do what. Raise :class:`PermissionDenied` to refuse."""

    def __call__(self, caller: str, verb: str, name: str) -> None:
        """``verb`` is an RPC's name, or a method's full name where it is started.

        ``name`` is the operation's, or the parent's for List and starts. BatchGet and Watch read
        operations: they ask for GetOperation, once for each name.
        """
        ...


class Access:
    """What callers may ask of a service, and what they can see of its store."""

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
        self._authorize = authorize
        self._owner_only = owner_only

    def require(self, verb: str) -> None:
        """Do nothing for a verb that is offered.

        Raises:
            MethodNotSupported: It is switched off (spec §3.9).
        """
        if verb not in self._verbs:
            raise MethodNotSupported(verb)

    def permit(self, caller: str, verb: str, name: str) -> None:
        """Do nothing if the application's hook lets this pass, which may raise what it likes."""
        if self._authorize is not None:
            self._authorize(caller, verb, name)

    def permit_each(self, caller: str, verb: str, names: Sequence[str]) -> None:
        """The same for several names.

        Raises:
            NameRefused: One of them is refused; the error says which.
        """
        for name in names if self._authorize is not None else ():
            try:
                self.permit(caller, verb, name)
            except PermissionDenied as exc:
                if type(exc) is not PermissionDenied:
                    raise  # an error of the application's own, with what it has to say
                raise NameRefused(name, exc.description) from exc

    def visible(self, name: str, caller: str) -> Record:
        """The record of an operation that this caller can see.

        Raises:
            OperationNotFound: There is no such operation, or it is somebody else's.
        """
        record = self._store.get(name)
        mine = not self._owner_only or record.caller == caller
        if not mine or not record.visible(self._store.now()):
            raise OperationNotFound(name)
        return record

    def seen(self, names: Sequence[str], caller: str) -> Mapping[str, Record]:
        """Those of these records that this caller can see, by name, in one read."""
        found = self._store.find(names)
        now = self._store.now()
        return {
            record.name: record
            for record in found
            if record.visible(now) and (not self._owner_only or record.caller == caller)
        }
