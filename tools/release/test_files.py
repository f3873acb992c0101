"""The files themselves: the same bytes each time, with what belongs into them and no more."""

from __future__ import annotations

import json
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.conftest import PACKAGES, PROJECT, PYPROJECT, ROOT, Files, build, run, tool

INFO: Final = f"lro-{PROJECT['version']}.dist-info"
OTHERWISE: Final = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7"}


def member(files: Files, name: str) -> str:
    """A text in the wheel."""
    with zipfile.ZipFile(files.wheel) as wheel:
        return wheel.read(name).decode()


def test_files_built_twice_are_the_same_bytes(built: Files, sources: Path, tmp_path: Path) -> None:
    """Elsewhere, from the source archive, at another time zone: not one byte differs."""
    again = build(sources, tmp_path / "dist", **OTHERWISE)
    assert again.wheel.name == built.wheel.name
    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert again.sdist.read_bytes() == built.sdist.read_bytes()


def test_judges_of_packages_find_nothing(built: Files) -> None:
    """``twine check --strict`` and ``check-wheel-contents``."""
    run(sys.executable, "-m", "twine", "check", "--strict", built.sdist, built.wheel, cwd=ROOT)
    run(tool("check-wheel-contents"), built.wheel, cwd=ROOT)


def test_wheel_has_packages_with_types_and_license(built: Files) -> None:
    """Each package is marked as typed; beside them stands only what describes the wheel."""
    with zipfile.ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, INFO}
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
        kept = {path.name for path in (ROOT / "src" / package).rglob("*") if path.is_file()}
        assert {Path(name).name for name in names if name.startswith(f"{package}/")} <= kept
    assert f"{INFO}/licenses/LICENSE" in names


def test_metadata_say_what_project_says(built: Files) -> None:
    """Name, version, license, Pythons and extras; no tool of developers among the extras."""
    text = member(built, f"{INFO}/METADATA")
    metadata = Metadata.from_email(text, validate=True)
    assert (metadata.name, str(metadata.version)) == ("lro", PROJECT["version"])
    assert metadata.license_expression == "Apache-2.0"
    assert str(metadata.requires_python) == PROJECT["requires-python"]
    assert metadata.description_content_type == "text/markdown"
    assert set(metadata.provides_extra or ()) == set(PROJECT["optional-dependencies"])
    assert not set(metadata.provides_extra or ()) & set(PYPROJECT["dependency-groups"])
    assert set(metadata.classifiers or ()) == set(PROJECT["classifiers"])
    assert all(url.startswith("https://") for url in (metadata.project_urls or {}).values())
    plain = [one for one in metadata.requires_dist or () if one.marker is None]
    assert {str(one) for one in plain} == {str(Requirement(r)) for r in PROJECT["dependencies"]}
    assert all("<" not in str(one.specifier) for one in plain)  # caps are for applications
    assert wheel_tag(built) == "py3-none-any"


def wheel_tag(files: Files) -> str:
    """What the wheel says that it runs on."""
    found: Message = Parser().parsestr(member(files, f"{INFO}/WHEEL"))
    return str(found["Tag"])


def test_bill_of_materials_is_valid_and_complete(built: Files) -> None:
    """CycloneDX's own validator takes it, and it has each package that is asked for."""
    text = member(built, f"{INFO}/sboms/lro.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/lro@{PROJECT['version']}"
    required = {canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]}
    listed = {one["name"]: one["scope"] for one in bill["components"]}
    assert {name for name, scope in listed.items() if scope == "required"} == required
    extras = PROJECT["optional-dependencies"].values()
    asked = {canonicalize_name(Requirement(one).name) for extra in extras for one in extra}
    assert set(listed) == required | asked


@pytest.mark.parametrize(
    "name", ["CHANGELOG.md", "CITATION.cff", "Dockerfile", "SECURITY.md", "noxfile.py", "run.py"]
)
def test_source_archive_has_what_distributors_need(sources: Path, name: str) -> None:
    """The files beside the code."""
    assert (sources / name).read_bytes() == (ROOT / name).read_bytes()
