"""Imports point down: the floors of both packages, read from the source."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

FLOORS: Final = {
    "lro": [
        """
        _any _status _details _errors _faults _times _jsontext _shapes _scalars _arguments _limits
        _wellknown _compiled _codec _codecs _protobuf _containing _types _names _operation _record
        _watching _narrowing _states
        _conventions _methods _filters _indexes _templates _spec _pages _wire _routes _query _bodies
        _enums _mounts _origins
        """,
        "_jobs _ports _executing _forks _exits _signals _role",
        """
        _budget _hooks _access _bell _ledger _patience _outcomes _ends _calling _worker _running
        _starting _method _hosting _listing _orphans _loops _waiting _hearing _lookouts _many
        _upkeep _background _service
        """,
        """
        stores._recent stores._rows stores._conditions stores._walks stores._lists
        stores.memory stores.sqlite stores.postgres
        executors._local executors._crew executors._backlog executors._staffed
        executors.inline executors.threads executors.asyncio executors.processes
        executors._broker executors._carrier executors.celery
        _disclosure _replies _events _steps _edge _start_edge http asgi wsgi protobuf grpc lint cli
        testing
        """,
        "__init__",
    ],
    "lro_client": [
        """
        _arguments _errors _policy _failures _calls _servers _tokens _tracing _entries _journal
        _literals filters _requests _flows _polling _table _work _lanes _hands _mailboxes _drive
        """,
        """
        transports._replies transports._events transports._truncation transports._encoding
        transports._coding transports._bodies transports._redirects transports._prebuilt
        transports.http transports.local transports._grpc_coding transports.grpc
        google
        """,
        """
        _core progress._fields progress._estimate progress._reading _handles _waits _futures
        _groups _journaled _operation_handle _async_operation_handle _group _async_group
        _client _async_client progress testing cli
        """,
        "__init__",
    ],
}
"""From the ground up; on one floor, from left to right. A package stands for all its modules."""

EFFECTS: Final = "asyncio logging random secrets socket sqlite3 threading time"
"""What the values of the ground floor must do without: they get ``now`` and names as arguments."""

ASKS_FOR_ITS_THREAD: Final = "_errors"
"""Whether Ctrl-C is meant for the program depends on the thread."""

OPTIONAL: Final = (
    "celery click cryptography google.auth google.protobuf grpc httpx2 kombu numpy opentelemetry"
    " psycopg rich starlette tqdm"
)
"""What the two faces must not load: it is optional, or heavy and seldom needed."""


def modules(package: str) -> dict[str, Path]:
    """Every module of a package that has code in it, by its name within the package."""
    root = SRC / package
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        if any(not is_docstring(node) for node in ast.parse(path.read_text()).body):
            found[name] = path
    return found


def is_docstring(node: ast.stmt) -> bool:
    """Whether a statement is only a text."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


MODULES: Final = [(p, name, path) for p in FLOORS for name, path in modules(p).items()]
NAMES: Final = [f"{package}.{name}" for package, name, _ in MODULES]


def place(package: str, name: str) -> tuple[int, int] | None:
    """The floor of a module and its place there, or None if the list lacks it."""
    for number, floor in enumerate(FLOORS[package]):
        for position, entry in enumerate(floor.split()):
            if name == entry or name.startswith(entry + "."):
                return number, position
    return None


@functools.cache
def imports(path: Path) -> Sequence[tuple[str, str]]:
    """The pairs (module, name) that a source imports anywhere in it; the name may be empty."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    package = path.relative_to(SRC).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from ((module, alias.name) for alias in node.names)


def ours(path: Path) -> Iterator[tuple[str, str]]:
    """The imports of a source that are modules of the two packages, as (package, name)."""
    for module, name in imports(path):
        whole = f"{module}.{name}" if f"{module}.{name}" in NAMES else module
        package, _, rest = whole.partition(".")
        if package in FLOORS:
            yield package, rest or "__init__"


def test_every_module_has_a_floor() -> None:
    """A new module is put into the list, which is a decision about who may know it."""
    assert [name for package, name, _ in MODULES if place(package, name) is None] == []


def test_imports_point_down() -> None:
    """A module imports lower floors, what is earlier on its own, and the rest of its package.

    The face is on top, so nobody imports through that of the own package: cycles begin there.
    """
    upward = []
    for package, name, path in MODULES:
        own = place(package, name) or (len(FLOORS[package]), 0)
        below = {other for owner, other in ours(path) if owner == package}
        upward += [(name, other) for other in below if (place(package, other) or own) > own]
    assert upward == []


def test_the_packages_meet_at_the_face() -> None:
    """``lro_client`` sees the face of ``lro`` and nothing behind it; ``lro`` sees no client."""
    behind = [
        (package, name, other)
        for package, name, path in MODULES
        for owner, other in ours(path)
        if owner != package and (package == "lro" or other not in {"__init__", "protobuf"})
    ]
    assert behind == []


def test_values_have_no_effects() -> None:
    """The ground floor of ``lro`` knows no clock, randomness, lock, thread, file or network."""
    effects = set(EFFECTS.split())
    used = [
        (name, module)
        for package, name, path in MODULES
        if package == "lro" and (place(package, name) or (1, 0))[0] == 0
        if name != ASKS_FOR_ITS_THREAD
        for module, _ in imports(path)
        if module.partition(".")[0] in effects
    ]
    assert used == []


@pytest.mark.parametrize(
    ("allowed", "face"), [("attrs, cattrs", "lro"), ("httpx, tenacity, lro", "lro_client")]
)
def test_importing_a_face_loads_nothing_optional(allowed: str, face: str) -> None:
    """An import costs no package that the caller may not have, or may never need.

    What a plain dependency loads by itself, as httpx loads click and rich where they are, is
    loaded first and so not counted.
    """
    program = f"import sys, {allowed}; before = set(sys.modules); import {face}; "
    program += "print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert set(OPTIONAL.split()) & set(run.stdout.split()) == set()
