"""``lro webhooks ping`` and ``lro webhooks retry``."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lro.webhooks import verify
from tests.cli.asking import Lro
from tests.services.ports import free_port
from tests.webhooks.hooked import SECRET
from tests.webhooks.receivers import Reply, receiver

SERVICE = """
import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.webhooks import Endpoint, Webhooks
from tests.work_messages import WorkRequest, WorkResponse

sends = Webhooks(
    [Endpoint(url={url!r}, id="one", secrets=({secret!r},))],
    allow_private=True, allow_http=True, ports=None, schedule=(),
)
service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, webhooks=sends)
plain = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

@service.method("acme.v1.Works.Work")
def work(request: WorkRequest) -> WorkResponse:
    return WorkResponse()

name = work.start(WorkRequest()).name
"""


@pytest.fixture
def lro_command(command: Lro) -> Iterator[Lro]:
    """The command ``lro``; the module with a service is unloaded after the test."""
    yield command
    module = sys.modules.pop("hooked_service", None)
    if module is not None:
        module.service.close(0)


def test_ping_sends_a_signed_event_and_prints_the_answer(lro_command: Lro) -> None:
    with receiver() as good:
        found = lro_command("webhooks", "ping", good.url, "--secret", SECRET, "--private", status=0)
        got = good.next()
    assert found.lines == ["HTTP 204"]
    assert json.loads(got.body)["type"] == "ping"
    now = int(got.headers["webhook-timestamp"])
    assert verify(got.body, got.headers, [SECRET], now=now).id.startswith("ping_")


def test_ping_that_is_not_taken_ends_with_1(
    lro_command: Lro, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRO_WEBHOOK_SECRET", SECRET)
    with receiver(lambda _: Reply(302)) as other:
        found = lro_command("webhooks", "ping", other.url, "--private")
    assert (found.status, found.lines) == (1, ["HTTP 302: redirects are not followed"])
    url = f"http://127.0.0.1:{free_port()}/"
    found = lro_command("webhooks", "ping", url, "--private", "--timeout", "5", status=1)
    assert found.out.startswith("no connection: ")
    found = lro_command("webhooks", "ping", "https://localhost/", status=1)
    assert found.lines == ["its host has no address that is global"]


def test_ping_with_bad_input_ends_with_2_and_the_reason(lro_command: Lro) -> None:
    for url, secret, why in (
        ("http://127.0.0.1/", SECRET, "ping.url: must be an absolute https URL"),
        ("https://127.0.0.1/", SECRET, "must not have an address that is not global"),
        ("https://hooks.example.com/", "whsec_s3cret", "must each be base64 of 24 to 64 bytes"),
    ):
        said = lro_command("webhooks", "ping", url, "--secret", secret, status=2).err
        assert why in said
        assert secret not in said


def test_retry_command_sends_abandoned_webhooks(here: Path, lro_command: Lro) -> None:
    with receiver(lambda _: Reply(500)) as bad:
        (here / "hooked_service.py").write_text(SERVICE.format(url=bad.url, secret=SECRET))
        retry = functools.partial(lro_command, "webhooks", "retry")
        sending = "hooked_service:service"
        assert "operations/none" in retry(sending, "operations/none", status=2).err
        name = sys.modules["hooked_service"].name
        for _ in range(2):
            assert retry(sending, name, status=1).lines == ["failed: one"]
        bad.script = lambda _: Reply()
        assert retry(sending, name, status=0).lines == ["nothing is pending"]
        assert len(bad.all()) == 3
        said = retry("hooked_service:plain", name, status=2).err
        assert "hooked_service:plain: has no webhooks of lro.webhooks" in said
