"""Runs an adapter in a new fork for each scenario, so that the adapter's imports are made once.

As a program: ``python forking.py SOCKET ADAPTER MODULE...``. MODULE is a module that the adapter
imports late. A request is the environment as JSON, with descriptors for standard output and
standard error. The reply is the process id.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

_MAX_REQUEST = 64 * 1024


def serve(connection: socket.socket, adapter: str, *others: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    module = importlib.import_module(adapter)
    for name in others:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, _MAX_REQUEST, 2)
        if not request:
            return
        child = os.fork()
        if child == 0:
            perform(module, json.loads(request), descriptors)
        for one in descriptors:
            os.close(one)
        connection.sendall(f"{child}\n".encode())


def perform(module: object, variables: dict[str, str], descriptors: list[int]) -> None:
    status = 1
    try:
        os.setsid()
        for number, one in enumerate(descriptors, 1):
            os.dup2(one, number)
            os.close(one)
        os.environ.update(variables)
        module.main()  # type: ignore[attr-defined]
        status = 0
    except BaseException as exc:
        sys.excepthook(type(exc), exc, exc.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
