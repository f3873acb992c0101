"""The error of an invalid filter says where the mistake is and what was expected there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest

import lro
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.filters.messages import ExportMetadata, ExportResponse
from tests.http.counting_service import DOMAIN, NOW, CountRequest, details_of
from tests.http.servers import Caller, asgi_inside

HERE = "‸"
"""Marks the error position in the filters below: the character after it is wrong."""

LITERALS = "expected a field, a function, a value or '('"
FIELDS = "expected one of the fields name, done, error, metadata, response or a function"

MISTAKES: Mapping[str, tuple[str, str]] = {
    "a quote that does not end": (
        'done = true AND metadata.verb = ‸"copy',
        'expected " to end the string that begins here, found the end of the filter',
    ),
    "half of a surrogate pair": (
        r'metadata.verb = "‸\ud83d"',
        "expected a pair of surrogates, high and low, found only one",
    ),
    "keyword first": ("‸AND done = true", f"{LITERALS}, found the keyword AND"),
    "an operator of C": ("‸!done", "expected '=' after '!'; a negation is written NOT or -"),
    "missing operand on the left": ("‸= true", f"{LITERALS}, found '='"),
    "one parenthesis too many": ("(done = true)‸)", "expected the end of the filter, found ')'"),
    "a step that is missing": (
        "metadata.‸.verb = copy",
        "expected a name or value after '.', found '.'",
    ),
    "a time without quotes": (
        "create_time() > 2030-01-31T12‸:00:00Z",
        "expected quotes around a value that holds an operator, found ':'",
    ),
    "code points are counted, not bytes": (
        'metadata.verb = "größer 🙂" ‸)',
        "expected the end of the filter, found ')'",
    ),
    "a field that is nearly right": (
        "metadata.‸progres_percent > 5",
        "there is no field 'progres_percent'; did you mean progress_percent?",
    ),
    "a field like no other": ("metadata.‸colour = red", "there is no field 'colour'"),
    "a name too long for a field": (
        "metadata.‸" + "progress_percent" * 3 + " > 5",
        "there is no field 'progress_percentprogress_percentprogress…'",
    ),
    "a field without metadata": (
        "done = true ‸verb = copy",
        f"{FIELDS} such as state(), found 'verb'; did you mean metadata.verb?",
    ),
    "a field without response": (
        "‸rowcount > 5",
        f"{FIELDS} such as state(), found 'rowcount'; did you mean response.row_count?",
    ),
    "a derived field": (
        "‸state = FAILED",
        f"{FIELDS} such as state(), found 'state'; did you mean state()?",
    ),
    "a type without parentheses": (
        "‸type = acme.v1.Thing",
        f"{FIELDS} such as state(), found 'type'; did you mean type(metadata)?",
    ),
    "no such function": (
        "done = true AND ‸now() > 5",
        "expected one of the functions state(), create_time(), end_time(), cancel_requested(),"
        " waiting(), method(), type(metadata), type(response), found 'now'",
    ),
    "a method without parentheses": (
        "‸method = acme.v1.Things.Copy",
        f"{FIELDS} such as state(), found 'method'; did you mean method()?",
    ),
    "the order of a method": (
        "method() ‸> acme",
        "the name of a method has no order, so it takes no '>'",
    ),
    "a function with quotes": (
        "type(‸'metadata') = acme.v1.Thing",
        "type takes metadata or response, without quotes",
    ),
    "a function of too much": ("state(‸metadata) = FAILED", "state takes no argument"),
    "a function alone": ("‸state() AND done = true", "expected an operator after state()"),
    "text for a number": ("metadata.progress_percent = ‸many", "expected a number, found 'many'"),
    "a number too long": (
        "error.code = (3 OR ‸" + "9" * 401 + ")",
        "expected a number of at most 400 characters and an exponent from -308 to 308,"
        f" found '{'9' * 40}…'",
    ),
    "an order where there is none": ("done ‸> true", "a bool has no order, so it takes no '>'"),
    "a repeated field": ("metadata.tags ‸= a", "a repeated field or map takes only ':', not '='"),
    "bytes": ("metadata.checksum ‸= x", "bytes, a field mask or a packed message takes only ':*'"),
    "an element that is a message": (
        "metadata.steps:‸nmae",
        "a repeated field of messages takes only ':*'",
    ),
    "text for a bool": ("done = ‸yes", "expected true or false, found 'yes'"),
    "a day for a time": (
        "create_time() > ‸2030-01-31",
        "expected a time such as \"2030-01-31T12:00:00Z\", found '2030-01-31'",
    ),
    "a number for a duration": (
        "metadata.elapsed > ‸5",
        "expected a duration in seconds such as 1.5s, found '5'",
    ),
    "a repeated field on the way": (
        "metadata.steps.‸name = x",
        "repeated fields can be traversed only with ':', not with '='",
    ),
    "something below a scalar": ("done.‸what = true", "'what' cannot be below a bool"),
    "a comparison among values": (
        "done = (true OR ‸name = x)",
        "expected values in the group after an operator, found a comparison",
    ),
    "too long": ("x" * 8192 + "‸x", "a filter has at most 8192 characters, this one has 8193"),
    "too deep": ("(" * 50 + "‸(x)" + ")" * 50, "parentheses can be nested at most 50 deep"),
    "too many": ("x " * 500 + "‸x", "a filter has at most 500 tests and groups"),
}


KINDS: Any = {"request": CountRequest, "metadata": ExportMetadata}


@pytest.fixture(scope="module")
def service() -> Iterator[lro.Service]:
    """A service with one method whose messages have fields of every kind."""
    store = MemoryStore(lambda: NOW)
    with lro.Service(store, InlineExecutor(), domain=DOMAIN, maintenance=False) as service:
        service.declare("acme.v1.Things.Export", response=ExportResponse, **KINDS)
        yield service


@pytest.fixture(scope="module")
def call(service: lro.Service) -> Iterator[Caller]:
    """A function that calls the service over HTTP, within this process."""
    with asgi_inside(OperationsApp(service)) as call:
        yield call


@pytest.mark.parametrize("mistake", MISTAKES)
def test_filter_error_shows_the_position_of_the_mistake(
    mistake: str, service: lro.Service, call: Caller
) -> None:
    """Callers in the process and over HTTP get the same position and message."""
    marked, sentence = MISTAKES[mistake]
    position, text = marked.index(HERE), marked.replace(HERE, "")
    with pytest.raises(lro.errors.InvalidFilter) as caught:
        service.list(lro.wire.ListOperationsRequest(filter=text))
    assert (caught.value.position, caught.value.description) == (position, sentence)
    reply = call("GET", f"/v1/operations?filter={quote(text)}")
    assert reply.status_code == 400
    # The message is for people, the position for programs.
    body: Mapping[str, Any] = reply.json()
    error = body["error"]
    assert (error["status"], error["message"]) == (
        "INVALID_ARGUMENT",
        f"filter, at character {position}: {sentence}",
    )
    details = details_of(body)
    info = details["ErrorInfo"]
    assert (info["reason"], info["metadata"]) == (
        "INVALID_FILTER",
        {"field": "filter", "position": str(position)},
    )
    (violation,) = details["BadRequest"]["fieldViolations"]
    assert violation["field"] == "filter"
    assert violation["description"] == f"at character {position}: {sentence}"


def test_operators_of_other_languages_are_search_words(call: Caller) -> None:
    """Operators of other languages count as search words (spec §7.6)."""
    for text in ("done = true and name = x", "not done", "done || error", "error.code in (3)"):
        assert call("GET", f"/v1/operations?filter={quote(text)}").json() == {}


def test_invalid_filter_is_reported_without_a_store_call(service: lro.Service) -> None:
    """An invalid filter is an error even for a parent without operations (spec §7.15)."""
    request = lro.wire.ListOperationsRequest("projects/none", "metadata.verb > 5 AND (", 10)
    with pytest.raises(lro.errors.InvalidFilter, match="at character 23: expected a field"):
        service.list(request)


def test_filter_error_for_several_types_shows_the_one_parsed_furthest(service: lro.Service) -> None:
    """With several possible response types, the error is that of the longest parse, with a note."""
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as two:
        for number, response in enumerate((ExportResponse, ExportMetadata)):
            two.declare(f"acme.v1.Things.Do{number}", response=response, **KINDS)
        with pytest.raises(lro.errors.InvalidFilter) as caught:
            two.list(lro.wire.ListOperationsRequest(filter="response.row_count > many"))
    assert caught.value.position == 21
    assert caught.value.description == (
        "expected a number, found 'many'; no type registered for response accepts this"
    )
