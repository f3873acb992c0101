"""Several server processes on one socket and one store; one that dies is replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final

from examples.analysis.deployment import Deployment

_SPAWN: Final = multiprocessing.get_context("spawn")


class Workers:
    """``count`` processes that serve the same deployment.

    They need not know of each other: the store is where they meet. A client may start an operation
    at one, wait for it at another, and never notice that a third one took the work over.
    """

    def __init__(
        self, deployment: Deployment, listener: socket.socket, count: int, grpc_address: str = ""
    ) -> None:
        self._grpc_address = grpc_address
        self._deployment = deployment
        self._listener = listener
        self._count = count
        self._processes: list[BaseProcess] = []
        self._stopping = False

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._processes = [self._start() for _ in range(self._count)]
        while not self._stopping:
            gone = wait([process.sentinel for process in self._processes])
            if not self._stopping:
                self._processes = [
                    self._start() if process.sentinel in gone else process
                    for process in self._processes
                ]
        for process in self._processes:
            process.terminate()  # also one that was started as the stop came
            process.join()

    def _start(self) -> BaseProcess:
        arguments = (self._deployment, self._listener, self._grpc_address)
        process = _SPAWN.Process(target=_serve, args=arguments)
        process.start()
        return process

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for process in self._processes:
            process.terminate()


def _serve(deployment: Deployment, listener: socket.socket, grpc_address: str) -> None:
    from examples.analysis.server import serve

    threading.Thread(target=_follow_parent, daemon=True).start()
    serve(deployment.make_service(), listener, grpc_address)


def _follow_parent() -> None:
    # A parent that was killed stops no child, and its children would keep the socket.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
