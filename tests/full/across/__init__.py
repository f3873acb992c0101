"""Tests across processes: each sees what the others write, and every race has one winner."""
