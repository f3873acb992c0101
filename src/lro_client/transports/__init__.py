"""How calls reach a server: over HTTP or gRPC, or straight into a service of this process."""
