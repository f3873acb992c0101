"""The HTTP edge, without a framework: a request in, a reply out (spec §5, §6).

:class:`OperationsEdge` serves the verbs, and the methods that start operations; :mod:`lro.asgi` and
:mod:`lro.wsgi` serve it to the world. To embed it elsewhere, give :meth:`OperationsEdge.handle` an
:class:`HttpRequest`; on an event loop, give the steps of :meth:`OperationsEdge.exchange` to
:func:`adrive`. :func:`answer` and :func:`answer_async` are for an endpoint that the application
writes itself.
"""

from lro._engine.access import OPERATOR_VERBS, VERBS
from lro._engine.flow import Flow
from lro._http.edge import (
    DEFAULT_MAX_BODY,
    Authenticate,
    CallFunction,
    Exchange,
    Found,
    OperationsEdge,
    Reserve,
    Start,
    Starts,
    Wait,
    Watch,
    adrive,
    answer,
    answer_async,
    drive,
)
from lro._http.requests import checked_prefix
from lro._http.responses import (
    EventStream,
    HttpReply,
    allow_reply,
    error_reply,
    json_reply,
    operation_reply,
)
from lro._http.routes import Allowed, HttpRequest, Match

__all__ = [
    "DEFAULT_MAX_BODY",
    "OPERATOR_VERBS",
    "VERBS",
    "Allowed",
    "Authenticate",
    "CallFunction",
    "EventStream",
    "Exchange",
    "Flow",
    "Found",
    "HttpReply",
    "HttpRequest",
    "Match",
    "OperationsEdge",
    "Reserve",
    "Start",
    "Starts",
    "Wait",
    "Watch",
    "adrive",
    "allow_reply",
    "answer",
    "answer_async",
    "checked_prefix",
    "drive",
    "error_reply",
    "json_reply",
    "operation_reply",
]
