"""The layers of the packages: a module imports only from layers below, as its source shows."""

from __future__ import annotations

import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.sources import SRC, source

FLOORS: Final = {
    "lro": """
        _base _messages _model _filters _schedules _engine
        stores executors _http
        errors types adapters wire logging telemetry http asgi wsgi
        protobuf v1 grpc testing
        __init__
        _bridge _console _webhooks webhooks console openapi prometheus
        azure mcp a2a lint cli integrations
        """,
    "lro_client": """
        waits _addresses _errors _tokens _tracing filters
        _flow _arguments _watch
        transports google progress webhooks
        _client
        testing cli
        __init__
        """,
    "lro_conform": """
        _codes _checks _sources _strict_json _report _options _processes
        server client
        _command
        __init__
        """,
}
"""The packages and modules of each distribution; each may import only the ones before it."""

OUTER: Final = {
    *("_bridge", "_console", "_webhooks", "webhooks", "console", "openapi", "prometheus"),
    *("azure", "mcp", "a2a", "lint", "cli", "integrations"),
}
"""The outer ring of ``lro``, to which ``lro_conform`` and ``pytest_lro`` belong too."""

PUBLIC: Final = {"__init__", "errors", "types", "wire", "protobuf"}
"""Modules of ``lro`` that every module of ``lro_client`` may import."""

DEPTH_AT_MOST: Final = 12
"""The most packages, of all distributions, in a chain of packages that import the next one."""

SERVERS: Final = {("lro_client", "lro", "testing"), ("lro_client", "lro", "cli")}
"""Modules of the client that may import all of ``lro``: the test server and the command."""

FULL_TIER: Final = re.compile(
    r"^\s*(from|import) (tests\.services(\.| import )(npm|redis)|tests\.full|playwright)\b",
    re.MULTILINE,
)
"""An import of a module that starts a browser, a broker or npm."""

PURE: Final = ("_base", "_messages", "_model", "_filters")
"""Packages that have only values and pure functions."""

EFFECTS: Final = "asyncio logging random secrets socket sqlite3 threading time"
"""Modules that pure packages must not import, because callers pass the time and ids."""

ASKS_FOR_ITS_THREAD: Final = "_base.errors"
"""This module may import threading, because handling Ctrl-C depends on the thread."""

OPTIONAL: Final = (
    "a2a celery click cronsim cryptography django fastapi flask google.auth google.protobuf"
    " grpc httpx2 hypercorn kombu litestar mcp numpy opentelemetry prometheus_client psycopg"
    " pydantic quart rich starlette tqdm uvicorn"
)
"""Modules that ``lro`` and ``lro_client`` must not load: optional, or heavy and rarely used."""


def modules_of(package: str) -> Iterator[tuple[str, str, Path]]:
    """Yield the package, name and file of each of a package's modules that has code."""
    root = SRC / package
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        if source(path).has_code:
            yield package, name, path


@functools.cache
def modules() -> Sequence[tuple[str, str, Path]]:
    return tuple(module for package in FLOORS for module in modules_of(package))


@functools.cache
def names() -> frozenset[str]:
    return frozenset(f"{package}.{name}" for package, name, _ in modules())


def floor(package: str, name: str) -> int:
    """Return the index of the layer of a module in ``FLOORS``."""
    return FLOORS[package].split().index(name.partition(".")[0])


def ours(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the imports of a source that are modules of ours, as (package, name)."""
    for module, name in source(path).imports:
        whole = f"{module}.{name}" if f"{module}.{name}" in names() else module
        package, _, rest = whole.partition(".")
        if package in FLOORS:
            yield package, rest or "__init__"


def test_every_package_has_a_floor() -> None:
    """Each package is in ``FLOORS``, so that a new package gets a layer."""
    for owner, floors in FLOORS.items():
        found = {name.partition(".")[0] for package, name, _ in modules() if package == owner}
        assert found == {*floors.split()}


def test_modules_import_only_from_floors_below() -> None:
    """A module imports only from its own layer and from layers below."""
    upward = [
        (name, other)
        for package, name, path in modules()
        for owner, other in ours(path)
        if owner == package and floor(package, other) > floor(package, name)
    ]
    assert upward == []


def is_outer(package: str, name: str) -> bool:
    """Return whether a module is in the outer ring or in a package other than ``lro``."""
    return package != "lro" or name.partition(".")[0] in OUTER


def test_outer_ring_and_client_use_only_public_names_of_the_core() -> None:
    """The outer ring and the client use only names of the core that third parties may use too."""
    found = {
        (name, module, imported)
        for package, name, path in (*modules(), *modules_of("pytest_lro"))
        if is_outer(package, name)
        for module, imported in source(path).imports
        if module.partition(".")[0] == "lro"
        and not is_outer("lro", module.removeprefix("lro.") + ".")
        and any(part.startswith("_") for part in (*module.split("."), imported))
    }
    assert found == set()


def test_chain_of_importing_packages_is_short() -> None:
    """The longest chain of packages, each of which imports the next one, is short."""
    graph: dict[str, set[str]] = {}
    for package, name, path in modules():
        here = f"{package}.{name.partition('.')[0]}"
        below = {f"{owner}.{other.partition('.')[0]}" for owner, other in ours(path)}
        graph.setdefault(here, set()).update(below - {here})

    @functools.cache
    def depth(package: str) -> int:
        return 1 + max((depth(other) for other in graph[package]), default=0)

    assert max(map(depth, graph)) <= DEPTH_AT_MOST


def test_class_names_are_unique() -> None:
    """Classes have unique names, because a reader may look up a shared name in the wrong package.

    There are exceptions: some classes of the HTTP and gRPC edges share a name, and so do
    some classes of the client and the server.
    """
    names = [
        each
        for _, _, path in modules()
        for each in source(path).classes
        if not each.startswith("_")
    ]
    assert {name for name, count in Counter(names).items() if count > 1} == {
        *("BatchGetOperationsRequest", "EdgeApp"),
        *("Operation", "OperationsApp", "Retry"),
    }


def test_modules_have_no_import_cycle() -> None:
    """No chain of imports leads back to its own module, not even within a package."""
    graph = {
        f"{package}.{name}": {f"{owner}.{other}" for owner, other in ours(path)}
        for package, name, path in modules()
    }
    for name in graph:
        graph[name].discard(name)
    order = graphlib.TopologicalSorter(graph).static_order()
    assert names() <= {*order}


def test_client_and_server_do_not_import_each_other() -> None:
    """``lro_client`` needs no server, and ``lro`` needs no client.

    ``lro_conform`` can test both, so it uses only the errors of ``lro``.
    """
    allowed = {"lro": set[str](), "lro_client": PUBLIC, "lro_conform": {"errors"}}
    behind = [
        (package, name, owner, other)
        for package, name, path in modules()
        for owner, other in ours(path)
        if owner != package
        and (owner != "lro" or other not in allowed[package])
        and (package, owner, name.partition(".")[0]) not in SERVERS
    ]
    assert behind == []


def test_core_tests_start_no_browser_broker_or_npm() -> None:
    """Tests that start a browser, a broker or npm are in tests/full, not in the default tier."""
    tests = Path(__file__).parent
    left_out = {tests / "full", tests / "services", tests / "chaos"}
    core = [path for path in tests.rglob("*.py") if left_out.isdisjoint(path.parents)]
    assert len(core) > 300
    assert [path for path in core if FULL_TIER.search(path.read_text())] == []


def test_pure_packages_have_no_side_effects() -> None:
    """Pure packages of ``lro`` use no clock, random numbers, locks, threads, files or network."""
    effects = set(EFFECTS.split())
    used = [
        (name, module)
        for package, name, path in modules()
        if package == "lro" and name.partition(".")[0] in PURE and name != ASKS_FOR_ITS_THREAD
        for module, _ in source(path).imports
        if module.partition(".")[0] in effects
    ]
    assert used == []


@pytest.mark.parametrize(
    ("allowed", "face"),
    [("attrs, cattrs", "lro"), ("httpx, tenacity, lro", "lro_client"), ("httpx", "lro_conform")],
)
def test_importing_a_package_loads_no_optional_library(allowed: str, face: str) -> None:
    """Importing a package loads no library that the user may not have installed or may never need.

    Libraries that a required dependency loads do not count, because they are loaded first: httpx,
    for example, loads click and rich if they are installed.
    """
    program = f"import sys, {allowed}; before = set(sys.modules); import {face}; "
    program += "print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert set(OPTIONAL.split()) & set(run.stdout.split()) == set()


ARGUMENTS_AT_MOST: Final = 8
"""The most parameters of a function, without ``self`` and ``cls``; ``**options`` counts as one."""

LINES_AT_MOST: Final = 60
LONGER: Final[dict[str, int]] = {}
"""Functions that exceed the limit, with their lengths; never raise these numbers."""


def test_no_function_has_many_arguments_or_lines() -> None:
    """A function has at most 8 parameters and 60 lines; related options form one TypedDict."""
    functions = [(path, *one) for _, _, path in modules() for one in source(path).functions]
    assert [one for one in functions if one[2] > ARGUMENTS_AT_MOST] == []
    assert {name: lines for _, name, _, lines in functions if lines > LINES_AT_MOST} == LONGER
