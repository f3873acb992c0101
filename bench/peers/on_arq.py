"""arq on Redis, with its worker in the same process; a second argument sets the poll interval."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from commands import aserve


async def work(_: Any, number: int) -> int:
    return number


async def main(url: str, seconds: float) -> None:
    redis = await create_pool(RedisSettings.from_dsn(url))
    worker = Worker(
        [work], redis_pool=redis, poll_delay=seconds, max_jobs=64, handle_signals=False, burst=False
    )
    running = asyncio.create_task(worker.async_run())

    async def one() -> None:
        job = await redis.enqueue_job("work", 1)
        assert await job.result(poll_delay=seconds) == 1

    async def many(count: int) -> None:
        jobs = [await redis.enqueue_job("work", 1) for _ in range(count)]
        for job in jobs:
            assert await job.result(poll_delay=seconds) == 1

    await one()
    await aserve(one, many)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
