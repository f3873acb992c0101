"""Operations as tasks of A2A, the protocol between agents, in versions 1.0 and 0.3.

:class:`Handler` answers calls for the servers of ``a2a-sdk``; :func:`agent_card` makes the agent
card, :func:`routes` makes the routes of both HTTP bindings, and :func:`add_to` serves gRPC. Needs
the extra ``a2a``, and for gRPC also the extra ``grpc``. "A2A 3.1" is a section of the A2A
specification.
"""

from lro.errors import MissingExtra

try:
    import a2a.server.routes as _routes  # noqa: F401  # asks for Starlette, too
    import sse_starlette as _sse_starlette  # noqa: F401
    import starlette.routing as _routing  # noqa: F401
except ImportError as _exc:
    raise MissingExtra("A2A", "a2a") from _exc

from lro.a2a._card import SCHEMAS_URI, agent_card
from lro.a2a._handler import Handler, Read
from lro.a2a._push import PUSH, PushFormat
from lro.a2a._served import DEFAULT_MAX_REQUEST, add_to, routes

__all__ = [
    "DEFAULT_MAX_REQUEST",
    "PUSH",
    "SCHEMAS_URI",
    "Handler",
    "PushFormat",
    "Read",
    "add_to",
    "agent_card",
    "routes",
]
