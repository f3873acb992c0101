"""Redirections, of which those within an origin are followed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lro import Code, Status
from lro_client._errors import CallError
from lro_client._flow.steps import Call

_MOST_HOPS: Final = 5


def redirected(
    call: Call, asked: Mapping[str, Any], response: Any, hops: int
) -> dict[str, Any] | None:
    """What to ask instead of ``asked``, where a response says so; None: it is the answer.

    Raises:
        CallError: It leads to another origin, where credentials and operations do not belong, or
            on and on: this is the ``hops``-th one.
    """
    status, target = response.status_code, response.headers.get("location")
    repeats = status in (307, 308) or (status in (301, 302, 303) and asked["method"] == "GET")
    if not repeats or not target:
        return None
    there, text = response.url.join(target), ""
    if _origin(there) != _origin(response.url):
        text = f"{response.url} redirects to another origin, {there}, which is not followed"
    elif hops > _MOST_HOPS:
        text = f"more than {_MOST_HOPS} redirections, the last one to {there}"
    if text:
        raise CallError(call.verb, Status(Code.FAILED_PRECONDITION, text), status)
    kept = {key: value for key, value in asked.items() if key != "params"}
    return {**kept, "url": str(there)}


def _origin(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
