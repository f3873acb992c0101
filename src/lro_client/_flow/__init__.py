"""Sequences of calls, written once as generators, and the two drivers that run them."""
