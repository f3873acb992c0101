"""Benchmarks: each figure is a ratio of our time to a floor's, in interleaved rounds of one run."""
