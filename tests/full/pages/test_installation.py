"""The page on installation: extras, their packages, and the errors if a package is missing."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.page_texts import ROOT, rows, text_of

PAGE: Final = "how-to/installation.md"
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TABLE: Final[Mapping[str, tuple[str, str]]] = {
    extra.strip("`"): (adds, purpose) for extra, adds, purpose in rows(PAGE, "extra")
}
IMPORT: Final = re.compile(r"`import ([\w.]+)`")
ALONE: Final = """
import importlib, importlib.metadata, json, sys
plain = set(json.loads(sys.argv[1]))
owners = importlib.metadata.packages_distributions()

class Refused:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        found = {one.lower().replace("_", "-") for one in owners.get(top, ())}
        if (found and not found & plain) or name.startswith(("google.rpc", "google.auth")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refused())
said = {}
for module in json.loads(sys.argv[2]):
    try:
        importlib.import_module(module)
    except ImportError as exc:
        said[module] = f"another error: {exc!r}"
    except Exception as exc:
        said[module] = f"{type(exc).__module__}.{type(exc).__qualname__}: {exc}"
print(json.dumps(said))
"""
"""Imports modules with only the plain installation available, and prints each error."""


def canonical(name: str) -> str:
    """Return the normalized name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def plain_install() -> set[str]:
    """Return the packages that are installed without extras, from the packages' metadata."""
    found: set[str] = set()
    asked = [Requirement(text) for text in PROJECT["dependencies"]]
    while asked:
        requirement = asked.pop()
        name = canonical(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate()):
            continue
        found.add(name)
        asked += map(Requirement, importlib.metadata.requires(name) or ())
    return found


def skip_with_old_versions() -> None:
    """Skip the test if the lowest versions are installed, which need other packages."""
    if Version(importlib.metadata.version("httpx")) < Version("0.28"):
        pytest.skip("httpx is an old one, and the page is about new installs")


def test_table_has_each_extra_with_its_packages() -> None:
    published = {
        extra: {canonical(Requirement(text).name) for text in texts}
        for extra, texts in PROJECT["optional-dependencies"].items()
    }
    shown = {extra: set(re.findall(r"`([\w-]+)`", adds)) for extra, (adds, _) in TABLE.items()}
    assert shown == published


def test_imports_name_the_extra_that_they_need() -> None:
    """Without extras, an import that needs an extra fails with a sentence that names it."""
    imports = {extra: IMPORT.findall(purpose) for extra, (_, purpose) in TABLE.items()}
    wanted = {module: extra for extra, modules in imports.items() for module in modules}
    assert len(wanted) >= 17
    plain = json.dumps([*plain_install(), "lro"])
    command = [sys.executable, "-c", ALONE, plain, json.dumps([*wanted])]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(ran.stdout)
    for module, extra in wanted.items():
        sentence = f"needs the extra '{extra}': pip install 'lro[{extra}]'"
        assert sentence in said.get(module, ""), module
    assert said["lro.grpc"] in text_of(PAGE)


def test_packages_of_the_plain_install_are_named() -> None:
    skip_with_old_versions()
    text = " ".join(text_of(PAGE).split())
    (named,) = re.findall(r"is `lro` and thirteen packages: ([^:]*?)\. On", text)
    names = {canonical(name) for name in re.split(r", | and ", named)}
    assert names == plain_install()
    assert len(names) == 13
    direct = {canonical(Requirement(text).name) for text in PROJECT["dependencies"]}
    used = {name for cell, _ in rows(PAGE, "package") for name in re.findall(r"`([\w-]+)`", cell)}
    assert used == direct


@pytest.mark.skipif(sys.platform != "linux", reason="the figure is of Linux")
@pytest.mark.platform
def test_size_of_the_plain_install_is_that_of_the_page() -> None:
    """The page's size of the plain installation is right, give or take a third."""
    skip_with_old_versions()
    packages = [importlib.metadata.files(name) or [] for name in plain_install()]
    files = [file.size or 0 for files in packages for file in files if file.suffix != ".pyc"]
    own = [
        path.stat().st_size
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    megabytes = sum([*files, *own]) / 1e6
    assert "about 22 MB in all" in " ".join(text_of(PAGE).split())
    assert 22 * 2 / 3 < megabytes < 22 * 4 / 3


def test_pythons_are_those_of_the_classifiers() -> None:
    """The page names the oldest supported Python, and all versions of the package's classifiers."""
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    prose = re.sub(r"```.*?```", "", text_of(PAGE), flags=re.DOTALL)
    assert re.findall(r"\b3\.1\d\b", prose) == [promised[0], *promised]


def test_oldest_postgresql_is_that_of_the_store() -> None:
    """The page names the oldest PostgreSQL that the store accepts."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres._schema import OLDEST_SERVER

    assert f"**PostgreSQL** {OLDEST_SERVER // 10_000} or newer" in text_of(PAGE)
