"""The process of a client: ``python -m bench.clients CLIENT WAY URL``.

Each line of its standard input is a command in JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.clients.ways import Way, failed


def memory(field: str) -> int:
    """Return this process's memory in bytes: the present VmRSS, or the peak VmHWM."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def read_commands(lines: queue.SimpleQueue[str]) -> None:
    """Queue the parent's lines, and end this process when the parent ends."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def obey(way: Way) -> None:
    """Run commands until the process ends."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(lines,), daemon=True).start()
    while True:
        names, begins = json.loads(lines.get())
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
        before, cpu = memory("VmRSS"), time.process_time()
        at = way(names, begins)
        answer: dict[str, Any] = {"at": at, "cpu": time.process_time() - cpu}
        answer |= {"grown": memory("VmHWM") - before, "failed": failed}
        print(json.dumps(answer), flush=True)


def main(client: str, way: str, url: str) -> None:
    """Import a client's module, and run the commands for the client."""
    try:
        module = importlib.import_module(f"bench.clients.on_{client}")
        ways = module.ways(url)
    except ImportError as exc:
        print(json.dumps(f"is not installed here: {exc}"), flush=True)
        return
    print(json.dumps("ready"), flush=True)
    obey(ways[way])


if __name__ == "__main__":
    main(*sys.argv[1:])
