"""The commands of ``lro`` that ask a server: list, get, wait, watch, cancel, delete, start,
rerun.

``lro.cli`` loads a command of these when it is called, so that its others need no client.
"""
