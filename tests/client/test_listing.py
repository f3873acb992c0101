"""Paging: each page is fetched only when needed, by its token (spec §11.9)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import respx

import lro
from lro_client import CallError
from tests.client.faces import Clock, Face
from tests.client.messages import refusal, reply, succeeded

PAGES = {
    "": {"operations": [succeeded(name="operations/1")], "nextPageToken": "two"},
    "two": {"operations": [], "nextPageToken": "three"},
    "three": {"nextPageToken": "four"},
    "four": {"operations": [succeeded(name="operations/2"), succeeded(name="operations/3")]},
}


@pytest.fixture
def route(server: respx.Router) -> respx.Route:
    """A list of three operations on four pages, two of which are empty."""

    def answer(request: Any) -> Any:
        return reply(PAGES[request.url.params.get("pageToken", "")])

    return server.get("/v1/operations").mock(side_effect=answer)


def test_pages_are_fetched_lazily(face: Face, route: respx.Route) -> None:
    """A page is fetched when the previous one is used up. Each iteration starts at page one."""
    listed = face.client().list()
    assert route.call_count == 0
    assert [one.name for one in listed] == [f"operations/{n}" for n in (1, 2, 3)]
    assert route.call_count == 4
    steps = iter(listed)
    assert next(steps).name == "operations/1"
    assert route.call_count == 5
    assert next(steps).name == "operations/2"
    assert route.call_count == 8
    steps.close()


def test_pages_returns_raw_pages_with_their_tokens(face: Face, route: respx.Route) -> None:
    """``pages`` returns the server's pages with their tokens."""
    pages = list(face.client().list().pages())
    assert [len(page.operations) for page in pages] == [1, 0, 0, 2]
    assert [page.next_page_token for page in pages] == ["two", "three", "four", ""]
    assert all(isinstance(page, lro.wire.ListOperationsResponse) for page in pages)


def test_each_page_request_repeats_filter_and_page_size(face: Face, route: respx.Route) -> None:
    """The filter and the page size are sent together with every token."""
    list(face.client().list("", "done = true", page_size=1))
    queries = [dict(call.request.url.params) for call in route.calls]
    assert {(query["filter"], query["pageSize"]) for query in queries} == {("done = true", "1")}
    assert [query.get("pageToken") for query in queries] == [None, "two", "three", "four"]


def test_a_list_can_be_resumed_by_page_token(face: Face, route: respx.Route) -> None:
    """A stored page token continues the list in a later request."""
    pages = face.client().list().pages()
    token = next(pages).next_page_token
    pages.close()
    rest = face.client().list(lro.wire.ListOperationsRequest(page_token=token))
    assert [one.name for one in rest] == ["operations/2", "operations/3"]


def test_error_of_a_page_is_raised_by_the_iteration(face: Face, server: respx.Router) -> None:
    """The error of a page is raised when the iteration reaches that page."""
    answers = [refusal(lro.Code.INVALID_ARGUMENT, "old token"), reply(PAGES[""])]
    server.get().mock(side_effect=lambda _: answers.pop())
    steps = iter(face.client().list())
    assert next(steps).name == "operations/1"
    with pytest.raises(CallError, match="ListOperations failed with INVALID_ARGUMENT: old token"):
        next(steps)


@pytest.mark.parametrize("period", [1, 5])
def test_repeated_page_token_ends_the_iteration_with_an_error(
    period: int, face: Face, server: respx.Router
) -> None:
    """If page tokens repeat, the iteration ends with an error."""

    def answer(request: httpx.Request) -> httpx.Response:
        number = int(request.url.params.get("pageToken") or 0)
        return reply({"nextPageToken": str(number % period + 1)})

    route = server.get().mock(side_effect=answer)
    with pytest.raises(CallError, match="the list has no end"):
        list(face.client().list().pages())
    assert route.call_count == period + 1


@pytest.mark.parametrize("body", [{"operations": 5}, {"operations": [[]]}, {"nextPageToken": 5}])
def test_invalid_page_is_an_error(body: object, face: Face, server: respx.Router) -> None:
    """A reply that is not a valid page is an error."""
    server.get().mock(return_value=reply(body))
    with pytest.raises(CallError, match="not what was asked for"):
        list(face.client().list())


def test_page_iteration_ends_at_its_timeout(face: Face, server: respx.Router) -> None:
    server.get().mock(side_effect=[reply({"nextPageToken": str(n)}) for n in range(3)])
    clock = Clock()
    pages = face.client(clock=clock).list().pages(5)
    for seconds in (4, 1):
        next(pages)
        clock.now += seconds
    with pytest.raises(CallError, match="DEADLINE_EXCEEDED: no complete answer within 5 s"):
        next(pages)
