"""The adapter of our blocking client: ``lro conform client -- python adapter_lro.py``."""

import json
import os

import attrs
import httpx

from lro.types import RequestInfo, ResourceInfo
from lro_client import Client, ClientError, OperationFailed, PollTimeout


def connect() -> Client:
    token = {"authorization": f"Bearer {os.environ['LRO_CONFORM_TOKEN']}"}
    if target := os.environ.get("LRO_CONFORM_TARGET"):
        from lro_client.transports.grpc import GrpcTransport

        return Client(transport=GrpcTransport(target, metadata=tuple(token.items())))
    url = os.environ["LRO_CONFORM_URL"]  # no TLS: loading certificates is slow
    return Client(http=httpx.Client(base_url=url, headers=token, verify=False))


def perform(client: Client, task: str) -> object:
    name, timeout = os.environ["LRO_CONFORM_OPERATION"], float(os.environ["LRO_CONFORM_TIMEOUT"])
    if task == "list":
        return [one.name for one in client.list(os.environ["LRO_CONFORM_PARENT"])]
    operation = client.operation(name, response=ResourceInfo, metadata=RequestInfo)
    if task == "delete":
        operation.delete()
        return None
    if task == "cancel":
        operation.cancel()
    return operation.result(timeout)


def said(error: ClientError) -> dict[str, object]:
    match error:
        case OperationFailed():
            return {"outcome": "error", "code": error.status.code, "message": error.status.message}
        case PollTimeout():
            return {"outcome": "timeout", "message": str(error)}
    return {"outcome": "lost", "code": getattr(error, "code", None), "message": str(error)}


def write(found: object) -> None:
    if isinstance(found, ClientError):
        outcome = said(found)
    else:
        response = attrs.asdict(found) if isinstance(found, ResourceInfo) else found
        outcome = {"outcome": "response", "response": response}
    print(json.dumps(outcome), flush=True)


def main() -> None:
    try:
        write(perform(connect(), os.environ["LRO_CONFORM_TASK"]))
    except ClientError as exc:
        write(exc)


if __name__ == "__main__":
    main()
