"""What a handle holds without asking anybody: a name, the message classes, the last state seen."""

from __future__ import annotations

import functools
from typing import Any as Anything
from typing import Final, Generic, TypeVar, cast

from lro import Any, Empty, Operation, Status, TypeRegistry, declared_name
from lro_client._errors import DecodingError, OperationCancelled, OperationFailed

Resp = TypeVar("Resp")
Meta = TypeVar("Meta")

EMPTY: Final = "google.protobuf.Empty"


class HandleBase(Generic[Resp, Meta]):
    """The cached half of an operation handle. Nothing here does I/O."""

    def __init__(
        self,
        operation: Operation,
        *,
        response: type[Resp] | None,
        metadata: type[Meta] | None,
        types: TypeRegistry,
    ) -> None:
        self._name = operation.name
        self._operation = operation
        self._response_type = response
        self._metadata_type = metadata
        self._types = types

    @property
    def name(self) -> str:
        """The operation's name: all that is needed to find it again."""
        return self._name

    @property
    def operation(self) -> Operation:
        """The last state seen, as the server sent it."""
        return self._operation

    @property
    def done(self) -> bool:
        """Whether the last state seen is a final one."""
        return self._operation.done

    @property
    def metadata(self) -> Meta | None:
        """The metadata of the last state seen; None where the server sent none.

        Raises:
            DecodingError: It is not of the declared type; ``operation.metadata`` has it raw.
        """
        return _decode(
            self.name, "metadata", self._operation.metadata, self._metadata_type, self._types
        )

    def _seen(self, operation: Operation) -> Operation:
        if operation.done or not self._operation.done:  # a final state stays (spec §2.9)
            self._operation = operation
        return self._operation

    def _result(self) -> Resp:
        operation = self._operation
        if isinstance(operation.result, Status):
            cancelled = operation.state == "CANCELLED"
            raise (OperationCancelled if cancelled else OperationFailed)(operation)
        result = operation.result
        checked = not operation.name and isinstance(result, Any) and result.type_name == EMPTY
        if checked and self._response_type is not Empty:
            return cast(Resp, None)  # a validate-only call has checked, and done nothing
        found = _decode(self.name, "response", result, self._response_type, self._types)
        return cast(Resp, found)  # None where a service gives no result (spec §2.5)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self._operation.state}>"


class Update(Generic[Meta]):
    """One changed state of an operation: its metadata decoded, and the whole."""

    def __init__(self, handle: HandleBase[Anything, Meta], operation: Operation) -> None:
        self._handle = handle
        self.operation = operation

    def __repr__(self) -> str:
        return f"Update({self.operation!r})"

    @property
    def done(self) -> bool:
        """Whether the operation is over."""
        return self.operation.done

    @property
    def metadata(self) -> Meta | None:
        """The metadata of this state; None where the server sent none.

        Raises:
            DecodingError: It is not of the declared type.
        """
        handle = self._handle
        return _decode(
            handle.name, "metadata", self.operation.metadata, handle._metadata_type, handle._types
        )


M = TypeVar("M")


def _decode(
    name: str, role: str, packed: Any | None, cls: type[M] | None, types: TypeRegistry
) -> M | None:
    if packed is None:
        return None
    if cls is None:
        raise DecodingError(name, f"no class was given for its {role}", packed)
    known = types.knows(cls)
    if not known and packed.type_name.rpartition(".")[2] != cls.__name__:
        wanted = f"its {role} must be a {cls.__name__}, got {packed.type_name or 'nothing'}"
        raise DecodingError(name, wanted, packed)
    try:
        if known:
            return types.unpack(packed, cls)
        if isinstance(packed.payload, bytes):
            named: TypeRegistry = _called(cls, packed.type_name)  # type: ignore[arg-type]  # a class
            return named.unpack(packed, cls)
        return types.load(packed.payload, cls, strict=False)
    except Exception as exc:  # the codec of another library raises what it likes
        raise DecodingError(name, f"its {role} does not fit: {exc}", packed) from exc


@functools.lru_cache(maxsize=256)
def _called(cls: type, full_name: str) -> TypeRegistry:
    # For a class without a name: it has the one that the server gives it.
    types = TypeRegistry()
    types.register(cls, full_name)
    return types


def _is_named(cls: type) -> bool:
    # Protobuf's classes have their names in their descriptors.
    return declared_name(cls) is not None or hasattr(cls, "DESCRIPTOR")


def register(types: TypeRegistry, *classes: type | None) -> None:
    """Make message classes known that have a full name; others go by their simple name.

    Raises:
        DeclarationError: A class has a field that no message can have.
    """
    for cls in classes:
        if cls is not None and _is_named(cls):
            types.register(cls)
