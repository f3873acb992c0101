"""A program that serves a method over MCP: ``python -m tests.full.mcp.host FILE [MAY_END]``.

FILE is the SQLite file of the operations. The server uses stdio; with MAY_END it uses HTTP on a
port that it prints, and the work ends only once the file MAY_END exists.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from mcp.server.mcpserver import MCPServer

import lro
from lro.executors.threads import ThreadExecutor
from lro.mcp import TasksExtension
from lro.stores.sqlite import SQLiteStore
from tests.http.servers import listening
from tests.work_messages import WorkRequest, WorkResponse

service = lro.Service(
    SQLiteStore(sys.argv[1]), ThreadExecutor(2), domain="acme.test", lease=timedelta(seconds=0.5)
)


@service.method("acme.v1.Works.Work")
def work(request: WorkRequest, job: lro.Job) -> WorkResponse:
    """Work until the file MAY_END exists."""
    while sys.argv[2:] and not Path(sys.argv[2]).exists():
        job.sleep(0.01)
    return WorkResponse(request.text.upper())


server = MCPServer("works", extensions=[TasksExtension(service, wait=0)])


def main() -> None:
    """Serve the method over MCP until the process is stopped."""
    if not sys.argv[2:]:
        server.run("stdio")
        return
    import uvicorn

    line = listening()
    print(line.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(json_response=True), log_config=None)
    uvicorn.Server(config).run(sockets=[line])


if __name__ == "__main__":
    main()
