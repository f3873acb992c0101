"""The OpenAPI document of a service: its verbs, and the POSTs that start operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs

from lro import Code, OperationDescription, Service
from lro.adapters import EVENTS
from lro.errors import DeclarationError, check, check_instance, check_text, check_texts
from lro.http import (
    DURATION_SCHEMA,
    HttpReply,
    MessageSchemas,
    OperationsEdge,
    Schema,
    StartHandler,
    Starts,
    docstring,
    json_reply,
    or_null,
    parameter_names,
)
from lro.types import WRAPPED_TYPES, Field, Json, Kind, Label, MethodName, Shape, TypeRegistry
from lro.wire import (
    AS_TEXT,
    MAX_NAMES,
    MAX_REQUEST_ID,
    WEBHOOK_HEADERS,
    Literal,
    Route,
    Template,
    path_template,
)

_FieldPath: TypeAlias = tuple[Field, ...]
_Part: TypeAlias = dict[str, Any]
"""A part of the document, as JSON."""

_VERSION: Final = "3.1.0"
_PACKAGE: Final = "google.longrunning"
_OPERATION: Final = f"{_PACKAGE}.Operation"
_LINKED: Final = ("Get", "Cancel", "Wait", "Delete")
"""The verbs to which the reply of a start has links."""
_ID: Final = r"^[^/:\x00-\x1f\x7f]+$"
"""A pattern for one segment of a name (spec §3.1(2)); a colon would begin a verb."""

_ORDER: Final = (
    "summary",
    "description",
    "parameters",
    "requestBody",
    "responses",
    "x-aep-long-running-operation",
)
_SECONDS: Final[_Part] = {"schema": {"type": "integer", "minimum": 1}}
_RETRY_AFTER: Final[_Part] = {
    "Retry-After": {**_SECONDS, "description": "Seconds until the next poll, while it is not done."}
}
_START_HEADERS: Final[_Part] = {
    "Operation-Id": {
        "description": "The last part of the operation's name; not for validateOnly.",
        "schema": {"type": "string"},
    },
    **_RETRY_AFTER,
    "Preference-Applied": {
        "description": "What was done of Prefer, such as wait=10.",
        "schema": {"type": "string"},
    },
}
_LOCATION: Final[_Part] = {
    "Location": {
        "description": "The path of the operation.",
        "schema": {"type": "string", "format": "uri-reference"},
    }
}
_PREFER: Final[_Part] = {
    "name": "Prefer",
    "in": "header",
    "description": "Such as wait=10, to get the operation when it is done, or after 10 seconds; or"
    " respond-async, wait=10, which is answered 202 if it is not done by then (RFC 7240).",
    "schema": {"type": "string"},
}
_KEY: Final[_Part] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The request id, for a body without requestId.",
    "schema": {"type": "string"},
}
_START_FIELDS: Final[_Part] = {
    "requestId": {
        "type": ["string", "null"],
        "maxLength": MAX_REQUEST_ID,
        "description": "A text of the caller's own, such as order-17. The same request with the"
        " same id starts nothing twice within 24 hours.",
    },
    "validateOnly": {
        "type": ["boolean", "null"],
        "description": "Check the request, and start nothing.",
    },
}
_VIEW: Final[_Part] = {
    "name": "view",
    "in": "query",
    "description": "FULL adds a description: method, times, attempts (AIP-157).",
    "schema": {"type": "string", "enum": ["BASIC", "FULL"], "default": "BASIC"},
}
_LIST_PARAMETERS: Final[tuple[_Part, ...]] = (
    {
        "name": "filter",
        "in": "query",
        "description": "Which operations (AIP-160, https://google.aip.dev/160).",
        "schema": {"type": "string", "maxLength": 8192},
    },
    {
        "name": "pageSize",
        "in": "query",
        "description": "The most operations of a page; 0 leaves it to the server.",
        "schema": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 2**31 - 1},
    },
    {
        "name": "pageToken",
        "in": "query",
        "description": "The nextPageToken of the page before; the filter must be the same.",
        "schema": {"type": "string", "maxLength": 8192},
    },
    _VIEW,
)
_WEBHOOK_HEADERS: Final[tuple[_Part, ...]] = tuple(
    {
        "name": name,
        "in": "header",
        "required": True,
        "description": text,
        "schema": {"type": "string"},
    }
    for name, text in zip(
        WEBHOOK_HEADERS,
        (
            "The same each time that this event is sent.",
            "When it is sent, in Unix seconds.",
            "HMAC-SHA256 of id, timestamp and body: v1,BASE64, several after spaces.",
        ),
        strict=True,
    )
)
_MANY: Final[_Part] = {
    "type": "object",
    "properties": {
        "names": {
            "type": "array",
            "items": {"type": "string", "pattern": f"(^|/)operations/{_ID[1:]}"},
            "minItems": 1,
            "maxItems": MAX_NAMES,
        }
    },
    "required": ["names"],
    "additionalProperties": False,
}
"""The body of a request for many operations."""


@attrs.frozen(kw_only=True)
class Document:
    """The parts of an OpenAPI document that are not paths, and the path that serves it.

    GET of ``path`` returns the document without a call of ``authenticate``. ``title`` is by default
    the domain of the service, ``version`` is the version of the API. ``servers`` are URLs, such as
    ``/api`` for an application that is mounted there. ``security`` has security schemes of OpenAPI
    by name, such as ``{"token": {"type": "http", "scheme": "bearer"}}``; a caller needs only one of
    them.

    Raises:
        DeclarationError: A value is not of its type, or ``path`` has variables.
    """

    path: str = "/openapi.json"
    title: str = ""
    version: str = "1.0.0"
    description: str = ""
    servers: Sequence[str] = ()
    security: Mapping[str, Mapping[str, Json]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for name in ("path", "title", "version", "description"):
            check_text(name, getattr(self, name))
        template = path_template("path", self.path)
        plain = all(isinstance(segment, Literal) for segment in template.segments)
        check("path", self.path, "a path without variables", fine=plain)
        check_texts("servers", self.servers)
        wanted = "security schemes by name, each a dict"
        fine = isinstance(self.security, Mapping)
        fine = fine and all(isinstance(one, Mapping) for one in self.security.values())
        check("security", self.security, wanted, fine=fine)

    def reply(self, edge: OperationsEdge) -> HttpReply:
        """Make the reply that serves the document: see :class:`lro.http.ExtraPage`."""
        return json_reply(200, describe(edge, document=self))


class HasEdge(Protocol):
    """An application of :mod:`lro.asgi` or :mod:`lro.wsgi`."""

    edge: OperationsEdge


Served: TypeAlias = Service | OperationsEdge | HasEdge
"""A service, an edge or an application that a document can describe."""


def describe(
    served: Served,
    *,
    starts: Starts | None = None,
    parents: Sequence[str] = (),
    document: Document | None = None,
) -> dict[str, Json]:
    """Return the OpenAPI document of the verbs and the starts of an application or a service.

    ``document`` has the parts that are not paths; by default it is the application's option
    ``openapi``. For a service alone, ``starts`` and ``parents`` are as for ``OperationsApp``;
    without ``starts``, the methods that were declared with ``path=`` are described.

    Raises:
        DeclarationError: An argument is not of its type, or as for ``OperationsApp``.
    """
    if isinstance(served, Service):
        if starts is None:
            starts = any(spec.options.path for spec in served.edges.specs.values())
        served = OperationsEdge(served, starts=starts, parents=parents, authenticate=_nobody)
    elif starts is not None or parents:
        raise DeclarationError("starts", "must be left out for an application, which has its own")
    edge = served if isinstance(served, OperationsEdge) else getattr(served, "edge", None)
    if not isinstance(edge, OperationsEdge):
        raise DeclarationError("served", "must be a Service, or an application of lro.asgi")
    said = edge.options.openapi if document is None else document
    if document is None and not isinstance(said, Document):
        said = Document()
    check_instance("document", said, Document, "an lro.openapi.Document")
    assert isinstance(said, Document)
    service, made = edge.service, Describer(edge.service)
    made.add(edge)
    info: _Part = {"title": said.title or service.domain, "version": said.version}
    shown: _Part = {"openapi": _VERSION, "info": info}
    if said.description:
        info["description"] = said.description
    if said.servers:
        shown["servers"] = [{"url": url} for url in said.servers]
    if said.security:
        shown["security"] = [{name: []} for name in said.security]
    webhooks = {"webhooks": made.webhooks()} if service.edges.webhooks is not None else {}
    schemas = dict(sorted(made.schemas.named.items()))
    components: _Part = {"schemas": schemas, "responses": {"Error": made.error}}
    if said.security:
        components["securitySchemes"] = {name: dict(one) for name, one in said.security.items()}
    return {**shown, "paths": made.paths, **webhooks, "components": components}


def _nobody(headers: Mapping[str, str]) -> None:
    """A placeholder for the hook ``authenticate``, which a description never calls."""


class OperationSchemas(MessageSchemas):
    """Make schemas of message classes and of their operations.

    The type of a plain ``int`` in a reply is integer alone, because generators of clients make a
    union of two types for two forms. The description of the field says when it is text.
    """

    plain_int: tuple[Schema, Schema] = (
        {
            "type": "integer",
            "format": "int64",
            "description": "Beyond 53 bits (9007199254740991): decimal digits in a string.",
        },
        MessageSchemas.plain_int[True],
    )

    def __init__(self, types: TypeRegistry) -> None:
        super().__init__(types)
        self._operations: dict[tuple[object, ...], str] = {}
        code, details = {"type": "integer", "format": "int32"}, _list(self.any())
        self._fields = {"code": code, "message": {"type": "string"}, "details": details}
        self._status = self.add("google.rpc.Status", _object(self._fields))

    def operation_of(self, response: object, metadata: object, method: str = "") -> Schema:
        """Return the schema of the operations of a method, or of all methods with these classes.

        A class that is not a message class stands for any message.
        """
        if not method:
            method = ".".join(getattr(one, "__name__", "Any") for one in (response, metadata))
        text = f"The operations of {method}."
        key = method, metadata, response
        if key not in self._operations:
            self._operations[key] = self._free(method, ".Operation")
        return self.operation(self._operations[key], text, metadata, response)

    def operation(
        self, name: str, text: str, metadata: object, response: object, **more: Schema
    ) -> Schema:
        """Make the schema for :meth:`operation_of`; ``more`` are schemas of additional fields."""
        packed = [
            self.packed(one) if self.is_message(one) else self.any() for one in (metadata, response)
        ]
        result = "Once the operation is done: this if it has succeeded, error if not, or neither."
        fields: _Part = {
            "name": {"type": "string", "description": "Such as operations/ID."},
            "metadata": packed[0],
            "done": {"type": "boolean"},
            "error": self._status,
            "response": {"description": result, **packed[1]},
            **more,
        }
        return self.add(name, {"description": text, **_object(fields)})

    def error(self) -> Schema:
        """Return the schema of the body of an error."""
        status = {"type": "string", "enum": [code.name for code in Code]}
        error = _object({**self._fields, "status": status}, "code", "message", "status")
        return self.add("Error", _object({"error": error}, "error"))


class Describer:
    """Collect the paths of a document, and the schemas that they refer to.

    One object may describe several edges of a service, each by a call of :meth:`add`.
    ``paths`` has the paths of the last edge; ``schemas`` and the ids are shared by all edges.
    """

    def __init__(self, service: Service) -> None:
        self.paths: _Part = {}
        self.schemas: OperationSchemas = OperationSchemas(service.types)
        self._service = service
        self._heading = "Operations"
        self._ids: set[str] = set()
        self._linked: dict[str, str] = {}
        self._verbs: Mapping[str, Callable[[], _Part]] = {
            "Get": self._get,
            "List": self._list,
            "Delete": self._delete,
            "Cancel": self._cancel,
            "Wait": self._wait,
            "Rerun": self._rerun,
            "BatchGet": self._batch_get,
            "Watch": self._watch,
            "WatchMany": self._watch_many,
        }
        text = "A piece of work, and in the end its result."
        full = self.schemas.written(OperationDescription)
        self._operation = self.schemas.operation(_OPERATION, text, None, None, description=full)
        self.error_body: Schema = self.schemas.error()
        text = "An error (AIP-193): the HTTP status as code, the canonical code as status."
        self.error: _Part = {"description": text, **_json(self.error_body)}

    def add(self, edge: OperationsEdge, heading: str = "Operations") -> None:
        """Describe the verbs and the starts of an edge.

        ``heading`` is the tag of the verbs, and the beginning of their ids.
        """
        self.paths, self._heading = {}, heading
        for route in edge.verb_routes:
            offered = self._service.edges.access.offers(route.rpc)
            if offered and (edge.streams or route.rpc != "WatchOperations"):
                self._add_verb(route)  # first, since links use the ids of the verbs
        first = [self._add_start(start) for start in edge.start_handlers]
        self.paths = {path: self.paths[path] for path in (*first, *self.paths)}

    def webhooks(self) -> _Part:
        """Describe the webhooks by the type of the event (Standard Webhooks 1.0.0)."""
        fields = {
            "name": {"type": "string", "description": "The name of the operation."},
            "method": {"type": "string"},
            "done": {"type": "boolean"},
            "operation": self._operation,
        }
        data = _object(fields, "name", "method", "done")
        found: _Part = {}
        for event in EVENTS:
            kind = {"type": "string", "enum": [event]}
            when = {"type": "string", "format": "date-time"}
            parts = {"type": kind, "timestamp": when, "data": data}
            body = _object(parts, "type", "timestamp", "data")
            call = {
                "summary": f"An operation has ended: {event}.",
                "parameters": list(_WEBHOOK_HEADERS),
                **_body(body, required=True),
                "responses": {
                    "2XX": {"description": "The receiver has it. All else is sent again later."},
                    "410": {"description": "The receiver wants no more."},
                },
            }
            found[event] = {"post": call}
        return found

    def _add_verb(self, route: Route) -> None:
        path, parameters, parents = _flat(route.template)
        name = route.rpc.removesuffix("s").removesuffix("Operation")
        if name == "Watch" and route.method == "POST":
            name = "WatchMany"
        said = self._verbs[name]()
        parameters += said.pop("parameters", [])
        words = self._heading, name, *parents
        added = self._add(path, route.method, words, {**said, "parameters": parameters})
        if not parents:
            self._linked[name] = added

    def _add_start(self, handler: StartHandler[Any]) -> str:
        rule, full_name = handler.rule, handler.full_name
        path, parameters, _ = _flat(rule.template)
        spec = self._service.edges.specs[full_name]
        name = MethodName.parse(full_name)
        text = docstring(spec.function) if spec.function is not None else ""
        asked = self._asked(spec.request, handler, parameters)
        said = self.started(spec.response, spec.metadata, full_name)
        start: _Part = {
            "summary": text.partition("\n\n")[0].replace("\n", " ") or f"Start {full_name}.",
            "description": text.partition("\n\n")[2],
            **asked,
            **said,
            "parameters": [*asked.get("parameters", []), *said["parameters"]],
        }
        self._add(path, rule.method, (name.service, name.name), start)
        return path

    def started(self, response: object, metadata: object, full_name: str = "") -> _Part:
        """Describe the reply to a start with these classes, and the request headers.

        ``full_name`` is by default the name of the first method with these classes.
        """
        for spec in self._service.edges.specs.values():
            if not full_name and (spec.response, spec.metadata) == (response, metadata):
                full_name = spec.full_name
        operation = self.schemas.operation_of(response, metadata, full_name)
        reply = {**_reply("The operation.", operation), "headers": _START_HEADERS}
        reply["links"] = {
            verb.lower(): {
                "operationId": self._linked[verb],
                "parameters": {"operation": "$response.header.Operation-Id"},
                "description": "For an operation without a parent.",
            }
            for verb in _LINKED
            if verb in self._linked
        }
        types = {"response": response, "metadata": metadata}
        written = {
            name: self.schemas.written(one)
            for name, one in types.items()
            if self.schemas.is_message(one)
        }
        accepted = {**reply, "description": "The operation, which is not done."}
        accepted["headers"] = {**_START_HEADERS, **_LOCATION}
        return {
            "parameters": [_KEY, _PREFER],
            "responses": {"200": reply, "202": accepted},
            "x-aep-long-running-operation": written,
        }

    def _asked(self, cls: type, handler: StartHandler[Any], parameters: list[_Part]) -> _Part:
        name, binding = self._service.types.name_of(cls), handler.binding
        if binding is None:
            return _body(self.schemas.read(cls, ".Start", _START_FIELDS), required=True)
        paths = [*binding.variables.values()]
        if handler.rule.body == "*":  # the body is the whole request
            bound = frozenset(path[0].json_name for path in paths if len(path) == 1)
            body = self.schemas.read(cls, ".Start", _START_FIELDS, bound)
            return {"parameters": parameters, **_body(body)}
        given = [*paths, *([(binding.body,)] if binding.body else [])]
        query = [*self._query(binding.shape, name.rpartition(".")[0], (), given)]
        for added, schema in _START_FIELDS.items():
            if added not in (one["name"] for one in query):
                query.append({"name": added, "in": "query", "schema": schema})
        body = _body(self.schemas.field(binding.body, "")) if binding.body else {}
        return {"parameters": [*parameters, *query], **body}

    def _query(
        self,
        shape: Shape,
        package: str,
        above: tuple[Field, ...],
        given: Collection[tuple[Field, ...]],
    ) -> Iterator[_Part]:
        for field in shape.fields:
            path = (*above, field)
            if path in given or field.label is Label.MAP:
                continue
            if field.kind is not Kind.MESSAGE or field.message_name in AS_TEXT:
                name = ".".join(one.json_name for one in path)
                schema = self.schemas.field(field, package)
                yield {"name": name, "in": "query", "schema": schema}
                continue
            single = field.label is not Label.REPEATED and field.message_name not in WRAPPED_TYPES
            if single and field.python not in (
                one.python for one in above
            ):  # only once, as a message may contain its own class
                yield from self._query(field.shape, package, path, given)

    def _add(self, path: str, method: str, words: Sequence[str], said: _Part) -> str:
        said["responses"]["default"] = {"$ref": "#/components/responses/Error"}
        number, free = 1, "_".join(words)
        while free in self._ids:
            number += 1
            free = f"{'_'.join(words)}_{number}"
        self._ids.add(free)
        heading = {"operationId": free, "tags": [words[0]]}
        present = {key: said[key] for key in _ORDER if said.get(key)}
        self.paths.setdefault(path, {})[method.lower()] = {**heading, **present}
        return free

    # -- verbs --------------------------------------------------------------------------------

    def _get(self) -> _Part:
        reply = _reply("The operation as it is now.", self._operation)
        reply["headers"] = _RETRY_AFTER
        said = {"summary": "Read an operation.", "parameters": [_VIEW]}
        return {**said, "responses": {"200": reply}}

    def _list(self) -> _Part:
        page = {"operations": _list(self._operation), "nextPageToken": {"type": "string"}}
        found = self.schemas.add(f"{_PACKAGE}.ListOperationsResponse", _object(page))
        reply = _reply("A page of operations, the newest first.", found)
        said = {"summary": "List operations.", "parameters": [*_LIST_PARAMETERS]}
        return {**said, "responses": {"200": reply}}

    def _delete(self) -> _Part:
        reply = _reply("The operation is gone; its work goes on.", {"type": "object"})
        return {"summary": "Forget an operation.", "responses": {"200": reply}}

    def _cancel(self) -> _Part:
        text = "The wish is noted; the operation may end in another way before."
        body = _body({"type": "object", "additionalProperties": False})
        reply = _reply(text, {"type": "object"})
        return {"summary": "Cancel an operation.", **body, "responses": {"200": reply}}

    def _wait(self) -> _Part:
        text = "The operation: done, or as it is when the time is over."
        reply = {**_reply(text, self._operation), "headers": _RETRY_AFTER}
        timeout = or_null(DURATION_SCHEMA)
        body = _body({**_object({"timeout": timeout}), "additionalProperties": False})
        said = {"summary": "Wait for an operation.", **body}
        return {**said, "responses": {"200": reply}}

    def _rerun(self) -> _Part:
        fields = _object({"requestId": _START_FIELDS["requestId"]})
        reply = {**_reply("The new operation.", self._operation), "headers": _START_HEADERS}
        accepted = {**reply, "headers": {**_START_HEADERS, **_LOCATION}}
        return {
            "summary": "Start the work of an operation again.",
            "parameters": [_PREFER],
            **_body({**fields, "additionalProperties": False}),
            "responses": {"200": reply, "202": accepted},
        }

    def _batch_get(self) -> _Part:
        batch = {"operations": _list(self._operation), "missing": _list({"type": "string"})}
        found = self.schemas.add("BatchGetOperationsResponse", _object(batch))
        reply = _reply("The operations, and the names of those that are not there.", found)
        return {
            "summary": "Read many operations.",
            "parameters": [_VIEW],
            **_body(_MANY, required=True),
            "responses": {"200": reply},
        }

    def _watch(self) -> _Part:
        text = "Server-sent events: operation, with an operation as JSON; missing, with the name of"
        text += " one that is gone. They end when all are done or gone."
        # Give no schema: tools disagree whether it describes the whole stream or a single event.
        reply = {"description": text, "content": {"text/event-stream": {"schema": {}}}}
        return {"summary": "Watch an operation.", "responses": {"200": reply}}

    def _watch_many(self) -> _Part:
        return {**self._watch(), "summary": "Watch operations.", **_body(_MANY, required=True)}


def _object(fields: Mapping[str, Any], *required: str) -> _Part:
    needed = {"required": [*required]} if required else {}
    return {"type": "object", "properties": {**fields}, **needed}


def _list(items: Schema) -> _Part:
    return {"type": "array", "items": items}


def _json(schema: Schema) -> _Part:
    return {"content": {"application/json": {"schema": schema}}}


def _reply(text: str, schema: Schema) -> _Part:
    return {"description": text, **_json(schema)}


def _body(schema: Schema, *, required: bool = False) -> _Part:
    return {"requestBody": {"required": required, **_json(schema)}}


def _flat(template: Template) -> tuple[str, list[_Part], list[str]]:
    path, before, parameters, parents = "", "", [], []
    names = iter(parameter_names(template))
    for segment in template.segments:
        if isinstance(segment, Literal):
            path += f"/{segment.written}"
            before = segment.text
            continue
        name = next(names)
        if before != "operations":
            parents.append(name)
        schema = {"type": "string", "pattern": _ID}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
        path += f"/{{{name}}}"
    return path + (f":{template.verb.written}" if template.verb else ""), parameters, parents
