"""APScheduler 4, a pre-release: ``on_apscheduler.py memory`` or ``on_apscheduler.py URL``."""

from __future__ import annotations

import asyncio
import sys

from apscheduler import AsyncScheduler
from apscheduler.datastores.memory import MemoryDataStore
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from commands import aserve
from sqlalchemy.ext.asyncio import create_async_engine


async def work(number: int) -> int:
    return number


async def main(where: str) -> None:
    memory = where == "memory"
    store = MemoryDataStore() if memory else SQLAlchemyDataStore(create_async_engine(where))
    async with AsyncScheduler(store) as scheduler:

        async def one() -> None:
            assert await scheduler.run_job(work, args=[1]) == 1

        async def many(count: int) -> None:
            jobs = [
                await scheduler.add_job(work, args=[1], result_expiration_time=600)
                for _ in range(count)
            ]
            for job in jobs:
                assert (await scheduler.get_job_result(job)).return_value == 1

        await scheduler.start_in_background()
        await one()
        await aserve(one, many)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
