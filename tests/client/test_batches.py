"""Complete, partial and invalid replies to BatchGet (spec §3.11)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

import lro
from lro_client import Polling
from tests.client.faces import Clock, Face
from tests.client.messages import TYPES, ResizeResponse, refusal, reply, running, succeeded

NAMES = [f"operations/{number}" for number in range(6)]
DONE = [succeeded(name=name) for name in NAMES]
EVERY = [ResizeResponse(7)] * len(NAMES)


class Server:
    """Answers BatchGet with the given bodies first, then correctly; answers Get correctly."""

    def __init__(self, *bodies: Any, gone: str = "") -> None:
        self.bodies, self.gone = list(bodies), gone
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, _, verb = request.url.path.removeprefix("/v1/").partition(":")
        self.asked.append(verb or ("list" if path == "operations" else "get"))
        if verb == "batchGet":
            if self.bodies:
                return reply(self.bodies.pop(0))
            names = [one for one in json.loads(request.content)["names"] if one != self.gone]
            missing = [self.gone] if self.gone else []
            return reply(
                {"operations": [succeeded(name=name) for name in names], "missing": missing}
            )
        if verb or path == "operations" or path == self.gone:
            return refusal(lro.Code.UNIMPLEMENTED if verb else lro.Code.NOT_FOUND)
        return reply(succeeded(name=path))


def group_of(
    face: Face, server: Any, clock: Clock | None = None, names: Sequence[str] = NAMES
) -> Any:
    """Make a group of these operations, on a client that never calls Wait."""
    http = face.http(transport=httpx.MockTransport(server))
    client = face.client(http=http, clock=clock or Clock(), polling=Polling(wait_first=False))
    return client.group([face.inside(client.operation(name, **TYPES)) for name in names])


PENDING = [running(name=name) for name in NAMES]
INCOMPLETE = {
    "none": {"operations": PENDING},
    "some": {"operations": [*DONE[:3], *PENDING[3:]], "missing": []},
    "one more": {"operations": [*PENDING, running(name="operations/other")]},
    "another is done": {"operations": [*PENDING, succeeded(name="operations/7")]},
    "another is missing": {"operations": PENDING, "missing": ["operations/other"]},
    "no names": {"operations": PENDING, "missing": [5, None], "more": {}},
    "no operations beside": {"operations": [*PENDING, 5, None, {"name": 5}, {"name": []}]},
}


@pytest.mark.parametrize("body", INCOMPLETE.values(), ids=INCOMPLETE)
def test_unfinished_operations_of_a_batch_are_read_again(body: Any, face: Face) -> None:
    """Operations that are not done are read again; operations not requested are ignored."""
    server = Server(body)
    assert group_of(face, server).results() == EVERY
    assert server.asked[:1] == ["batchGet"]


NONE: dict[str, Any] = {
    "a list": [],
    "a text": "operations",
    "no list": {"operations": {}},
    "missing is no list": {"operations": [], "missing": {}},
    "missing is a text": {"operations": [], "missing": "operations/1"},
    "nothing": {},
    "one is left out": {"operations": DONE[1:]},
    "one is none": {"operations": [*DONE[1:], {**DONE[0], "response": 5}]},
    "one is no object": {"operations": [*DONE[1:], 5]},
}


@pytest.mark.parametrize("body", NONE.values(), ids=NONE)
def test_invalid_batch_reply_is_replaced_by_single_gets(body: Any, face: Face) -> None:
    """After an invalid reply, each operation is read with its own Get."""
    server = Server(*[body] * 10)
    assert group_of(face, server).results() == EVERY
    assert server.asked.count("batchGet") == 1
    assert server.asked.count("get") == len(NAMES)


def test_names_without_a_collection_are_read_singly(face: Face) -> None:
    """BatchGet needs the path of a collection, so names without one are read with Gets."""
    server, names = Server(), [f"id{number}" for number in range(6)]
    assert group_of(face, server, names=names).results() == EVERY
    assert server.asked == ["get"] * 6


def test_batch_polls_keep_the_pauses_of_the_policy(face: Face) -> None:
    server, clock = Server(*[{"operations": PENDING}] * 40), Clock()
    began = clock()
    assert group_of(face, server, clock).results() == EVERY
    assert 10 <= clock() - began <= 20


@pytest.mark.parametrize("most", [1, 2])
def test_batch_refused_as_too_large_is_halved(most: int, face: Face) -> None:
    """A batch refused as too large is halved without a pause until it is accepted (§3.4(9))."""
    sizes: list[int] = []

    def serve(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith(":batchGet"):
            return server(request)
        names = json.loads(request.content)["names"]
        sizes.append(len(names))
        if len(names) <= most:
            return server(request)
        reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "BATCH_TOO_LARGE"}
        return refusal(lro.Code.RESOURCE_EXHAUSTED, "too large", reason)

    server = Server()
    assert group_of(face, serve).results() == EVERY
    assert sizes[0] == len(NAMES)
    assert max(sizes[1:3]) <= 3


@pytest.mark.parametrize(("empty", "gets"), [(3, 0), (9999, len(NAMES))], ids=["few", "many"])
def test_empty_pages_of_a_list_are_followed(empty: int, gets: int, face: Face) -> None:
    """AIP-158 allows empty pages; after ten of them, each operation is read with a Get."""
    asked: list[int] = []

    def serve(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/operations":
            return refusal(lro.Code.UNIMPLEMENTED) if request.method == "POST" else server(request)
        asked.append(int(request.url.params.get("pageToken", 0)))
        more = {"nextPageToken": str(asked[-1] + 1)}
        return reply(more if asked[-1] < empty else {"operations": DONE})

    server = Server()
    assert group_of(face, serve).results() == EVERY
    assert asked == list(range(min(empty, 10) + 1))
    assert server.asked == ["get"] * gets
