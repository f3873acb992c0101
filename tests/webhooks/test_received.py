"""The receiver's side of webhooks: events that are accepted, their fields, and refusals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import lro
from lro.wire import sign_webhook
from lro_client import Client
from lro_client.transports import LocalTransport
from lro_client.webhooks import WebhookError, verify
from tests.webhooks.hooked import METHOD, SECRET, Here, end, endpoint
from tests.webhooks.receivers import receiver
from tests.work_messages import WorkResponse

AT = 1_795_338_061
WHEN = "2026-11-22T09:01:00.000Z"
DATA = {"name": "operations/2a7c", "method": "media.v1.Videos.Transcode", "done": True}
STANDARD = {"type": "operation.succeeded", "timestamp": WHEN, "data": DATA}
CLOUD = {
    "specversion": "1.0",
    "id": "x",
    "source": "//media.example.com/operations/2a7c",
    "type": "com.example.media.operation.failed",
    "time": WHEN,
    "data": DATA,
}


def signed(payload: Any) -> tuple[bytes, dict[str, str]]:
    """Return a body and the headers that sign it."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    signature = sign_webhook(body, id="op_6c1f0f3e8d", timestamp=AT, secrets=[SECRET])
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    return body, dict(zip(names, ("op_6c1f0f3e8d", str(AT), signature), strict=True))


@pytest.mark.parametrize("format", ["standard", "cloudevents"])
@pytest.mark.parametrize("payload", ["thin", "full"])
def test_receiver_verifies_the_webhook_and_gets_a_handle(
    format: str, payload: str, here: Here
) -> None:
    with receiver() as good:
        service, _ = here.serve([endpoint(good.url, format=format, payload=payload)])
        name = end(service, "b.mp4")
        service.run_maintenance()
        got = good.next()
    event = verify(got.body, got.headers, SECRET, clock=lambda: here.clock().timestamp())
    assert (event.name, event.method, event.type) == (name, METHOD, "operation.succeeded")
    assert event.timestamp == here.clock()
    assert event.id == got.headers["webhook-id"]
    assert (event.operation is not None) is (payload == "full")
    assert event.operation is None or event.operation.done
    with Client(transport=LocalTransport(service)) as client:
        handle = client.operation(event.name, response=WorkResponse)
        assert handle.result() == WorkResponse(text="b.mp4")


def test_cloudevents_payload_is_read_as_a_standard_webhook() -> None:
    event = verify(*signed(CLOUD), [SECRET], clock=lambda: AT)
    assert (event.type, event.name) == ("operation.failed", "operations/2a7c")
    assert event.timestamp == datetime(2026, 11, 22, 9, 1, tzinfo=UTC)


def test_ping_has_no_name() -> None:
    event = verify(
        *signed({"type": "ping", "timestamp": WHEN, "data": {}}), SECRET, clock=lambda: AT
    )
    assert (event.type, event.name, event.method) == ("ping", "", "")


def test_tolerance_of_timestamps_can_be_set() -> None:
    body, headers = signed(STANDARD)
    with pytest.raises(WebhookError, match="at most 300 s are allowed"):
        verify(body, headers, SECRET, clock=lambda: AT + 301)
    hour = timedelta(hours=1)
    assert verify(body, headers, SECRET, clock=lambda: AT + 301, tolerance=hour)


def test_argument_of_a_wrong_type_is_a_declaration_error() -> None:
    body, headers = signed(STANDARD)
    assert verify(memoryview(body), headers, SECRET, clock=lambda: AT)  # type: ignore[arg-type]
    spoilt: list[Any] = [list(headers.items()), {1: "a"}, {**headers, "webhook-id": None}]
    cases: list[tuple[Any, Any, Any]] = [(body.decode(), headers, SECRET)]
    cases += [(body, one, SECRET) for one in spoilt]
    cases += [(body, headers, one) for one in (None, 5, SECRET.encode(), [None])]
    for given, wrong, secret in cases:
        with pytest.raises(lro.DeclarationError, match=r"^(body|headers|secret): must be "):
            verify(given, wrong, secret, clock=lambda: AT)


def test_body_is_verified_before_it_is_read() -> None:
    _, headers = signed(STANDARD)
    for body in (b"{" * 100_000, json.dumps(STANDARD, indent=1).encode()):
        with pytest.raises(WebhookError, match="no signature in it is right"):
            verify(body, headers, SECRET, clock=lambda: AT)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\xff", "its body cannot be read"),
        (b"[" * 100_000, "its body cannot be read"),
        ([], "it is not an object"),
        ({**STANDARD, "type": 3}, "its type is not a text"),
        ({**STANDARD, "data": []}, "its data is not an object"),
        ({**STANDARD, "timestamp": "now"}, "Invalid isoformat string"),
        ({**STANDARD, "timestamp": "2026-11-22T09:01:00"}, "its time has no zone"),
        ({**STANDARD, "timestamp": "0001-01-01T00:00:00+14:00"}, "out of range"),
        ({**STANDARD, "data": {**DATA, "name": 3}}, "its name is not a text"),
        ({**STANDARD, "data": {**DATA, "name": "x"}}, "names no operation"),
        ({**STANDARD, "data": {**DATA, "operation": 3}}, "must be an object"),
        ({**STANDARD, "data": {**DATA, "operation": {"error": {"code": "x"}}}}, "error.code"),
    ],
)
def test_genuine_payload_that_cannot_be_read_is_refused(payload: Any, why: str) -> None:
    with pytest.raises(WebhookError, match=why):
        verify(*signed(payload), SECRET, clock=lambda: AT)


def test_repr_of_a_webhook_hides_its_data() -> None:
    found = verify(*signed(STANDARD), SECRET, types=lro.TypeRegistry(), clock=lambda: AT)
    assert "done" not in repr(found)
