"""The console without a framework: a request in, a reply out.

:class:`ConsoleEdge` is served by ``ConsoleApp`` of :mod:`lro.asgi` and :mod:`lro.wsgi`, and by the
integrations, which take a :class:`Console`. To embed it elsewhere, use it as
:class:`lro.http.OperationsEdge` is used.
"""

from lro._console.edge import Allow, Console, ConsoleEdge, ConsoleLooks, ConsoleOptions
from lro._console.files import PackedFile, page_files, secure_headers
from lro._console.loopback import is_loopback_host
from lro._http.responses import Redact

__all__ = [
    "Allow",
    "Console",
    "ConsoleEdge",
    "ConsoleLooks",
    "ConsoleOptions",
    "PackedFile",
    "Redact",
    "is_loopback_host",
    "page_files",
    "secure_headers",
]
