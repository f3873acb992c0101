"""The agent card, which describes methods to other agents (A2A 4.4, 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from lro import Method
from lro._bridge import JSON_TYPE
from lro.errors import check_text
from lro.http import MessageSchemas, docstring
from lro.types import Json, MethodName

JSONRPC_PATH: Final = "/a2a/jsonrpc"
REST_PATH: Final = "/a2a/rest"
"""Default paths of the two HTTP bindings."""

SCHEMAS_URI: Final = "urn:lro:a2a:schemas:v1"
"""The extension of the card with the JSON Schemas of the skills (A2A 4.4.5).

Its parameters are ``{"input": ..., "output": ...}`` for each skill id, and shared ``$defs``.
"""

Methods = Sequence[Method[Any, Any, Any]]


def agent_card(
    methods: Methods,
    *,
    name: str,
    description: str,
    version: str,
    url: str,
    grpc: str = "",
    text: bool = False,
    push: bool = False,
) -> AgentCard:
    """Make the card of an agent whose skills are these methods; you may change the result.

    The id of a skill is the full name of its method, and its description is the docstring of the
    function. ``url`` is the URL of the server of :func:`routes`, with a path only if the routes are
    mounted below a path: ``https://agent.example.com``. ``grpc`` is the ``host:port`` of gRPC, if
    :func:`add_to` serves it. Set ``text`` if the handler has ``read``, and ``push`` if it has
    ``webhooks``. The card lists both protocol versions for each binding (A2A 8.3.1).

    Raises:
        DeclarationError: An argument is not a text, or is empty.
    """
    given = {"name": name, "description": description, "version": version, "url": url}
    for argument, value in given.items():
        check_text(argument, value, empty=False)
    base = url.rstrip("/")
    places = [("JSONRPC", base + JSONRPC_PATH), ("HTTP+JSON", base + REST_PATH)]
    if grpc:
        places.append(("GRPC", grpc))
    schemas = AgentExtension(
        uri=SCHEMAS_URI,
        description="JSON Schemas of the requests and responses of the skills.",
        params=ParseDict(_schemas(methods), Struct()),
    )
    return AgentCard(
        name=name,
        description=description,
        version=version,
        supported_interfaces=[
            AgentInterface(url=place, protocol_binding=binding, protocol_version=number)
            for number in ("1.0", "0.3")
            for binding, place in places
        ],
        capabilities=AgentCapabilities(
            streaming=True, push_notifications=push, extended_agent_card=False, extensions=[schemas]
        ),
        default_input_modes=[JSON_TYPE, *(["text/plain"] if text else [])],
        default_output_modes=[JSON_TYPE],
        skills=[_skill(method) for method in methods],
    )


def _skill(method: Method[Any, Any, Any]) -> AgentSkill:
    spec = method.spec
    said = docstring(spec.function) if spec.function is not None else ""
    return AgentSkill(
        id=spec.full_name,
        name=MethodName.parse(spec.full_name).name,
        description=said or f"Start {spec.full_name}.",
        tags=[spec.full_name.rpartition(".")[0]],
    )


def _schemas(methods: Methods) -> dict[str, Json]:
    made = MessageSchemas(methods[0].spec.types, "#/$defs/") if methods else None
    found: dict[str, Json] = {}
    for method in methods:
        assert made is not None
        spec = method.spec
        found[spec.full_name] = {
            "input": made.read(spec.request),
            "output": made.written(spec.response),
        }
    if made is not None:
        found["$defs"] = made.named
    return found
