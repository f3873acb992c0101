"""The adapter of our async client."""

import asyncio
import os

import httpx
from adapter_lro import write

from lro.types import RequestInfo, ResourceInfo
from lro_client import AsyncClient, ClientError


def connect() -> AsyncClient:
    token = {"authorization": f"Bearer {os.environ['LRO_CONFORM_TOKEN']}"}
    if target := os.environ.get("LRO_CONFORM_TARGET"):
        from lro_client.transports.grpc import AsyncGrpcTransport

        return AsyncClient(transport=AsyncGrpcTransport(target, metadata=tuple(token.items())))
    url = os.environ["LRO_CONFORM_URL"]
    return AsyncClient(http=httpx.AsyncClient(base_url=url, headers=token, verify=False))


async def perform(client: AsyncClient, task: str) -> object:
    name, timeout = os.environ["LRO_CONFORM_OPERATION"], float(os.environ["LRO_CONFORM_TIMEOUT"])
    if task == "list":
        return [one.name async for one in client.list(os.environ["LRO_CONFORM_PARENT"])]
    operation = client.operation(name, response=ResourceInfo, metadata=RequestInfo)
    if task == "delete":
        await operation.delete()
        return None
    if task == "cancel":
        await operation.cancel()
    return await operation.result(timeout)


async def perform_task() -> None:
    try:
        write(await perform(connect(), os.environ["LRO_CONFORM_TASK"]))
    except ClientError as exc:
        write(exc)


def main() -> None:
    asyncio.run(perform_task())


if __name__ == "__main__":
    main()
