"""Tokens: short texts without secrets, from which another process can resume an operation."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro_client import AsyncClient, Client
from lro_client._addresses import dotted, public_address, server_of
from lro_client._tokens import Token, read_token, token_of
from lro_client.transports import AsyncLocalTransport, LocalTransport
from tests.client.messages import ResizeMetadata, ResizeResponse

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@attrs.frozen
class Unnamed:
    size: int = 0


def test_token_is_compact_json() -> None:
    """A token contains its version, the name and all known optional fields, as compact JSON."""
    text = token_of(
        "operations/abc",
        server="https://example.com",
        response=ResizeResponse,
        metadata=Unnamed,
        trace="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
    )
    assert text == (
        '{"lro":1,"name":"operations/abc","server":"https://example.com",'
        '"response":"acme.images.v1.ResizeResponse","metadata":"Unnamed",'
        '"trace":"00-11111111111111111111111111111111-2222222222222222-01"}'
    )
    assert read_token(text).server == "https://example.com"
    assert read_token(text[:-1] + ',"color":{"red":1}}') == read_token(text)  # newer version
    text = token_of("operations/abc", response=None, metadata=None)
    assert text == '{"lro":1,"name":"operations/abc"}'
    assert read_token(text) == Token(name="operations/abc")


@given(texts.filter(bool), texts, texts, texts)
def test_token_is_read_back(name: str, response: str, metadata: str, trace: str) -> None:
    assume(not dotted(name))
    token = Token(name=name, server="", response=response, metadata=metadata, trace=trace)
    assert read_token(token.text) == token


@given(texts, texts)
def test_public_url_of_a_public_url_is_itself(before: str, after: str) -> None:
    """A public address has no user info, and making it public again does not change it."""
    found = public_address(f"http://{before}@{after}")
    assert "@" not in found.removeprefix("http://").partition("/")[0]
    assert public_address(found) == found


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://user:secret@example.com:8443/base", "https://example.com:8443/base"),
        ("https://se@cr@et@example.com", "https://example.com"),
        ("https://example.com/v1?key=secret#secret", "https://example.com/v1"),
        ("https://example.com/p@th", "https://example.com/p@th"),
        ("user:secret@localhost:50051", "localhost:50051"),
        ("dns:///localhost:50051", "dns:///localhost:50051"),
        ("https://user:secret@\nexample.com", "https://\nexample.com"),
        ("", ""),
    ],
)
def test_token_has_no_secret_of_the_server_url(url: str, public: str) -> None:
    """A token leaves out the user info, query and fragment of the server's URL."""
    assert public_address(url) == public
    assert read_token(token_of("a", server=url, response=None, metadata=None)).server == public
    assert read_token(json.dumps({"lro": 1, "name": "a", "server": url})).server == public


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("operations/abc", "is not JSON"),
        ('{"lro":1,"name":"a"', "is not JSON"),
        ('{"lro":1,"name":"\ud800"}', "is not JSON"),
        ("[1]", r"must be a JSON object, got \[1\]"),
        ("{}", 'it has no "lro"'),
        ('{"lro":2,"name":"a"}', "has version 2; only 1 is known"),
        ('{"lro":true,"name":"a"}', "has version True"),
        ('{"lro":"1","name":"a"}', "has version '1'"),
        ('{"lro":1}', "names no operation"),
        ('{"lro":1,"name":""}', "names no operation"),
        ('{"lro":1,"name":7}', "name must be a text, got 7"),
        ('{"lro":1,"name":"a","trace":null}', "trace must be a text, got None"),
        ('{"lro":1,"name":"../admin/users/1"}', "in the name '../admin/users/1'"),
        ('{"lro":1,"name":"operations/./a"}', "has a segment '.' or '..'"),
        (json.dumps({"lro": 1, "name": "a" * 8192}), "is longer than 8192 bytes: 8"),
    ],
)
def test_invalid_token_is_refused(text: str, problem: str) -> None:
    """The error about an invalid token names the mistake."""
    with pytest.raises(lro.InvalidArgument, match=problem) as caught:
        read_token(text)
    assert caught.value.field == "token"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "needs the name"),
        ("a" * 8192, "longer than 8192 bytes"),
        ("\ud800", "cannot be"),
        ("a/..", "has a segment"),
    ],
)
def test_handle_that_no_token_can_hold_is_refused(name: str, problem: str) -> None:
    """A token that could not be read back is not written."""
    with pytest.raises(lro.InvalidArgument, match=problem):
        token_of(name, response=None, metadata=None)


@settings(max_examples=25)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_json_token_is_read_or_refused(value: Any) -> None:
    with pytest.raises(lro.InvalidArgument):
        read_token(json.dumps(value))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://a", "HTTP://A:80/v1", True),
        ("https://a:443", "https://a", True),
        ("https://a:443/x", "https://a/y", True),
        ("http://a:", "http://a", True),
        ("http://a", "https://a", False),
        ("http://a:80", "http://a:443", False),
        ("http://localhost", "http://127.0.0.1", False),
        ("http://[::1]:80", "http://[::1]", True),
        ("grpc://a:1", "grpc://A:1", True),
        ("grpc://a:1", "grpcs://a:1", False),
        ("grpc://dns:///a:1", "grpc://dns:///b:1", False),
    ],
)
def test_tokens_distinguish_servers_by_origin(one: str, other: str, same: bool) -> None:
    """Servers are compared by scheme, host and port, but not by path."""
    assert (server_of(one) == server_of(other)) is same


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_token_of_another_server_is_refused(make: Any) -> None:
    """A token of another server is refused, but every client accepts a bare name."""
    elsewhere = token_of("operations/a", server="https://a.com", response=None, metadata=None)
    nowhere = token_of("operations/a", response=None, metadata=None)
    known = {"response": ResizeResponse, "metadata": ResizeMetadata}
    client = make("https://b.com/base")
    with pytest.raises(lro.InvalidArgument) as caught:
        client.operation(elsewhere, **known)
    assert caught.value.field == "token"
    text = str(caught.value)
    assert "'https://a.com', and this client asks 'https://b.com/base'" in text
    assert text.endswith("give its name instead: 'operations/a'")
    assert client.operation("operations/a", **known).name == "operations/a"
    assert client.operation(nowhere, **known).name == "operations/a"
    assert make("https://a.com/base").operation(elsewhere, **known).name == "operations/a"
    transport = LocalTransport if make is Client else AsyncLocalTransport
    local = make(transport=transport(lro.Service(MemoryStore(), InlineExecutor())))
    assert local.operation(elsewhere, **known).name == "operations/a"
