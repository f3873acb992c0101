"""What an operation ends with when its function has failed."""

from __future__ import annotations

import logging
from typing import Any

from lro._base.errors import (
    Cancelled,
    EncodingError,
    LeaseLost,
    LroError,
    MessageTooLarge,
    StatusError,
)
from lro._base.status import Code, Status
from lro._engine.job import FinalResult, Job, Outcome, Released, Superseded
from lro._engine.method_spec import MethodSpec

log = logging.getLogger("lro")


def failure(
    spec: MethodSpec,
    domain: str,
    job: Job[Any],
    error: BaseException,
    *,
    handing_back: bool,
) -> Outcome:
    """How an attempt ends whose function raised ``error``.

    An error of ours keeps its code and words; of any other, callers learn nothing but INTERNAL.
    """
    try:
        outcome = _outcome(spec, domain, job, error, handing_back)
        if isinstance(outcome, FinalResult):
            spec.limits.check_result(outcome.result)
        return outcome
    except MessageTooLarge as exc:
        log.error("%s: attempt %d: its error: %s", job.name, job.attempt, exc, exc_info=error)
        return FinalResult(spec.types.status_of(exc, domain))
    except Exception:  # an error of the application's whose facts are none
        log.exception("%s: attempt %d: its error cannot be told", job.name, job.attempt)
        text = "the method failed with an error that cannot be told"
        return FinalResult(internal(spec, domain, text, "METHOD_FAILED"))


def internal(spec: MethodSpec, domain: str, text: str, reason: str) -> Status:
    """INTERNAL with these words, which disclose nothing."""
    return spec.types.status_of(StatusError(Code.INTERNAL, text, why=reason), domain)


def _outcome(
    spec: MethodSpec, domain: str, job: Job[Any], error: BaseException, handing_back: bool
) -> Outcome:
    if isinstance(error, LeaseLost):
        log.warning("%s: %s", job.name, error)
        return Superseded()
    if isinstance(error, Cancelled):
        if handing_back:
            return Released()
        status = spec.types.status_of(Cancelled(), domain)
        return FinalResult(status, acknowledge=job.cancel_requested)
    if isinstance(error, EncodingError):
        log.error("%s: attempt %d: %s", job.name, job.attempt, error, exc_info=error)
        if isinstance(error, MessageTooLarge):  # whose words are for callers, too
            return FinalResult(spec.types.status_of(error, domain))
        text = "what the method gave cannot be encoded"
        return FinalResult(internal(spec, domain, text, error.reason))
    if isinstance(error, LroError):
        status = spec.types.status_of(error, domain)
        if status.code != Code.OK:
            return FinalResult(status)
    log.error("%s: attempt %d failed", job.name, job.attempt, exc_info=error)
    text = "the method failed with an internal error"
    return FinalResult(internal(spec, domain, text, "METHOD_FAILED"))
