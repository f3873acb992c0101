"""OpenAPI documents: content, validity and paths, alone and merged into FastAPI's document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

import lro
from lro import asgi, wsgi
from lro.errors import Unauthenticated
from lro.executors.inline import InlineExecutor
from lro.http import OperationsEdge
from lro.openapi import Document, add_to, describe
from lro.stores.memory import MemoryStore
from lro.webhooks import EVENTS, Webhooks
from tests.filters.messages import ExportMetadata
from tests.http import servers
from tests.http.counting_service import CountService, build
from tests.messages.scalars_message import Scalars

PATH = "/v1/things:count"
SNAPSHOT = Path(__file__).with_name("openapi_snapshot.json")
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
VERBS = ("GetOperation", "ListOperations", "DeleteOperation", "CancelOperation", "WaitOperation")


def valid(document: Mapping[str, Any]) -> Any:
    """Return the document after checking it with a validator."""
    pytest.importorskip("openapi_spec_validator").validate(document)
    return document


@lro.message("acme.v1.Node")
@attrs.frozen
class Node:
    """A tree."""

    name: str = ""
    children: tuple[Node, ...] = ()


@lro.message("acme.v1.OwnRequest")
@attrs.frozen
class OwnRequest:
    request_id: str = ""


def service_of_all(**options: Any) -> lro.Service:
    """Make a service whose methods have messages of every kind."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, **options)

    @service.method("acme.v1.Things.Scale", path="/v1/things:scale")
    def scale(request: Scalars, job: lro.Job[ExportMetadata]) -> Scalars:
        """Scale things.

        All of them at once.
        """
        return request

    @service.method("acme.v1.Trees.Grow", path="/v1/trees:grow")
    def grow(request: Node) -> Node:
        return request

    @service.method("acme.v1.Times.Read", path="/v1/times:read")
    def read(request: lro.types.Struct) -> lro.types.Timestamp:
        return lro.types.Timestamp(0)

    @service.method("acme.v1.Trees.Fell", path="/v1/trees:fell")
    def fell(request: lro.types.Empty) -> None:
        """Fell a tree."""

    @service.method("other.v1.Trees.Grow", path="/v1/others:grow")
    def grow_other(request: Node) -> Node:
        return request

    return service


@pytest.mark.parametrize(
    ("parents", "verbs"), [((), VERBS), (("projects/*", "projects/*/projects/*", "a/b"), ())]
)
def test_document_of_every_kind_of_message_is_valid(
    parents: Sequence[str], verbs: Sequence[str]
) -> None:
    """The document is valid with recursive and well-known types, and with all parents and verbs."""
    service = service_of_all(verbs=verbs) if verbs else service_of_all()
    document = valid(describe(service, parents=parents))
    ids = [call["operationId"] for path in document["paths"].values() for call in path.values()]
    assert len(ids) == len(set(ids)) == 5 + (5 if verbs else 8) * (1 + len(parents))
    assert {"Trees_Grow", "Trees_Grow_2"} < {*ids}


@pytest.mark.parametrize("off", [(), ("ListOperations", "WaitOperation"), VERBS[1:]])
def test_document_has_the_enabled_verbs(off: Sequence[str]) -> None:
    """The document has only the enabled verbs, and a start links only to them."""
    from lro._engine.access import VERBS as every

    document = valid(describe(service_of_all(verbs=[verb for verb in every if verb not in off])))
    calls = [call for path in document["paths"].values() for call in path.values()]
    ids = {call["operationId"].removesuffix("Many") for call in calls}
    plural = {"List", "BatchGet", "Watch"}
    for verb in every:
        name = verb.partition("Operation")[0]
        assert (f"Operations_{name}" in ids) == (verb not in off)
        assert verb.endswith("s") == (name in plural)
    links = document["paths"]["/v1/things:scale"]["post"]["responses"]["200"]["links"]
    wanted = {"GetOperation", "CancelOperation", "WaitOperation", "DeleteOperation"} - {*off}
    assert {*links} == {verb.removesuffix("Operation").lower() for verb in wanted}
    assert {link["operationId"] for link in links.values()} <= ids


def test_start_in_the_document_has_request_response_and_metadata_type() -> None:
    """The document has a start's types in body, reply and AEP-151 extension, and its docstring."""
    document = valid(describe(service_of_all()))
    start = document["paths"]["/v1/things:scale"]["post"]
    assert (start["summary"], start["description"]) == ("Scale things.", "All of them at once.")
    assert start["tags"] == ["Things"]
    assert start["x-aep-long-running-operation"] == {
        "response": {"$ref": "#/components/schemas/lrofix.v1.Scalars"},
        "metadata": {"$ref": "#/components/schemas/lrofix.v1.ExportMetadata"},
    }
    schemas = document["components"]["schemas"]
    body = schemas["lrofix.v1.Scalars.Start"]["properties"]
    assert {"requestId", "validateOnly", "fInt64"} < {*body}
    operation = schemas["acme.v1.Things.Scale.Operation"]["properties"]
    assert operation["response"]["allOf"][1] == {"$ref": "#/components/schemas/lrofix.v1.Scalars"}
    times = schemas["acme.v1.Times.Read.Operation"]["properties"]["response"]["allOf"][1]
    assert times["properties"]["value"] == {"type": "string", "format": "date-time"}
    undocumented = document["paths"]["/v1/trees:grow"]["post"]
    assert undocumented["summary"] == "Start acme.v1.Trees.Grow."
    assert "description" not in undocumented


def test_method_may_have_the_name_of_a_verb() -> None:
    """If a method has a verb's name, links lead to the verb; a message keeps its own requestId."""
    service = build().service

    @service.method("acme.v1.Operations.Get", path="/v1/x")
    def get(request: OwnRequest) -> None: ...

    @service.method("acme.v1.Own.Stop", path="/v1/x", http_method="DELETE")
    def stop(request: OwnRequest) -> None: ...

    document = valid(describe(service))
    paths = document["paths"]
    start, delete = paths["/v1/x"]["post"], paths["/v1/x"]["delete"]
    assert next(iter(paths)) == "/v1/x"
    assert start["operationId"] == "Operations_Get_2"
    link = start["responses"]["200"]["links"]["get"]
    assert link["operationId"] == paths["/v1/operations/{operation}"]["get"]["operationId"]
    fields = document["components"]["schemas"]["acme.v1.OwnRequest.Start"]["properties"]
    assert fields["requestId"] == {"type": ["string", "null"]}
    schemas = {one["name"]: one["schema"] for one in delete["parameters"]}
    assert schemas["requestId"] == {"type": "string"}
    assert {*schemas} == {"requestId", "validateOnly", "Idempotency-Key", "Prefer"}


@lro.message("acme.v1.Disk")
@attrs.frozen
class Disk:
    name: str = ""
    size: lro.Int32 = 0
    parent: Disk | None = None
    when: datetime | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    tags: tuple[str, ...] = ()
    rest: lro.types.Struct | None = None


@lro.message("acme.v1.ResizeRequest")
@attrs.frozen
class ResizeRequest:
    disk: Disk | None = None
    zone: str = ""
    others: tuple[Disk, ...] = ()
    force: bool = False


@pytest.mark.parametrize(
    ("rule", "path", "parameters", "body"),
    [
        (
            {"path": "/v1/zones/{zone}/disks:resize"},
            "/v1/zones/{zone}/disks:resize",
            {"zone": "path"},
            {"requestId", "validateOnly", "disk", "others", "force"},
        ),
        (
            {"path": "/v1/{disk.name=projects/*/disks/*}", "http_method": "PATCH", "body": "disk"},
            "/v1/projects/{project}/disks/{disk}",
            dict.fromkeys(["zone", "force", "requestId", "validateOnly"], "query")
            | {"project": "path", "disk": "path"},
            {"name", "size", "parent", "when", "labels", "tags", "rest"},
        ),
        (
            {"path": "/v1/{zone=zones/**}", "http_method": "DELETE"},
            "/v1/zones/{zone}",
            dict.fromkeys(["disk.name", "disk.size", "disk.when", "disk.tags", "force"], "query")
            | {"requestId": "query", "validateOnly": "query", "zone": "path"},
            None,
        ),
    ],
)
def test_start_by_an_http_rule_has_its_parameters(
    rule: dict[str, str], path: str, parameters: Mapping[str, str], body: set[str] | None
) -> None:
    """The document has path variables, query parameters for other fields, and the body (§5.16)."""
    service = build().service

    @service.method("acme.v1.Disks.Resize", **rule)
    def resize(request: ResizeRequest) -> None: ...

    document: Any = valid(describe(OperationsEdge(service, starts=True)))
    assert document == describe(service)
    call = document["paths"][path][rule.get("http_method", "POST").lower()]
    assert {one["name"]: one["in"] for one in call["parameters"]} == {
        **parameters,
        "Idempotency-Key": "header",
        "Prefer": "header",
    }
    if body is None:
        assert "requestBody" not in call
    else:
        schema = call["requestBody"]["content"]["application/json"]["schema"]
        fields = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert {*fields["properties"]} == body


@attrs.frozen
class ThingStart:
    count: lro.Int32 = 0


@attrs.frozen
class ThingInput:
    count: lro.Int32 = 0


@attrs.frozen
class MakeOperation:
    count: lro.Int32 = 0


@attrs.frozen
class Thing:
    """A message whose name plus a suffix equals another name, apart from dots."""

    start: ThingStart | None = None
    input: ThingInput | None = None
    operation: MakeOperation | None = None
    things: tuple[Thing, ...] = ()


def test_names_of_schemas_differ_by_more_than_dots_and_case() -> None:
    """Schema names differ in more than dots and case, or code generators would merge the types."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
    make = service.declare("a.v1.Things.Make", request=Thing, response=Thing)
    document = valid(describe(OperationsEdge(service, starts={"/v1/things:make": make})))
    names = [re.sub(r"[\W_]", "", name).lower() for name in document["components"]["schemas"]]
    assert len(names) == len({*names})
    assert sum(name.startswith("av1thing") for name in names) >= 7


def test_document_has_title_servers_and_security() -> None:
    document = Document(
        title="Things",
        version="2.0.0",
        description="All about things.",
        servers=["/api"],
        security={"token": {"type": "http", "scheme": "bearer"}},
    )
    made = valid(describe(service_of_all(), document=document))
    wanted = {"title": "Things", "version": "2.0.0", "description": "All about things."}
    assert made["info"] == wanted
    assert (made["servers"], made["security"]) == ([{"url": "/api"}], [{"token": []}])
    assert made["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert valid(describe(build().service))["info"]["title"] == "acme.example"


def test_document_of_a_service_is_as_the_snapshot(counting: CountService) -> None:
    """The document of a service equals the snapshot.

    A change affects everyone who generates clients: review it, then delete the snapshot.
    """
    made = describe(counting.service, starts={PATH: counting.count}, parents=["projects/*"])
    text = json.dumps(made, indent=1) + "\n"
    if not SNAPSHOT.exists():
        SNAPSHOT.write_text(text)
        pytest.fail(f"{SNAPSHOT.name} was not there; it is now")
    assert text == SNAPSHOT.read_text()


Application = Callable[..., Any]

INSIDE = pytest.mark.parametrize(
    ("application", "inside"),
    [(asgi.OperationsApp, servers.asgi_inside), (wsgi.OperationsApp, servers.wsgi_inside)],
    ids=["asgi", "wsgi"],
)


def refuse(headers: Mapping[str, str]) -> str:
    raise Unauthenticated("a token is needed")


@INSIDE
def test_document_is_served_without_authentication(application: Application, inside: Any) -> None:
    """The document needs no authentication, but is served only if ``openapi`` is set."""
    counting = build()
    starts = {PATH: counting.count}
    app = application(counting.service, starts=starts, authenticate=refuse, openapi=Document())
    with inside(app) as call:
        for _ in range(2):
            reply = call("GET", "/openapi.json")
            assert (reply.status_code, reply.json()) == (200, describe(app))
        paths: Any = describe(counting.service, starts=starts)["paths"]
        streams = application is asgi.OperationsApp
        served = {path for path in paths if streams or not path.endswith(":watch")}
        assert {*reply.json()["paths"]} == served
        assert reply.headers["content-type"] == "application/json; charset=utf-8"
        assert call("HEAD", "/openapi.json").text == ""
        assert call("OPTIONS", "/openapi.json").headers["allow"] == "GET, HEAD, OPTIONS"
        assert call("POST", "/openapi.json").status_code == 405
        assert call("GET", "/v1/operations").status_code == 401
    with inside(application(counting.service)) as call:
        assert call("GET", "/openapi.json").status_code == 404


def test_openapi_option_sets_path_and_title_of_the_document() -> None:
    """``openapi`` sets the path and title; ``describe`` can make another document."""
    app = asgi.OperationsApp(build().service, openapi=Document(path="/v1/t.json", title="Things"))
    with servers.asgi_inside(app) as call:
        assert call("GET", "/v1/t.json").json()["info"]["title"] == "Things"
        assert call("GET", "/openapi.json").status_code == 404
    assert describe(app, document=Document(title="Others"))["info"]["title"] == "Others"


@pytest.mark.parametrize("path", ["/v1/operations", "/v1/operations/x", "/v1/operations/x:watch"])
def test_path_that_is_served_already_is_refused(path: str) -> None:
    """If a document's path is already served, the error names the verb that the path serves."""
    with pytest.raises(lro.DeclarationError, match=r"is served already, as .*Operation"):
        OperationsEdge(build().service, openapi=Document(path=path))


@pytest.mark.parametrize(
    "make",
    [
        lambda: OperationsEdge(build().service, openapi=5),  # type: ignore[arg-type]
        lambda: OperationsEdge(build().service, openapi="/x.json"),  # type: ignore[arg-type]
        lambda: Document(path="openapi.json"),
        lambda: Document(path="/{x}"),
        lambda: Document(servers="/api"),
        lambda: Document(security=["token"]),  # type: ignore[arg-type]
        lambda: Document(security={"token": "bearer"}),  # type: ignore[dict-item]
        lambda: describe(5),  # type: ignore[arg-type]
        lambda: describe(OperationsEdge(build().service), parents=["projects/*"]),
        lambda: describe(build().service, parents="projects/*"),
        lambda: describe(build().service, parents=["/projects"]),
        lambda: describe(build().service, document={}),  # type: ignore[arg-type]
        lambda: add_to(object(), OperationsEdge(build().service)),
    ],
)
def test_argument_of_the_wrong_form_is_refused(make: Callable[[], object]) -> None:
    """An argument of the wrong form raises an error when it is passed."""
    with pytest.raises(lro.DeclarationError):
        make()


# -- FastAPI --------------------------------------------------------------------------------------


def test_fastapi_document_has_our_paths_beside_its_own(counting: CountService) -> None:
    """The document includes later routes, and FastAPI's description of a path that we serve too."""
    fastapi = pytest.importorskip("fastapi")
    security = {"token": {"type": "http", "scheme": "bearer"}}
    operations = asgi.OperationsApp(
        counting.service, starts={PATH: counting.count}, openapi=Document(security=security)
    )
    app = fastapi.FastAPI(title="Shop")

    @app.get("/v1/things")
    def things(since: datetime) -> list[str]:
        return []

    @app.get("/v1/operations")
    def own() -> None: ...

    add_to(app, operations)
    app.router.default = operations
    with servers.asgi_inside(app) as call:
        found = valid(call("GET", "/openapi.json").json())
        paths = found["paths"]
        assert {"/v1/things", PATH, "/v1/operations/{operation}:cancel"} < {*paths}
        assert found["info"]["title"] == "Shop"
        assert paths["/v1/operations"]["get"]["summary"] == "Own"
        assert paths[PATH]["post"]["security"] == [{"token": []}]
        assert "security" not in paths["/v1/things"]["get"]
        schemas = found["components"]["schemas"]
        assert {"HTTPValidationError", "acme.v1.CountRequest.Start"} < {*schemas}
        assert found["components"]["securitySchemes"] == security
        assert "/openapi.json" in call("GET", "/docs").text
        assert app.openapi() is app.openapi()

        @app.get("/v1/later")
        def later() -> None: ...

        app.openapi_schema = None  # versions before 0.165 cache the document
        assert "/v1/later" in call("GET", "/openapi.json").json()["paths"]


def test_paths_of_a_mounted_application_have_the_prefix() -> None:
    """Without FastAPI routes, the document has our paths with the prefix, and all webhooks."""
    app = pytest.importorskip("fastapi").FastAPI()
    operations = asgi.OperationsApp(service_of_all(webhooks=Webhooks()), starts=True)

    @app.webhooks.post("own")
    def own() -> None:
        """Call somewhere."""

    app.mount("/api", operations)
    add_to(app, operations, prefix="/api")
    with servers.asgi_inside(app) as call:
        document = valid(call("GET", "/openapi.json").json())
        assert "/api/v1/operations/{operation}" in document["paths"]
        assert call("GET", "/api/v1/operations").json() == {}
    assert [*document["webhooks"]] == [*EVENTS, "own"]


def test_document_has_the_webhooks_that_the_service_sends() -> None:
    """Each webhook event has an entry with its headers; without webhooks there are no entries."""
    assert "webhooks" not in describe(service_of_all())
    document = valid(describe(service_of_all(webhooks=Webhooks())))
    assert [*document["webhooks"]] == [*EVENTS]
    for event, item in document["webhooks"].items():
        headers = [one["name"] for one in item["post"]["parameters"]]
        assert headers == ["webhook-id", "webhook-timestamp", "webhook-signature"]
        schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["properties"]["type"]["enum"] == [event]
        data = schema["properties"]["data"]
        assert data["required"] == ["name", "method", "done"]
        assert data["properties"]["operation"]["$ref"].endswith("google.longrunning.Operation")
