"""Tests of access control, limits and other protection against callers and other sites."""
