"""Thin and full payloads, the formats of Standard Webhooks and CloudEvents, and ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lro._webhooks.payloads import webhook_id
from tests.webhooks.hooked import METHOD, Here, end, endpoint
from tests.webhooks.receivers import Received, receiver


def sent(here: Here, text: str, **options: Any) -> Received:
    """Return the request that an endpoint with these options receives for an operation."""
    with receiver() as good:
        service, _ = here.serve([endpoint(good.url, id="one", **options)])
        end(service, text)
        service.run_maintenance()
        return good.next()


def test_full_payload_has_the_operation(here: Here) -> None:
    data = json.loads(sent(here, "b.mp4", payload="full").body)["data"]
    assert data["operation"]["name"] == data["name"]
    assert data["operation"]["response"]["text"] == "b.mp4"
    failed = json.loads(sent(here, "fail", payload="full").body)["data"]
    assert failed["operation"]["error"]["message"] == "the source is no video"


@pytest.mark.parametrize(("size", "full"), [(100, True), (20_000, False)])
def test_full_payload_over_20_kb_is_sent_without_the_operation(
    size: int, full: bool, here: Here
) -> None:
    got = sent(here, "x" * size, payload="full")
    assert ("operation" in json.loads(got.body)["data"]) is full
    assert len(got.body) <= 20_000
    assert b"video" not in sent(here, "fail").body  # a thin payload does not include the error


def test_operation_that_cannot_be_encoded_is_left_out_of_the_payload(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lro.errors import EncodingError

    def fail(*_: object) -> None:
        raise EncodingError("acme.v1.Unknown", "", "is not known")

    monkeypatch.setattr("lro._webhooks.payloads.operation_to_json", fail)
    body = json.loads(sent(here, "", payload="full").body)
    assert "operation" not in body["data"]


def test_cloudevent_has_the_id_of_the_webhook(here: Here) -> None:
    got = sent(here, "", format="cloudevents")
    body = json.loads(got.body)
    name = body["data"]["name"]
    assert got.headers["content-type"] == "application/cloudevents+json"
    assert body == {
        "specversion": "1.0",
        "id": got.headers["webhook-id"],
        "source": f"//acme.test/{name}",
        "type": "test.acme.operation.succeeded",
        "time": "2030-01-01T00:00:00.000Z",
        "datacontenttype": "application/json",
        "data": {"name": name, "method": METHOD, "done": True},
    }


def test_id_depends_on_operation_event_and_endpoint_alone() -> None:
    given = [("operations/a", "e", "x"), ("operations/b", "e", "x"), ("operations/a", "f", "x")]
    given.append(("operations/a", "e", "y"))
    ids = [webhook_id(*one) for one in given]
    assert len({*ids}) == 4
    assert ids == [webhook_id(*one) for one in given]
