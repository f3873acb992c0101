"""Judging clients: scripted peers that they call, and the checks on what they do."""
