"""Requests of polls, built once: to build one takes a third of a poll."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Final

import httpx

KEPT: Final = 64
"""So many requests are kept, those that were used last."""

_LONGEST: Final = 1024
"""Bodies of more bytes hold many names, and no two of them are the same."""


class Prebuilt:
    """The requests of a client that nobody else can change: its headers stay as they are."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[tuple[str, str, bytes], httpx.Request]
        self._kept = collections.OrderedDict()

    def request(
        self, client: httpx.Client | httpx.AsyncClient, asked: Mapping[str, Any]
    ) -> httpx.Request:
        """The request of these arguments of ``client.build_request``."""
        special = asked.keys() - {"method", "url", "timeout", "content", "headers"}
        # Cookies come from the server with answers, and headers of their own from tracing.
        if special or client.cookies or asked.get("headers", {}).keys() - {"content-type"}:
            return client.build_request(**asked)
        key = asked["method"], asked["url"], asked.get("content", b"")
        if len(key[2]) > _LONGEST:
            return client.build_request(**asked)
        found = self._kept.pop(key, None) or client.build_request(**asked)
        self._kept[key] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        # Another thread may ask the same; what ``copy`` makes of a request has no body.
        request = httpx.Request.__new__(httpx.Request)
        request.__dict__.update(found.__dict__)
        request.extensions = {"timeout": httpx.Timeout(asked["timeout"]).as_dict()}
        return request
