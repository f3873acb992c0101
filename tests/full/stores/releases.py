"""Two releases of one service; ``python -m`` runs one of them as a worker process.

The second release renames a method and the method's request class. It adds a field and an enum
value to the class, and an index to the method. It drops the method ``Fold`` and sends webhooks.
"""

from __future__ import annotations

import enum
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs

import lro
from lro.executors.threads import ThreadExecutor
from lro.webhooks import Endpoint, Webhooks
from tests.places import Place
from tests.webhooks.hooked import SECRET

SERVICE = "acme.v1.Prints"
OLD, NEW, GONE = (f"{SERVICE}.{verb}" for verb in ("Print", "PrintCopies", "Fold"))


class Paper(enum.Enum):
    PLAIN = 0
    GLOSSY = 1


class AnyPaper(enum.Enum):
    PLAIN = 0
    GLOSSY = 1
    CANVAS = 2


@lro.message("acme.v1.PrintRequest")
@attrs.frozen
class PrintRequest:
    key: str = ""
    paper: Paper = Paper.PLAIN


@lro.message("acme.v1.PrintCopiesRequest", aliases=["acme.v1.PrintRequest"])
@attrs.frozen
class PrintCopiesRequest:
    key: str = ""
    paper: AnyPaper = AnyPaper.PLAIN
    copies: int = 1


REQUESTS = {OLD: PrintRequest, GONE: PrintRequest, NEW: PrintCopiesRequest}


class Release:
    """The service of one release; its methods log the key of each call."""

    def __init__(self, number: int, place: Place, log: Path, url: str, threads: int = 2) -> None:
        executor = ThreadExecutor(threads) if threads else None
        options: dict[str, Any] = {"drain": timedelta(seconds=0.1)}
        if number == 2:
            endpoints = [Endpoint(url=url, secrets=(SECRET,))]
            here: dict[str, Any] = {"allow_http": True, "allow_private": True, "ports": None}
            options["webhooks"] = Webhooks(endpoints, **here)
        self.service = lro.Service(place.open(), executor, **options)
        self.methods: dict[str, Any] = {}

        def work(request: Any, job: lro.Job) -> lro.Struct:
            with log.open("a") as file:
                file.write(f"{request.key} {number}\n")
            job.sleep(0.3)
            return lro.Struct({"key": request.key})

        def declare(name: str, **options: Any) -> None:
            classes = {"request": REQUESTS[name], "response": lro.Struct}
            self.methods[name] = self.service.method(name, **classes, **options)(work)

        if number == 1:
            declare(OLD)
            declare(GONE)
        else:
            declare(NEW, aliases=[OLD], indexed_paths=["verb"])


def main(number: str, kind: str, where: str, schema: str, log: str, url: str) -> None:
    """Run the release as a worker until the standard input ends."""
    release = Release(int(number), Place(kind, where, schema), Path(log), url)
    with release.service:
        release.service.edges.start_maintenance()
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
