"""A scenario: a script for each protocol, a task for the client, and checks of its behaviour."""

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
"""The response of operations: a type of every gRPC client library, with unusual characters."""


def operation(name: str, *, done: bool | None = False, **fields: object) -> JsonObject:
    """Return an operation as JSON; if ``done`` is None, the field is left out, as in ProtoJSON."""
    found: JsonObject = {"name": f"{COLLECTION}/{name}"}
    found["metadata"] = {"@type": TYPE_PREFIX + "google.rpc.RequestInfo", "requestId": "r-1"}
    if done is not None:
        found["done"] = done
    return {**found, **fields}


def running(name: str, request_id: str = "r-1") -> Shows:
    """Return an answer with an operation in progress; its metadata contain ``request_id``."""
    metadata = {"@type": TYPE_PREFIX + "google.rpc.RequestInfo", "requestId": request_id}
    return Shows(operation=operation(name, done=None, metadata=metadata))


def ended(name: str, **fields: object) -> Shows:
    """Return an answer with an operation that is done and has :data:`RESPONSE` or these fields."""
    return Shows(operation=operation(name, done=True, **(fields or {"response": RESPONSE})))


def error_of(name: str, code: int, message: str, *details: JsonObject) -> Shows:
    """Return an answer with an operation that ended with an error."""
    error: JsonObject = {"code": code, "message": message}
    if details:
        error["details"] = list(details)
    return ended(name, error=error)


@attrs.frozen(kw_only=True)
class Scenario:
    """One run of the client. ``name`` is the id of its operation, ``timeout`` is in seconds."""

    name: str
    scripts: Mapping[str, Script]
    """Scripts by protocol. A check is judged over the protocols that have a script."""
    checks: tuple[ScenarioCheck, ...]
    task: str = "wait"
    timeout: float = 15.0
    elsewhere: Answer | None = None
    """The answers to GetOperation of a second HTTP server, for scripts with redirects."""
    mute: bool = False
    """True if gRPC connections are accepted, but get no reply."""


def scenario(name: str, scripts: Mapping[str, Script], *rules: _Rule, **options: Any) -> Scenario:
    """Make a scenario, whose checks apply to the protocols that have scripts."""
    return Scenario(
        name=name,
        scripts=scripts,
        checks=tuple(one(frozenset(scripts)) for one in rules),
        **options,
    )


def polled(*answers: Answer) -> dict[str, Script]:
    """Return scripts in which only GetOperation is supported, with these answers."""
    return {one: {Verb.GET: answers} for one in (HTTP, GRPC)}


def over_http(*answers: Answer) -> dict[str, Script]:
    """Return scripts like :func:`polled`, but only for HTTP."""
    return {HTTP: {Verb.GET: answers}}


def over_grpc(*answers: Answer) -> dict[str, Script]:
    """Return scripts like :func:`polled`, but only for gRPC."""
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
    """Return a function that makes a check of clients; the check's id is ``client.`` and ``id``.

    A run fails the check if a complaint of ``fails`` applies or, unless ``unfinished`` is true, if
    the run has no outcome.
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
