"""Clients that call a server over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.wrappers_pb2 import Int32Value
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from tests.services.hosts import PATIENCE, Answer, Load

WAIT = "/google.longrunning.Operations/WaitOperation"


class GrpcLoad(Load):
    """Makes calls over one channel, and translates gRPC status codes to HTTP status codes."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        grpc.channel_ready_future(self._channel).result(PATIENCE)

    def close(self) -> None:
        self._channel.close()

    def _start(self, milliseconds: int) -> Answer:
        # this message has one number in its first field, so it is encoded like the request
        return self._call("/stopping.v1.Works/Work", Int32Value(value=milliseconds))

    def _wait(self, name: str, seconds: int) -> Answer:
        return self._call(
            WAIT, pb.WaitOperationRequest(name=name, timeout=Duration(seconds=seconds))
        )

    def _call(self, path: str, request: Int32Value | pb.WaitOperationRequest) -> Answer:
        call = self._channel.unary_unary(path, response_deserializer=pb.Operation.FromString)
        try:
            found = call(request.SerializeToString(), timeout=PATIENCE)
        except grpc.RpcError as exc:
            return _refusal(exc)
        body = {"name": found.name, "done": found.done}
        return Answer(200, {}, body | ({"response": {}} if found.HasField("response") else {}))


def _refusal(error: grpc.RpcError) -> Answer:
    trailers: Any = error.trailing_metadata() or ()
    packed = next((value for key, value in trailers if key == "grpc-status-details-bin"), b"")
    if not isinstance(packed, bytes) or not packed:  # an error of grpcio in the client or server
        return Answer(0, {}, f"{error.code()}: {error.details()}")
    headers, details = {}, []
    for detail in Status.FromString(packed).details:
        details.append({"@type": detail.type_url})
        retry = RetryInfo()
        if detail.Unpack(retry):
            headers["retry-after"] = str(retry.retry_delay.seconds)
    status = 503 if error.code() is grpc.StatusCode.UNAVAILABLE else 500
    return Answer(status, headers, {"error": {"status": error.code().name, "details": details}})
