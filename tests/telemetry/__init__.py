"""Spans and metrics of OpenTelemetry, read from exporters of its SDK."""
