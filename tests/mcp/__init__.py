"""Methods as tools of MCP servers, and operations as tasks."""
