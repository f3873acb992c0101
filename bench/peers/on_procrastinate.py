"""Procrastinate on PostgreSQL, with its worker in the same process, which NOTIFY wakes.

Procrastinate keeps no results, so we check every millisecond whether the job has succeeded.
"""

from __future__ import annotations

import asyncio
import sys

import procrastinate
from commands import aserve

AT_ONCE = 50


async def main(url: str) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=10))

    @app.task(name="work")
    async def work(number: int) -> int:
        return number

    async def succeeded(job: int) -> None:
        while await app.job_manager.get_job_status_async(job) is not wanted:
            await asyncio.sleep(0.001)

    async def one() -> None:
        await succeeded(await work.defer_async(number=1))

    async def many(count: int) -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def begin() -> int:
            async with slots:
                return await work.defer_async(number=1)

        for job in await asyncio.gather(*(begin() for _ in range(count))):
            await succeeded(job)

    wanted = procrastinate.jobs.Status.SUCCEEDED
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False)
        )
        await one()
        await aserve(one, many)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
