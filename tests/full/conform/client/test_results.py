"""Our clients and Google's get the results that the page shows, in all checks."""

from __future__ import annotations

import pytest

from lro_conform import Level
from lro_conform.client._running import CLIENT_CHECKS
from tests.conform.client.results import (
    COLUMNS,
    PAGE,
    Found,
    google_version,
    on_page,
    rendered,
    results_on_page,
    run_clients,
)

HTTP, GRPC, GOOGLE_HTTP, GOOGLE_GRPC = range(len(COLUMNS))


@pytest.fixture(autouse=True)
def late_clients_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the kit's margin of 2 s, which is too short when many tests run at once."""
    for module in ("_judging", "_running"):
        monkeypatch.setattr(f"lro_conform.client.{module}.MARGIN_SECONDS", 30.0)


def differences(found: Found, column: int) -> dict[str, object]:
    """Return by check: the result on the page, and the result and the facts of this run."""
    page = on_page()[column]
    return {
        id: (page.get(id), found.verdicts.get(id), found.facts.get(id))
        for id in page.keys() | found.verdicts.keys()
        if page.get(id) != found.verdicts.get(id)
    }


def test_page_of_client_results_lists_every_check_with_its_rule() -> None:
    """The page is as ``python -m tests.conform.client.results`` would write it."""
    assert results_on_page() == rendered(on_page())


def test_page_shows_that_our_client_passes_every_must_and_should() -> None:
    counted = {one.id for one in CLIENT_CHECKS if one.level is not Level.INFO}
    for column in (HTTP, GRPC):
        found = on_page()[column]
        assert [id for id in counted & found.keys() if found[id] != "passed"] == []


def test_our_clients_have_the_results_of_the_page_over_http() -> None:
    found = run_clients(("adapter_lro", "http"), ("adapter_lro_async", "http"))
    assert [differences(one, HTTP) for one in found] == [{}, {}]


def test_our_clients_have_the_results_of_the_page_over_grpc() -> None:
    # grpcio 1.66 takes up to 15 s to reconnect to a restarted server.
    pytest.importorskip(
        "grpc", minversion="1.76", reason="no grpc, or one that connects again late"
    )
    found = run_clients(("adapter_lro", "grpc"), ("adapter_lro_async", "grpc"))
    assert [differences(one, GRPC) for one in found] == [{}, {}]


@pytest.mark.platform
def test_googles_client_has_the_results_of_the_page() -> None:
    """The page names the version of Google's client, because other versions may differ."""
    for name in ("google.api_core", "grpc", "requests"):
        pytest.importorskip(name)
    if google_version() not in PAGE.read_text():
        pytest.skip(f"the page has not the results of {google_version()}")
    found = run_clients(("adapter_google", "http"), ("adapter_google", "grpc"))
    over_http, over_grpc = found
    assert differences(over_http, GOOGLE_HTTP) == {}
    assert differences(over_grpc, GOOGLE_GRPC) == {}
