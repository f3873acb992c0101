"""The HTTP edge, without a framework: a request in, a reply out (spec §5, §6).

:class:`OperationsEdge` serves the verbs, and the methods that start operations; :mod:`lro.asgi` and
:mod:`lro.wsgi` serve it as applications. To embed an edge elsewhere, pass an :class:`HttpRequest`
to :meth:`OperationsEdge.handle`. On an event loop, await :func:`on_loop` of
:meth:`OperationsEdge.exchange` instead. :func:`answer` and :func:`answer_async` are for an endpoint
that the application writes itself. All other names are for edges and bridges in other packages.
"""

from lro._engine.access import (
    OPERATOR_VERBS,
    VERBS,
    Hook,
    ask_caller,
    ask_permission,
    caller_hook,
    name_of_caller,
)
from lro._engine.flow import Flow, InThreads, UpdateWrite, flow_of, in_thread, on_loop, run
from lro._engine.flow import read as read_record
from lro._engine.listing import Listing
from lro._engine.method_spec import MethodSpec
from lro._engine.service import ServiceParts
from lro._engine.starting import EndpointStartKeywords, StartSettings
from lro._filters.types import ValueType, type_of_field
from lro._http.edge import (
    DEFAULT_MAX_BODY,
    CommonEdgeKeywords,
    EdgeKeywords,
    EdgeOptions,
    ExtraPage,
    IntegrationKeywords,
    OperationsEdge,
    RouteResult,
)
from lro._http.exchange import Authenticate, Exchange, Wait, Watch, in_few_threads, make_large
from lro._http.requests import (
    CHANGING,
    check_site,
    checked_prefix,
    media_type,
    mount_path,
    parse_query,
    raw_form,
    read_json,
    read_object,
    read_origin,
    read_parameters,
    strip_mount,
    take_field,
    trusted,
    wire_text,
)
from lro._http.responses import (
    MAX_DETAILS,
    EventStream,
    HttpReply,
    Redact,
    allow_reply,
    detail_of,
    error_reply,
    internal_error,
    json_reply,
    operation_reply,
    operation_reply_json,
    public_error,
    with_stand_ins,
)
from lro._http.routes import Allowed, HttpRequest, Match, parameter_names
from lro._http.starts import Start, StartHandler, Starts, answer, answer_async, start_of_size
from lro._messages.json_schema import DURATION_SCHEMA, MessageSchemas, Schema, or_null
from lro._messages.schema import docstring

__all__ = [
    "CHANGING",
    "DEFAULT_MAX_BODY",
    "DURATION_SCHEMA",
    "MAX_DETAILS",
    "OPERATOR_VERBS",
    "VERBS",
    "Allowed",
    "Authenticate",
    "CommonEdgeKeywords",
    "EdgeKeywords",
    "EdgeOptions",
    "EndpointStartKeywords",
    "EventStream",
    "Exchange",
    "ExtraPage",
    "Flow",
    "Hook",
    "HttpReply",
    "HttpRequest",
    "InThreads",
    "IntegrationKeywords",
    "Listing",
    "Match",
    "MessageSchemas",
    "MethodSpec",
    "OperationsEdge",
    "Redact",
    "RouteResult",
    "Schema",
    "ServiceParts",
    "Start",
    "StartHandler",
    "StartSettings",
    "Starts",
    "UpdateWrite",
    "ValueType",
    "Wait",
    "Watch",
    "allow_reply",
    "answer",
    "answer_async",
    "ask_caller",
    "ask_permission",
    "caller_hook",
    "check_site",
    "checked_prefix",
    "detail_of",
    "docstring",
    "error_reply",
    "flow_of",
    "in_few_threads",
    "in_thread",
    "internal_error",
    "json_reply",
    "make_large",
    "media_type",
    "mount_path",
    "name_of_caller",
    "on_loop",
    "operation_reply",
    "operation_reply_json",
    "or_null",
    "parameter_names",
    "parse_query",
    "public_error",
    "raw_form",
    "read_json",
    "read_object",
    "read_origin",
    "read_parameters",
    "read_record",
    "run",
    "start_of_size",
    "strip_mount",
    "take_field",
    "trusted",
    "type_of_field",
    "wire_text",
    "with_stand_ins",
]
