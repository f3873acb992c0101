"""Flows, which are sequences of calls written as generators, and the drivers that run flows."""
