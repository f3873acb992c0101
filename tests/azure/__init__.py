"""Tests of lro.azure."""
