"""Builds the documentation as a web site: ``python -m tools.site``."""
