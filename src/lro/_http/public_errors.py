"""Errors as callers get them, over HTTP and gRPC alike (spec §6.2, §12.4)."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final, TypeVar

import attrs

from lro._base.details import PACKAGE, ErrorInfo
from lro._base.errors import LroError, StatusError
from lro._base.status import Code, Status
from lro._engine.limits import size_of
from lro._messages.registry import TypeRegistry

log = logging.getLogger("lro")

M = TypeVar("M")

MAX_TEXT: Final = 4000
"""Characters of the message of an error that is sent, and of each text in its details."""

MAX_DETAILS: Final = 128 * 1024
"""Bytes of all details of an error that is sent: room for an ErrorInfo at least."""

_DEFECTS: Final = frozenset({Code.OK, Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS})
"""Codes that mean a fault of the server; OK is not a code of an error."""


@attrs.frozen
class PublicError:
    """An error that may be sent to a caller, and its status."""

    error: LroError
    status: Status


def public_error(error: Exception, types: TypeRegistry, domain: str, *, asked: str) -> PublicError:
    """The form of an error that a caller gets, with its details.

    A fault of the server goes into the log: an exception that is not an :class:`LroError`, or one
    of certain codes. ``asked`` is what the log calls the request. Callers get the code of such a
    fault and no more, since messages must not disclose internals (spec §6.2). An error that cannot
    be read, such as one whose ``details`` raise, is INTERNAL. Long texts are cut, and
    details that do not fit into :data:`MAX_DETAILS` are left out.
    """
    code, reason = Code.INTERNAL, ""
    if isinstance(error, LroError):
        try:
            status = _bounded(types.status_of(error, domain), types)
        except Exception as exc:  # the application may have written the error
            return internal_error(exc, types, domain, asked=asked)
        code = Code(status.code)
        if code not in _DEFECTS:
            return PublicError(error, status)
        info = detail_of(status, types, ErrorInfo)
        if code is Code.OK:
            code = Code.UNKNOWN
        elif info is not None:
            reason = info.reason
    log.error("%s ended with %s", asked, code.name, exc_info=error)
    return _fault(code, types, domain, reason)


def _bounded(status: Status, types: TypeRegistry) -> Status:
    details, room = [], MAX_DETAILS
    for detail in status.details:
        packed = detail
        if packed.type_name.startswith(PACKAGE):  # a class of the application may check its texts
            packed = attrs.evolve(packed, payload=_cut(packed.payload))
        if packed.type_name == types.name_of(ErrorInfo) and size_of(packed) > room:
            # Every error must have one (spec §6.3(1)).
            info = types.unpack(packed, ErrorInfo)
            packed = types.pack(attrs.evolve(info, metadata={}))
        size = size_of(packed)
        if size <= room:
            details.append(packed)
            room -= size
    return attrs.evolve(status, message=_cut(status.message), details=tuple(details))


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 3] + "..."
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, dict):
        return {_cut(key): _cut(each) for key, each in value.items()}
    return value


def internal_error(
    error: Exception, types: TypeRegistry, domain: str, *, asked: str
) -> PublicError:
    """The error that callers get in place of one that cannot be read; ``error`` says why."""
    log.error("the error of %s cannot be told", asked, exc_info=error)
    return _fault(Code.INTERNAL, types, domain)


def detail_of(status: Status, types: TypeRegistry, cls: type[M]) -> M | None:
    """The first detail of this class; None if there is not one that can be read."""
    for packed in status.details:
        if packed.type_name == types.name_of(cls):
            with contextlib.suppress(LroError):  # the application may have packed it
                return types.unpack(packed, cls)
    return None


def _fault(code: Code, types: TypeRegistry, domain: str, why: str = "") -> PublicError:
    fault = StatusError(code, "the server failed internally", why=why)
    return PublicError(fault, types.status_of(fault, domain))
