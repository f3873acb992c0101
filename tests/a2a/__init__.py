"""Tests of A2A: the handler alone, and under the servers and clients of others."""
