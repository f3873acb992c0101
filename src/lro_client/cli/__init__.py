"""The commands of ``lro`` that call a server: list, get, wait, watch, cancel, delete, start,
rerun.

``lro.cli`` imports these commands only when one is called, so other commands need no client.
"""
