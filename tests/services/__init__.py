"""Servers that tests start by themselves: real ones, on ports and in directories of their own."""
