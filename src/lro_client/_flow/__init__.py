"""Flows, which are sequences of calls as generators, and the two drivers that run flows."""
