"""A scenario: a script for each protocol, a task for the client, and the checks on what it did."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from lro_conform._checks import GRPC, HTTP, Check, Citation, Level
from lro_conform.client._judging import Complaint, ScenarioCheck
from lro_conform.client._steps import Answer, JsonObject, Script, Shows, Verb

COLLECTION: Final = "projects/conform/locations/here/operations"
TYPE_PREFIX: Final = "type.googleapis.com/"
RESPONSE: Final[JsonObject] = {
    "@type": TYPE_PREFIX + "google.rpc.ResourceInfo",
    "resourceType": "acme.example/Image",
    "resourceName": "images/größe-7",
    "description": 'quoted "text", \u2028 and \U0001f4be',
}
"""The result of operations: a message of every client library of gRPC, with difficult text."""


def operation(name: str, *, done: bool | None = False, **fields: object) -> JsonObject:
    """An operation as JSON; with ``done`` None the field is left out, as ProtoJSON does."""
    found: JsonObject = {"name": f"{COLLECTION}/{name}"}
    found["metadata"] = {"@type": TYPE_PREFIX + "google.rpc.RequestInfo", "requestId": "r-1"}
    if done is not None:
        found["done"] = done
    return {**found, **fields}


def running(name: str, request_id: str = "r-1") -> Shows:
    """The answer that an operation is not done; its metadata changes with ``request_id``."""
    metadata = {"@type": TYPE_PREFIX + "google.rpc.RequestInfo", "requestId": request_id}
    return Shows(operation=operation(name, done=None, metadata=metadata))


def ended(name: str, **fields: object) -> Shows:
    """The answer that an operation is done, with :data:`RESPONSE` or with these fields."""
    return Shows(operation=operation(name, done=True, **(fields or {"response": RESPONSE})))


def error_of(name: str, code: int, message: str, *details: JsonObject) -> Shows:
    """The answer that an operation ended with an error."""
    error: JsonObject = {"code": code, "message": message}
    if details:
        error["details"] = list(details)
    return ended(name, error=error)


@attrs.frozen(kw_only=True)
class Scenario:
    """One run of the client. ``name`` is the id of its operation, ``timeout`` is in seconds."""

    name: str
    scripts: Mapping[str, Script]
    """Scripts by protocol. A check is judged over the protocols with a script."""
    checks: tuple[ScenarioCheck, ...]
    task: str = "wait"
    timeout: float = 15.0
    elsewhere: Answer | None = None
    """Answers of another HTTP server to GetOperation, for scripts with redirects."""
    mute: bool = False
    """True if connections over gRPC are accepted but never answered."""


def scenario(name: str, scripts: Mapping[str, Script], *rules: _Rule, **options: Any) -> Scenario:
    """A scenario whose checks are judged over the protocols that it has scripts for."""
    return Scenario(
        name=name,
        scripts=scripts,
        checks=tuple(one(frozenset(scripts)) for one in rules),
        **options,
    )


def polled(*answers: Answer) -> dict[str, Script]:
    """The scripts in which GetOperation is answered so, and nothing else is."""
    return {one: {Verb.GET: answers} for one in (HTTP, GRPC)}


def over_http(*answers: Answer) -> dict[str, Script]:
    """Like :func:`polled`, over HTTP alone."""
    return {HTTP: {Verb.GET: answers}}


def over_grpc(*answers: Answer) -> dict[str, Script]:
    """Like :func:`polled`, over gRPC alone."""
    return {GRPC: {Verb.GET: answers}}


_Rule: TypeAlias = Callable[[frozenset[str]], ScenarioCheck]
"""A function that makes a check for the protocols of its scenario."""


def rule(
    level: Level,
    id: str,
    says: str,
    *sources: Citation,
    fails: Complaint | tuple[Complaint, ...] = (),
    optional: bool = False,
    unfinished: bool = False,
) -> _Rule:
    """A check of clients; its id is given without ``client.``.

    A run without any outcome fails it unless it is ``unfinished``, and so does each complaint of
    ``fails``.
    """
    complaints = fails if isinstance(fails, tuple) else (fails,)

    def make(transports: frozenset[str]) -> ScenarioCheck:
        check = Check(
            id=f"client.{id}",
            says=says,
            level=level,
            sources=sources,
            transports=transports,
            optional=optional,
        )
        return ScenarioCheck(check, complaints, unfinished)

    return make


must = functools.partial(rule, Level.MUST)
should = functools.partial(rule, Level.SHOULD)
info = functools.partial(rule, Level.INFO)


def error_details_proto(message: str) -> Citation:
    """The comments of ``google/rpc/error_details.proto``."""
    url = "https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto"
    return Citation("error_details.proto", message, url)


def grpc_guide(page: str) -> Citation:
    """A guide of grpc.io."""
    return Citation("gRPC guide", page, f"https://grpc.io/docs/guides/{page}/")
