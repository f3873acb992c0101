"""Benchmarks: every figure is a ratio, ours and its floor measured in one run, interleaved."""
