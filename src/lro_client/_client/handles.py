"""The part of a handle that makes no calls: name, message classes and last known state."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import attrs

from lro import AnyMessage, Empty, InvalidArgument, LroError, Operation, Status, TypeRegistry
from lro.errors import MessageUnreadable
from lro.types import ErrorInfo, Json, full_name, simple_name
from lro_client._addresses import server_of
from lro_client._arguments import check_class, check_name
from lro_client._client.state import ClientState
from lro_client._errors import DecodingError, OperationCancelled, OperationFailed, again
from lro_client._tracing import Trace, log_ended

if TYPE_CHECKING:
    from lro_client.progress._reading import Progress

Resp = TypeVar("Resp")
Meta = TypeVar("Meta")

EMPTY: Final = "google.protobuf.Empty"


@attrs.frozen(eq=False, repr=False)
class KnownOperation:
    """An operation, with the trace of its start if this client knows that trace."""

    operation: Operation
    trace: Trace | None = None


class HandleBase(Generic[Resp, Meta]):
    """The part of a handle that makes no calls."""

    __slots__ = (
        "__weakref__",
        "_error",
        "_final",
        "_metadata_type",
        "_name",
        "_polls",
        "_response_type",
        "_seen",
        "_state",
        "_trace",
        "_types",
    )

    def __init__(
        self,
        known: KnownOperation,
        *,
        response: type[Resp] | None,
        metadata: type[Meta] | None,
        state: ClientState,
    ) -> None:
        self._name = known.operation.name
        self._seen = known.operation
        self._final: Operation | None = None
        """The final state, which no other thread's older answer may replace (spec §2.9)."""
        self._response_type = response
        self._metadata_type = metadata
        self._state = state
        self._types = state.types
        self._trace = known.trace
        self._polls = 0
        self._error: Exception | None = None

    @property
    def name(self) -> str:
        """The name of the operation, with which you can find it again."""
        return self._name

    @property
    def operation(self) -> Operation:
        """The last known state, as the server sent it."""
        return self._final or self._seen

    @property
    def done(self) -> bool:
        """True if the last known state is final."""
        return self.operation.done

    @property
    def state(self) -> str:
        """The last known state: IN_PROGRESS, SUCCEEDED, FAILED or CANCELLED."""
        return self.operation.state

    @property
    def token(self) -> str:
        """A short JSON text with which any client, or the command line, can find the operation.

        The text has the operation's name, the server's address and class names, but no secret.

        Raises:
            InvalidArgument: The operation has no name.
        """
        from lro_client._tokens import token_of  # imported late, as most programs use no tokens

        return token_of(
            self.name,
            server=self._state.address,
            response=self._response_type,
            metadata=self._metadata_type,
            trace=self._trace.text if self._trace else "",
        )

    @property
    def metadata(self) -> Meta | None:
        """The metadata of the last known state, or None.

        Raises:
            DecodingError: The metadata is not of the declared class. See ``operation.metadata``.
        """
        return _decode(
            self.name, "metadata", self.operation.metadata, self._metadata_type, self._types
        )

    @property
    def response(self) -> Resp | None:
        """The response of the last known state, or None.

        Raises:
            DecodingError: The response is not of the declared class. See ``operation.response``.
        """
        return self._decoded(self.operation.response)

    def _fits(self, operation: Operation) -> bool:
        """Return True if the result of an operation is of the declared class."""
        if isinstance(operation.result, Status):
            return True
        if operation.result is None or not operation.result.type_url:
            return False
        try:
            self._decoded(operation.result)
        except DecodingError:
            return False
        return True

    def _decoded(self, result: AnyMessage | None) -> Resp | None:
        return _decode(self.name, "response", result, self._response_type, self._types)

    def _take_state(self, operation: Operation) -> Operation:
        if self.operation.done:
            return self.operation
        self._seen, self._error = operation, None
        if operation.done:
            self._final = operation
            log_ended(operation, self._polls)
            if self._trace is not None:
                self._trace.ended(operation, self._polls)
        return operation

    def _check_exists(self) -> None:
        """Refuse an operation without a name, which a validate-only start returns."""
        if not self.name:
            check_name(self.name)

    def _give_up(self, error: Exception) -> None:
        self._error = error

    def _count_polls(self, times: int | None = None) -> None:
        if times is None:  # None: one call is about to be made
            self._check_exists()
        self._polls += 1 if times is None else times

    def _result(self) -> Resp:
        operation = self.operation
        if not operation.done and self._error is not None:
            raise again(self._error)  # a copy, because other waiters raise the error too
        if isinstance(operation.result, Status):
            cancelled = operation.state == "CANCELLED"
            raise (OperationCancelled if cancelled else OperationFailed)(operation)
        result = operation.result
        checked = (
            not operation.name and isinstance(result, AnyMessage) and result.type_name == EMPTY
        )
        if checked and self._response_type is not Empty:
            return cast(Resp, None)  # a validate-only call has no response
        return cast(Resp, self._decoded(result))  # None if the service has no result (spec §2.5)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.operation.state}>"


class Update(Generic[Meta]):
    """A changed state of an operation."""

    def __init__(self, handle: HandleBase[Any, Meta], operation: Operation) -> None:
        self._handle = handle
        self.operation = operation
        self.error: Exception | None = handle._error
        """The reason why the operation cannot be watched any more, or None."""

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._handle.name

    @property
    def progress(self) -> Progress | None:
        """The progress, read from common fields of metadata, or None without progress."""
        from lro_client.progress._reading import Progress, progress_of  # imported only if needed

        try:
            metadata: object = self.metadata  # a typed message has the zeros that JSON omits
        except DecodingError:
            metadata = self.operation.metadata
        found = progress_of(metadata, self._handle._types)
        over = self.operation.state == "SUCCEEDED"
        return attrs.evolve(found or Progress(), fraction=1.0) if over else found

    def __repr__(self) -> str:
        return f"Update({self.operation!r})"

    @property
    def done(self) -> bool:
        """True if the operation has ended."""
        return self.operation.done

    @property
    def state(self) -> str:
        """IN_PROGRESS, SUCCEEDED, FAILED or CANCELLED."""
        return self.operation.state

    @property
    def metadata(self) -> Meta | None:
        """The metadata of this state, or None.

        Raises:
            DecodingError: The metadata is not of the declared class.
        """
        handle = self._handle
        return _decode(
            handle.name, "metadata", self.operation.metadata, handle._metadata_type, handle._types
        )


M = TypeVar("M")


def _decode(
    name: str, role: str, packed: AnyMessage | None, cls: type[M] | None, types: TypeRegistry
) -> M | None:
    if packed is None:
        return None
    if cls is None:
        raise DecodingError(name, f"no class was given for its {role}", packed)
    if packed.type_name == types.name_of(ErrorInfo):
        info = types.readable(packed).payload
        if isinstance(info, dict) and info.get("reason") == MessageUnreadable.reason:
            raise DecodingError(name, f"the server cannot read its {role}", packed)  # §1.14(3)
    if cls is AnyMessage:  # the caller wants the packed message
        return cast(M, packed)
    if cls is dict:
        return cast(M, _fields(name, role, packed, types))
    known = types.knows(cls)
    if not known and packed.type_name.rpartition(".")[2] != simple_name(cls):
        wanted = f"its {role} must be a {cls.__name__}, got {packed.type_name or 'nothing'}"
        raise DecodingError(name, wanted, packed)
    try:
        if not known and isinstance(packed.payload, bytes):
            types, known = _called(cls, packed.type_name), True  # type: ignore[arg-type]  # a class
        if known:
            _check_values(packed, types)
            return types.unpack(packed, cls)
        return types.load(cast(Json, packed.payload), cls, strict=False)
    except Exception as exc:  # the codec of another library may raise anything
        raise DecodingError(name, f"its {role} does not fit: {exc}", packed) from exc


def _fields(name: str, role: str, packed: AnyMessage, types: TypeRegistry) -> dict[str, Json]:
    """Return a message as a JSON object without its type. Wrap other JSON in ``{"value": ...}``."""
    try:
        _check_values(packed, types)
        payload = copy.deepcopy(types.json_payload(packed))
    except LroError as exc:
        way = "give a class for it, or a registry that knows one: Client(types=...)"
        text = f"its {role} is in binary form: {exc}; {way}"
        raise DecodingError(name, text, packed) from exc
    return payload if isinstance(payload, dict) else {"value": payload}


def _check_values(packed: AnyMessage, types: TypeRegistry) -> None:
    """Refuse a binary payload that would need much memory. JSON was checked earlier.

    Raises:
        InvalidArgument: The payload has too many values.
        UnknownType: The message's type is not registered.
    """
    if isinstance(packed.payload, bytes) and packed.payload:
        from lro.protobuf import check_values  # needs an extra, as binary payloads do

        check_values(packed.payload, types.binary.message_class(packed.type_name).DESCRIPTOR)


@functools.lru_cache(maxsize=256)
def _called(cls: type, full_name: str) -> TypeRegistry:
    # A class without a full name gets the full name that the server sends.
    types = TypeRegistry()
    types.register(cls, full_name)
    return types


def register(
    types: TypeRegistry,
    *,
    response: type | None,
    metadata: type | None,
    message: type | None = None,
) -> None:
    """Register message classes that have a full name. Other classes are matched by simple name.

    Raises:
        DeclarationError: A class is not a message class, or has a field that no message can have.
    """
    check_class("response", response, types)
    check_class("metadata", metadata, types)
    for cls in (message, response, metadata):
        if cls in (None, AnyMessage, dict) or types.knows(cls):
            continue
        if full_name(cls) is not None:
            types.register(cls)


def known(operation: Operation | str, address: str) -> KnownOperation:
    """Return the operation of a handle, given a state, a name or a token.

    ``address`` is the address of the client's server, or empty.

    Raises:
        InvalidArgument: The token is not valid, or belongs to another server.
        DeclarationError: The name is not valid.
    """
    if isinstance(operation, Operation):
        return KnownOperation(operation)
    if not (isinstance(operation, str) and operation.lstrip().startswith("{")):
        check_name(operation)
        return KnownOperation(Operation(name=operation))
    from lro_client._tokens import read_token

    token = read_token(operation)
    if token.server and address and server_of(token.server) != server_of(address):
        # This server may have a different operation of the same name.
        wrong = (
            f"is of an operation on {token.server!r:.200}, and this client asks {address!r:.200}"
        )
        way = f"if they are the same service, give its name instead: {token.name!r:.200}"
        raise InvalidArgument("token", f"{wrong}; {way}")
    trace = Trace.of_token(token.trace) if token.trace else None
    return KnownOperation(Operation(name=token.name), trace)
