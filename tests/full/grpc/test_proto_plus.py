"""Methods whose messages are proto-plus classes, as in Google's clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("google.cloud.redis_v1")

from google.cloud import redis_v1

import lro
import lro.grpc
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.wsgi import OperationsApp
from lro_client import Client
from lro_client.transports import LocalTransport
from lro_client.transports.grpc import GrpcTransport
from tests.grpc.serving import on_threads


@contextlib.contextmanager
def redis() -> Iterator[tuple[lro.Service, Any]]:
    """Yield a service and its method, whose messages are proto-plus classes."""
    service = lro.Service(
        MemoryStore(), ThreadExecutor(), types=lro.TypeRegistry(redis_v1.Instance)
    )

    @service.method("google.cloud.redis.v1.CloudRedis.CreateInstance")
    def create(
        request: redis_v1.CreateInstanceRequest, job: lro.Job[redis_v1.OperationMetadata]
    ) -> redis_v1.Instance:
        job.report(redis_v1.OperationMetadata(target=request.instance_id))
        return redis_v1.Instance(
            name=request.instance_id, memory_size_gb=request.instance.memory_size_gb
        )

    try:
        yield service, create
    finally:
        service.close()


TYPED = {"response": redis_v1.Instance, "metadata": redis_v1.OperationMetadata}
CREATE = redis_v1.CreateInstanceRequest(
    parent="projects/p/locations/l", instance_id="i", instance={"memory_size_gb": 3}
)


def test_a_server_may_be_annotated_with_proto_plus() -> None:
    """Over gRPC, HTTP and in process, our client returns the method's proto-plus classes."""
    with redis() as (service, create):
        app = OperationsApp(service, starts={"/v1/redis:create": create})
        with (
            httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as http,
            on_threads(lambda made: lro.grpc.add_to(made, service)) as address,
        ):
            target = "google.cloud.redis.v1.CloudRedis.CreateInstance"
            types = lro.TypeRegistry()
            for client, path in (
                (Client(http=http), "/v1/redis:create"),
                (Client(transport=GrpcTransport(address, types=types), types=types), target),
                (Client(transport=LocalTransport(service)), target),
            ):
                with client:
                    handle = client.start(path, CREATE, **TYPED)
                    made = handle.result(60)
                    assert type(made) is redis_v1.Instance
                    assert made == redis_v1.Instance(name="i", memory_size_gb=3)
                    assert isinstance(handle.metadata, redis_v1.OperationMetadata)
                    assert handle.metadata.target == "i"
                    assert handle.metadata.create_time is not None
                    again = client.operation(handle.token, **TYPED)
                    assert again.result(60) == made
        with Client(transport=LocalTransport(service)) as client:
            assert len(list(client.list(filter='metadata.target = "i"'))) == 3
