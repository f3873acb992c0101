"""What a server answered: replies of both transports in one form, read strictly.

Nothing of the server is trusted: a reply that cannot be read is a fact to report, never an error
of the judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

CODES: Final = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]
"""The names of ``google.rpc.Code``, each at its number."""

HTTP_STATUSES: Final = dict(
    zip(
        CODES,
        (200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401),
        strict=True,
    )
)
"""The HTTP status of each code, as the comments of ``code.proto`` have it."""

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
"""The code that an HTTP status stands for where the body names none."""

DEFECTS: Final = ("UNKNOWN", "INTERNAL", "DATA_LOSS")
"""Codes by which a server says that it is at fault."""

_SHOWN: Final = 160
_MOST_DIGITS: Final = 400
_MOST_LEVELS: Final = 100


@attrs.frozen(kw_only=True)
class WireReply:
    """A reply of HTTP as it came, its body as far as it was read; headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen(kw_only=True)
class Answer:
    """What came of one call.

    ``code`` is the name of the canonical code, empty if there was no reply with one. ``body``
    is the reply's message in JSON's terms, ``error`` the ``google.rpc.Status`` of a refusal so.
    ``fault`` says why there is no readable reply, ``lost`` that there was no reply at all.
    ``foreign`` marks a request that is none of the interface's, such as one of an unknown path.
    ``began`` and ``ended`` are seconds of one clock.
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
    """How many bytes the reply has, unpacked."""
    trailer: str = ""
    """What is wrong with gRPC's ``grpc-status-details-bin``; empty if nothing is."""
    notes: tuple[str, ...] = ()
    """What a JSON reply has that a strict parser refuses, such as a key twice."""
    began: float = 0.0
    ended: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the call succeeded with a readable reply."""
        return self.code == "OK" and not self.fault

    @property
    def refused(self) -> bool:
        """Whether the server refused the call and is not at fault itself."""
        return bool(self.code) and self.code != "OK" and self.code not in DEFECTS

    @property
    def redirected(self) -> bool:
        """Whether a request that is none of the interface's was sent elsewhere."""
        return self.foreign and self.http is not None and 300 <= self.http.status < 400

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    @property
    def done(self) -> bool:
        """Whether it is an operation that is done."""
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


def shown(value: object) -> str:
    """A value of a reply as JSON in ASCII, cut: nothing in it controls a terminal."""
    text = json.dumps(value, default=repr, separators=(",", ":"))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_json(payload: bytes) -> tuple[object, tuple[str, ...]]:
    """The value of a JSON text, and what is wrong with it that does not keep it from being read.

    Fields that are null are left out: ProtoJSON takes these for fields that are not set.

    Raises:
        ValueError: It is not JSON in UTF-8, has unpaired surrogates, or is nested too deeply.
    """
    notes: list[str] = []

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(found)
        if len(made) < len(found):
            names = [name for name, _ in found]
            twice = next(name for name in names if names.count(name) > 1)
            notes.append(f"the key {shown(twice)} stands twice in one object")
        return {name: one for name, one in made.items() if one is not None}

    def constant(name: str) -> object:
        notes.append(f"{name} is not JSON")
        return None

    def integer(digits: str) -> object:
        if len(digits) > _MOST_DIGITS:
            notes.append(f"a number of {len(digits)} digits is beyond what JSON readers keep")
            return 0
        return int(digits)

    try:
        text = payload.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=pairs, parse_constant=constant, parse_int=integer
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _depth(value) > _MOST_LEVELS:  # which Python could not compare or print
        raise ValueError("it is nested too deeply")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has an unpaired surrogate") from None
    return value, tuple(notes)


def _depth(value: object) -> int:
    level, deepest = [value], 0
    while level := [inner for one in level for inner in _inside(one)]:
        deepest += 1
    return deepest


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def operation_problem(body: Mapping[str, Any]) -> str:
    """Why a message cannot be an Operation; empty if it can."""
    if not isinstance(body.get("name"), str):
        return "it has no name that is a text"
    kinds = {"done": bool, "metadata": dict, "error": dict, "response": dict}
    for field, kind in kinds.items():
        if field in body and not isinstance(body[field], kind):
            return f"its {field} is {shown(body[field])}"
    return ""


def result_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change of an operation that is done."""
    return {key: body.get(key) for key in ("done", "error", "response")}
