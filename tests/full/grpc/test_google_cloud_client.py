"""The unmodified google-cloud-redis calls a server like that of ``google-client-libraries.md``.

``tests/test_docs.py`` runs the page's code; these tests add errors and more kinds of methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("markdown_it")
pytest.importorskip("google.cloud.redis_v1")

import grpc
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import redis_v1
from google.cloud.redis_v1.services.cloud_redis import transports
from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask

import lro.grpc
from lro.asgi import OperationsApp
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.grpc.serving import on_threads
from tests.http.servers import HOST, uvicorn_serving
from tests.page_texts import DOCS, blocks

LOCATION = "projects/*/locations/*"
PARENT = "projects/p/locations/l"
PACKAGE = "google.cloud.redis.v1.CloudRedis"


def test_the_server_of_the_page_is_short() -> None:
    """The server in the page's code has at most 40 lines, as the page says."""
    page = DOCS / "how-to" / "google-client-libraries.md"
    server = next(block for block in blocks(page) if block.language == "python")
    assert "CloudRedis.CreateInstance" in server.text
    assert len([line for line in server.text.splitlines() if line.strip()]) <= 40


def create(request: Any) -> Any:
    if request.instance.memory_size_gb < 1:
        raise lro.StatusError(lro.Code.FAILED_PRECONDITION, "it needs memory")
    made = type(request.instance)(name=f"{request.parent}/instances/{request.instance_id}")
    made.MergeFrom(request.instance)
    return made


def update(request: Any) -> Any:
    assert list(request.update_mask.paths) == ["display_name", "memory_size_gb"]
    return request.instance


def delete(request: Any) -> Any:
    return Empty()


def export(request: Any) -> Any:
    uri = request.output_config.gcs_destination.uri
    return redis_v1.Instance.pb()(name=request.name, display_name=uri)


def location_of(name: str) -> str:
    return name.partition("/instances/")[0]


@pytest.fixture(scope="module")
def service() -> Iterator[lro.Service]:
    """A service whose methods have different HTTP bodies and path variables."""
    instance = f"name={LOCATION}/instances/*"
    with lro.Service(MemoryStore(), ThreadExecutor()) as made:

        def declare(function: Any, name: str, **options: Any) -> None:
            response = Empty if function is delete else redis_v1.Instance.pb()
            made.method(
                f"{PACKAGE}.{name}",
                request=getattr(redis_v1, f"{name}Request").pb(),
                response=response,
                metadata=redis_v1.OperationMetadata.pb(),
                **options,
            )(function)

        declare(
            create,
            "CreateInstance",
            path=f"/v1/{{parent={LOCATION}}}/instances",
            body="instance",
            parent=lambda request: request.parent,
        )
        declare(
            update,
            "UpdateInstance",
            path=f"/v1/{{instance.{instance}}}",
            http_method="PATCH",
            body="instance",
            parent=lambda request: location_of(request.instance.name),
        )
        declare(
            delete,
            "DeleteInstance",
            path=f"/v1/{{{instance}}}",
            http_method="DELETE",
            parent=lambda request: location_of(request.name),
        )
        declare(
            export,
            "ExportInstance",
            path=f"/v1/{{{instance}}}:export",
            parent=lambda request: location_of(request.name),
        )
        yield made


@pytest.fixture(scope="module", params=["grpc", "rest"])
def client(request: Any, service: lro.Service) -> Iterator[Any]:
    """Google's client of the service, over gRPC or REST."""
    if request.param == "grpc":
        with (
            on_threads(lambda server: lro.grpc.add_to(server, service)) as address,
            grpc.insecure_channel(address) as channel,
        ):
            transport = transports.CloudRedisGrpcTransport(channel=channel)
            yield redis_v1.CloudRedisClient(transport=transport)
        return
    app = OperationsApp(service, starts=True, parents=[LOCATION])
    with uvicorn_serving(app, lifespan="off") as port:
        rest = transports.CloudRedisRestTransport(
            host=f"{HOST}:{port}", url_scheme="http", credentials=AnonymousCredentials()
        )
        with redis_v1.CloudRedisClient(transport=rest) as made:
            yield made


def test_a_result_is_of_the_class_of_the_client(client: Any) -> None:
    """The result is a proto-plus message with the values sent in path, query and body."""
    wanted = redis_v1.Instance(tier="BASIC", memory_size_gb=3, labels={"a": "b"})
    operation = client.create_instance(parent=PARENT, instance_id="films", instance=wanted)
    made = operation.result(timeout=60)
    assert isinstance(made, redis_v1.Instance)
    assert made.name == f"{PARENT}/instances/films"
    assert (made.tier, made.labels) == (redis_v1.Instance.Tier.BASIC, {"a": "b"})
    assert operation.operation.name.startswith(f"{PARENT}/operations/")


def test_an_update_has_its_name_within_the_body(client: Any) -> None:
    named = redis_v1.Instance(name=f"{PARENT}/instances/films", memory_size_gb=5)
    mask = FieldMask(paths=["display_name", "memory_size_gb"])
    operation = client.update_instance(update_mask=mask, instance=named)
    assert operation.result(timeout=60) == named


def test_a_delete_has_no_body(client: Any) -> None:
    operation = client.delete_instance(name=f"{PARENT}/instances/films")
    assert operation.result(timeout=60) == Empty()


def test_a_verb_of_a_resource_has_the_rest_in_the_body(client: Any) -> None:
    output = redis_v1.OutputConfig(gcs_destination=redis_v1.GcsDestination(uri="gs://b/o"))
    request = {"name": f"{PARENT}/instances/films", "output_config": output}
    assert client.export_instance(request).result(timeout=60).display_name == "gs://b/o"


def test_a_failure_of_the_work_is_raised_by_the_client(client: Any) -> None:
    operation = client.create_instance(parent=PARENT, instance_id="x", instance={})
    with pytest.raises(exceptions.GoogleAPICallError, match="it needs memory"):
        operation.result(timeout=60)
