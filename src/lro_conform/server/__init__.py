"""Judge servers: the checks, and the transports over which they call a server."""
