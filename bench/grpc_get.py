"""GetOperation over gRPC, CPU of the server process; against a bare grpcio servicer."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
from google.longrunning import operations_proto_pb2 as pb

import lro.grpc
from bench.measure import Figure, compare
from bench.serving import booked
from lro.protobuf import operation_to_proto

GET = "/google.longrunning.Operations/GetOperation"
CPU = "/bench.v1.Bench/Cpu"
CALLS = 2000
AT_ONCE = 16
THREADS = 4


class Fixed(grpc.GenericRpcHandler):
    """The simplest servicer: for one path, it returns the bytes that a function makes."""

    def __init__(self, path: str, give: Callable[[], bytes], on_asyncio: bool) -> None:
        async def aserve(_: bytes, __: Any) -> bytes:
            return give()

        def serve(_: bytes, __: Any) -> bytes:
            return give()

        chosen: Any = aserve if on_asyncio else serve
        self.path, self.handler = path, grpc.unary_unary_rpc_method_handler(chosen)

    def service(self, details: Any) -> Any:
        return self.handler if details.method == self.path else None


def fill(server: Any, kind: str, on_asyncio: bool) -> str:
    """Add the servicer of this kind to a server, and return the operation's name."""
    service, name = booked(kind)
    if kind == "bare":
        shown = operation_to_proto(service.get(name), service.types).SerializeToString()
        server.add_generic_rpc_handlers((Fixed(GET, lambda: shown, on_asyncio),))
    else:
        lro.grpc.add_to(server, service)
    cpu = Fixed(CPU, lambda: str(time.process_time()).encode(), on_asyncio)
    server.add_generic_rpc_handlers((cpu,))
    return name


def serve(kind: str) -> None:
    server = grpc.server(ThreadPoolExecutor(THREADS))
    name = fill(server, kind, on_asyncio=False)
    print(server.add_insecure_port("127.0.0.1:0"), name, flush=True)
    server.start()
    server.wait_for_termination()


async def aserve(kind: str) -> None:
    server = grpc.aio.server()
    name = fill(server, kind, on_asyncio=True)
    print(server.add_insecure_port("127.0.0.1:0"), name, flush=True)
    await server.start()
    await server.wait_for_termination()


class Server:
    """A server in a process of its own, and a channel to it."""

    def __init__(self, face: str, kind: str) -> None:
        command = [sys.executable, "-m", "bench.grpc_get", face, kind]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        port, name = self.process.stdout.readline().split()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.get = self.channel.unary_unary(GET)
        self.cpu = self.channel.unary_unary(CPU)
        self.payload = pb.GetOperationRequest(name=name).SerializeToString()
        assert pb.Operation.FromString(self.get(self.payload, wait_for_ready=True)).done

    def sample(self) -> float:
        """Return the seconds of server CPU per call."""
        before = float(self.cpu(b""))
        for _ in range(CALLS // AT_ONCE):
            for call in [self.get.future(self.payload) for _ in range(AT_ONCE)]:
                call.result()
        return (float(self.cpu(b"")) - before) / (CALLS // AT_ONCE * AT_ONCE)

    def close(self) -> None:
        self.channel.close()
        self.process.terminate()
        self.process.wait()


def run() -> Iterator[Figure]:
    for face in ("threads", "asyncio"):
        with contextlib.closing(Server(face, "bare")) as bare:
            for kind in ("memory", "sqlite"):
                with contextlib.closing(Server(face, kind)) as server:
                    what = f"GetOperation, {face}, {kind}"
                    yield compare(what, server.sample, bare.sample, measure="CPU", target=1.3)


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        asyncio.run(aserve(sys.argv[2]))
    else:
        serve(sys.argv[2])
