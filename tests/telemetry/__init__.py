"""Spans and metrics by OpenTelemetry, read from exporters of its SDK."""
