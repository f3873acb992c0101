"""Copy calls and schemas of our OpenAPI document into the document of FastAPI.

FastAPI makes schemas only from types. So one type adds all our schemas to the document, and the
descriptions of routes refer to these schemas by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import GetJsonSchemaHandler
from pydantic_core import core_schema

from lro.openapi._document import OperationSchemas

_TYPES: Final = "x-aep-long-running-operation"
_SCHEMAS: Final = "#/components/schemas/"


def type_with(schemas: OperationSchemas, top: Mapping[str, Any]) -> type:
    """Return a type whose schema is ``top``; it adds all our schemas to FastAPI's document."""
    name = _schema_name(top["$ref"].rpartition("/")[2])

    class Documented:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
            return core_schema.any_schema(ref=name)

        @classmethod
        def __get_pydantic_json_schema__(cls, _: Any, handler: GetJsonSchemaHandler) -> Any:
            references = {}
            for name in schemas.named:  # FastAPI keeps the names of list items
                one = core_schema.any_schema(ref=_schema_name(name))
                references[name] = handler(core_schema.list_schema(one))["items"]
            for name, schema in schemas.named.items():
                found = handler.resolve_ref_schema(references[name])
                found.update(as_in_fastapi(schema, references))
            return as_in_fastapi(top, references)

    return Documented


def route_options(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of FastAPI's route for a call of our document."""
    extra = {key: said[key] for key in ("parameters", "requestBody", _TYPES) if key in said}
    replies = said["responses"]
    extra["responses"] = {key: replies[key] for key in replies if key != "default"}
    text = {"summary": said["summary"], "description": said.get("description")}
    return {**text, "operation_id": said["operationId"], "openapi_extra": as_in_fastapi(extra)}


def as_in_fastapi(said: Any, references: Mapping[str, Any] | None = None) -> Any:
    """Convert a part of our document to FastAPI's form, in which names of schemas have no dots.

    ``references`` maps the name of each of our schemas to the reference that FastAPI uses. A list
    of types becomes ``anyOf``, because older versions of FastAPI do not support such lists.
    """
    if isinstance(said, list):
        return [as_in_fastapi(one, references) for one in said]
    if not isinstance(said, dict):
        return said
    found = {key: as_in_fastapi(one, references) for key, one in said.items()}
    if isinstance(said.get("$ref"), str):
        name = said["$ref"].rpartition("/")[2]
        found |= references[name] if references else {"$ref": f"{_SCHEMAS}{_schema_name(name)}"}
    if isinstance(said.get("type"), list):
        found["anyOf"] = [{"type": kind} for kind in found.pop("type")]
    return found


def _schema_name(name: str) -> str:
    """Return a name for a schema in FastAPI's document that no class of the application has."""
    return (name if "." in name else f"lro.{name}").replace(".", "__")
