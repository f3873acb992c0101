"""Start an operation of gapic-showcase, as ``lro conform --start-command`` requires."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any, Final

HEADERS: Final = {"Content-Type": "application/json", "X-Goog-Api-Client": "rest/1 gapic/1"}
"""Over REST the server accepts only requests that look like those of a generated client."""
BODIES: Final[dict[str, Any]] = {
    "long": {"ttl": "600s", "success": {"content": "done"}},
    "soon": {"ttl": "0.1s", "success": {"content": "done"}},
    "fail": {"ttl": "0.1s", "error": {"code": 5, "message": "not there"}},
}


def started(server: str, body: Any) -> str:
    """Start an operation, and return its name.

    Ids are Base64 and may contain slashes, but this server misreads a path with two slashes in a
    row. Operations with a slash in their id are not used, because the results would vary.
    """
    while True:
        url, content = f"{server}/v1beta1/echo:wait", json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, content, HEADERS)) as reply:
            name: str = json.load(reply)["name"]
        if "/" not in name.removeprefix("operations/google.showcase.v1beta1.Echo/Wait/"):
            return name


print(started(sys.argv[1], BODIES[os.environ["LRO_CONFORM_KIND"]]))
