"""Error replies, including errors whose details cannot be sent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lro import AnyMessage, Code, StatusError, TypeRegistry
from lro.errors import ResourceExhausted, Unavailable
from lro.http import error_reply
from lro.types import RetryInfo
from lro.wire import loads


class Once(StatusError):
    """An error whose details can be read only once."""

    asked = 0

    def details(self, domain: str) -> tuple[object, ...]:
        self.asked += 1
        if self.asked > 1:
            raise ValueError(domain)
        return (*super().details(domain), RetryInfo(retry_delay=timedelta(seconds=7)))


def test_error_with_details_in_unknown_bytes_is_internal_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = StatusError(Code.NOT_FOUND, "gone", extra=(AnyMessage("x/a.B", b"?"),))
    reply = error_reply(error, TypeRegistry(), "acme.test", asked="GET /x")
    assert reply.status == 500
    assert b"the server failed internally" in reply.body
    assert "the error of GET /x cannot be described" in caplog.text


def test_details_of_an_error_are_read_once() -> None:
    """A second read of the details could fail, so the details are read only once."""
    reply = error_reply(Once(Code.NOT_FOUND, "gone"), TypeRegistry(), "acme.test")
    assert (reply.status, dict(reply.headers)["retry-after"]) == (404, "7")


@pytest.mark.parametrize(
    ("detail", "seconds"),
    [
        (TypeRegistry().pack(RetryInfo(retry_delay=timedelta(seconds=7))), "7"),
        (RetryInfo(retry_delay=timedelta(seconds=90.1)), "91"),
        (RetryInfo(), None),
        (TypeRegistry().pack(RetryInfo()), None),
        (AnyMessage("type.googleapis.com/google.rpc.RetryInfo", {"retryDelay": "soon"}), None),
    ],
)
def test_retry_after_is_that_of_packed_retry_info(detail: AnyMessage, seconds: str | None) -> None:
    """Retry-After is sent if the RetryInfo can be read and has a delay (spec §5.13(2))."""
    error = StatusError(Code.UNAVAILABLE, "later", extra=(detail,))
    reply = error_reply(error, TypeRegistry(), "acme.test")
    assert (reply.status, dict(reply.headers).get("retry-after")) == (503, seconds)


def test_fault_without_error_info_has_the_reason_of_its_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Bare(StatusError):
        def details(self, domain: str) -> tuple[object, ...]:
            return ()

    body = loads(error_reply(Bare(Code.DATA_LOSS, "s3cret"), TypeRegistry(), "acme.test").body)
    assert isinstance(body, dict)
    error: object = body["error"]
    assert isinstance(error, dict)
    assert error["status"] == "DATA_LOSS"
    assert error["details"][0]["reason"] == "DATA_LOSS"  # type: ignore[call-overload,index]
    assert "s3cret" not in str(body)
    assert "s3cret" in caplog.text


@pytest.mark.parametrize("kind", [ResourceExhausted, Unavailable])
def test_repeated_refusal_is_the_same_object(kind: type[ResourceExhausted | Unavailable]) -> None:
    """A repeated refusal is cached, so that a flood of calls is refused at little cost."""
    types = TypeRegistry()
    replies = [
        error_reply(kind("full", timedelta(seconds=after)), types, domain)
        for after, domain in ((1, "a.test"), (1, "a.test"), (2, "a.test"), (1, "b.test"))
    ]
    assert replies[0] is replies[1]
    assert replies[0].headers[-1] == ("retry-after", "1")
    assert replies[2].headers[-1] == ("retry-after", "2")
    assert b"b.test" in replies[3].body


@pytest.mark.parametrize("wrong", ["description", "retry_after"])
def test_error_with_parts_spoilt_by_the_application_is_internal(wrong: str) -> None:
    """If the application sets an attribute of the error to a wrong type, the reply is INTERNAL."""
    error = ResourceExhausted("full")
    setattr(error, wrong, {"a": 1})
    assert error_reply(error, TypeRegistry(), "acme.test").status == 500
