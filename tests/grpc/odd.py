"""A gRPC server that answers as each test says, and remembers what it was sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from google.longrunning import operations_proto_pb2 as pb

import grpc
from tests.grpc.serving import on_threads

Answer = Callable[[Any], bytes]
"""Gives the reply's bytes, or refuses by the context of the call."""


@attrs.define
class Odd(grpc.GenericRpcHandler):
    """Answers every call by the next of its answers, and by the last from then on."""

    answers: list[Answer] = attrs.field(factory=list)
    calls: list[tuple[str, bytes, dict[str, Any]]] = attrs.field(factory=list)
    address: str = ""

    def service(self, details: Any) -> Any:
        def serve(payload: bytes, context: Any) -> bytes:
            self.calls.append((details.method, payload, dict(context.invocation_metadata())))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return answer(context)

        return grpc.unary_unary_rpc_method_handler(serve)


def refusing(code: grpc.StatusCode, text: str = "no", details: bytes | None = None) -> Answer:
    """An error, with these bytes in its trailer if any."""

    def answer(context: Any) -> bytes:
        if details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(code, text)
        raise AssertionError

    return answer


def replying(**fields: Any) -> Answer:
    """An operation."""
    return lambda _: pb.Operation(**fields).SerializeToString()


def sending(payload: bytes) -> Answer:
    return lambda _: payload


@contextlib.contextmanager
def odd_server(*answers: Answer) -> Iterator[Odd]:
    """Such a server."""
    made = Odd(list(answers))
    with on_threads(lambda server: server.add_generic_rpc_handlers((made,))) as address:
        made.address = address
        yield made
