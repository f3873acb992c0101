"""A restart of uvicorn by SIGTERM hands running work back, and the next process finishes it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("uvicorn")

from tests.services.hosts import call, running, until

SERVICE: Final = """
import os
from datetime import timedelta
import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore

drain = timedelta(seconds=0.2)
service = lro.Service(SQLiteStore("operations.db"), ThreadExecutor(), drain=drain)

@service.method("acme.v1.Works.Work", path="/v1/works:work")
def work(request: lro.Struct, job: lro.Job) -> lro.types.StringValue:
    with open("begun", "a") as file:
        file.write("x")
    while not os.path.exists("go"):
        job.sleep(0.01)
    return lro.types.StringValue("done")
"""
APPS: Final = {
    "fastapi": """
from fastapi import FastAPI
from lro.integrations.fastapi import Operations
app = FastAPI()
app.include_router(Operations(service).router(starts=True))
""",
    "starlette": """
from starlette.applications import Starlette
from lro.integrations.starlette import Operations
app = Starlette(routes=Operations(service, starts=True).routes, lifespan=service.lifespan)
""",
    "litestar": """
from litestar import Litestar
from lro.integrations.litestar import OperationsPlugin
app = Litestar(plugins=[OperationsPlugin(service, starts=True)])
""",
    "quart": """
from quart import Quart
from lro.integrations.quart import Operations
app = Quart(__name__)
Operations(service, starts=True).init_app(app)
""",
}


@pytest.mark.parametrize("name", APPS)
def test_restart_hands_running_work_to_the_next_process(name: str, tmp_path: Path) -> None:
    """The operation is acknowledged by the first process, and ends well in the second one."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "served.py").write_text(SERVICE + APPS[name])
    begun = tmp_path / "begun"
    command = ["-m", "uvicorn", "served:app", "--port", "0", "--timeout-graceful-shutdown", "5"]
    with running(command, tmp_path, "first.log") as first:
        reply = call(first.port(), "POST", "/v1/works:work", {})
        assert reply.status == 200, reply.body
        at = f"/v1/{reply.body['name']}"
        until(lambda: begun.exists() and begun.read_text() == "x")
        first.ask_to_stop()
        first.end()
    with running(command, tmp_path, "second.log") as second:
        until(lambda: begun.read_text() == "xx")
        (tmp_path / "go").touch()
        done = call(second.port(), "POST", f"{at}:wait", {})
        assert done.body["response"]["value"] == "done", done.body
        second.stop()
