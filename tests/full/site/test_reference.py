"""The API reference has an entry for each public name, with its type and an anchor."""

from __future__ import annotations

import ast
import importlib
import re
import zlib
from pathlib import Path
from posixpath import relpath
from typing import Final

import pytest

pytest.importorskip("griffe")

from tools.site.api import SOURCES, Api
from tools.site.building import sections

FOUND_BY_DJANGO: Final = {
    f"lro.integrations.django.{name}"
    for name in ("admin", "apps", "management.commands.lro", "models", "urls")
}
"""Modules that Django finds by name, so that applications do not import from them."""
COMMANDS: Final = {"lro.cli"}
"""Modules of commands, whose only interface is the command line."""


def modules() -> dict[str, ast.Module]:
    """Return the public modules, without packages that are empty."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        tree = ast.parse(path.read_text("utf-8"))
        if len(tree.body) > 1 and not any(part.startswith("_") for part in parts):
            found[".".join(parts)] = tree
    return found


def test_each_public_module_has_all(api: Api) -> None:
    """Each public module has an ``__all__``, without which it would have no page."""
    assert modules().keys() - FOUND_BY_DJANGO - COMMANDS == set(api.modules)


def test_exports_in_the_source_are_those_of_the_imported_module(api: Api) -> None:
    """The names that the reference reads from the source are those that the module exports."""
    for path in api.modules:
        if path.startswith("lro.integrations.django"):
            continue  # these modules need settings, or a newer Django
        exported = importlib.import_module(path).__all__
        assert set(exported) >= set(api.names(path))
        assert set(exported) - set(api.names(path)) <= {"errors", "types"}


def test_each_public_name_has_an_entry(api: Api, built: Path) -> None:
    """Each public name has an entry on its module's page, with an anchor of its own."""
    missing = []
    for module in api.modules:
        html = (built / "reference" / "api" / f"{module}.html").read_text("utf-8")
        ids = set(re.findall(r'\bid="([^"]+)"', html))
        wanted = [f"{module}.{name}" for name in api.names(module)]
        missing += [name for name in [module, *wanted] if name not in ids]
        entries = re.findall(r'<h\d id="([^"]+)"', html)
        assert [name for name in entries if re.search(r"\._", name)] == []  # no entry is private
    assert sum(len(api.names(module)) for module in api.modules) > 400
    assert missing == []


def test_types_in_a_signature_link_to_their_entries(built: Path) -> None:
    html = (built / "reference" / "api" / "lro.html").read_text("utf-8")
    service, options = (entry(html, f"lro.{name}") for name in ("Service", "Options"))
    assert 'href="lro.adapters.html#lro.adapters.Store"' in service
    assert 'href="#lro.State"' in options
    assert "time_limit" in options
    assert "timedelta" in options


def entry(html: str, name: str) -> str:
    """Return the HTML of an entry, up to the next entry of the same level."""
    found = re.search(rf'<h2 id="{re.escape(name)}".*?(?=<h2 |</article>)', html, re.DOTALL)
    assert found is not None, name
    return found[0]


def test_signature_shows_values_of_private_defaults(built: Path) -> None:
    """A default that is a private constant is shown by its value, in HTML and in Markdown."""
    for form in ("html", "md"):
        page = (built / "reference" / "api" / f"lro.{form}").read_text("utf-8")
        assert "_LEASE" not in page
        assert "_DRAIN" not in page
    assert "``lease`` (15 s)" in page
    adapters = (built / "reference" / "api" / "lro.adapters.md").read_text("utf-8")
    assert "scan: int = 500, max_bytes: int = 1024 * 1024" in adapters


def test_index_has_each_name_page_and_term(api: Api, built: Path) -> None:
    """The index lists each name, page and term once, under its letter, without leading articles."""
    text = (built / "reference" / "index-a-z.md").read_text("utf-8")
    for module in api.modules:
        assert text.count(f"- [`{module}`](api/{module}.md)\n") == 1
        for name in api.names(module):
            assert text.count(f"(api/{module}.md#{module}.{name})") == 1, name
    pages = [page for entries in sections().values() for _, page in entries]
    for page in pages:
        if not page.startswith(("reference/api/", "reference/index-a-z")):
            assert f"({relpath(page, 'reference')}), in " in text, page
    assert "- [orphan](../explanation/architecture.md#the-life-of-a-lease)\n" in text
    assert "\n- [The client](" in text.partition("\n## C\n")[2].partition("\n## D\n")[0]
    # The search skips the index, because the index would match every search.
    assert "reference/index-a-z" not in (built / "search.json").read_text("utf-8")


def test_docstring_links_to_names_and_rules(built: Path) -> None:
    """Roles and rules of the specification in a docstring become links."""
    html = (built / "reference" / "api" / "lro.html").read_text("utf-8")
    assert re.search(r'href="lro.errors.html#lro.errors"[^>]*><code>lro.errors', html)
    assert "../specification.html#95-parallel-operations-aip-151" in entry(html, "lro.Options")
    for page in (built / "reference" / "api").glob("*.html"):
        assert not re.search(r":(class|meth|func|mod|attr|data):", page.read_text("utf-8")), page


def test_inventory_has_each_name(api: Api, built: Path) -> None:
    """``objects.inv``, by which other Sphinx sites link to ours, has each public name."""
    raw = (built / "objects.inv").read_bytes()
    head, rest = raw.split(b"zlib.\n", 1)
    assert head.startswith(b"# Sphinx inventory version 2\n# Project: lro\n")
    names = {line.split(" ", 1)[0] for line in zlib.decompress(rest).decode().splitlines()}
    for module in api.modules:
        assert {f"{module}.{name}" for name in api.names(module)} <= names
