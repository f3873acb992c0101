"""The client's errors: attributes, messages and pickling (style §4)."""

from __future__ import annotations

import copy
import pickle

import pytest

import lro
from lro_client import (
    CallError,
    ClientError,
    DecodingError,
    OperationCancelled,
    OperationFailed,
    OperationGone,
    PollTimeout,
)

STATUS = lro.Status(14, "down", (lro.AnyMessage("x/acme.Thing", {"a": 1}),))
FAILED = lro.Operation(name="operations/a", done=True, result=lro.Status(9, "no"))
CALL = CallError("GetOperation", STATUS, 503, 1.5, True)

ERRORS = [
    (CALL, "GetOperation failed with UNAVAILABLE: down"),
    (CallError("GetOperation", lro.Status(77, "odd")), "GetOperation failed with UNKNOWN: odd"),
    (OperationGone("WaitOperation", lro.Status(5, "gone"), 404), "WaitOperation failed with NOT_"),
    (OperationFailed(FAILED), "operations/a ended with FAILED_PRECONDITION: no"),
    (OperationCancelled(FAILED), "operations/a ended with FAILED_PRECONDITION: no"),
    (OperationFailed(lro.Operation(done=True)), "the operation ended with UNKNOWN: "),
    (PollTimeout("operations/a", 60.0, 7), "operations/a was not done within 60 s and 7 polls"),
    (
        PollTimeout("operations/a", 0.25, 1, lro.Operation(name="operations/a"), CALL),
        "operations/a was not done within 0.25 s and 1 poll; the last poll failed: GetOperation ",
    ),
    (DecodingError("operations/a", "is odd", lro.AnyMessage()), "operations/a: is odd"),
]


@pytest.mark.parametrize(("error", "text"), ERRORS)
def test_call_error_message_has_verb_or_name_code_and_text(error: ClientError, text: str) -> None:
    """The message names the call or the operation, and has the status code and its text."""
    assert str(error).startswith(text)


@pytest.mark.parametrize("error", [error for error, _ in ERRORS])
def test_errors_of_the_client_can_be_pickled_and_copied(error: ClientError) -> None:
    """Errors can be pickled, because worker processes may send them to their parent."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args or isinstance(error, PollTimeout)
