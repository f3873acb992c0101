"""The README and the docs are correct: code blocks run, and links and names exist."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import multiprocessing
import operator
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from lro.telemetry import METRICS
from tests.page_programs import LONG, run_code
from tests.page_texts import DOCS, NOT_RUN, PAGES, ROOT, blocks, tokens

OF_PROJECT: Final = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
LINKED: Final = [*PAGES, *(ROOT / name for name in OF_PROJECT)]

OTHER_PYTHON: Final = {"", "py", "python3", "pycon", "ipython"}
MACHINE_PATH: Final = re.compile(
    r"(?<![\w./:~-])/(?:home|root|Users|tmp|var|opt|mnt|srv|work|workspace)/\w|\b[A-Z]:\\"
)

NAME: Final = re.compile(r"(?<![\w./@'\"-])lro(?:_client)?(?:\.[A-Za-z_]\w*)+")
NOT_OURS: Final = {
    *("lro.commands", "lro.local", "lro.work"),
    *("lro.operation", "lro.method", "lro.attempt"),
    *("lro.operation.name", "lro.executor", "lro.lost_attempts", "lro.polls"),
    *(name for metric in METRICS for name in (metric.name, *metric.attributes)),
}
"""Names that look like modules of ours: the error domain, Celery's task, metrics, attributes."""


@pytest.mark.parametrize(
    "page", [one for one in PAGES if one.stem not in LONG], ids=lambda one: one.stem
)
def test_python_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """The Python code of a page runs in an empty folder, from top to bottom as one program."""
    run_code(page, tmp_path)


@functools.cache
def sessions() -> set[str]:
    """Return the names of the nox sessions: functions of noxfile.py with a session decorator."""
    nodes = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if any("session" in ast.unparse(d) for d in f.decorator_list)}


def targets(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links and pictures."""
    for block in tokens(page):
        for token in block.children or []:
            target = token.attrGet("href") or token.attrGet("src")
            if target:
                yield str(target)


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    found, inside = set(), False
    for token in tokens(page):
        if inside:
            text = "".join(child.content for child in token.children or [])
            found.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
        inside = token.type == "heading_open"
    return found


@functools.cache
def missing() -> set[str]:
    """Return the missing names that pages cite; a child process does the many imports."""
    tokens_of_pages = itertools.chain.from_iterable(tokens(page) for page in LINKED)
    codes = (
        child.content
        for one in tokens_of_pages
        for child in one.children or []
        if child.type == "code_inline"
    )
    names = [*{name for code in codes for name in NAME.findall(code)} - NOT_OURS]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
        return set(itertools.compress(names, map(operator.not_, child.map(is_there, names))))


def is_there(name: str) -> bool:
    """Return whether a dotted name is a module or an attribute in a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            thing: object = importlib.import_module(module)
        except ModuleNotFoundError as exc:
            if f"{module}.".startswith(f"{exc.name}."):
                continue
            return True  # the module exists, but needs an extra that is not installed
        for part in parts[length:]:
            thing = getattr(thing, part, None)
        return thing is not None
    return False


def of_code(page: Path, text: str) -> Iterator[str]:
    """Yield the faults of a page's code blocks.

    A Python block may be skipped only if a comment just before the block gives the reason. The
    language of each block must be spelt correctly.
    """
    every = list(blocks(page))
    yield from (
        f"{block.line}: not called python" for block in every if block.language in OTHER_PYTHON
    )
    markers = list(NOT_RUN.finditer(text))
    yield from (f"no reason: {marker[0]}" for marker in markers if not marker["reason"])
    marked = [one for one in every if one.language == "python" and NOT_RUN.search(one.comment)]
    if len(marked) != len(markers):
        yield "a marker that stands before no block of Python"
    for name in re.findall(r"\bbench/[\w./-]*\w", text):
        if not (ROOT / name).exists():
            yield f"cites {name}, which is not there"


def of_text(page: Path, text: str) -> Iterator[str]:
    """Yield the faults of a page's links, commands and names."""
    console = "".join(block.text for block in blocks(page) if block.language == "console")
    named = re.findall(r"^\$ python3 run\.py (\w+)", console, re.MULTILINE)
    yield from (f"no session: {name}" for name in {*named} - sessions())
    if found := MACHINE_PATH.search(text):
        yield f"a path of some machine: {found[0]}"
    for token in tokens(page):
        # some renderers do not recognise a link whose target continues on the next line
        if token.type == "inline" and re.search(r"\]\([^()]*\n", token.content):
            yield f"a link on two lines: {token.content}"
        for child in token.children or []:
            if child.type == "code_inline":
                for name in missing().intersection(NAME.findall(child.content)):
                    yield f"no such name: {name}"
    for target in targets(page):
        path, _, fragment = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        reached = (page.parent / path).resolve() if path else page
        # the docs are also published without the repository, so their links must stay in the docs
        if not reached.is_relative_to(DOCS if page.is_relative_to(DOCS) else ROOT):
            yield f"leads out of the docs: {target}"
        elif not reached.exists() or (fragment and fragment not in anchors(reached)):
            yield f"leads nowhere: {target}"


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_names_on_the_page_exist(page: Path) -> None:
    """Links, sessions, names and benchmarks on a page exist; a skipped block has a reason."""
    text = page.read_text(encoding="utf-8")
    assert list(of_text(page, text)) == []
    if page in PAGES:
        assert list(of_code(page, text)) == []


def shown(default: object) -> str:
    """Return a default value as the table of executors shows it."""
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    return f"`{default}`" if isinstance(default, str) else str(default)


@pytest.mark.parametrize(
    "name", ["threads.Thread", "asyncio.Asyncio", "processes.Process", "celery.Celery"]
)
def test_defaults_of_executors_are_those_of_the_code(name: str) -> None:
    """The table has the default of each argument of an executor; words may replace None."""
    page = (DOCS / "reference" / "stores-and-executors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`[^|]* \| ([^|]+) \|$", page, re.MULTILINE)
    module, _, kind = name.partition(".")
    executor = getattr(importlib.import_module(f"lro.executors.{module}"), f"{kind}Executor")
    documented = {argument: cell for of, argument, cell in rows if of == executor.__name__}
    parameters = inspect.signature(executor).parameters.values()
    given = {one.name: one.default for one in parameters if one.default is not one.empty}
    assert documented.keys() == given.keys()
    wanted = {
        key: documented[key] if default is None else shown(default)
        for key, default in given.items()
    }
    assert documented == wanted
