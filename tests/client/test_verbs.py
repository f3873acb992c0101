"""The five verbs over HTTP: their requests, and how replies are read (§3.8, §5.15, §11.10)."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
import respx
from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro_client import CallError, Routes
from lro_client.transports import Call
from lro_client.transports._http_coding import HttpCoder
from tests.client.faces import Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeRequest,
    body_of,
    page_of_a_proxy,
    reply,
    running,
    succeeded,
)

LOCAL = "projects/p/locations/eu-1/operations/op-1"


def sent(server: respx.Router) -> httpx.Request:
    """Return the only request that was sent."""
    assert len(server.calls) == 1
    request: httpx.Request = server.calls.last.request
    return request


def line(request: httpx.Request) -> tuple[str, str]:
    """Return the method, and the raw path with its query."""
    return request.method, request.url.raw_path.decode()


NAMES = [
    (NAME, "/v1/operations/abc"),
    (LOCAL, f"/v1/{LOCAL}"),
    ("operations/a:b", "/v1/operations/a%3Ab"),
    ("operations/a:cancel", "/v1/operations/a%3Acancel"),
    ("operations/ü/鸟", "/v1/operations/%C3%BC/%E9%B8%9F"),
    ("operations/a b?c#d%2F", "/v1/operations/a%20b%3Fc%23d%252F"),
    ("operations/-_.~", "/v1/operations/-_.~"),
]


def test_name_with_any_character_is_sent_in_each_verb(face: Face, server: respx.Router) -> None:
    """A name may contain any character. Each verb also takes its request message (spec §3.8)."""
    server.route().mock(side_effect=lambda request: reply(running(30)))
    client = face.client()
    for name, path in NAMES:
        for verb, whole, expected in (
            ("get", lro.wire.GetOperationRequest, ("GET", path)),
            ("delete", lro.wire.DeleteOperationRequest, ("DELETE", path)),
            ("cancel", lro.wire.CancelOperationRequest, ("POST", f"{path}:cancel")),
            ("wait", lro.wire.WaitOperationRequest, ("POST", f"{path}:wait")),
        ):
            for asked in (name, whole(name)):
                found = getattr(client, verb)(asked)
                request = server.calls.last.request
                assert line(request) == expected
                assert body_of(request) == ({} if request.method == "POST" else None)
                if verb in ("get", "wait"):
                    assert (found.name, found.done, found.state) == (NAME, False, "IN_PROGRESS")
                    assert found.metadata.type_name == "acme.images.v1.ResizeMetadata"
                else:
                    assert found is None
                if request.method == "POST":
                    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("timeout", "body"),
    [
        (None, {}),
        (0, {"timeout": "0s"}),
        (2.5, {"timeout": "2.500s"}),
        (timedelta(minutes=1), {"timeout": "60s"}),
        *[(many, {"timeout": "100000000s"}) for many in (math.inf, 10**400, timedelta.max)],
        (-1e300, {"timeout": "-100000000s"}),
        (lro.wire.WaitOperationRequest(NAME, lro.Duration(1, 1)), {"timeout": "1.000000001s"}),
    ],
    ids=lambda one: f"{one!r:.30}",
)
def test_wait_sends_its_timeout(timeout: Any, body: Any, face: Face, server: respx.Router) -> None:
    """``wait`` sends the timeout as a duration, and returns the state in the reply."""
    server.post().mock(return_value=reply(running()))
    if isinstance(timeout, lro.wire.WaitOperationRequest):
        assert not face.client().wait(timeout).done
    else:
        assert not face.client().wait(NAME, timeout=timeout).done
    request = sent(server)
    assert line(request) == ("POST", "/v1/operations/abc:wait")
    assert body_of(request) == body


FILTER = 'done = true AND metadata.verb = "ü"'


@pytest.mark.parametrize(
    ("parent", "path"),
    [
        ("", "/v1/operations"),
        ("operations", "/v1/operations"),
        ("projects/p", "/v1/projects/p/operations"),
        ("projects/p/operations", "/v1/projects/p/operations"),
        ("things/operations", "/v1/things/operations/operations"),
        ("projects/a:b", "/v1/projects/a%3Ab/operations"),
    ],
)
def test_list_sends_the_parent_in_any_spelling(
    parent: str, path: str, face: Face, server: respx.Router
) -> None:
    """The parent may have any spelling that the specification allows (spec §3.3)."""
    server.get().mock(return_value=reply({}))
    assert list(face.client().list(parent=parent)) == []
    assert line(sent(server)) == ("GET", path)
    for args, more in (
        ((parent, FILTER), {"page_size": 7}),
        ((lro.wire.ListOperationsRequest(parent, FILTER, 7, "t-1"),), {}),
    ):
        list(face.client().list(*args, **more))
        query = dict(httpx.QueryParams(server.calls.last.request.url.query.decode()))
        assert query == {
            "filter": FILTER,
            "pageSize": "7",
            **({} if more else {"pageToken": "t-1"}),
        }


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1).filter(lambda s: "/" not in s), min_size=1, max_size=4))
def test_percent_encoded_name_arrives_unchanged(segments: list[str]) -> None:
    """A server that decodes paths by HTTP's rules gets the original name (spec §5.3, §5.15)."""
    name = "operations/" + "/".join(segments)
    coder = HttpCoder(Routes(), lro.TypeRegistry())
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    asked = coder.encode(Call(request=lro.wire.GetOperationRequest(name), budget=1.0))
    assert unquote(str(httpx.URL("http://test" + asked.url).raw_path, "ascii")) == f"/v1/{name}"


def test_path_of_each_verb_can_be_set(face: Face, server: respx.Router) -> None:
    """The caller can set the path of each verb."""
    server.route().mock(return_value=reply(running()))
    routes = Routes(
        get="/compute/{name=projects/*/operations/*}",
        cancel="/compute/{name=operations/*}/abort",
        delete="/v2/{name=**}",
        list="/v2/{name=**}",
    )
    client = face.client(routes=routes)
    client.get("projects/p/operations/o")
    client.cancel(NAME)
    client.delete(NAME)
    list(client.list())
    assert [line(call.request) for call in server.calls] == [
        ("GET", "/compute/projects/p/operations/o"),
        ("POST", f"/compute/{NAME}/abort"),
        ("DELETE", f"/v2/{NAME}"),
        ("GET", "/v2/operations"),
    ]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_wait_may_be_bound_without_a_body(method: str, face: Face, server: respx.Router) -> None:
    """Wait may be sent as a GET, or as a POST without a body (spec §4.10)."""
    server.route().mock(return_value=reply(running()))
    routes = Routes(wait="/v1/{name=operations/*}/wait", wait_method=method, wait_body=False)
    face.client(routes=routes).wait(NAME, timeout=1.5)
    request = sent(server)
    assert line(request) == (method, f"/v1/{NAME}/wait?timeout=1.500s")
    assert body_of(request) is None


def test_given_http_client_is_used_and_not_closed(face: Face, server: respx.Router) -> None:
    """A given HTTP client's URL and headers are used, and closing our client leaves it open."""
    server.get().mock(return_value=reply(running()))
    http = face.http(base_url="http://test/own", headers={"authorization": "Bearer x"})
    client = face.client("", http=http)
    client.get(NAME)
    client.close()
    request = sent(server)
    assert request.url == f"http://test/own/v1/{NAME}"
    assert request.headers["authorization"] == "Bearer x"
    assert not http.is_closed


def test_a_client_enters_as_itself_and_is_closed_after_its_block(
    face: Face, server: respx.Router
) -> None:
    """Entering a client returns the client itself; after the block its connections are closed."""
    client = face.make("http://test")
    with face.entering(client) as entered:
        assert entered is face.inside(client)
    with pytest.raises(CallError, match="the client was closed"):
        client.get(NAME)
    assert not server.calls


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (httpx.Response(200, text="[" * 500 + "]" * 500), "not JSON"),
        (httpx.Response(200), "says nothing: it is an empty body"),
        (reply([]), "not what was asked for: must be an object"),
        (reply({"name": 5}), "not what was asked for: name"),
        (reply({**succeeded(), "error": {"code": 5}}), "not what was asked for: response"),
    ],
)
def test_reply_that_is_not_an_operation_is_an_error(
    answer: httpx.Response, text: str, face: Face, server: respx.Router
) -> None:
    """A reply that is not an operation is an error, and the request is not repeated."""
    server.get().mock(return_value=answer)
    with pytest.raises(CallError, match=text) as caught:
        face.client().get(NAME)
    assert caught.value.code is lro.Code.UNKNOWN
    assert caught.value.http_status == answer.status_code
    assert len(server.calls) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_within_a_server_are_followed(
    status: int, face: Face, server: respx.Router
) -> None:
    """A redirect within the server is followed, unless a POST would become a GET."""
    server.route(path__startswith=f"/v1/{NAME}").mock(
        return_value=page_of_a_proxy(status, location="/v2?a=b")
    )
    there = server.route(path="/v2", params={"a": "b"}).mock(return_value=reply(running()))
    assert face.client().get(NAME).name == NAME
    if status in (307, 308):
        face.client().cancel(NAME)
        assert there.calls.last.request.method == "POST"
        assert there.calls.last.request.content == b"{}"
    else:
        with pytest.raises(CallError, match=f"HTTP {status}"):
            face.client().cancel(NAME)
        assert there.call_count == 1


@pytest.mark.parametrize(
    "there",
    ["http://a:s3cr3t@other/v2", "https://test/v2?k=s3cr3t", "http://test:81/v2", "//other/v2"],
)
def test_redirects_to_another_server_are_not_followed(
    there: str, face: Face, server: respx.Router
) -> None:
    """A redirect to another server is an error, which has the redirect's target without secrets."""
    http = face.http(params={"key": "s3cr3t"})
    server.get().mock(return_value=page_of_a_proxy(307, location=there))
    with pytest.raises(CallError, match="redirects to another origin, http") as caught:
        face.client(http=http).get(NAME)
    assert "s3cr3t" not in str(caught.value)
    assert (caught.value.code, caught.value.http_status) == (lro.Code.FAILED_PRECONDITION, 307)
    assert len(server.calls) == 1


def test_circular_redirects_are_an_error(face: Face, server: respx.Router) -> None:
    server.get().mock(return_value=page_of_a_proxy(302, location="/v2?key=s3cr3t"))
    with pytest.raises(CallError, match=r"5 redirections, the last one to http://test/v2$"):
        face.client().get(NAME)


def test_path_with_a_url_in_its_query_is_a_path(face: Face, server: respx.Router) -> None:
    """The target of a start is taken for a path even if its query contains a URL."""
    route = server.post(path="/v1/x:start").mock(return_value=reply(succeeded()))
    face.client().start("/v1/x:start?callback=http://other/", ResizeRequest(), **TYPES)
    assert route.called


@pytest.mark.parametrize("name", ["projects/p", "projects/p/operations"])
def test_list_route_may_take_the_parent_as_variable(
    name: str, face: Face, server: respx.Router
) -> None:
    """As in Google's HTTP rules, the variable of List may be the parent without the collection."""
    route = server.get(path="/v1beta/projects/p/operations")
    route.mock(return_value=reply({"operations": [running()]}))
    routes = Routes(list="/v1beta/{name=projects/*}/operations")
    assert [one.name for one in face.client(routes=routes).list(name)] == [NAME]
    with pytest.raises(lro.DeclarationError, match="does not have the form"):
        list(face.client(routes=routes).list("folders/p"))
