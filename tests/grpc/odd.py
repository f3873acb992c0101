"""A gRPC server that records requests and sends scripted answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from google.longrunning import operations_proto_pb2 as pb

import grpc
from tests.grpc.serving import on_threads

Answer = Callable[[Any], bytes]
"""A function of the call's context that returns the reply's bytes or aborts the call."""


@attrs.define
class Odd(grpc.GenericRpcHandler):
    """A handler that gives each call the next answer, and repeats the last answer."""

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
    """Return an answer that is an error, with these bytes of details in its trailer."""

    def answer(context: Any) -> bytes:
        if details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(code, text)
        raise AssertionError

    return answer


def replying(**fields: Any) -> Answer:
    """Return an answer that sends an operation with these fields."""
    return lambda _: pb.Operation(**fields).SerializeToString()


def sending(payload: bytes) -> Answer:
    return lambda _: payload


@contextlib.contextmanager
def odd_server(*answers: Answer) -> Iterator[Odd]:
    """Serve these answers on a real socket; yield the handler, which has the address."""
    made = Odd(list(answers))
    with on_threads(lambda server: server.add_generic_rpc_handlers((made,))) as address:
        made.address = address
        yield made
