"""The HTTP rules: which route a request takes (spec §5.5-§5.7)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import DeclarationError, LroError
from lro._http.routes import Allowed, Match, parameter_names
from lro.errors import HttpMethodNotAllowed, MalformedRequest, RouteNotFound
from lro.wire import Route, RouteTable, Template, default_routes
from tests.vector_files import vectors

VECTORS = vectors("http_route")


def answer_of(table: RouteTable, method: str, path: str) -> dict[str, Any]:
    """Return what a route table answers, in the format of the vectors."""
    try:
        found = table.find(method, path)
    except HttpMethodNotAllowed as refused:
        return {"http": 405, "status": refused.code.name, "allow": ", ".join(refused.allow)}
    except LroError as refused:
        return {"http": refused.code.http, "status": refused.code.name}
    if isinstance(found, Allowed):
        return {"http": 204, "allow": ", ".join(found.allow)}
    assert found.head == (method == "HEAD")
    return {"rpc": found.rpc, "bindings": found.bindings}


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["id"])
def test_request_takes_the_route_of_its_vector(case: dict[str, Any]) -> None:
    """Each request of http_route.json takes the route that the case names."""
    table = RouteTable(default_routes(case["extra_parents"]))
    assert answer_of(table, case["method"], case["path"]) == case["expect"]


def test_the_default_routes_are_those_of_the_vectors() -> None:
    """The five rules without a parent, and the five of each parent, are as in the vectors."""
    rules = [f"{rule['method']} {rule['template']}" for rule in VECTORS["routes"]]
    for parent in ("projects/*", "projects/*/locations/*"):
        rules += [rule.replace("PARENT", parent) for rule in VECTORS["extra_parent_templates"]]
    routes = default_routes(("projects/*", "projects/*/locations/*"))
    assert [f"{route.method} {route.template.text}" for route in routes] == rules
    rpcs = [rule["rpc"] for rule in VECTORS["routes"]]
    assert [route.rpc for route in routes] == rpcs * 3


@pytest.mark.parametrize(
    "parent",
    [
        *("", "operations", "../*", "*/projects", "a/*}/{b=c/*", "/projects/*"),
        *(f"projects{rest}" for rest in ("", "/**", "/*:x", "/*/", "/-", "/*/operations", "/a b")),
        *("projects/%00", "projects/" + "x" * 1024),
    ],
)
def test_parent_pattern_without_findable_operations_is_refused(parent: str) -> None:
    """A parent pattern below which no operation could be found is refused."""
    with pytest.raises(DeclarationError) as refused:
        default_routes([parent])
    wanted = "parents: must be patterns such as projects/*/locations/*, got "
    assert str(refused.value).startswith(wanted)
    assert ("slash" in str(refused.value)) == parent.startswith("/")


@pytest.mark.parametrize("parent", ["projects/my-project", "a/*/b/c/d/*", "caf%C3%A9s/a%2Fb"])
def test_a_parent_may_have_literal_ids(parent: str) -> None:
    """Ids in a parent pattern may be fixed, and any character may be escaped."""
    table = RouteTable(default_routes([parent]))
    path = f"/v1/{parent.replace('*', 'x')}/operations"
    assert answer_of(table, "GET", path)["rpc"] == "ListOperations"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "", "GET,PUT", "G\r\n"])
def test_a_method_that_cannot_be_routed_is_refused(method: str) -> None:
    """A route's method must be a valid token, and not HEAD or OPTIONS, which the table answers."""
    with pytest.raises(DeclarationError, match="cannot be routed"):
        Route(method=method, template="/v1/x", rpc="X")


def test_invalid_template_of_a_route_is_refused() -> None:
    """A route's template may be passed as text; an invalid text is refused."""
    assert Route(method="GET", template="/v1/x", rpc="X").template == Template.parse("/v1/x")
    with pytest.raises(DeclarationError, match="no segment begins"):
        Route(method="GET", template="/v1/", rpc="X")


def test_the_more_specific_route_wins_and_of_equals_the_first() -> None:
    """Among routes with the request's method, the most specific wins; among equals, the first."""
    texts = ["/v1/{x=**}", "/v1/{x=a/**}", "/v1/{x=*}", "/v1/{y=*}", "/v1/{x=a}"]
    routes = [Route(method="GET", template=text, rpc=text) for text in texts]
    put = Route(method="PUT", template="/v1/a/b", rpc="Put")
    for order, first in ((routes, "{x=*}"), (routes[::-1], "{y=*}")):
        table = RouteTable([*order, put])
        for path, rpc in (("a", "{x=a}"), ("b", first), ("a/b", "{x=a/**}")):
            assert answer_of(table, "GET", f"/v1/{path}")["rpc"] == f"/v1/{rpc}"
        assert answer_of(table, "GET", "/v1") == {"rpc": "/v1/{x=**}", "bindings": {"x": ""}}


def test_path_with_a_registered_verb_is_not_read_as_an_id() -> None:
    """A path that ends with a known verb is never read as an id with a colon."""
    table = RouteTable(
        [
            *default_routes(),
            Route(method="POST", template="/v1/operations:watch", rpc="Watch"),
            Route(method="PUT", template="/v1/x:a%2Fb", rpc="Odd"),
            Route(method="PUT", template="/{x=**}:do", rpc="Do"),
        ]
    )
    assert answer_of(table, "GET", "/v1/operations/x:watch")["http"] == 404
    assert answer_of(table, "POST", "/v1/operations/:cancel")["http"] == 404
    assert answer_of(table, "POST", ":cancel")["http"] == 404
    assert answer_of(table, "PUT", ":do")["http"] == 404
    assert answer_of(table, "GET", "/v1/operations/x:a/b")["rpc"] == "GetOperation"
    assert answer_of(table, "PUT", "/v1/x:a%2Fb")["rpc"] == "Odd"
    assert answer_of(table, "PUT", "/v1/x:a/b")["http"] == 404


def test_fast_routing_and_template_routing_agree() -> None:
    """Fast routing gives the same results as templates for escapes, slashes and invalid UTF-8."""
    table = RouteTable([*default_routes(), Route(method="GET", template="/v1/a%2Fb", rpc="Odd")])
    head = Match(rpc="GetOperation", bindings={"name": "operations/aa"}, head=True)
    assert table.find("HEAD", "/v1/operations/aa") == table.find("HEAD", "/v1/operations/%61a")
    assert table.find("HEAD", "/v1/operations/aa") == head
    assert answer_of(table, "GET", "/v1/a%2fb")["rpc"] == "Odd"
    assert answer_of(table, "GET", "/v1/a/b")["http"] == 404
    assert answer_of(table, "GET", "/v1/operations/\udc80")["http"] == 400


def test_empty_route_table_answers_not_found() -> None:
    """A table without routes answers NOT_FOUND for every valid path."""
    table = RouteTable(())
    for path in ("/", "/v1/x:y", "*"):
        with pytest.raises(RouteNotFound) as missing:
            table.find("GET", path)
        assert missing.value.path == path
    with pytest.raises(MalformedRequest):
        table.find("GET", "/v1/\udc80")


SEGMENTS = st.sampled_from(["v1", "a", "b", "*", "{x}", "{y=a}", "{z=a/*}", "a%2Fb", "%61"])
ENDS = st.sampled_from(["", "", "/**", "/{w=**}", "/{w=a/**}", "/{w=*/**}"])
VERBS = st.sampled_from(["", "", "", ":do", ":d%6F", ":a%2Fb", ":go"])
METHODS = st.sampled_from(["GET", "GET", "PUT", "POST", "HEAD", "OPTIONS", "get"])
PIECES = ("/", "/v1", "/a", "/b", "/x", "a", ":do", ":go", ":", "/é")
PATHS = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)


@st.composite
def routes(draw: st.DrawFn) -> Route:
    segments = draw(st.lists(SEGMENTS, min_size=1, max_size=3, unique=True))
    template = "/" + "/".join(segments) + draw(ENDS) + draw(VERBS)
    method = draw(st.sampled_from(["GET", "PUT", "POST"]))
    return Route(method=method, template=template, rpc=f"{method} {template}")


def escaped(path: str) -> str:
    """Return the path with every letter escaped."""
    return "".join(
        one if one in "/:" else quote(one).replace(one, f"%{ord(one):02x}") for one in path
    )


@given(st.lists(routes(), max_size=6), METHODS, PATHS)
def test_percent_encoded_letters_do_not_change_the_route(
    rules: list[Route], method: str, path: str
) -> None:
    """A path takes the same route with and without escapes, which are looked up differently."""
    for table in (RouteTable(rules), RouteTable([*default_routes(["a/*"]), *rules])):
        assert answer_of(table, method, path) == answer_of(table, method, escaped(path))


@given(METHODS, st.text(max_size=20) | st.text("/v1%:a\udc80", max_size=20))
def test_default_table_routes_or_refuses_every_path(method: str, path: str) -> None:
    """Every path gives a route or one of the library's errors."""
    table = RouteTable(default_routes(["projects/*", "projects/*/locations/*"]))
    assert answer_of(table, method, path)


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("/v1/{name=projects/*/locations/*}/operations", ["project", "location"]),
        ("/v1/{name=operations/**}:wait", ["operation"]),
        ("/v1/shelves/{shelf}/books/{book.full_title}:print", ["shelf", "book_full_title"]),
        ("/v1/a-b/*/a-b/*", ["a_b", "a_b_"]),
        ("/*/2d/*", ["id", "id2d"]),
    ],
)
def test_route_parameter_is_named_by_variable_or_collection(
    template: str, names: list[str]
) -> None:
    """Route parameters get unique identifiers as names, because frameworks require these."""
    assert parameter_names(Template.parse(template)) == names
