"""The adapter of our blocking client: ``lro conform client -- python adapter_lro.py``."""

import json
import os

import attrs
import httpx

from lro.types import RequestInfo, ResourceInfo
from lro_client import Client, ClientError, OperationFailed, PollTimeout


def main() -> None:
    env = os.environ
    token = {"authorization": f"Bearer {env['LRO_CONFORM_TOKEN']}"}
    if "LRO_CONFORM_TARGET" in env:
        from lro_client.transports.grpc import GrpcTransport

        transport = GrpcTransport(env["LRO_CONFORM_TARGET"], metadata=tuple(token.items()))
        client = Client(transport=transport)
    else:
        client = Client(http=httpx.Client(base_url=env["LRO_CONFORM_URL"], headers=token))
    types = {"response": ResourceInfo, "metadata": RequestInfo}
    operation = client.operation(env["LRO_CONFORM_OPERATION"], **types)
    timeout, found = float(env["LRO_CONFORM_TIMEOUT"]), None
    try:
        match env["LRO_CONFORM_TASK"]:
            case "list":
                found = [one.name for one in client.list(env["LRO_CONFORM_PARENT"])]
            case "delete":
                operation.delete()
            case "cancel":
                operation.cancel()
                found = attrs.asdict(operation.result(timeout))
            case _:
                found = attrs.asdict(operation.result(timeout))
        said = {"outcome": "response", "response": found}
    except OperationFailed as exc:
        said = {"outcome": "error", "code": exc.status.code, "message": exc.status.message}
    except PollTimeout as exc:
        said = {"outcome": "timeout", "message": str(exc)}
    except ClientError as exc:
        said = {"outcome": "lost", "code": getattr(exc, "code", None), "message": str(exc)}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
