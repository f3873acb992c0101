"""What callers are told of an error, whatever edge they call (spec §6.2, §12.4)."""

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
"""Characters of the message of an error as callers are told it, and of each text in details."""

MAX_DETAILS: Final = 128 * 1024
"""Bytes of all details of an error as callers are told it: room for an ErrorInfo at least."""

_DEFECTS: Final = frozenset({Code.OK, Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS})
"""Codes that tell of the server's own fault; OK is no code of an error."""


@attrs.frozen
class PublicError:
    """An error that may be told, and its status."""

    error: LroError
    status: Status


def disclosed(error: Exception, types: TypeRegistry, domain: str, *, asked: str) -> PublicError:
    """An error as callers are told of it, details and all.

    What is the server's own fault, as every exception that is no :class:`LroError`, goes into the
    log; ``asked`` is what the log calls the request. Callers are told its code and no more, since
    messages must not disclose internals (spec §6.2). An error that cannot be told, such as one
    whose ``details`` raise, is INTERNAL. Long texts are cut, and details that do not fit into
    :data:`MAX_DETAILS` are left out.
    """
    code, reason = Code.INTERNAL, ""
    if isinstance(error, LroError):
        try:
            status = _bounded(types.status_of(error, domain), types)
        except Exception as exc:  # the application may have written the error
            return undisclosed(exc, types, domain, asked=asked)
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


def undisclosed(error: Exception, types: TypeRegistry, domain: str, *, asked: str) -> PublicError:
    """What callers are told instead of an error that cannot be told, which ``error`` is why."""
    log.error("the error of %s cannot be told", asked, exc_info=error)
    return _fault(Code.INTERNAL, types, domain)


def detail_of(status: Status, types: TypeRegistry, cls: type[M]) -> M | None:
    """The first detail of this class; None if there is none that can be read."""
    for packed in status.details:
        if packed.type_name == types.name_of(cls):
            with contextlib.suppress(LroError):  # the application may have packed it
                return types.unpack(packed, cls)
    return None


def _fault(code: Code, types: TypeRegistry, domain: str, why: str = "") -> PublicError:
    fault = StatusError(code, "the server failed internally", why=why)
    return PublicError(fault, types.status_of(fault, domain))
