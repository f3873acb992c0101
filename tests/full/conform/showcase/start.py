"""Start an operation of gapic-showcase, as `lro conform --start-command` asks for it."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any, Final

HEADERS: Final = {"Content-Type": "application/json", "X-Goog-Api-Client": "rest/1 gapic/1"}
"""The server refuses requests over REST that do not look like those of a generated client."""
BODIES: Final[dict[str, Any]] = {
    "long": {"ttl": "600s", "success": {"content": "done"}},
    "soon": {"ttl": "0.1s", "success": {"content": "done"}},
    "fail": {"ttl": "0.1s", "error": {"code": 5, "message": "not there"}},
}


def started(server: str, body: Any) -> str:
    """Start an operation, and return its name.

    Ids are Base64, also with slashes. Two slashes in a row mean another path to this server, so an
    operation with a slash in its id is not taken: otherwise every run would have other findings.
    """
    while True:
        url, content = f"{server}/v1beta1/echo:wait", json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, content, HEADERS)) as reply:
            name: str = json.load(reply)["name"]
        if "/" not in name.removeprefix("operations/google.showcase.v1beta1.Echo/Wait/"):
            return name


print(started(sys.argv[1], BODIES[os.environ["LRO_CONFORM_KIND"]]))
