"""How calls reach a server: over HTTP, or straight into a service of this process."""
