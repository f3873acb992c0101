"""Bounds of webhooks and bridges: the second table of docs/reference/limits.md."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("a2a")
pytest.importorskip("mcp")

from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE

from lro._engine.store_port import DEBT_LIFE
from lro._webhooks import endpoints, options, payloads, schedule, transport
from lro.a2a import _handler, _push, _served
from lro.mcp import _extension

TABLE: Final = Path(__file__).parents[3] / "docs/reference/limits.md"

CONSTANTS: Final = {
    "endpoints of one start": endpoints.MAX_ENDPOINTS,
    "endpoints of one start as they are stored, bytes": options.MAX_NOTIFY,
    "URL of an endpoint, characters": endpoints.MAX_URL,
    "headers of an endpoint": endpoints.MAX_HEADERS,
    "header of an endpoint, characters": endpoints.MAX_HEADER,
    "secrets of an endpoint, each of 24 to 64 bytes": endpoints.MAX_SECRETS,
    "full payload of a webhook, bytes": payloads.MAX_BODY,
    "request of a webhook, seconds": options.TIMEOUT_SECONDS,
    "reply to a webhook, bytes": transport.MAX_BODY,
    "Retry-After of a receiver, hours": schedule.LONGEST_SECONDS / 3600,
    "webhooks being sent by a process": options.CONNECTIONS,
    "days that a record stays after its expiry because webhooks are pending": DEBT_LIFE
    / timedelta(days=1),
    "wait of a call by an MCP client without tasks, seconds": _extension.WAIT_SECONDS,
    "body of an MCP request, bytes": DEFAULT_MAX_REQUEST_BODY_SIZE,
    "body of a call by A2A, bytes": _served.DEFAULT_MAX_REQUEST,
    "values in a call by A2A; an object, a list or a text counts as three": _served.MAX_VALUES,
    "tasks of a page in A2A": _handler.MAX_PAGE,
    "`totalSize` of a list in A2A": _handler.MAX_COUNTED,
    "push notification configs in A2A of callers who did not start the task": _push.MAX_OTHERS,
    "id of a push notification config in A2A, characters": _push.MAX_ID,
}


def test_table_has_the_bounds_of_the_code() -> None:
    """The second table of limits.md has a row for each constant, with its value."""
    _, _, rest = TABLE.read_text().partition("\n## Webhooks and other protocols")
    table, _, _ = rest.partition("\n## ")
    cells = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    assert {what.strip(): float(bound) for what, bound in cells[1:]} == CONSTANTS
