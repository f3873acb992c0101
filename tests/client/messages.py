"""Message classes for the tests of the client, and helpers that build operations as JSON."""

from __future__ import annotations

import enum
import json
from typing import Any

import attrs
import httpx

import lro

PREFIX = "type.googleapis.com/"
NAME = "operations/abc"


class Phase(enum.Enum):
    PHASE_UNSPECIFIED = 0
    READING = 1
    WRITING = 2


@lro.message("acme.images.v1.ResizeRequest")
@attrs.frozen
class ResizeRequest:
    source: str = ""
    widths: tuple[int, ...] = ()


@lro.message("acme.images.v1.ResizeResponse")
@attrs.frozen
class ResizeResponse:
    size_bytes: int = 0
    note: str = ""


@lro.message("acme.images.v1.ResizeMetadata")
@attrs.frozen
class ResizeMetadata:
    percent: int = 0
    phase: Phase = Phase.PHASE_UNSPECIFIED


@attrs.frozen
class OwnRequest:
    """A request with fields for a request id and a dry run (AIP-155, AIP-163), but no full name."""

    request_id: str = ""
    validate_only: bool = False


TYPES = {"response": ResizeResponse, "metadata": ResizeMetadata}


def packed(name: str, **fields: Any) -> dict[str, Any]:
    """Return an Any as JSON. A ``name`` without a package is one of the classes in this file."""
    full = name if "." in name else f"acme.images.v1.{name}"
    return {"@type": PREFIX + full, **fields}


def running(percent: int | None = None, name: str = NAME) -> dict[str, Any]:
    """Return an unfinished operation as JSON; with ``percent`` it has metadata."""
    if percent is None:
        return {"name": name}
    return {"name": name, "metadata": packed("ResizeMetadata", percent=percent)}


def succeeded(size: int = 7, name: str = NAME) -> dict[str, Any]:
    """Return an operation that succeeded, as JSON."""
    return {"name": name, "done": True, "response": packed("ResizeResponse", sizeBytes=str(size))}


def failed(code: int = 9, message: str = "no", details: Any = (), **more: Any) -> dict[str, Any]:
    """Return an operation that failed, as JSON."""
    error = {"code": code, "message": message, "details": list(details)}
    return {"name": NAME, "done": True, "error": error, **more}


def reply(body: Any, http: int = 200, /, **headers: str) -> httpx.Response:
    """Return a response with a JSON body; ``retry_after`` becomes the header Retry-After."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return httpx.Response(http, json=body, headers=named)


def refusal(code: lro.Code, message: str = "no", *details: Any, **headers: str) -> httpx.Response:
    """Return an error response in the form of our servers and of Google's (spec §5.12)."""
    error = {"code": code.http, "message": message, "status": code.name, "details": list(details)}
    return reply({"error": error}, code.http, **headers)


def page_of_a_proxy(http: int, **headers: str) -> httpx.Response:
    """Return an error response with an HTML page, as proxies send it."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return httpx.Response(http, html=f"<h1>{http}</h1>", headers=named)


def body_of(request: httpx.Request) -> Any:
    """Return the JSON body of a request, or None if it has no body."""
    return json.loads(request.content) if request.content else None
