"""Tests of what callers, and other sites, can do."""
