"""The example's commands report a wrong option in one sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full.examples.serving import ROOT
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("serve --help", 0, "--store"),
        ("demo --help", 0, "demo"),
        ("--help", 0, "serve|demo"),
        ("", 1, "serve|demo"),
        ("sing", 1, "serve|demo"),
        ("demo --fast", 2, "unrecognized arguments: --fast"),
        ("serve --port many", 2, "invalid int value: 'many'"),
        ("serve --port 70000", 2, "cannot listen: bind(): port must be 0-65535"),
        ("serve --port {port}", 2, "Address already in use"),
        ("serve --port 0 --concurrency 0", 2, "workers: must be a whole number from 1"),
        ("serve --port 0 --executor gpu", 2, "'gpu': is not one of threads, processes, celery"),
        ("serve --port 0 --store mongodb://x", 2, "is not sqlite:///PATH or postgresql://"),
        ("serve --port 0 --store sqlite:///.", 2, "cannot serve sqlite:///.: "),
    ],
)
def test_wrong_option_gives_a_sentence_and_an_exit_status(
    options: str, status: int, said: str, tmp_path: Path
) -> None:
    """A wrong option is reported in one sentence, with an exit status and without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = options.format(port=taken.getsockname()[1]).split()
        command = [sys.executable, "-m", "examples.analysis", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    shown = ran.stdout if status == 0 else ran.stderr
    assert ran.returncode == status
    assert said in shown
    assert "Traceback" not in ran.stderr
