"""Access control: which verbs callers may use, and which operations they can see.

A hook is a plain function or a coroutine function of the application. Flows (see
:mod:`lro._engine.flow`) call hooks. A flow in a thread calls a plain function in that thread. A
flow on an event loop calls a plain function in another thread, because the function may block.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import inspect
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import CoroutineType, NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    Final,
    Protocol,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs

from lro._base.arguments import (
    check,
    check_function,
    check_texts,
    contained,
    failed,
    is_coroutine_function,
    needs,
    passes,
)
from lro._base.by_fields import ByFields
from lro._base.errors import (
    DeclarationError,
    HookFailed,
    InvalidArgument,
    LroError,
    MethodNotSupported,
    NameRefused,
    OperationNotFound,
    PermissionDenied,
    got,
    one_line,
)
from lro._engine.flow import Flow, FlowStep, MayBlock, Question, on_loop, read, run
from lro._engine.store_port import Store
from lro._model.description import NOWHERE, Place
from lro._model.operation import Operation, Record, check_name

_REFUSED: Final = "is refused by the method"


class Hook:
    """A function of the application that a flow calls, such as ``authenticate`` or ``authorize``.

    ``awaited`` is true for a coroutine function, which only an event loop can call.
    ``needs_native`` is true if the hook needs a second argument: the server's own request object.

    Raises:
        DeclarationError: The hook cannot be called.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        check_function(name, function)
        self.name = name
        self.awaited: bool = is_coroutine_function(function)
        self.needs_native: bool = needs(function, 2)
        self._function: Callable[..., Any] = function

    def ask(self, *arguments: object) -> Flow[object]:
        """Call the hook, and return its result.

        Errors of the hook propagate, except errors that would stop a server, such as SystemExit.

        Raises:
            HookFailed: The hook raised an error that would stop a server.
        """
        if self.awaited:
            return (yield Question(self.name, functools.partial(self._await, arguments)))
        return (yield application_call(self.name, self._function, *arguments))

    async def _await(self, arguments: tuple[object, ...]) -> object:
        import asyncio

        # The hook runs in a task of its own, so that the hook cannot cancel the task that awaits
        # it. If the awaiting task is cancelled, asyncio cancels the hook's task, too, and this
        # await lasts until the hook's task ends.
        waiting, context = asyncio.current_task(), contextvars.copy_context()
        loop = asyncio.get_running_loop()
        try:
            found, error = await loop.create_task(self._answer(arguments), context=context)
        except asyncio.CancelledError as exc:
            if waiting is not None and waiting.cancelling():
                raise
            raise failed(self.name, exc) from exc
        for variable, value in context.items():  # keep the values that the hook has set
            variable.set(value)
        if error is not None:
            raise error
        return found

    async def _answer(self, arguments: tuple[object, ...]) -> tuple[object, BaseException | None]:
        import asyncio

        try:
            return await self._function(*arguments), None
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # not raised here: a task that raises SystemExit ends its loop
            return None, exc if passes(exc) else failed(self.name, exc)

    def check_plain(self, where: str) -> None:
        """Check that a hook is a plain function.

        Raises:
            DeclarationError: The hook is a coroutine function, and ``where`` has no event loop.
        """
        wanted = f"a plain function, since {where} has no event loop that could await it"
        check(self.name, self._function, wanted, fine=not self.awaited)


def application_call(name: str, function: Callable[..., object], *arguments: object) -> MayBlock:
    """Return the flow step that calls a plain function of the application by :func:`contained`."""
    return MayBlock(functools.partial(contained, name, function, *arguments))


def _mistake(name: str, found: object, wanted: str) -> HookFailed:
    """Return the error for a hook that returned a value other than ``wanted``."""
    text = f"must return {wanted}, got {got(found)}"
    if type(found) is CoroutineType:
        found.close()  # else Python warns that the coroutine was never awaited
    return HookFailed(name, text)


_NAME: Final = "a text, a whole number, or None for a caller without a name"
_LATER: Final = (Awaitable, Iterator, AsyncIterator)
"""Classes of results from which the framework takes the caller's name later."""


def caller_hook(name: str, function: Callable[..., object]) -> Hook:
    """Return the hook for a function that returns the caller's name.

    Raises:
        DeclarationError: It cannot be called, or its annotation has a result that is not a name.
    """
    hook = Hook(name, function)
    annotation = _annotated_result(function)
    if _never_a_name(annotation):
        text = f"must return {_NAME}, but its annotation says {got(annotation)}"
        raise DeclarationError(name, text)
    return hook


def _annotated_result(function: Any) -> object:
    """Return the annotation of a function's result; ``Any`` if there is none, or it is unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type):
        made: object = function.__new__
        return function if made is object.__new__ else Any
    plain = function if inspect.isroutine(function) else type(function).__call__
    if hasattr(plain, "__wrapped__"):  # the decorator may return something else
        return Any
    try:
        said = {"return": inspect.get_annotations(plain).get("return", Any)}
        names = inspect.unwrap(plain).__globals__
        return get_type_hints(SimpleNamespace(__annotations__=said), names)["return"]
    except Exception:  # the annotation is only for type checkers
        return Any


def _never_a_name(annotation: object) -> bool:
    """Return True if an annotation has a class whose objects are never names of callers."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_never_a_name(one) for one in get_args(annotation))
    kind = annotation if origin is None else origin
    if kind is Any or not isinstance(kind, type):
        return False
    if kind is NoneType or issubclass(kind, _LATER):
        return False
    return kind is bool or not any(
        issubclass(kind, known) or issubclass(known, kind) for known in (str, int)
    )


def name_of_caller(hook: str, found: object) -> str:
    """Return the caller's name, from the value that the application's function ``hook`` returned.

    None becomes the empty text, and a whole number becomes its digits.

    Raises:
        HookFailed: The value is neither a text, nor a whole number, nor None.
    """
    name = "" if found is None else _name_in(found)
    if name is None:
        raise _mistake(hook, found, _NAME)
    return name


def _name_in(found: object) -> str | None:
    """Return the name in a text or a whole number; None for any other value."""
    kind, value = type(found), cast("Any", found)  # an object may lie about __class__
    if issubclass(kind, str):
        return str.__str__(value)  # a subclass of str may compare equal to any text
    if issubclass(kind, int) and kind is not bool:
        with contextlib.suppress(ValueError):  # Python does not write thousands of digits
            return int.__repr__(value)
    return None


class Operator(enum.Enum):
    """The class of :data:`lro.OPERATOR`, for annotations."""

    OPERATOR = "operator"


OPERATOR: Final = Operator.OPERATOR
"""The ``caller`` of a call that an operator makes in this process.

The operator sees and may change all operations: the hooks are not called, and ``owner_only`` does
not apply.
"""
Caller: TypeAlias = str | int | Operator
"""A caller: a name, which a whole number gives by its digits, or ``lro.OPERATOR``."""


def caller_given(caller: Caller) -> str | None:
    """Return the name of the caller of a verb; None for an operator.

    Raises:
        InvalidArgument: The caller is None, or of another wrong type. None is often the key of a
            visitor who is not signed in, and must not stand for an operator.
    """
    return None if caller is OPERATOR else starter_given(caller)


def starter_given(caller: object) -> str:
    """Return the name of the caller of a start, who cannot be an operator.

    Raises:
        InvalidArgument: As for :func:`caller_given`, or the caller is an operator.
    """
    name = _name_in(caller)
    if name is not None:
        return name
    wanted = f"must be a text or a whole number, got {got(caller)}"
    if caller is None:
        wanted += '; a caller without a name is "", and an operator of this process lro.OPERATOR'
    elif caller is OPERATOR:
        wanted += ': an operation belongs to the caller of this name, or to ""'
    raise InvalidArgument("caller", wanted)


def ask_caller(hook: Hook, headers: Mapping[str, str], native: object) -> Flow[str]:
    """Call the hook ``authenticate``, and return the caller's name.

    ``native`` is the server's own request object, for a hook that needs a second argument.

    Raises:
        HookFailed: As for :func:`name_of_caller`.
    """
    found = yield from hook.ask(*((headers, native) if hook.needs_native else (headers,)))
    return name_of_caller(hook.name, found)


def ask_permission(hook: Hook, caller: str, verb: str, name: str) -> Flow[None]:
    """Call the hook ``authorize``, which returns None or True to allow the caller's request.

    Raises:
        PermissionDenied: The hook returns False.
        HookFailed: The hook returns any other value.
    """
    found = yield from hook.ask(caller, verb, name)
    if found is False:
        raise PermissionDenied()
    if found is not None and found is not True:
        raise _mistake(hook.name, found, "None or True to allow, False to forbid")


def ask_validity(validate: Callable[[Any], object], request: object) -> Flow[None]:
    """Call the method's function ``validate``, which returns None or True to accept the request.

    Raises:
        InvalidArgument: The function returns False, or raises a ValueError, whose text the caller
            gets.
        HookFailed: The function returns any other value.
        BaseException: Other errors of ``validate`` propagate, as for :func:`contained`.
    """
    found = yield application_call("validate", _validated, validate, request)
    if found is False:
        raise InvalidArgument("request", _REFUSED)
    if found is not None and found is not True:
        wanted = "None or True to accept, False to refuse (a ValueError says why)"
        raise _mistake("validate", found, wanted)


def _validated(validate: Callable[[Any], object], request: object) -> object:
    try:
        return validate(request)
    except LroError:  # some LroErrors are ValueErrors, too, but have status codes of their own
        raise
    except ValueError as exc:  # str(exc) may run the application's code, too
        raise InvalidArgument("request", str(exc) or _REFUSED) from exc


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
"""The verbs that a service offers by default: ``INTERFACE``, and the extensions of spec §3.11."""

OPERATOR_VERBS: Final = ("RerunOperation", "InspectOperation", "PauseMethod")
"""The verbs for operators (spec §3.12): callers can use them only if the service offers them.

Only the console uses PauseMethod, which is also the permission to resume a method.
"""


class Authorize(Protocol):
    """The application's function, maybe a coroutine function, that decides who may do what.

    Return None or True to allow a call. Return False or raise :class:`PermissionDenied` to refuse
    it. Any other error refuses the call, too. Any other value is a mistake: the call ends with
    INTERNAL, and the log shows the value.
    """

    def __call__(self, caller: str, verb: str, name: str) -> bool | Awaitable[bool | None] | None:
        """Decide whether a caller may make a call.

        ``verb`` is the name of an RPC, or, for a start, the full name of the method. ``caller`` is
        empty for a caller without a name. ``name`` is the name of the operation. For List and
        starts, it is the name of the parent.

        Some calls ask about a verb of another name, or about several verbs. BatchGet and Watch ask
        about GetOperation, once for each operation. Get and BatchGet with the view FULL also ask
        about InspectOperation, if the service offers that verb. If InspectOperation is refused, the
        reply lacks the fields that are only for operators. A change of the URL that is called at
        the end of an A2A task asks about CancelOperation. A rerun asks about RerunOperation, and
        then about the start, with the caller of the first start. A pause or resume of a method in
        the console asks about PauseMethod; ``name`` is then the full name of the method.
        """
        ...


Staff: TypeAlias = Callable[[str], bool | Awaitable[bool]]
"""The hook ``(caller)`` of a service with ``owner_only``: may the caller see all operations?"""


@attrs.frozen(eq=False, repr=False)
class VisibleRecords(ByFields):
    """The records that a caller can see, by name, and the names whose records were not read."""

    records: Mapping[str, Record]
    rest: Sequence[str] = ()


def check_verbs(verbs: object) -> None:
    """Check that ``verbs`` are names of verbs.

    Raises:
        DeclarationError: One of the texts is not the name of a verb.
    """
    check_texts("verbs", verbs)
    assert isinstance(verbs, Iterable)  # its items are texts
    known = (*VERBS, *OPERATOR_VERBS)
    check("verbs", verbs, f"some of {', '.join(known)}", fine=set(verbs) <= set(known))


class Access:
    """Decides which calls callers may make, and which operations they can see."""

    def __init__(
        self,
        store: Store,
        *,
        verbs: Iterable[str],
        authorize: Authorize | None,
        owner_only: bool,
        staff: Staff | None = None,
    ) -> None:
        self._store = store
        self._verbs = frozenset(verbs) | {"GetOperation"}
        self._hook = None if authorize is None else Hook("authorize", authorize)
        self._staff = None if staff is None else Hook("staff", staff)
        self.owner_only = owner_only
        """True if callers who are not staff see only the operations that they have started."""
        self.asks: bool = self._hook is not None
        """True if ``authorize`` is asked about calls."""
        hooks = (self._hook, self._staff)
        self.immediate: bool = hooks == (None, None) and not store.reads_block
        """True if reading an operation calls no hook and does not block."""

    def check_plain(self, where: str) -> None:
        """Check that ``where``, which has no event loop, can call ``authorize`` and ``staff``.

        Raises:
            DeclarationError: One of the hooks is a coroutine function.
        """
        for hook in (self._hook, self._staff):
            if hook is not None:
                hook.check_plain(where)

    def check_named(
        self,
        where: str,
        authenticate: object,
        option: str = "authenticate",
        none: str = "lambda headers: None",
    ) -> None:
        """Check that an edge identifies callers if the service depends on their names.

        ``where`` is the name of the edge, such as an HTTP server, for the log. ``option`` is the
        edge's option for the function that identifies the caller. ``none`` is Python code for a
        value of that option that gives callers no names.

        If the service has ``authorize`` but not ``owner_only``, missing names only cause a warning
        in the log, because the hook may decide by the verb alone, or by a context variable that a
        middleware has set.

        Raises:
            DeclarationError: ``owner_only`` needs the caller's name, which this edge never has.
        """
        if authenticate is not None:
            return
        if self.owner_only:
            wanted = "is needed, since owner_only goes by the name of the caller"
            instead = f"{option}={none} says that callers here have none"
            raise DeclarationError(option, f"{wanted}; {instead}")
        if self._hook is not None:
            log.warning("%s has no %s: authorize gets no names of callers", where, option)

    def require(self, verb: str) -> None:
        """Check that the service offers a verb.

        Raises:
            MethodNotSupported: The verb is switched off (spec §3.9).
        """
        if verb not in self._verbs:
            raise MethodNotSupported(verb)

    def offers(self, verb: str) -> bool:
        """Return True if the service offers a verb."""
        return verb in self._verbs

    def permit(self, caller: str | None, verb: str, name: str) -> Iterable[FlowStep]:
        """Ask ``authorize`` whether it allows a call.

        Without the hook, every call is allowed. The caller None, an operator, may make every call.

        Raises:
            PermissionDenied, HookFailed: As for :func:`ask_permission`.
        """
        hook = self._hook
        return () if hook is None or caller is None else ask_permission(hook, caller, verb, name)

    def permit_verb(self, caller: str | None, verb: str, name: str) -> Iterable[FlowStep]:
        """Check that a caller may use a verb; the caller None, an operator, may use all verbs.

        Raises:
            MethodNotSupported: The service does not offer the verb.
            PermissionDenied, HookFailed: As for :func:`ask_permission`.
        """
        if caller is not None:
            self.require(verb)
        return self.permit(caller, verb, name)

    def permit_each(
        self, caller: str | None, verb: str, names: Sequence[str], *, refuse: bool = True
    ) -> Flow[Collection[str]]:
        """Ask ``authorize`` about each of these names; return the names that it allows.

        Raises:
            NameRefused: A name is refused, and ``refuse`` is true; the error contains the name.
            HookFailed: The hook failed.
        """
        if self._hook is None or caller is None:
            return frozenset(names)
        # One step for all names, because each step may cost a change of threads.
        asking = _ask_each(self._hook, caller, verb, names, refuse)
        allowed: Collection[str] = yield (
            Question(self._hook.name, functools.partial(on_loop, asking))
            if self._hook.awaited
            else MayBlock(functools.partial(run, asking))
        )
        return allowed

    def inspectable(self, caller: str | None, names: Sequence[str]) -> Flow[Collection[str]]:
        """Return the names of operations whose fields for operators this caller can see."""
        verb = "InspectOperation"  # only a permission: no RPC has this name
        if caller is not None and not self.offers(verb):
            return ()
        return (yield from self.permit_each(caller, verb, names, refuse=False))

    def places(
        self, records: Iterable[Record], inspectable: Collection[str]
    ) -> Mapping[str, Place]:
        """Return the host and process id of each inspectable record's worker, by record name."""
        found = [record for record in records if record.name in inspectable]
        known = self._store.workers() if any(record.owner for record in found) else ()
        workers = {worker.owner: (worker.host, worker.pid) for worker in known}
        return {record.name: workers.get(record.owner, NOWHERE) for record in found}

    def viewer(self, caller: str | None) -> Flow[str | None]:
        """Return None if this caller can see every operation, or else the caller.

        Without ``owner_only`` every caller can, and with it only operators (None) and staff. A
        caller without a name is never staff. If ``staff`` raises an error, the caller is not staff,
        and the log has the error.

        Raises:
            HookFailed: ``staff`` returns neither True nor False, cannot be awaited here, or raises
                an error that would stop a server.
        """
        if not self.owner_only:
            return None
        if self._staff is None or not caller:
            return caller
        try:
            found = yield from self._staff.ask(caller)
        except HookFailed:
            raise
        except Exception:
            log.exception("staff has failed for %s, who is treated as not staff", one_line(caller))
            return caller
        if found is not True and found is not False:
            raise _mistake("staff", found, "True or False")
        return None if found else caller

    def read(self, name: str, viewer: str | None) -> Operation:
        """Return an operation, without a call of a hook.

        ``viewer`` is the result of :meth:`viewer`. Pass the caller itself only if access is
        ``immediate``, and None only if an earlier step has found that the caller can see the
        operation.

        Raises:
            InvalidOperationName: The name is malformed.
            OperationNotFound: As for :meth:`visible_record`.
        """
        check_name(name)
        return self._checked(self._store.get(name), viewer).operation

    def visible_record(self, name: str, caller: str | None) -> Flow[Record]:
        """Return the record of an operation that this caller can see; None can see every operation.

        Raises:
            OperationNotFound: There is no such operation, or it belongs to another caller.
        """
        record: Record | None = None
        with contextlib.suppress(OperationNotFound):
            record = yield from read(self._store, name)
        viewer = caller
        # ``staff`` is asked about missing operations, too, so that the time of the reply does not
        # tell whether an operation of another caller exists.
        if record is None or not self._allows(record, caller):
            viewer = yield from self.viewer(caller)
        if record is None:
            raise OperationNotFound(name)
        return self._checked(record, viewer)

    def _checked(self, record: Record, viewer: str | None) -> Record:
        if not self._allows(record, viewer) or not record.visible(self._store.now()):
            raise OperationNotFound(record.name)
        return record

    def _allows(self, record: Record, viewer: str | None) -> bool:
        return not self.owner_only or viewer in (None, record.caller)

    def visible_records(
        self, names: Sequence[str], viewer: str | None, max_bytes: int
    ) -> VisibleRecords:
        """Read the records of these names that this viewer can see, in one call of the store.

        ``viewer`` is the result of :meth:`viewer`. The records have at most ``max_bytes`` in total,
        unless only one is read. ``rest`` of the result has the names whose records were not read.
        """
        found = self._store.find(names, max_bytes)
        now = self._store.now()
        records = {
            record.name: record
            for record in found.records
            if record.visible(now) and self._allows(record, viewer)
        }
        return VisibleRecords(records, found.rest)


def _ask_each(
    hook: Hook, caller: str, verb: str, names: Sequence[str], refuse: bool
) -> Flow[Collection[str]]:
    allowed = set()
    for name in names:
        try:
            yield from ask_permission(hook, caller, verb, name)
            allowed.add(name)
        except PermissionDenied as exc:
            if not refuse:
                continue
            if type(exc) is not PermissionDenied:
                raise  # an error of the application's own class, with its own text
            raise NameRefused(name, exc.description) from exc
    return allowed
