"""The kit judges gapic-showcase, Google's own test server."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("click")
pytest.importorskip("grpc")

from tests.services.processes import killed_at_end

DOWNLOAD_SECONDS: Final = 300.0
SOURCE: Final = Path(__file__).parent / "showcase"
EVERYWHERE: Final = {
    # An id is the Base64 form of the end time, so any text that decodes is an operation.
    *("cancel.unknown", "delete.unknown", "delete.gone", "delete.stays-gone"),
    # CancelOperation answers, but does nothing.
    "cancel.ends",
    "errors.error-info",
}
OVER_REST: Final = EVERYWHERE | {
    "calls.list",  # List requires a name, which the path does not have.
    *("forms.malformed-body", "routes.head", "http.content-type", "errors.envelope-everywhere"),
}
OVER_GRPC: Final = EVERYWHERE | {
    # List always returns the same page.
    *("pages.contains", "pages.negative-size", "pages.bad-token", "pages.unknown-parent"),
    *("pages.walk", "filters.done", "filters.malformed", "filters.unknown-field"),
    # WaitOperation ignores the name.
    *("wait.done-at-once", "wait.negative", "wait.unknown"),
}
BY_CHANCE: Final = {"states.final", "any.types", "names.unknown", "names.case"}
"""Checks that fail only sometimes.

WaitOperation chooses its reply at random: in progress, or done without a type. Whether a changed id
is valid depends on the time in the id.
"""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of the server over gRPC and REST."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    options: Any = {"cwd": SOURCE, "capture_output": True, "text": True}
    try:
        got = subprocess.run(["go", "mod", "download"], timeout=DOWNLOAD_SECONDS, **options)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the registry of Go took more than {DOWNLOAD_SECONDS:g} seconds")
    if got.returncode:
        pytest.skip(f"go cannot get gapic-showcase: {got.stderr}")
    program = tmp_path_factory.mktemp("showcase") / "showcase"
    subprocess.run(["go", "build", "-buildvcs=false", "-o", program, "."], cwd=SOURCE, check=True)
    with killed_at_end([str(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.stdout.readline().strip()


@pytest.mark.platform
@pytest.mark.parametrize(("over", "expected"), [("grpc", OVER_GRPC), ("http", OVER_REST)])
def test_kit_finds_the_faults_of_showcase(
    urls: tuple[str, str], over: str, expected: set[str]
) -> None:
    """Of the checks with level must or should, exactly the expected ones fail."""
    grpc, http = urls
    start = shlex.join([sys.executable, str(SOURCE / "start.py"), http])
    target = ["--grpc", grpc.removeprefix("grpc://")]
    if over == "http":
        target = ["--prefix", "/v1beta1", "--header", "X-Goog-Api-Client: rest/1 gapic/1", http]
    command = [sys.executable, "-m", "lro.cli", "conform", "--start-command", start]
    options = ["--format", "json", "--level", "should", "--end-timeout", "5"]
    ran = subprocess.run([*command, *options, *target], capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    report = json.loads(ran.stdout)
    failed = {one["id"] for one in report["checks"] if one["verdict"] == "failed"}
    assert failed - BY_CHANCE == expected, ran.stdout
