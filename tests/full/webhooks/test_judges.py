"""Other libraries verify and parse our webhooks, and we verify signatures that they make."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import lro_client.webhooks
from lro import Service
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.webhooks import Webhooks, generate_secret
from tests.services.npm import WEBHOOKS, node_modules, run_node
from tests.webhooks.hooked import METHOD, OPEN, SECRET, endpoint
from tests.webhooks.receivers import Received, receiver
from tests.work_messages import WorkRequest, WorkResponse

JUDGES = ["standardwebhooks", "svix"]
FORMATS = pytest.mark.parametrize(
    ("format", "payload"), [("standard", "thin"), ("standard", "full"), ("cloudevents", "full")]
)


def sent(**options: Any) -> Received:
    """Return the request that a receiver gets from a service in this process."""
    with receiver() as good:
        sends = Webhooks([endpoint(good.url, **options)], **OPEN)
        service = Service(MemoryStore(), InlineExecutor(), webhooks=sends, domain="acme.test")

        @service.method(METHOD)
        def work(request: WorkRequest) -> WorkResponse:
            return WorkResponse(text="é\u2028" + request.text)

        with service:
            work.start(WorkRequest())
            return good.next()


@pytest.mark.parametrize("judge", JUDGES)
@FORMATS
def test_python_libraries_verify_our_signature(judge: str, format: str, payload: str) -> None:
    module = pytest.importorskip(judge)
    webhook = getattr(module, "Webhook", None) or module.webhooks.Webhook
    old = generate_secret()
    got = sent(format=format, payload=payload, secrets=(old, SECRET))
    for secret in (old, SECRET):
        found = webhook(secret).verify(got.body, dict(got.headers))
        shown = json.loads(got.body) if found is None else found
        assert shown["data"]["method"] == METHOD
    with pytest.raises(Exception, match="No matching signature found"):
        webhook(generate_secret()).verify(got.body, dict(got.headers))


@FORMATS
def test_npm_library_verifies_our_signature(format: str, payload: str) -> None:
    home = node_modules(WEBHOOKS)
    got = sent(format=format, payload=payload)
    script = """
        import { Webhook } from "standardwebhooks";
        const { secret, body, headers } = JSON.parse(process.argv[2]);
        console.log(JSON.stringify(new Webhook(secret).verify(body, headers)));
    """
    given = {"secret": SECRET, "body": got.body.decode(), "headers": dict(got.headers)}
    assert json.loads(run_node(home, script, json.dumps(given))) == json.loads(got.body)


def test_python_cloudevents_library_parses_our_event() -> None:
    http = pytest.importorskip("cloudevents.core.bindings.http")
    formats = pytest.importorskip("cloudevents.core.formats.json")
    got = sent(format="cloudevents", payload="full")
    message = http.HTTPMessage(headers=dict(got.headers), body=got.body)
    event = http.from_http(message, formats.JSONFormat())
    assert event.get_id() == got.headers["webhook-id"]
    assert event.get_type() == "test.acme.operation.succeeded"
    assert event.get_source() == f"//acme.test/{event.get_data()['name']}"
    assert event.get_data()["operation"]["done"] is True


@pytest.mark.parametrize("judge", JUDGES)
def test_signature_of_python_libraries_is_verified(judge: str) -> None:
    module = pytest.importorskip(judge)
    webhook = getattr(module, "Webhook", None) or module.webhooks.Webhook
    now = datetime.now(UTC)
    at = "2026-11-22T09:01:00.000Z"
    body = json.dumps({"type": "ping", "timestamp": at, "data": {"é": 1}}, ensure_ascii=False)
    signature = webhook(SECRET).sign("msg_1", now, body)
    headers = {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": f"v1a,xyz {signature}",
    }
    found = lro_client.webhooks.verify(body.encode(), headers, SECRET)
    assert (found.id, found.type, dict(found.data)) == ("msg_1", "ping", {"é": 1})


def test_signature_of_the_npm_library_is_verified() -> None:
    home = node_modules(WEBHOOKS)
    script = """
        import { Webhook } from "standardwebhooks";
        const [, , secret, body] = process.argv;
        const now = new Date();
        const signature = new Webhook(secret).sign("msg_1", now, body);
        const at = String(Math.floor(now.getTime() / 1000));
        console.log(JSON.stringify(
          {"webhook-id": "msg_1", "webhook-timestamp": at, "webhook-signature": signature}));
    """
    body = '{"type":"ping","timestamp":"2026-11-22T09:01:00.000Z","data":{}}'
    headers = json.loads(run_node(home, script, SECRET, body))
    assert lro_client.webhooks.verify(body.encode(), headers, [SECRET]).type == "ping"
