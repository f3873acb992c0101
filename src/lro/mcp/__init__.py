"""Methods as tools of an MCP server, and their operations as MCP tasks.

:class:`TasksExtension` is the extension ``io.modelcontextprotocol/tasks`` (SEP-2663, for revision
2026-07-28 of the Model Context Protocol) for a server of the official SDK. Needs the extra ``mcp``.
"""

from lro.errors import MissingExtra

try:
    import mcp.server.extension  # noqa: F401
except ImportError as _exc:
    raise MissingExtra("MCP", "mcp") from _exc

from lro.mcp._extension import TasksExtension

__all__ = ["TasksExtension"]
