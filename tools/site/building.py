"""The site: pages are gathered in a folder, and Zensical makes HTML of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any, Final

from tools.site.api import ROOT, SOURCES, Api
from tools.site.llms import first_sentence, plain_roles, write_llms

CONFIG: Final = ROOT / "zensical.toml"
THEME: Final = Path(__file__).with_name("theme")
FROM_ROOT: Final[Mapping[str, str]] = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
"""Pages of the site that stand outside of ``docs``."""
API: Final = "reference/api"
GLOSSARY: Final = "reference/glossary.md"
INDEX: Final = "reference/index-a-z.md"
API_INDEX: Final = f"{API}/index.md"
LAST: Final = (f"{API}/", "project/", *(f"reference/{n}" for n in ("specification", "conformance")))
"""What a search finds after all other pages, unless the query is spelt like a name of code."""
TERM: Final = re.compile(r"^\| (?!term )([^|]+) \| (.+) \|$", re.MULTILINE)
"""A row of the glossary."""

COMMENT: Final = re.compile(
    r"^ *<!--(?:(?!-->).)*-->\n|<!--(?:(?!-->).)*-->", re.MULTILINE | re.DOTALL
)
FENCE: Final = re.compile(r"^( *)(`{3,}).*?^\1\2 *$\n?", re.MULTILINE | re.DOTALL)
ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
HEADING: Final = re.compile(r"^#+ +(\d+(?:\.\d+)?) +.*$", re.MULTILINE)


class SiteError(Exception):
    """Why there is no site; the text is what the tool printed."""


def build(folder: Path) -> Path:
    """Build the site within an empty folder; gives the folder ``site`` in it.

    Raises:
        SiteError: Zensical found something wrong, such as a link that leads nowhere.
    """
    api = Api()
    pages = folder / "docs"
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.md"))
    for path, text in gather(api).items():
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        (pages / path).write_text(for_python_markdown(text), encoding="utf-8")
    shutil.copytree(THEME / "assets", pages / "assets")
    shutil.copytree(THEME / "overrides", folder / "overrides")
    shutil.copy(CONFIG, folder)
    known = {"homes": api.homes, "rules": rules()}
    (folder / "known.json").write_text(json.dumps(known), encoding="utf-8")
    run_zensical(folder)
    weigh_search(folder / "site", tune_search(folder / "site" / "search.json"))
    write_llms(folder / "site", sections(), gather(api), api)
    return folder / "site"


def run_zensical(folder: Path) -> None:
    """Make HTML, and take any warning for an error.

    Raises:
        SiteError: There was one.
    """
    path = os.pathsep.join([str(SOURCES), str(ROOT)])
    made = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = re.sub(r"\x1b\[[\d;]*m", "", made.stdout)
    if made.returncode or "No issues found" not in said or "griffe:" in said:
        raise SiteError(said.partition("Traceback")[0])


def tune_search(path: Path) -> int:
    """Let the search find what a page is about before all that mentions it.

    A page has its title in the navigation too; members of a class are found as a part of it; the
    index, which mentions everything, is not found. The items of ``LAST`` come last: returns the
    number of the items before them.
    """
    search = json.loads(path.read_text("utf-8"))
    kept: list[dict[str, Any]] = []
    for item in search["items"]:
        if item["location"].startswith(INDEX.removesuffix(".md")):
            continue
        if item["location"].startswith(f"{API}/"):
            if item["level"] > 2:
                kept[-1]["text"] += f" {item['title']} {item['text']}"
                continue
            item["path"] = item["path"][:2]  # or each entry of a module is found by its name
        elif item["level"] == 1 and item["title"] != item["path"][-1]:
            item["title"] = f"{item['path'][-1]}: {item['title']}"
        kept.append(item)
    last = [item for item in kept if item["location"].startswith(LAST)]
    first = [item for item in kept if not item["location"].startswith(LAST)]
    text = json.dumps(search | {"items": first + last}, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    return len(first)


def weigh_search(site: Path, first: int) -> None:
    """Let the search show the first items before all others, as Zensical has no weights.

    A query that is spelt like a name of code, such as ``WaitTimeout``, is left as it was.

    Raises:
        SiteError: The script of the search is another one than that of the pinned version.
    """
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    script = worker.read_text("utf-8")
    order = "l.items.sort(ht(...s))"
    of_code = r"/[a-z][A-Z]|_|\w\.\w/.test(t.data.input)"
    for old, new in (
        ("case 2:let l=J(", f"case 2:self.first={of_code}?1/0:{first};let l=J("),
        (order, f"{order},l.items.sort((a,b)=>(a.id>=self.first)-(b.id>=self.first))"),
    ):
        if script.count(old) != 1:
            raise SiteError(f"the script of the search has no {old!r}")
        script = script.replace(old, new)
    worker.write_text(script, encoding="utf-8")


def gather(api: Api) -> dict[str, str]:
    """Every page by its path below ``docs``, as Markdown."""
    found = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.relative_to(ROOT / "docs").as_posix()
        found[page] = _outside_code(path.read_text("utf-8"), lambda text: COMMENT.sub("", text))
    for source, page in FROM_ROOT.items():
        found[page] = moved((ROOT / source).read_text("utf-8"), page)
    found[INDEX] = index(api, found[GLOSSARY])
    found[API_INDEX] = api_index(api)
    for module in api.modules:
        found[f"{API}/{module}.md"] = f"::: {module}\n"
    return found


def api_index(api: Api) -> str:
    """Return the page that lists each public module with its purpose and its names."""
    parts = ["# API\n\nThe public modules. The entry of a module lists its names.\n"]
    for package, modules in groupby(sorted(api.modules), lambda module: module.partition(".")[0]):
        parts.append(f"\n## {package}\n\n")
        for module in modules:
            docstring = api.modules[module].docstring
            purpose = first_sentence(plain_roles(docstring.value)) if docstring else ""
            names = ", ".join(
                f"[`{name}`]({module}.md#{module}.{name})" for name in api.names(module)
            )
            parts.append(f"- [`{module}`]({module}.md): {purpose}\n\n    {names}\n\n")
    return "".join(parts)


def index(api: Api, glossary: str) -> str:
    """The page that leads to every public name, title and term, in alphabetical order.

    A term leads to where its entry in the glossary leads.
    """
    lines = set()
    for module in api.modules:
        target = f"api/{module}.md"
        lines.add((module, f"[`{module}`]({target})"))
        for name in api.names(module):
            lines.add((name, f"[`{name}`]({target}#{module}.{name}), in {module}"))
    for term, meaning in TERM.findall(glossary):
        if link := LINK.search(meaning):
            lines.add((term, f"[{term}]({link[3]})"))
    for section, entries in sections().items():
        for title, page in entries:
            if not page.startswith(f"{API}/") and page != INDEX:
                there = relpath(page, PurePosixPath(INDEX).parent.as_posix())
                lines.add((title, f"[{title}]({there}), in {section}"))
    parts = ["# Index\n\nEvery public name, every term of the glossary, and every page.\n"]
    for letter, group in groupby(sorted(lines, key=_place), lambda line: _place(line)[0][0]):
        parts.append(f"\n## {letter.upper()}\n\n")
        parts += [f"- {text}\n" for _, text in group]
    return "".join(parts)


def _place(line: tuple[str, str]) -> tuple[str, str]:
    """By what a line is sorted: its first word counts only if it says something."""
    return re.sub("^(?:a|an|the) ", "", line[0].lower()), line[1]


def for_python_markdown(text: str) -> str:
    """The page as Zensical's parser of Markdown understands it, where CommonMark is more lenient.

    A fenced block stands between blank lines, and a line of code in a table has no escapes.
    """
    spaced = FENCE.sub(lambda fence: fence[0] if fence[1] else f"\n{fence[0]}\n", text)
    return _outside_code(spaced, lambda part: ROW.sub(_row, part))


def _row(found: re.Match[str]) -> str:
    return re.sub(r"`[^`]+`", lambda code: code[0].replace(r"\|", "|"), found[0])


def moved(text: str, page: str) -> str:
    """A page of the root folder as one of the site.

    A link to a file that is not on the site becomes plain text: the project has no address where
    a reader of the site could see it.
    """

    def link(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, mark, fragment = target.partition("#")
        inside = FROM_ROOT.get(path) or path.removeprefix("docs/")
        if path not in FROM_ROOT and (path == inside or not (ROOT / path).exists()):
            return label
        there = relpath(inside, PurePosixPath(page).parent.as_posix())
        return f"{picture}[{label}]({normpath(there)}{mark}{fragment})"

    return _outside_code(COMMENT.sub("", text), lambda part: LINK.sub(link, part))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """A page of which all but the fenced blocks is changed."""
    made, at = [], 0
    for fence in FENCE.finditer(text):
        made += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*made, change(text[at:])])


def rules() -> dict[str, str]:
    """The anchor of each chapter and section of the specification, by its number."""
    text = (ROOT / "docs" / "reference" / "specification.md").read_text("utf-8")
    return {found[1]: anchor(found[0].lstrip("# ")) for found in HEADING.finditer(text)}


def anchor(heading: str) -> str:
    """The fragment by which a heading is reached, on the site as in the repository."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sections() -> dict[str, list[tuple[str, str]]]:
    """The navigation: by section, the title and the path of each page."""
    nav = tomllib.loads(CONFIG.read_text("utf-8"))["project"]["nav"]
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in nav:
        for title, inside in entry.items():
            found.setdefault(title, []).extend(_pages(title, inside))
    return found


def _pages(title: str, inside: str | list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    if isinstance(inside, str):
        yield title, inside
        return
    for entry in inside:
        for name, below in entry.items():
            yield from _pages(name, below)
