"""Webhooks: what is sent when an operation ends, to which addresses, and when it is sent again."""
