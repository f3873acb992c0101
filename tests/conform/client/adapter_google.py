"""The adapter of google-api-core's futures, with Google's operations client for HTTP or gRPC."""

import concurrent.futures
import json
import os

import grpc
from google.api_core import exceptions, operation, operations_v1
from google.auth.credentials import Credentials
from google.longrunning import operations_pb2
from google.protobuf import json_format
from google.rpc import error_details_pb2


class Token(Credentials):
    """A bearer token that never expires."""

    def __init__(self) -> None:
        super().__init__()
        self.token = os.environ["LRO_CONFORM_TOKEN"]

    def refresh(self, request: object) -> None:
        raise exceptions.Unauthenticated("the token is refused")


def connect():
    if target := os.environ.get("LRO_CONFORM_TARGET"):
        return operations_v1.OperationsClient(grpc.insecure_channel(target))
    host = os.environ["LRO_CONFORM_URL"]
    transport = operations_v1.OperationsRestTransport(host=host, credentials=Token())
    return operations_v1.AbstractOperationsClient(transport=transport)


def perform(client, task):
    name = os.environ["LRO_CONFORM_OPERATION"]
    if task == "list":
        found = client.list_operations(os.environ["LRO_CONFORM_PARENT"], "")
        return {"outcome": "response", "response": [one.name for one in found]}
    if task == "delete":
        client.delete_operation(name)
        return {"outcome": "response"}
    future = operation.from_gapic(
        operations_pb2.Operation(name=name), client, error_details_pb2.ResourceInfo
    )
    try:
        if task == "cancel":
            future.cancel()
        found = future.result(timeout=float(os.environ["LRO_CONFORM_TIMEOUT"]))
        return {"outcome": "response", "response": json_format.MessageToDict(found)}
    except concurrent.futures.TimeoutError:
        return {"outcome": "timeout"}
    except exceptions.GoogleAPICallError as exc:
        if future.operation.HasField("error"):
            error = future.operation.error
            return {"outcome": "error", "code": error.code, "message": error.message}
        code = exc.grpc_status_code.value[0] if exc.grpc_status_code else 2
        return {"outcome": "lost", "code": code, "message": exc.message}


def main() -> None:
    try:
        outcome = perform(connect(), os.environ["LRO_CONFORM_TASK"])
    except Exception as exc:  # any other exception of Google's code
        outcome = {"outcome": "lost", "message": f"{type(exc).__name__}: {exc}"}
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
