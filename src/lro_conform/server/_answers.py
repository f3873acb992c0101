"""Answers of a server: replies in the same form for both transports, parsed strictly.

The server is not trusted: an unreadable reply is reported as a fact, and never raises an error
in the judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from lro_conform._strict_json import shown

BY_HTTP_STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    414: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "INVALID_ARGUMENT",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The code for each HTTP status, used if the body has no code."""

DEFECTS: Final = ("UNKNOWN", "INTERNAL", "DATA_LOSS")
"""Codes that mean a fault of the server."""


@attrs.frozen(kw_only=True)
class WireReply:
    """A raw HTTP reply, with header names in lower case, and the part of the body that was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen(kw_only=True)
class Answer:
    """The result of a call.

    ``code`` is the name of the canonical code, or empty if there was none. ``body`` is the
    reply's message as JSON, ``error`` the ``google.rpc.Status`` of a refusal as JSON. ``fault`` is
    the reason why there is no readable reply; ``lost`` is true if there was no reply at all.
    ``foreign`` marks a request outside the interface, such as one with an unknown path. ``began``
    and ``ended`` are in seconds by the same clock.
    """

    call: str
    rpc: str
    code: str
    body: Mapping[str, Any] = attrs.field(factory=dict)
    error: Mapping[str, Any] = attrs.field(factory=dict)
    fault: str = ""
    lost: bool = False
    foreign: bool = False
    http: WireReply | None = None
    size: int = 0
    """Size of the uncompressed reply in bytes."""
    trailer: str = ""
    """Defect of gRPC's ``grpc-status-details-bin``; empty if there is none."""
    notes: tuple[str, ...] = ()
    """Defects of a JSON reply that a strict parser refuses, such as a duplicate key."""
    began: float = 0.0
    ended: float = 0.0

    @property
    def ok(self) -> bool:
        """True if the call succeeded with a readable reply."""
        return self.code == "OK" and not self.fault

    @property
    def refused(self) -> bool:
        """True if the server refused the call, without a fault of its own."""
        return bool(self.code) and self.code != "OK" and self.code not in DEFECTS

    @property
    def redirected(self) -> bool:
        """True if a request outside the interface was redirected."""
        return self.foreign and self.http is not None and 300 <= self.http.status < 400

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.ended - self.began

    @property
    def done(self) -> bool:
        """True if the answer is an operation that is done."""
        return self.ok and self.body.get("done") is True

    def __str__(self) -> str:
        if self.fault:
            return f"{self.call}: {self.fault}"
        if self.code == "OK":
            return f"{self.call} answered {self._status}{shown(self.body)}"
        said = self.error.get("message")
        found = f"{self.call} answered {self._status}{self.code}".rstrip()
        return f"{found} {shown(said)}" if said else found

    @property
    def _status(self) -> str:
        return f"{self.http.status} " if self.http is not None else ""


def operation_problem(body: Mapping[str, Any]) -> str:
    """Return the reason why a message is not a valid Operation; empty if it is."""
    if not isinstance(body.get("name"), str):
        return "it has no name that is a text"
    kinds = {"done": bool, "metadata": dict, "error": dict, "response": dict}
    for field, kind in kinds.items():
        if field in body and not isinstance(body[field], kind):
            return f"its {field} is {shown(body[field])}"
    return ""


def result_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an ended operation that must not change."""
    return {key: body.get(key) for key in ("done", "error", "response")}
