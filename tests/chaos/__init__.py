"""Servers that are killed, frozen or cut off from their store, and what their callers see."""
