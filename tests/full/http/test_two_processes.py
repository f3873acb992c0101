"""Watch in one process of what another one writes (spec §3.11)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lro.stores.sqlite import SQLiteStore
from tests.http.counting_service import build
from tests.http.test_sockets import served
from tests.http.test_streams import Events

WRITER = """
import sys
from lro.stores.sqlite import SQLiteStore
from tests.http.counting_service import CountMetadata, CountResponse, build

with build(SQLiteStore(sys.argv[1])).service as service:
    for line in sys.stdin:
        act, name, value = line.split()
        reporter = service.reporter(name)
        if act == "report":
            reporter.report(CountMetadata(percent=int(value)))
        else:
            reporter.complete(CountResponse(total=int(value)))
"""


def test_two_processes_on_one_file(tmp_path: Path) -> None:
    """Writes of another process are reported here: progress, and the end."""
    path = tmp_path / "operations.db"
    counting = build(SQLiteStore(path))
    command = [sys.executable, "-c", WRITER, str(path)]
    root = Path(__file__).parents[3]
    with (
        served("uvicorn", counting) as server,
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=root) as writer,
    ):
        assert writer.stdin is not None
        name = counting.start()
        stream = Events(server, [name])
        seen = []
        for _, data in stream:
            seen.append(data.get("metadata", {}).get("percent"))
            act = "report" if len(seen) < 3 else "complete"
            if data.get("done"):
                assert data["response"]["total"] == 3
            else:
                writer.stdin.write(f"{act} {name} {len(seen)}\n")
                writer.stdin.flush()
        writer.stdin.close()
        stream.close()
    assert seen == [None, 1, 2, 2]
    assert writer.returncode == 0
