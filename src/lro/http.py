"""The HTTP edge, without a framework: a request in, a reply out (spec §5, §6).

:class:`OperationsEdge` serves the verbs, and the methods that start operations; :mod:`lro.asgi` and
:mod:`lro.wsgi` serve it to the world. To embed it elsewhere, give :meth:`OperationsEdge.handle` an
:class:`HttpRequest`; on an event loop, give the steps of :meth:`OperationsEdge.exchange` to
:func:`adrive`. :func:`answer` is for an endpoint that the application writes itself.
"""

from lro._http.edge import DEFAULT_MAX_BODY, Authenticate, OperationsEdge
from lro._http.responses import (
    EventStream,
    HttpReply,
    allow_reply,
    error_reply,
    json_reply,
    operation_reply,
)
from lro._http.routes import HttpRequest
from lro._http.starts import Start, Starts, answer
from lro._http.steps import Call, Exchange, Reserve, Wait, Watch, adrive, drive

__all__ = [
    "DEFAULT_MAX_BODY",
    "Authenticate",
    "Call",
    "EventStream",
    "Exchange",
    "HttpReply",
    "HttpRequest",
    "OperationsEdge",
    "Reserve",
    "Start",
    "Starts",
    "Wait",
    "Watch",
    "adrive",
    "allow_reply",
    "answer",
    "drive",
    "error_reply",
    "json_reply",
    "operation_reply",
]
