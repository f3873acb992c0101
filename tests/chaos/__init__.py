"""Servers that are killed, frozen and cut off from their store, and what callers see of it."""
