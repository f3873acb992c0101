"""The application under test on aiohttp's own server."""

import asyncio
import signal

from aiohttp import web

from lro.integrations.aiohttp import AiohttpOperations
from tests.full.stopping.app import service


async def main() -> None:
    """Serve on a free port until SIGTERM, as ``web.run_app`` does."""
    app = web.Application()
    AiohttpOperations(service, caller=lambda request: None, starts=True).setup(app)
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asked.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
