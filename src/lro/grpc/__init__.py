"""The gRPC edge: the Operations service, and the methods that start operations (spec §12).

:func:`add_to` puts a service on a ``grpc.Server`` or ``grpc.aio.Server``. Needs the extra ``grpc``.
"""

from lro._base.errors import MissingExtra

try:
    import google.longrunning.operations_proto_pb2  # noqa: F401  # asks for both packages
    import grpc as _grpc  # noqa: F401
except ImportError as _exc:
    raise MissingExtra("the gRPC edge", "grpc") from _exc

from lro.grpc._messages import MAX_MESSAGE, clipped, refusal
from lro.grpc._rpcs import DEFAULT_MAX_REQUEST, Authenticate, StartMethod
from lro.grpc._server import add_to

__all__ = [
    "DEFAULT_MAX_REQUEST",
    "MAX_MESSAGE",
    "Authenticate",
    "StartMethod",
    "add_to",
    "clipped",
    "refusal",
]
