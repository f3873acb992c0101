"""Agents with OAuth tokens, by the code of the page: each person has tasks of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("markdown_it")
pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

import attrs
import httpx
import jwt
from mcp.client import Client
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

import lro
from lro.wire import ListOperationsRequest
from tests.full.mcp.served import Caller
from tests.full.mcp.test_tasks import NOTHING, RPCS
from tests.http.servers import HOST, uvicorn_serving
from tests.page_texts import fences
from tests.services.ports import free_port

NAMES: Final = ("class TranscodeRequest", "def authenticate", "class Verifier", "async def ask")
"""Texts in those blocks of the page that serve and call the guarded tools."""
TOOL: Final = "Videos_Copy"


@attrs.frozen
class Guarded:
    """The page's server with ``token_verifier``, on a real socket."""

    page: dict[str, Any]
    caller: Caller

    def token(self, **claims: Any) -> str:
        """Return a token that the page's issuer has signed for the one agent of all people."""
        said = {"iss": self.page["ISSUER"], "aud": self.page["URL"], "client_id": "agent"}
        found: str = jwt.encode(
            {**said, "exp": int(time.time()) + 600, **claims}, self.page["KEY"], "ES256"
        )
        return found

    def headers(self, person: str) -> dict[str, str | None]:
        """Return the headers of a request that the agent sends for a person."""
        return {"Authorization": f"Bearer {self.token(sub=person)}"}


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """Serve the page's example until the test ends."""
    monkeypatch.chdir(tmp_path)
    port = free_port()
    page: dict[str, Any] = {"Any": Any, "Client": Client, "__name__": "page"}
    blocks = [text for text in fences("how-to/mcp.md", "python") if any(n in text for n in NAMES)]
    assert len(blocks) == len(NAMES)
    *blocks, client = blocks
    code = "\n".join([*blocks, client.partition("\nrefused")[0]])
    exec(compile(code.replace("8001", str(port)), "mcp.md", "exec", dont_inherit=True), page)
    with ExitStack() as stack:
        stack.callback(page["service"].close)
        stack.enter_context(uvicorn_serving(page["guarded"], at=port))
        accepted = {"Accept": "application/json, text/event-stream"}
        base = f"http://{HOST}:{port}"
        yield Guarded(
            page, Caller(stack.enter_context(httpx.Client(base_url=base, headers=accepted)))
        )


def names(guarded: Guarded, person: str) -> list[str]:
    """Return the names of a person's operations."""
    found = guarded.page["private"].list(ListOperationsRequest(), caller=person)
    return [one.name for one in found.operations]


def test_people_of_one_agent_cannot_reach_the_tasks_of_each_other(guarded: Guarded) -> None:
    """With one OAuth client and two subjects, a task is only found by the person who started it."""
    ask: Callable[[str, str, Any], Any] = guarded.page["ask"]
    ann, bob = (guarded.token(sub=person) for person in ("ann", "bob"))
    copied = asyncio.run(ask(ann, TOOL, {"source": "a.mov"}))
    assert copied.structured_content == {"uri": "a.mov"}
    (name,) = names(guarded, "ann")
    assert names(guarded, "bob") == []
    stored = {"id": name.removeprefix("operations/")}
    for tool in ("operations_get", "operations_cancel"):
        mine, theirs = (asyncio.run(ask(token, tool, stored)) for token in (ann, bob))
        assert mine.structured_content == {"uri": "a.mov"}
        assert theirs.is_error
        assert theirs.content[0].text == NOTHING
    for rpc in RPCS:
        assert guarded.caller.task(rpc, stored["id"], headers=guarded.headers("ann")).status == 200
        refused = guarded.caller.task(rpc, stored["id"], headers=guarded.headers("bob"))
        assert refused.error == {"code": -32602, "message": NOTHING}


@pytest.mark.parametrize(
    "claims",
    [None, {"aud": "http://other.example/mcp"}, {"iss": "https://other.example"}, {"exp": 1}],
)
def test_request_without_a_valid_token_gets_401_and_the_way_to_the_issuer(
    guarded: Guarded, claims: dict[str, Any] | None
) -> None:
    headers = {}
    if claims is not None:
        headers["Authorization"] = f"Bearer {guarded.token(**{'sub': 'ann', **claims})}"
    refused = guarded.caller.client.post("/mcp", json={}, headers=headers)
    assert refused.status_code == 401
    said = refused.headers["www-authenticate"]
    address = said.partition('resource_metadata="')[2].rstrip('"')
    shown = guarded.caller.client.get(httpx.URL(address).path).json()
    assert shown["resource"] == guarded.page["URL"]
    assert shown["authorization_servers"] == [guarded.page["ISSUER"]]


@pytest.mark.parametrize("subject", [None, ""])
def test_token_without_a_subject_names_nobody(guarded: Guarded, subject: str | None) -> None:
    """A token of an agent without a person is refused, also with a verifier that accepts it."""
    token = AccessToken(token="t", client_id="agent", scopes=[], subject=subject)
    authenticate = guarded.page["authenticate"]
    for scope in ({"user": AuthenticatedUser(token)}, {"user": object()}, {}):
        with pytest.raises(lro.errors.Unauthenticated):
            authenticate({}, scope)
    known = AuthenticatedUser(token.model_copy(update={"subject": "ann"}))
    assert authenticate({}, {"user": known}) == "ann"
    assert authenticate({}, None) == "local"
