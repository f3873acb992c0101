"""The commands of ``lro`` that call a server: list, get, wait, watch, cancel, delete, start,
rerun.

``lro.cli`` imports each of these only when it is called, so its other commands need no client.
"""
