"""The application that the TCK of A2A is run against: its message ids say what is to happen.

``python -m tests.a2a.tck_app 9999`` serves all three bindings, gRPC at the next port. Then, in a
checkout of the branch 1.0-dev of https://github.com/a2aproject/a2a-tck::

    ./run_tck.py --sut-host http://localhost:9999 --level must

At its commit 357c4a8 (May 2026) 147 checks pass and 24 fail. These fail, and why:

* ``test_task_has_{text,file,file_url}_artifact``, ``test_returns_message_with_text_part`` (12): an
  operation gives one artifact with one data part, and no Message (A2A 3.1.1 allows either).
* ``CORE-SEND-003``, ``CORE-MULTI-002a`` (6): the kit sends what must be refused, with
  ContentTypeNotSupportedError and for its contextId, and takes the refusal for a failure.
* ``test_create_push_config`` (3): it asks for pushes of a task that has ended. That is refused: a
  client whose request comes too late would wait for ever.
* ``test_version_not_supported_returns_unimplemented`` (1): A2A 5.4 says FAILED_PRECONDITION now.
* ``test_response_content_type`` (1): the media type is application/a2a+json now (A2A 11.1).
* ``test_agent_card_validates_against_schema`` (1): the SDK adds the fields of 0.3 to the card.

64 are skipped, mostly because no task asks for input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import attrs
import grpc.aio
import uvicorn
from starlette.applications import Starlette

import lro
from a2a.types import Message
from lro.a2a import PUSH, Handler, PushFormat, add_to, agent_card, routes
from lro.errors import UnsupportedMediaType
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.webhooks import Webhooks

DOMAIN: Final = "tck.example.com"
STREAMING_SECONDS: Final = 2.0
"""The streaming timeout of the TCK; a task that is subscribed to again goes on twice as long."""


@attrs.frozen
class Given:
    """What a task gives."""

    key: str = ""
    count: lro.Int32 = 0


@attrs.frozen
class Wanted:
    """What a task is to do: how long it takes, and what it gives."""

    seconds: float = 0.0
    result: Given = Given("Hello from TCK")


def make_service() -> tuple[
    lro.Service, Webhooks, lro.Method[Wanted, Given, lro.OperationMetadata]
]:
    """A service with the one method of the agent, and what pushes the ends of its tasks."""
    types = lro.TypeRegistry()
    webhooks = Webhooks(formats={PUSH: PushFormat(types, DOMAIN)}, allow_http=True, ports=None)
    service = lro.Service(
        MemoryStore(), ThreadExecutor(16), types=types, domain=DOMAIN, webhooks=webhooks
    )

    @service.method("tck.v1.Tasks.Run")
    def run(request: Wanted, job: lro.Job) -> Given:
        """Do what the message says."""
        job.progress(0.5, "working")
        job.sleep(request.seconds)
        return request.result

    return service, webhooks, run


DOES: Final[Mapping[str, Callable[[], Wanted]]] = MappingProxyType(
    {
        "tck-artifact-data": lambda: Wanted(result=Given("value", 42)),
        "tck-input-required": lambda: Wanted(seconds=3 * STREAMING_SECONDS),
        "test-resubscribe-message-id": lambda: Wanted(seconds=2 * STREAMING_SECONDS),
        "tck-stream": lambda: Wanted(seconds=0.3),
        "": Wanted,
    }
)
"""By the beginning of the message id, the first that fits. A method never asks for input: what
should is a task that goes on."""


def make_app(url: str, rpc: str) -> tuple[lro.Service, Handler]:
    """The service, and the handler of its agent."""
    service, webhooks, run = make_service()

    def read(message: Message) -> tuple[lro.Method[Wanted, Given, lro.OperationMetadata], Wanted]:
        if not any(part.HasField("text") for part in message.parts):
            raise UnsupportedMediaType("message.parts", "must have a text or data")
        begin = next(begin for begin in DOES if message.message_id.startswith(begin))
        return run, DOES[begin]()

    card = agent_card(
        [run],
        name="TCK agent",
        description="Does what the TCK asks for.",
        version="1.0.0",
        url=url,
        grpc=rpc,
        text=True,
        push=True,
    )
    for one in card.supported_interfaces:
        if one.protocol_binding == "JSONRPC":
            one.url = url  # the TCK adds a slash to any other path
    return service, Handler(service, [run], card, read=read, webhooks=webhooks)


async def serve(port: int) -> None:
    """Serve until the process is asked to stop."""
    service, handler = make_app(f"http://localhost:{port}", f"localhost:{port + 1}")
    server = grpc.aio.server()
    add_to(server, handler)
    server.add_insecure_port(f"localhost:{port + 1}")
    await server.start()
    app = Starlette(routes=routes(handler, jsonrpc="/"), lifespan=service.lifespan)
    await uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning")).serve()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
