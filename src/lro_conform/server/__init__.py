"""Judging servers: the checks, and the transports over which they ask."""
