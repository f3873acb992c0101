"""Errors whose details cannot be told."""

from __future__ import annotations

import logging

import pytest

from lro._any import Any
from lro._errors import StatusError
from lro._jsontext import loads
from lro._replies import error_reply
from lro._status import Code
from lro._types import TypeRegistry


class Odd(StatusError):
    """Has details once, and never again."""

    asked = 0

    def details(self, domain: str) -> tuple[object, ...]:
        self.asked += 1
        if self.asked > 1:
            raise ValueError(domain)
        return ()


@pytest.mark.parametrize(
    "error",
    [
        StatusError(Code.NOT_FOUND, "gone", extra=(Any("x/a.B", b"?"),)),
        StatusError(Code.NOT_FOUND, "gone", extra=(object(),)),
        Odd(Code.NOT_FOUND, "gone"),
    ],
    ids=["unknown bytes", "no message", "raises"],
)
def test_what_cannot_be_told_is_logged(
    error: StatusError, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller learns INTERNAL, and never waits for an answer in vain."""
    with caplog.at_level(logging.ERROR, "lro"):
        reply = error_reply(error, TypeRegistry(), "acme.test", asked="GET /x")
    assert reply.status == 500
    body = loads(reply.body)
    assert isinstance(body, dict)
    assert body["error"]["message"] == "the server failed internally"  # type: ignore[call-overload,index]
    assert "the error of GET /x cannot be told" in caplog.text
