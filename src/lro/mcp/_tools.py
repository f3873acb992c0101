"""Methods as tools of the SDK: their names, descriptions and schemas.

The SDK makes the schemas of a tool from a function's signature and from classes of pydantic. This
module makes such functions and classes from the schemas of message classes.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

from mcp.server.extension import ToolBinding
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import BaseModel, Field

from lro import Method, Service
from lro.errors import DeclarationError, check, check_instance, check_plain_function
from lro.http import MessageSchemas, MethodSpec, Schema, docstring
from lro.types import AnyMessage, Json, TypeRegistry

log = logging.getLogger("lro")

ToolName: TypeAlias = Callable[[str], str]
"""A function that takes the full name of a method, and returns the name of its tool."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
"""Matches names that the protocol allows (SEP-986)."""
_COMMON_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Matches tool names that the APIs of models allow; clients refuse servers with other names."""
_MOST_CHARACTERS: Final = 64
_WANTED: Final = "names of 1 to 128 of A-Z a-z 0-9 _ . -"
_REFERENCE: Final = "#/"
_METHODS: Final = "a sequence of methods: decorate functions with service.method(...)"
_OPERATION: Final[Schema] = {
    "type": "object",
    "properties": {"operation": {"type": "string"}},
    "required": ["operation"],
    "additionalProperties": False,
}
"""The schema of the result that a client without tasks gets while the work continues."""
_READ: Final = "Wait a little for work that another tool has begun, and return its result."
_CANCEL: Final = "Ask for work that another tool has begun to stop."
_ID: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {"id": {"type": "string", "description": "The id that the tool has returned."}},
    "required": ["id"],
}


def named_tools(
    service: Service,
    methods: Sequence[Method[Any, Any, Any]] | None,
    tool_name: ToolName | None,
    others: tuple[str, str],
) -> Mapping[str, MethodSpec]:
    """Return the methods by the names of their tools; by default all declared methods.

    The default name is ``Service_Method``, or the full name if two methods would share it.
    ``others`` are the names of the tools that read and cancel operations.

    Raises:
        DeclarationError: ``methods`` is empty, or contains an object that is not a method of the
            service; or two tools have the same name, or a name is not allowed.
    """
    if methods is None:
        specs = list(service.edges.specs.values())
    else:
        check("methods", methods, _METHODS, fine=isinstance(methods, Sequence))
        specs = [_spec(service, method) for method in methods]
    if tool_name is not None:
        check_plain_function("tool_name", tool_name)
    if not specs:
        raise DeclarationError("methods", "are none: no method has been declared by now")
    read_tool, cancel_tool = others
    check("read_tool", read_tool, _WANTED, fine=_is_name(read_tool))
    fine = _is_name(cancel_tool) and cancel_tool != read_tool
    check("cancel_tool", cancel_tool, f"{_WANTED}, and not {read_tool}", fine=fine)
    name_of = tool_name or _names([spec.full_name for spec in specs]).__getitem__
    found: dict[str, MethodSpec] = {}
    for spec in specs:
        name: object = name_of(spec.full_name)
        check("tool_name", name, _WANTED, fine=_is_name(name))
        known = found.get(str(name))
        if known is not None or name in others:
            other = "the tool for operations" if known is None else known.full_name
            text = f"{spec.full_name} and {other} would both be named {name!r}: choose other names"
            raise DeclarationError("tool_name", text)
        found[str(name)] = spec
    for one in (*others, *found):
        if not _COMMON_NAME.fullmatch(one):
            line = "the tool %s: most clients take only names of 1 to 64 of A-Z a-z 0-9 _ -"
            log.warning(line, one)
    return found


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _names(full_names: Sequence[str]) -> Mapping[str, str]:
    short = {name: "_".join(name.split(".")[-2:]) for name in full_names}
    times = Counter(short.values())
    cut = {
        name: (one if times[one] == 1 else name.replace(".", "_"))[-_MOST_CHARACTERS:]
        for name, one in short.items()
    }
    times = Counter(cut.values())
    return {name: one if times[one] == 1 else _marked(name, one) for name, one in cut.items()}


def _marked(full_name: str, cut: str) -> str:
    """Return a unique tool name for a method whose cut name is also that of another method."""
    mark = hashlib.sha256(full_name.encode()).hexdigest()[:8]
    return f"{cut}_{mark}"[-_MOST_CHARACTERS:]


def _spec(service: Service, method: object) -> MethodSpec:
    check_instance("methods", method, Method, _METHODS)
    assert isinstance(method, Method)
    service.edges.check_own(method)
    return method.spec


def method_binding(
    name: str, spec: MethodSpec, types: TypeRegistry, *, handles: bool
) -> ToolBinding:
    """Make the tool of a method; if ``handles``, the tool may return an operation in progress.

    Raises:
        DeclarationError: The request is not a JSON object, as the arguments of a tool must be.
    """
    given = _inlined(types, reading=True, cls=spec.request)
    if given.get("type", "object") != "object":
        text = f"cannot be tools if a request is not a JSON object, as in {spec.full_name}"
        raise DeclarationError("methods", text)
    returned = _inlined(types, reading=False, cls=spec.response)
    if returned.get("type") != "object" or not _has_value(spec.response, types):
        returned = {}  # the SDK only supports schemas of objects
    elif handles:
        returned = {"type": "object", "anyOf": [returned, _OPERATION]}
    text = docstring(spec.function) if spec.function is not None else ""
    return _binding(name, text or docstring(spec.request), given, returned)


def _has_value(response: type, types: TypeRegistry) -> bool:
    return response is not AnyMessage and types.name_of(response) != "google.protobuf.Empty"


def read_binding(name: str) -> ToolBinding:
    """Make the tool that reads an operation."""
    return _binding(name, _READ, _ID, {})


def cancel_binding(name: str) -> ToolBinding:
    """Make the tool that cancels an operation."""
    return _binding(name, _CANCEL, _ID, {})


def _binding(
    name: str, text: str, given: Mapping[str, Json], returned: Mapping[str, Json]
) -> ToolBinding:
    async def call(**_: object) -> Any:  # the extension intercepts MCP's calls
        raise ToolError("this tool is only there for clients of MCP")

    properties, needed = given.get("properties") or {}, given.get("required") or []
    assert isinstance(properties, dict)
    assert isinstance(needed, list)
    parameters = [
        inspect.Parameter(
            f"argument_{number}",  # JSON names, the aliases, need not be identifiers
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[Any, Field(alias=key, json_schema_extra=_replacing(schema))],
            default=inspect.Parameter.empty if key in needed else None,
        )
        for number, (key, schema) in enumerate(properties.items())
    ]
    result: Any = Annotated[CallToolResult, _model(returned)] if returned else CallToolResult
    call.__name__ = name
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=result
    )
    return ToolBinding(call, kwargs={"name": name, "description": text})


def _replacing(schema: Json) -> Callable[[dict[str, Any]], None]:
    assert isinstance(schema, dict)

    def replace(made: dict[str, Any]) -> None:
        made.clear()
        made.update(schema)

    return replace


def _model(schema: Mapping[str, Json]) -> type[BaseModel]:
    class Model(BaseModel):
        @classmethod
        def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
            return dict(schema)

    return Model


def _inlined(types: TypeRegistry, cls: type, *, reading: bool) -> Schema:
    """Return the schema of a message class without references, which many clients ignore.

    A message nested in a message of its own class is described as an arbitrary object.
    """
    schemas = MessageSchemas(types, _REFERENCE)
    top = schemas.read(cls) if reading else schemas.written(cls)
    found = _resolved(top, schemas.named, frozenset())
    assert isinstance(found, dict)
    return found


def _resolved(value: Json, named: Mapping[str, Json], above: frozenset[str]) -> Json:
    if isinstance(value, list):
        return [_resolved(each, named, above) for each in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if not isinstance(reference, str):
        return {key: _resolved(each, named, above) for key, each in value.items()}
    name = reference.removeprefix(_REFERENCE)
    # A description next to the reference is that of the field, and wins.
    more = {key: _resolved(each, named, above) for key, each in value.items() if key != "$ref"}
    if name in above:
        return {"type": "object", **more}
    found = _resolved(named[name], named, above | {name})
    assert isinstance(found, dict)
    return {**found, **more}
