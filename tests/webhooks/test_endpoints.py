"""Endpoints and options that are refused, their errors, and the endpoints in a record."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

import lro
from lro._webhooks.deliveries import Deliveries, PendingDelivery
from lro.errors import DeclarationError, InvalidArgument
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.webhooks import EVENTS, Endpoint, Webhooks, generate_secret
from tests.service_fixtures import MakeService
from tests.webhooks.hooked import METHOD, SECRET, Here, end, endpoint, webhooks, works

URL = "https://hooks.example.com/lro"


@pytest.mark.parametrize(
    ("changed", "field", "why"),
    [
        ({"url": 3}, "url", "must be a text of at most 2048 characters"),
        ({"url": "https://x/" + "a" * 2048}, "url", "must be a text of at most 2048"),
        ({"url": "https://"}, "url", "must be an absolute https URL"),
        ({"url": "http://hooks.example.com/"}, "url", "must be an absolute https URL"),
        ({"url": "file:///etc/passwd"}, "url", "must be an absolute https URL"),
        ({"url": "https://[::1"}, "url", "is not a URL"),
        ({"url": "https://xn--a/"}, "url", "is not a URL"),
        ({"url": "https://[fe80::1%25a]+\u0663[::1]"}, "url", "is not a URL"),
        ({"url": "https://ann:pw@hooks.example.com/"}, "url", "must not have a user name"),
        ({"url": "https://hooks.example.com:8443/"}, "url", "must not have port 8443"),
        ({"url": "https://10.0.0.1/"}, "url", "must not have an address that is not global"),
        ({"url": "https://[::ffff:a00:1]/"}, "url", "must not have an address that is not global"),
        ({"id": "a b"}, "id", "must be 1 to 128 of the characters"),
        ({"format": "soap"}, "format", "must be one of cloudevents, standard, got 'soap'"),
        ({"payload": "fat"}, "payload", "must be one of full, thin, got 'fat'"),
        ({"events": ("operation.begun",)}, "events", "must be one of operation.cancelled"),
        ({"events": "operation.failed"}, "events", "must be several texts"),
        ({"methods": (1,)}, "methods", "must be several texts"),
        ({"secrets": SECRET}, "secrets", "must be several texts"),
        ({"secrets": ()}, "secrets", "must have one, by which receivers know us"),
        ({"secrets": ("whsec_short",)}, "secrets", "must each be base64 of 24 to 64 bytes"),
        ({"secrets": tuple(generate_secret() for _ in range(6))}, "secrets", "must be at most 5"),
        ({"headers": {"Host": "x"}}, "headers", "'Host' cannot be the name of one"),
        ({"headers": {"Webhook-Id": "x"}}, "headers", "cannot be the name of one"),
        ({"headers": {"A": "s3cret\r\nB: x"}}, "headers", "the value of A must be at most 4096"),
        ({"headers": {"A": 5}}, "headers", "the value of A must be at most 4096"),
        ({"headers": {f"A{n}": "x" for n in range(21)}}, "headers", "must be at most 20 texts"),
        ({"headers": [("A", "x")]}, "headers", "must be at most 20 texts"),
    ],
)
def test_invalid_endpoint_is_refused_in_each_place(
    changed: dict[str, Any], field: str, why: str
) -> None:
    one = Endpoint(**{"url": URL, "secrets": (SECRET,), **changed})
    with pytest.raises(InvalidArgument, match=why) as refused:
        Webhooks([one])
    assert refused.value.field == f"endpoints[0].{field}"
    with pytest.raises(InvalidArgument, match=why) as refused:
        Webhooks().encode([endpoint(URL), one])
    assert refused.value.field == f"notify[1].{field}"
    assert "s3cret" not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(one)


def test_options_allow_private_addresses_http_and_ports() -> None:
    open_ones = Webhooks(allow_private=True, allow_http=True, ports=(443, 8443))
    for url in ("http://10.0.0.1/", "https://x:8443/", "http://x/", "https://x/"):
        assert open_ones.encode([endpoint(url)])
    with pytest.raises(InvalidArgument, match="must not have port 8080"):
        open_ones.encode([endpoint("http://x:8080/")])
    assert Webhooks(proxy="http://egress:4750").encode([endpoint("https://10.0.0.1/")])


@pytest.mark.parametrize(
    ("notify", "why"),
    [
        (URL, "must be several lro.webhooks.Endpoint"),
        ({URL: 1}, "must be several lro.webhooks.Endpoint"),
        ([URL], "must be an lro.webhooks.Endpoint"),
        ([endpoint(URL)] * 11, "must be at most 10 endpoints"),
        ([endpoint(URL, headers={f"A{n}": "x" * 4000 for n in range(20)})], "at most 65536 bytes"),
    ],
)
def test_start_with_bad_endpoints_is_refused_before_anything_is_stored(
    notify: Any, why: str, here: Here
) -> None:
    service = works(here.make_service, MemoryStore(here.clock), Webhooks())
    with pytest.raises(InvalidArgument, match=why) as refused:
        end(service, notify=notify)
    assert refused.value.field.startswith("notify")
    assert service.list(lro.wire.ListOperationsRequest()).operations == ()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lookup": 3}, "lookup: must be a function"),
        ({"lookup": list}, "lookup: must be a function of an operation and its"),
        ({"on_disabled": lambda: None}, "on_disabled: must be a function of an"),
        ({"resolve": lambda host: []}, "resolve: must be a function of a host and a port"),
        ({"clock": 3}, "clock: must be a function"),
        ({"allow_private": 1}, "allow_private: must be True or False"),
        ({"ports": 443}, "ports: must be several ports"),
        ({"ports": (0,)}, "ports: must be a whole number from 1 to 65535"),
        ({"proxy": ""}, "proxy: must be a text that is not empty"),
        ({"proxy": "egress:4750"}, "proxy: must be a URL such as"),
        ({"proxy": "http://egress:99999"}, "proxy: must be a URL such as"),
        ({"proxy": "http://e gress"}, "proxy: must be a URL such as"),
        ({"proxy": "http://a..b"}, "proxy: must be a URL such as"),
        ({"proxy": "http://egress/#a"}, "proxy: must be a URL such as"),
        ({"ssl_context": True}, "ssl_context: must be an ssl.SSLContext"),
        ({"secrets": SECRET}, "secrets: must be several texts"),
        ({"timeout": 61}, "timeout: must be seconds above 0, at most 60"),
        ({"connections": 0}, "connections: must be a whole number from 1 to 100"),
        ({"schedule": 5}, "schedule: must be several seconds"),
        ({"schedule": (-1,)}, "schedule: must be seconds from 0"),
        ({"formats": ["x"]}, "formats: must be functions by the names of formats"),
        ({"formats": {"": print}}, "formats: must be a text that is not empty"),
        ({"formats": {"standard": print}}, "formats: must be a name that this library does not"),
        ({"formats": {"x": lambda: None}}, "formats: must be a function of an operation, an"),
    ],
)
def test_option_of_another_type_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        Webhooks(**options)


def test_secret_context_and_format_of_endpoints_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="secrets: must each be base64"):
        Webhooks(secrets=["whsec_x"])
    made = Webhooks(
        ssl_context=ssl.create_default_context(),
        formats={"own": lambda operation, to, event: ("text/plain", b"")},
        on_disabled=print,
    )
    assert made.encode([Endpoint(url=URL, format="own")])


def test_store_without_an_outbox_is_refused() -> None:
    plain = type("Plain", (MemoryStore,), {"claim_due": property()})()
    with pytest.raises(DeclarationError, match="a store that keeps pending deliveries, and Plain"):
        lro.Service(plain, InlineExecutor(), webhooks=Webhooks())


@pytest.mark.parametrize("sender", ["https://acme.example/hooks", Webhooks, [Endpoint(url=URL)]])
def test_service_refuses_what_is_not_a_sender_of_webhooks(sender: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^webhooks: must be None or lro\.webhooks\.Webho"):
        lro.Service(MemoryStore(), InlineExecutor(), webhooks=sender)


def test_webhooks_belong_to_one_service(make_service: MakeService) -> None:
    sends = Webhooks()
    make_service(webhooks=sends)
    with pytest.raises(DeclarationError, match="belongs to another service already"):
        make_service(webhooks=sends)


@pytest.mark.parametrize(
    "use", [Webhooks.run_due, lambda one: one.pending_of("operations/a"), Webhooks.wake]
)
def test_webhooks_without_a_service_cannot_send(use: Callable[[Webhooks], object]) -> None:
    with pytest.raises(DeclarationError, match="belongs to no service"):
        use(Webhooks())


def test_operation_in_progress_or_unknown_has_no_deliveries(here: Here) -> None:
    sends = webhooks(here.clock)
    service = here.make_service(MemoryStore(here.clock), InlineExecutor(), webhooks=sends)
    outside = service.declare(METHOD, request=lro.Empty, response=lro.Empty)
    running = outside.start(lro.Empty()).name
    for name in (running, "operations/unknown"):
        for ask in (sends.pending_of, sends.retry):
            with pytest.raises(lro.errors.OperationNotFound):
                ask(name)


NOW = datetime(2026, 11, 22, 9, 0, 0, 123000, tzinfo=UTC)


FULL = Endpoint(
    url=URL,
    id="x",
    secrets=(SECRET,),
    events=("operation.failed",),
    methods=("a.B.C",),
    format="cloudevents",
    payload="full",
    headers={"A": "b"},
)


@pytest.mark.parametrize(
    "deliveries",
    [
        Deliveries(),
        Deliveries((Endpoint(url=URL),)),
        Deliveries((FULL,), {"x": PendingDelivery(3, NOW), "": PendingDelivery(0, NOW)}, ("y",)),
        Deliveries((), {}, ("y",)),
    ],
)
def test_deliveries_are_read_as_they_were_written(deliveries: Deliveries) -> None:
    assert Deliveries.of(deliveries.to_text()) == deliveries


def test_settled_deliveries_are_not_stored() -> None:
    assert Deliveries((endpoint(URL),), {}).to_text() == ""
    assert Deliveries().to_text() == ""
    assert Deliveries((), {}).next_due is None


def test_common_secret_is_not_stored_with_the_endpoint_of_a_start() -> None:
    text = Webhooks(secrets=[SECRET]).encode([Endpoint(url=URL)])
    assert SECRET not in text
    (kept,) = Deliveries.of(text).endpoints
    assert kept == attrs.evolve(Endpoint(url=URL), id=kept.id)
    assert kept.events == EVENTS
    assert Webhooks().encode([]) == ""
