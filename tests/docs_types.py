"""Type-check the Python code of all pages of the README and the docs with mypy and pyright.

``python -m tests.docs_types`` prints the findings by page and line, and exits with 1 if there are
any. This check is not in ``tests/test_docs.py``, as it is slower than all tests in that file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.page_texts import NOT_RUN, PAGES, ROOT, blocks, files, program

WORK: Final = """
import attrs
from lro import Empty, Method, OperationMetadata, Service
from lro.asgi import App as AsgiApp
from lro.wsgi import App as WsgiApp
service: Service
asgi_app: AsgiApp
wsgi_app: WsgiApp
@attrs.frozen
class WorkRequest:
    milliseconds: int = 0
work: Method[WorkRequest, Empty, OperationMetadata]
"""
"""The module ``work.py``, which some pages import and readers write themselves."""

_PYRIGHT: Final = {
    "extraPaths": [str(ROOT / "src")],
    "pythonVersion": "3.11",
    "reportMissingModuleSource": "none",
    "typeCheckingMode": "standard",
}
_MYPY: Final = (
    # Django with its decorators, and parts of google-auth, Google's clients, waitress and
    # uvicorn-worker, have no types. No code on a page can add them.
    "--untyped-calls-exclude=google",
    "--disable-error-code=import-untyped",
    "--allow-untyped-decorators",
)


def modules(page: Path) -> Iterator[str]:
    """Yield the Python sources of a page; each line keeps its line number in the page.

    The blocks that are run form one module; each block that is not run is a module by itself.
    """
    source = program(page, serving=False)
    if source:
        yield source
    for block in blocks(page):
        if block.language == "python" and NOT_RUN.search(block.comment):
            yield "\n" * block.line + block.text


def write(folder: Path) -> dict[Path, Path]:
    """Write the modules of all pages; map each written file to its page."""
    pages: dict[Path, Path] = {}
    for page in PAGES:
        for number, source in enumerate(modules(page)):
            name = f"{page.relative_to(ROOT).with_suffix('')}_{number}"
            file = folder / (re.sub(r"\W", "_", name) + ".py")
            file.write_text(source, encoding="utf-8")
            pages[file] = page.relative_to(ROOT)
        python = {path: text for path, text in files(page).items() if path.endswith(".py")}
        for path, source in python.items():
            (folder / path).parent.mkdir(exist_ok=True)
            if "/" in path:  # without __init__.py, mypy finds the module under two names
                (folder / path).with_name("__init__.py").touch()
            (folder / path).write_text(source, encoding="utf-8")
            pages[folder / path] = page.relative_to(ROOT)
    (folder / "work.pyi").write_text(WORK, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(json.dumps(_PYRIGHT), encoding="utf-8")
    return pages


def findings(command: Sequence[str], folder: Path, pages: dict[Path, Path]) -> list[str]:
    """Return the errors of a type checker, each with the name of its page."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if re.search(r"\berror:", line)]
    if done.returncode and not found:
        raise RuntimeError(
            f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    named = {path.stem: page for path, page in pages.items()}
    return [
        re.sub(r"^\s*\S*?(\w+)\.py(?=:)", lambda at: str(named.get(at[1], at[0])), line)
        for line in found
    ]


def main() -> int:
    """Check all pages; return 1 if a checker reports an error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        pages = write(folder)
        mypy = [sys.executable, "-m", "mypy", *_MYPY, *map(str, pages)]
        pyright = ["pyright", "--pythonpath", sys.executable, "--project", str(folder)]
        found = [*findings(mypy, folder, pages), *findings(pyright, folder, pages)]
    print("\n".join(found) or f"{len(pages)} modules of the docs: nothing found")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
