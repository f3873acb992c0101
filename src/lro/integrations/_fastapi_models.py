"""What ``/docs`` of FastAPI shows of the operations: pydantic models and descriptions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, create_model

from lro._engine.service import Service
from lro.integrations._base import PathRule


class PackedMessage(BaseModel):
    """A message, and the URL of its type."""

    model_config = ConfigDict(extra="allow")
    type_url: str = Field(alias="@type")


class OperationStatus(BaseModel):
    """Why an operation failed (google.rpc.Status)."""

    code: int
    message: str = ""
    details: list[PackedMessage] = []


class ErrorStatus(OperationStatus):
    """Why a call failed: the HTTP status as ``code``, and the name of the canonical code."""

    status: str


class ErrorReply(BaseModel):
    """The error of a call (AIP-193)."""

    error: ErrorStatus


ERROR: Final[Mapping[str, Any]] = {"model": ErrorReply, "description": "The call has failed."}


@functools.cache
def operation_model(response: Any = Any, metadata: Any = Any) -> type[BaseModel]:
    """The model of operations with these classes; of those of other libraries no fields are known.

    It is a model of documents only: no value is made of it.
    """
    typed: list[Any] = [_packed(one) | None for one in (metadata, response)]
    given = [one.__name__ for one in (response, metadata) if isinstance(one, type)]
    return create_model(
        "_".join(["Operation", *given]),
        __doc__="Work that takes long (google.longrunning.Operation).",
        name=(str, ...),
        metadata=(typed[0], None),
        done=(bool, False),
        error=(OperationStatus | None, None),
        response=(typed[1], None),
    )


@functools.cache
def _packed(cls: Any) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, BaseModel)):
        return PackedMessage
    return create_model(f"{cls.__name__}_packed", __base__=(cls, PackedMessage))


class OperationsPage(BaseModel):
    """A page of operations."""

    operations: list[operation_model()] = []  # type: ignore[valid-type]
    nextPageToken: str = ""


class FoundOperations(BaseModel):
    """The operations of these names, and the names that there are none of."""

    operations: list[operation_model()]  # type: ignore[valid-type]
    missing: list[str]


class DescribedOperations(BaseModel):
    """What is known of the operations of these names, and the names that there are none of."""

    descriptions: list[dict[str, Any]]
    missing: list[str]


class Nothing(BaseModel):
    """An empty object."""


def _text(name: str, description: str, kind: str = "string") -> Mapping[str, Any]:
    schema = {"type": kind}
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _body(**properties: Any) -> Mapping[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


_NAMES: Final = _body(names={"type": "array", "items": {"type": "string"}})
_OWN_FIELDS: Final[Mapping[str, Any]] = {
    "requestId": {"type": "string", "format": "uuid"},
    "validateOnly": {"type": "boolean"},
}
_VERBS: Final[Mapping[tuple[str, str], tuple[str, Any, Mapping[str, Any]]]] = {
    ("GET", "GetOperation"): ("Read an operation", operation_model(), {}),
    ("DELETE", "DeleteOperation"): ("Delete an operation", Nothing, {}),
    ("POST", "CancelOperation"): ("Ask for an operation to be cancelled", Nothing, _body()),
    ("POST", "WaitOperation"): (
        "Wait for an operation to end",
        operation_model(),
        _body(timeout={"type": "string", "examples": ["30s"]}),
    ),
    ("GET", "ListOperations"): (
        "List operations",
        OperationsPage,
        {
            "parameters": [
                _text("filter", "Which operations (AIP-160)."),
                _text("pageSize", "The most operations of a page.", "integer"),
                _text("pageToken", "The nextPageToken of the page before."),
            ]
        },
    ),
    ("POST", "BatchGetOperations"): ("Read several operations", FoundOperations, _NAMES),
    ("POST", "DescribeOperations"): ("Describe several operations", DescribedOperations, _NAMES),
    ("GET", "WatchOperations"): ("Watch an operation, by server-sent events", None, {}),
    ("POST", "WatchOperations"): ("Watch several operations", None, _NAMES),
}


def described(rule: PathRule, service: Service) -> dict[str, Any]:
    """The arguments of FastAPI's routes that describe one of ours."""
    spec = service.specs.get(rule.rpc)
    if spec is not None:
        reply: Any = operation_model(spec.response, spec.metadata)
        summary, more = f"Start {rule.rpc}", _body(**_OWN_FIELDS)
    else:
        summary, reply, more = _VERBS[rule.method, rule.rpc]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in rule.parts[1::2]
    ]
    extra = {**more, "parameters": [*parameters, *more.get("parameters", [])]}
    return {"summary": summary, "response_model": reply, "openapi_extra": extra}
