"""The console without a framework: a request in, a reply out.

``lro.asgi.EdgeApp`` and ``lro.wsgi.EdgeApp`` serve a :class:`ConsoleEdge`; the integrations take a
:class:`Console`. To embed a :class:`ConsoleEdge` elsewhere, use it like an
:class:`lro.http.OperationsEdge`.
"""

from lro._console.edge import Allow, Console, ConsoleEdge, ConsoleEdgeOptions, ConsoleOptions
from lro._console.files import PackedFile, page_files, secure_headers
from lro._console.loopback import is_loopback_host

__all__ = [
    "Allow",
    "Console",
    "ConsoleEdge",
    "ConsoleEdgeOptions",
    "ConsoleOptions",
    "PackedFile",
    "is_loopback_host",
    "page_files",
    "secure_headers",
]
