"""How calls and schemas of our OpenAPI document become parts of FastAPI's.

FastAPI has schemas only of types. So one type brings all of ours along, and what routes say of
themselves refers to them by their names.
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
    """A type by which FastAPI takes all of the schemas into its document; ``top`` is its own."""
    name = _schema_name(top["$ref"].rpartition("/")[2])

    class Documented:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
            return core_schema.any_schema(ref=name)

        @classmethod
        def __get_pydantic_json_schema__(cls, _: Any, handler: GetJsonSchemaHandler) -> Any:
            references = {}
            for name in schemas.named:  # within another schema, which keeps it by its name
                one = core_schema.any_schema(ref=_schema_name(name))
                references[name] = handler(core_schema.list_schema(one))["items"]
            for name, schema in schemas.named.items():
                found = handler.resolve_ref_schema(references[name])
                found.update(as_in_fastapi(schema, references))
            return as_in_fastapi(top, references)

    return Documented


def route_options(said: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of FastAPI's routes for a call of our document."""
    extra = {key: said[key] for key in ("parameters", "requestBody", _TYPES) if key in said}
    replies = said["responses"]
    extra["responses"] = {key: replies[key] for key in replies if key != "default"}
    text = {"summary": said["summary"], "description": said.get("description")}
    return {**text, "operation_id": said["operationId"], "openapi_extra": as_in_fastapi(extra)}


def as_in_fastapi(said: Any, references: Mapping[str, Any] | None = None) -> Any:
    """A part of our document in the words of FastAPI, whose names of schemas have no dots.

    ``references`` stand for those to our schemas, by name. Older versions of FastAPI know no lists
    of types.
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
    """The name of a schema there: one that no class of the application has, so it is kept."""
    return (name if "." in name else f"lro.{name}").replace(".", "__")
