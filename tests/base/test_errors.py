"""Errors: their attributes, messages and details, and that they can be pickled and copied."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest

from lro import (
    Code,
    DeclarationError,
    InvalidArgument,
    LroError,
    Options,
    RetryLater,
    Status,
    StatusError,
    TypeRegistry,
)
from lro._base import errors
from lro._base.errors import Described
from lro.errors import (
    BatchTooLarge,
    CancellationNotRequested,
    EncodingError,
    HttpMethodNotAllowed,
    InvalidFields,
    InvalidFilter,
    LeaseLost,
    MessageTooLarge,
    MissingExtra,
    NameRefused,
    NotApplied,
    OperationNotFound,
    Retryable,
    TooManyHeld,
    WaitTimeout,
    WorkCancelled,
    WorkFailed,
)
from lro.types import (
    BadRequest,
    ErrorInfo,
    FieldViolation,
    PreconditionFailure,
    ResourceInfo,
    RetryInfo,
)

REASON = re.compile(r"[A-Z][A-Z0-9_]+[A-Z0-9]")
FACT = re.compile(r"[a-z][a-zA-Z0-9-_]+")

EXAMPLES = {
    InvalidFilter: InvalidFilter("filter", "expected a comparison", 7),
    NotApplied: NotApplied("operations/a", "complete", "FAILED"),
    RetryLater: RetryLater(timedelta(seconds=3), "the bank is closed"),
    LeaseLost: LeaseLost("operations/a", 1, 2),
    StatusError: StatusError(Code.NOT_FOUND, "no such picture", (), "PICTURE_MISSING"),
    DeclarationError: DeclarationError("acme.v1.Thing", "is declared twice"),
    EncodingError: EncodingError("acme.v1.Thing", "a.b", "must be a string, got 5"),
    HttpMethodNotAllowed: HttpMethodNotAllowed("PUT", "/v1/x", ("GET", "HEAD")),
    NameRefused: NameRefused("operations/a", "not yours"),
    MissingExtra: MissingExtra("the gRPC edge", "grpc"),
    MessageTooLarge: MessageTooLarge("acme.v1.Thing", 11, 10, "response_bytes"),
    InvalidFields: InvalidFields(
        FieldViolation("pages", "is required"), FieldViolation("tags[1]", "must be a string")
    ),
    WorkFailed: WorkFailed("operations/a", Status(Code.ABORTED, "no paper")),
    WorkCancelled: WorkCancelled("operations/a", Status(Code.CANCELLED, "stopped")),
    WaitTimeout: WaitTimeout("operations/a", 2.5),
    TooManyHeld: TooManyHeld("calls of Wait are held", 10, "waits"),
}


def example(cls):
    """Return an error of the class, with plausible arguments."""
    if cls in EXAMPLES:
        return EXAMPLES[cls]
    if issubclass(cls, InvalidArgument):
        return cls("page_size", "must not be negative, got -1")
    if issubclass(cls, Retryable):
        return cls("the queue is full", timedelta(seconds=2))
    if issubclass(cls, Described):
        return cls("not yours")
    own = any("__init__" in vars(one) for one in cls.__mro__ if one not in LroError.__mro__)
    arguments = len(inspect.signature(cls).parameters) if own else 0
    return cls(*["operations/a"] * arguments)


CLASSES = sorted(
    {cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, LroError)},
    key=lambda cls: cls.__name__,
)
EACH = pytest.mark.parametrize(
    "error", [example(cls) for cls in CLASSES], ids=[cls.__name__ for cls in CLASSES]
)


@EACH
def test_error_survives_pickle_and_copy(error):
    """A pickled or copied error has the same text, facts and arguments."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert again.facts() == error.facts()
        assert vars(again) == vars(error)


@EACH
def test_error_has_one_error_info_and_each_detail_type_once(error):
    """An error has exactly one ErrorInfo (spec §6.3(1)), and each detail type at most once."""
    details = error.details("acme.test")
    infos = [detail for detail in details if isinstance(detail, ErrorInfo)]
    assert len(infos) == 1
    assert len({type(detail) for detail in details}) == len(details)
    info = infos[0]
    assert info.domain == "acme.test"
    assert REASON.fullmatch(info.reason)
    assert len(info.reason) <= 63
    for key, value in info.metadata.items():
        assert FACT.fullmatch(key)
        assert len(key) <= 64
        assert isinstance(value, str)
    TypeRegistry().status_of(error, "acme.test")


@EACH
def test_error_message_contains_every_fact_of_its_metadata(error):
    """Every fact in an error's metadata occurs in its message."""
    if type(error) is LroError:
        assert str(error) == ""
        return
    assert str(error)
    for value in error.facts().values():
        assert value in str(error)


@EACH
def test_error_has_the_details_of_its_code(error):
    """Errors with some codes have the details that spec §6.3(2) requires besides ErrorInfo."""
    wanted = {
        Code.INVALID_ARGUMENT: BadRequest,
        Code.UNAVAILABLE: RetryInfo,
        Code.RESOURCE_EXHAUSTED: RetryInfo,
    }.get(error.status_code)
    if isinstance(error, OperationNotFound):
        wanted = ResourceInfo
    if isinstance(error, BatchTooLarge):
        wanted = None  # a repeated request would be refused again
    if isinstance(error, CancellationNotRequested):
        wanted = PreconditionFailure
    if wanted is not None:
        assert wanted in map(type, error.details("acme.test"))


def test_status_error_has_its_code_and_reason():
    """By default, the reason of a StatusError is the name of its code."""
    error = StatusError(Code.ABORTED, "too late", (RetryInfo(),))
    assert error.status_code is Code.ABORTED
    assert error.details("d") == (ErrorInfo("ABORTED", "d"), RetryInfo())
    assert StatusError(Code.ABORTED, "", why="X_Y").details("d") == (ErrorInfo("X_Y", "d"),)


@pytest.mark.parametrize("chosen", ["FAILED_PRECONDITION", 9, None, HTTPStatus.CONFLICT])
def test_status_error_refuses_a_code_of_another_type(chosen: Any) -> None:
    """Such an error could not be sent, and callers would get INTERNAL."""
    wanted = r"^chosen: must be a code, such as lro.Code.NOT_FOUND, got "
    with pytest.raises(DeclarationError, match=wanted):
        StatusError(chosen, "the disk is full")


def quoted(error):
    """Return how a message quotes a value whose repr raises this error."""

    class Odd:
        def __repr__(self):
            raise error

    with pytest.raises(DeclarationError) as caught:
        Options(concurrency=Odd())
    return str(caught.value).partition(", got ")[2]


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit])
def test_a_value_whose_repr_fails_is_quoted_by_its_class(error):
    """If the repr of a value raises an error, messages quote the class, and no server stops."""
    assert quoted(error) == "some Odd"


def test_ctrl_c_passes_while_a_value_is_quoted():
    """Ctrl-C during a repr ends the program in the main thread. Other threads never get it."""
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(quoted, KeyboardInterrupt).result() == "some Odd"
    with pytest.raises(KeyboardInterrupt):
        quoted(KeyboardInterrupt)


def test_error_of_an_enum_is_not_taken_for_an_interrupt() -> None:
    """A ValueError of an enum is no interrupt, although signal handlers are enum members."""
    with pytest.raises(ValueError, match="not a valid Code") as found:
        Code(99)
    assert not errors.interrupts(found.value)
