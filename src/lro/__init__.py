"""Long-running operations for Python: the server core (google.longrunning, AIP-151).

A :class:`Service` turns functions into methods that return an :class:`Operation` at once, keeps the
operations in a store, runs the work on an executor, and serves the five verbs of the interface.

This module has the names that a first server needs. Other names are in modules by subject:
:mod:`lro.errors` has every error class, :mod:`lro.types` message types, :mod:`lro.wire` requests,
responses and their JSON, :mod:`lro.adapters` the interfaces for your own store or executor. Import
stores, executors and edges by module: ``lro.stores.sqlite``, ``lro.executors.threads``,
``lro.asgi``, ``lro.wsgi``, ``lro.grpc``, ``lro.http``.

Each name is loaded when it is first used, so a client does not load the service.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lro import errors as errors
    from lro import types as types
    from lro._base.errors import (
        Cancelled,
        DeclarationError,
        InvalidArgument,
        LroError,
        RetryLater,
        StatusError,
    )
    from lro._base.status import AnyMessage, Code, Status
    from lro._engine.access import OPERATOR, Operator
    from lro._engine.handle import Handle
    from lro._engine.job import Job
    from lro._engine.limits import Limits
    from lro._engine.method_spec import Options
    from lro._engine.methods import Method
    from lro._engine.reporter import Reporter
    from lro._engine.retry import Retry
    from lro._engine.service import Service
    from lro._messages.registry import TypeRegistry
    from lro._messages.schema import Int32, message
    from lro._messages.times import Duration, Timestamp
    from lro._messages.wellknown import Empty, OperationMetadata, Struct
    from lro._model.description import OperationDescription
    from lro._model.operation import Operation, State
else:

    def __getattr__(name: str) -> object:
        """Load a name of this package, or one of its public modules."""
        import importlib

        if name in ("adapters", "errors", "types", "wire"):
            return importlib.import_module(f"lro.{name}")
        from lro._base.late_names import late_names

        return late_names(globals(), _HOMES)(name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


_HOMES: Final = {
    "lro._base.errors": """
        Cancelled DeclarationError InvalidArgument LroError RetryLater StatusError
        """,
    "lro._base.status": "AnyMessage Code Status",
    "lro._engine.access": "OPERATOR Operator",
    "lro._engine.handle": "Handle",
    "lro._engine.job": "Job",
    "lro._engine.limits": "Limits",
    "lro._engine.method_spec": "Options",
    "lro._engine.methods": "Method",
    "lro._engine.reporter": "Reporter",
    "lro._engine.retry": "Retry",
    "lro._engine.service": "Service",
    "lro._messages.registry": "TypeRegistry",
    "lro._messages.schema": "Int32 message",
    "lro._messages.times": "Duration Timestamp",
    "lro._messages.wellknown": "Empty OperationMetadata Struct",
    "lro._model.description": "OperationDescription",
    "lro._model.operation": "Operation State",
}
"""Names, by the module from which they are loaded."""

__all__ = [
    "OPERATOR",
    "AnyMessage",
    "Cancelled",
    "Code",
    "DeclarationError",
    "Duration",
    "Empty",
    "Handle",
    "Int32",
    "InvalidArgument",
    "Job",
    "Limits",
    "LroError",
    "Method",
    "Operation",
    "OperationDescription",
    "OperationMetadata",
    "Operator",
    "Options",
    "Reporter",
    "Retry",
    "RetryLater",
    "Service",
    "State",
    "Status",
    "StatusError",
    "Struct",
    "Timestamp",
    "TypeRegistry",
    "errors",
    "message",
    "types",
]
