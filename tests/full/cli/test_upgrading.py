"""The page on upgrades prints what its commands print; two releases also share PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("markdown_it")
pytest.importorskip("click")
pytest.importorskip("google.longrunning.operations_pb2")

from tests.page_programs import DATABASE
from tests.page_texts import DOCS, blocks, files, program
from tests.services.postgres import shared_server

PAGE: Final = DOCS / "how-to" / "upgrading.md"
RELEASES: Final = DOCS / "explanation" / "versions.md"
"""The page with the modules of two releases."""
SHOWN: Final = re.compile(r"<!-- checked by tests/full/cli/test_upgrading\.py -->")
STORE: Final = 'SQLiteStore("prints.db")'


def run(*command: str) -> str:
    """Run a command in the current folder and return its output, whatever its exit status."""
    path = os.pathsep.join([os.getcwd(), *sys.path])
    ran = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.stdout


def write_modules(folder: Path, store: str = STORE) -> None:
    """Write the modules of both releases with this store."""
    for path, text in files(RELEASES).items():
        assert STORE in text
        (folder / path).write_text(text.replace(STORE, store), "utf-8")


def test_commands_print_what_the_page_shows(here: Path) -> None:
    pytest.importorskip("psycopg")
    write_modules(here)
    server = shared_server()
    schema = server.fresh_schema()
    shown = [block.text for block in blocks(PAGE) if SHOWN.search(block.comment)]
    assert len(shown) == 2
    steps = re.findall(r"^\$ lro (.*)\n((?:(?!\$ ).*\n)*)", "".join(shown), re.MULTILINE)
    assert len(steps) == 8
    for command, printed in steps:
        ours = command.replace(DATABASE, server.url.removeprefix("postgresql"))
        ours = ours.replace("--name prints", f"--name {schema}")
        found = run("-m", "lro.cli", *ours.split()).replace(f"schema {schema}:", "schema prints:")
        assert [line.rstrip() for line in found.splitlines()] == printed.splitlines(), command


def test_releases_share_a_schema_of_postgresql(here: Path) -> None:
    """The program with two releases also runs on PostgreSQL."""
    pytest.importorskip("psycopg")
    server = shared_server()
    write_modules(here, f"PostgresStore({server.url!r}, schema={server.fresh_schema()!r})")
    for module in files(RELEASES):
        text = (here / module).read_text("utf-8")
        imported = "from lro.stores.postgres import PostgresStore"
        (here / module).write_text(f"{imported}\n{text}", "utf-8")
    source = program(RELEASES)
    (here / "page.py").write_text(f"from __future__ import annotations\n{source}", "utf-8")
    command = ("-W", "error", "-c", "import page; print('both')")
    assert run(*command) == "both\n"
