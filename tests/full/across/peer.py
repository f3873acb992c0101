"""The program of a process with a service: ``python -m tests.full.across.peer EXECUTOR PLACE...``.

Questions come as lines of JSON, each is answered by a thread, in a line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.full.across.service_host import SWITCH_SECONDS, Harness, asked
from tests.places import Place


def main(executor: str, *place: str) -> None:
    """Answer until the input ends."""
    sys.setswitchinterval(SWITCH_SECONDS)
    harness = Harness(Place(*place), executor)
    lock = threading.Lock()

    def answer(number: int, verb: str, arguments: dict[str, Any]) -> None:
        found, error = None, None
        try:
            found = asked(harness, verb, arguments)
        except Exception as exc:
            error = (type(exc).__name__, str(exc))
        line = json.dumps([number, found, error])
        with lock:
            print(line, flush=True)

    with ThreadPoolExecutor(64) as threads:
        for line in sys.stdin:
            threads.submit(answer, *json.loads(line))
    harness.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
