"""What callers are told of an error, whatever edge they call (spec §6.2, §12.4)."""

from __future__ import annotations

import logging
from typing import Final

import attrs

from lro._errors import LroError, StatusError
from lro._status import Code, Status
from lro._types import TypeRegistry

log = logging.getLogger("lro")

_DEFECTS: Final = frozenset({Code.OK, Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS})
"""Codes that tell of the server's own fault; OK is no code of an error."""


@attrs.frozen
class Told:
    """An error that may be told, and its status."""

    error: LroError
    status: Status


def disclosed(error: Exception, types: TypeRegistry, domain: str, *, asked: str) -> Told:
    """An error as callers are told of it, details and all.

    What is the server's own fault, as every exception that is no :class:`LroError`, goes into the
    log; ``asked`` is what the log calls the request. Callers are told its code and no more, since
    messages must not disclose internals (spec §6.2).
    """
    told = _harmless(error, asked)
    try:
        return Told(told, types.status_of(told, domain))
    except Exception as exc:  # details that the application gave, which may be anything
        return undisclosed(exc, types, domain, asked=asked)


def undisclosed(error: Exception, types: TypeRegistry, domain: str, *, asked: str) -> Told:
    """What callers are told instead of an error that cannot be told."""
    log.error("the error of %s cannot be told: %s", asked, error, exc_info=error)
    fault = _fault(Code.INTERNAL)
    return Told(fault, types.status_of(fault, domain))


def _fault(code: Code, why: str = "") -> StatusError:
    return StatusError(code, "the server failed internally", why=why)


def _harmless(error: Exception, asked: str) -> LroError:
    if isinstance(error, LroError) and error.status_code not in _DEFECTS:
        return error
    code = error.status_code or Code.UNKNOWN if isinstance(error, LroError) else Code.INTERNAL
    log.error("%s ended with %s: %s", asked, code.name, error, exc_info=error)
    if isinstance(error, StatusError):
        return _fault(code, error.why)
    return _fault(code, error.reason if isinstance(error, LroError) else "")
