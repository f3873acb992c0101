"""The proto package ``lro.v1``, under the name by which modules made by protoc import it."""
