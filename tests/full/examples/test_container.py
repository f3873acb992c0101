"""The reference server's image works as its Dockerfile says, tested without Docker."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.analysis.messages import AnalysisMetadata, TrackResponse
from lro.stores.sqlite import SQLiteStore
from lro_client import Client
from tests.full.examples.image import BUILD, IMAGE, ROOT, exec_form, read_only_app, running
from tests.full.examples.serving import slow_request


def test_image_has_two_stages_a_slim_base_and_an_unnamed_user() -> None:
    """The image has two stages, a slim base of fixed version, an unnamed user and a data folder."""
    assert (BUILD.name, IMAGE.name) == ("build", "")
    assert re.fullmatch(r"python:3\.\d+-slim", IMAGE.base)
    assert BUILD.base == IMAGE.base
    assert IMAGE.one("USER") == "10001:10001"
    assert exec_form(IMAGE.one("VOLUME")) == ["/data"]
    assert IMAGE.one("STOPSIGNAL") == "SIGTERM"
    assert IMAGE.command[-2:] == ["--store", "sqlite:////data/operations.db"]
    assert all(map(exec_form, [*BUILD.all("RUN"), *IMAGE.all("RUN")]))  # no command needs a shell
    instructions = [name for name, _ in IMAGE.instructions]
    assert instructions.index("USER") > max(
        at for at, name in enumerate(instructions) if name in ("COPY", "RUN")
    )


def test_build_context_has_exactly_the_copied_files() -> None:
    """All files that the Dockerfile copies exist, and the build context contains only them."""
    wanted = {
        source
        for stage in (BUILD, IMAGE)
        for names, _, start in stage.copies()
        if not start
        for source in names
    }
    assert [source for source in wanted if not (ROOT / source).exists()] == []
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == wanted


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Path]:
    """Make the application's folder as it is in the image, and make it writable at the end."""
    app = read_only_app(tmp_path)
    yield app
    for path in (app, *app.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def test_image_serves_is_healthy_and_drains(app: Path) -> None:
    """The image serves and is healthy; after SIGTERM the work ends, and the exit status is 0."""
    before = sorted(app.rglob("*"))
    with running(IMAGE, app.parent) as (process, url, health), Client(url) as client:
        assert subprocess.run(health, capture_output=True).returncode == 0
        operation = client.start(
            "/v1/track", slow_request(2), response=TrackResponse, metadata=AnalysisMetadata
        )
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        assert subprocess.run(health, capture_output=True).returncode != 0
    assert sorted(app.rglob("*")) == before
    with closing(SQLiteStore(app.parent / "data" / "operations.db")) as store:
        record = store.get(operation.name)
    assert record.done or record.owner == ""  # a slow machine releases the work instead
