"""DBOS on SQLite or PostgreSQL: a workflow without steps.

``on_dbos.py URL steps N``: a workflow of N steps. Many workflows at once are started by 64 threads.
"""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor

from commands import serve
from dbos import DBOS

CALLERS = 64


def main(url: str, steps: int = 0) -> None:
    DBOS(config={"name": "candidate", "system_database_url": url, "run_admin_server": False})

    @DBOS.step()
    def same(number: int) -> int:
        return number

    @DBOS.workflow()
    def work(number: int) -> int:
        for _ in range(steps):
            number = same(number)
        return number

    def one() -> None:
        assert DBOS.start_workflow(work, 1).get_result() == 1

    def many(count: int) -> None:
        with ThreadPoolExecutor(CALLERS) as callers:
            begun = callers.map(lambda _: DBOS.start_workflow(work, 1), range(count))
            for handle in list(begun):
                assert handle.get_result() == 1

    DBOS.launch()
    logging.getLogger("dbos").setLevel(logging.ERROR)
    one()
    serve(one, many)
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]) if sys.argv[2:3] == ["steps"] else 0)
