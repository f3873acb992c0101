"""Metrics in the formats of Prometheus."""
