"""Scripted replies, of any JSON, to the requests of the console's page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import attrs

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Route

SESSION: Final[dict[str, Any]] = {
    "version": "1",
    "title": "Scripted",
    "caller": "ann",
    "api": "v1",
    "parents": [""],
    "actions": ["cancel", "delete"],
    "verbs": ["GetOperation", "ListOperations", "BatchGetOperations"],
    "watches": False,
    "statistics": True,
    "cancelSupport": "COOPERATIVE",
    "refreshSeconds": 5,
    "links": {},
    "methods": [],
}
"""The reply to ``/session``, which the page reads first."""

TALLY: Final[dict[str, Any]] = {
    "now": "2026-11-25T12:00:00Z",
    "minutes": 60,
    "everySeconds": 15,
    "limit": 10_000,
    "inProgress": {"capped": False, "methods": [], "workers": []},
    "paused": [],
    "schedules": [],
    "buckets": [1.0, 60.0],
    "points": [],
}


@attrs.define(slots=False)  # Playwright sets an attribute of its own
class Scripted:
    """Replies with scripted operations and descriptions, by name; records requests in ``calls``.

    With ``views=False``, requests with the parameter ``view`` are refused.
    """

    operations: dict[str, Any] = attrs.field(factory=dict)
    descriptions: dict[str, Any] = attrs.field(factory=dict)
    session: dict[str, Any] = attrs.field(factory=lambda: dict(SESSION))
    tally: dict[str, Any] = attrs.field(factory=lambda: dict(TALLY))
    page_size: int = 0
    refused: set[str] = attrs.field(factory=set)
    views: bool = True
    calls: list[str] = attrs.field(factory=list)

    def answer_for(self, context: BrowserContext) -> None:
        """Answer the API requests in this browser context; the server still serves the files."""
        context.route("**/session", lambda route: _send(route, self.session))
        context.route("**/tally?*", lambda route: _send(route, self.tally))
        context.route("**/v1/**", self._answer)

    def _answer(self, route: Route) -> None:
        request = route.request
        path = unquote(urlsplit(request.url).path).rpartition("/v1/")[2]
        self.calls.append(f"{request.method} {path}")
        name, _, verb = path.rpartition(":") if request.method == "POST" else (path, "", "")
        if name in self.refused:
            error = {"code": 9, "message": f"{name} is busy.", "status": "FAILED_PRECONDITION"}
            _send(route, {"error": error}, 400)
        elif "view=" in request.url and not self.views:
            error = {"code": 3, "message": "view is unknown.", "status": "INVALID_ARGUMENT"}
            _send(route, {"error": error}, 400)
        elif name.endswith("operations") and verb:
            names = json.loads(request.post_data or "{}")["names"]
            known = [self.operations[one] for one in names if one in self.operations]
            found = [json.loads(one) if isinstance(one, str) else {**one} for one in known]
            if request.url.endswith("view=FULL"):
                for one in found:
                    one["description"] = self.descriptions.get(one["name"])
            missing = [one for one in names if one not in self.operations]
            _send(route, {"operations": found, "missing": missing})
        elif name.endswith("operations"):
            query = parse_qs(urlsplit(request.url).query)
            size, begin = int(query["pageSize"][0]), int(query.get("pageToken", ["0"])[0])
            page = list(self.operations.values())[begin : begin + (self.page_size or size)]
            more = begin + len(page) < len(self.operations)
            _send(route, {"operations": page, "nextPageToken": str(begin + len(page)) * more})
        elif name not in self.operations:
            error = {"code": 5, "message": f"There is no {name}.", "status": "NOT_FOUND"}
            _send(route, {"error": error}, 404)
        else:
            if request.method == "DELETE":
                del self.operations[name]
            _send(route, {} if request.method != "GET" else self.operations[name])


def _send(route: Route, value: Any, status: int = 200) -> None:
    body = value if isinstance(value, str) else json.dumps(value)
    route.fulfill(status=status, content_type="application/json", body=body)
