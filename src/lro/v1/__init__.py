"""The proto package ``lro.v1``, as modules that protoc makes import it."""
