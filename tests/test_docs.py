"""The README and the docs keep their word: their code runs, and what they point at exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
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
"""What looks like a name of ours: the domain of errors, Celery's task, metrics and attributes."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
each_linked = pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.parametrize(
    "page", [one for one in PAGES if one.stem not in LONG], ids=lambda one: one.stem
)
def test_the_code_runs(page: Path, tmp_path: Path) -> None:
    """The Python of a page runs from top to bottom, as one program, in an empty folder."""
    run_code(page, tmp_path)


@each_page
def test_python_is_called_python(page: Path) -> None:
    """No block is left out because its language has another name, or none."""
    assert [block for block in blocks(page) if block.language in OTHER_PYTHON] == []


@each_page
def test_what_is_not_run_says_why(page: Path) -> None:
    """Each marker gives a reason, and stands right before a block of Python."""
    markers = list(NOT_RUN.finditer(page.read_text(encoding="utf-8")))
    marked = [b for b in blocks(page) if b.language == "python" and NOT_RUN.search(b.comment)]
    assert all(marker["reason"] for marker in markers)
    assert len(markers) == len(marked)


def sessions() -> set[str]:
    """The sessions of noxfile.py: the functions that it decorates so."""
    nodes = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if any("session" in ast.unparse(d) for d in f.decorator_list)}


@each_linked
def test_commands_name_sessions(page: Path) -> None:
    """``$ python3 run.py NAME`` in a console block names a session of noxfile.py."""
    shown = "".join(block.text for block in blocks(page) if block.language == "console")
    named = re.findall(r"^\$ python3 run\.py (\w+)", shown, re.MULTILINE)
    assert set(named) <= sessions()


@each_linked
def test_a_link_stands_on_one_line(page: Path) -> None:
    """Its target at least: some renderers take one that goes on in the next line for text."""
    texts = [token.content for token in tokens(page) if token.type == "inline"]
    assert [text for text in texts if re.search(r"\]\([^()]*\n", text)] == []


def targets(page: Path) -> Iterator[str]:
    """Where the links and pictures of a page point."""
    for block in tokens(page):
        for token in block.children or []:
            target = token.attrGet("href") or token.attrGet("src")
            if target:
                yield str(target)


def anchors(page: Path) -> set[str]:
    """The fragments by which the headings of a page can be reached."""
    found, inside = set(), False
    for token in tokens(page):
        if inside:
            text = "".join(child.content for child in token.children or [])
            found.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
        inside = token.type == "heading_open"
    return found


@each_linked
def test_links_lead_somewhere(page: Path) -> None:
    """A link within the project reaches a file of it, and a heading if it names one."""
    for target in targets(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        reached = (page.parent / path).resolve() if path else page
        # The docs are also read apart from the repository: they are a world of their own.
        within = DOCS if page.is_relative_to(DOCS) else ROOT
        assert reached.is_relative_to(within), target
        assert reached.exists(), target
        assert not fragment or fragment in anchors(reached), target


def found(name: str) -> bool:
    """Whether a dotted name is a module, or is in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            thing: object = importlib.import_module(module)
        except ModuleNotFoundError as exc:
            if f"{module}.".startswith(f"{exc.name}."):
                continue
            return True  # it is there, and needs an extra that is not installed
        for part in parts[length:]:
            thing = getattr(thing, part, None)
        return thing is not None
    return False


@each_linked
def test_names_of_ours_exist(page: Path) -> None:
    """``lro.x`` and ``lro_client.x`` in the text are what a reader would find by that name."""
    for block in tokens(page):
        for token in block.children or []:
            if token.type == "code_inline":
                for name in NAME.findall(token.content):
                    assert name in NOT_OURS or found(name), name


def shown(default: object) -> str:
    """A default as the table of the executors has it."""
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    return f"`{default}`" if isinstance(default, str) else str(default)


@pytest.mark.parametrize(
    "name", ["threads.Thread", "asyncio.Asyncio", "processes.Process", "celery.Celery"]
)
def test_defaults_of_executors_are_those_of_the_code(name: str) -> None:
    """The table has every argument of each, with the value of the code; None stands as words."""
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


@each_linked
def test_no_path_of_a_machine(page: Path) -> None:
    """What is written holds on every machine."""
    assert MACHINE_PATH.search(page.read_text(encoding="utf-8")) is None


@each_page
def test_cited_benches_exist(page: Path) -> None:
    """A figure says where it was measured, and that is there."""
    cited = re.findall(r"\bbench/[\w./-]*\w", page.read_text(encoding="utf-8"))
    assert [name for name in cited if not (ROOT / name).exists()] == []
