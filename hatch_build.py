"""Part of the build of the wheel: its bill of materials (PEP 770), in the form of CycloneDX."""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BillOfMaterials(BuildHookInterface[Any]):
    """Adds ``.dist-info/sboms/lro.cdx.json``; the same sources give the same bytes.

    The wheel holds no software of others. What it asks for is listed without versions, which are
    chosen by who installs it.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Write it where hatchling takes it from."""
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "lro.cdx.json"
        path.write_text(json.dumps(self._bill(), indent=2) + "\n", "utf-8")
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, build_data: dict[str, Any], path: str) -> None:  # noqa: ARG002
        """Remove what was written."""
        self._folder.cleanup()

    def _bill(self) -> dict[str, Any]:
        core = self.metadata.core
        root = f"pkg:pypi/{core.name}@{self.metadata.version}"
        needed = {name_of(text): text for text in core.dependencies}
        others = {
            name_of(text): text
            for texts in core.optional_dependencies.values()
            for text in texts
            if name_of(text) not in needed
        }
        return {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, root)}",
            "version": 1,
            "metadata": {
                "lifecycles": [{"phase": "build"}],
                "component": {
                    "type": "library",
                    "bom-ref": root,
                    "name": core.name,
                    "version": self.metadata.version,
                    "description": core.description,
                    "licenses": [{"expression": core.license_expression}],
                    "purl": root,
                },
            },
            "components": [
                *(component(*one, "required") for one in sorted(needed.items())),
                *(component(*one, "optional") for one in sorted(others.items())),
            ],
            "dependencies": [{"ref": root, "dependsOn": [purl(name) for name in sorted(needed)]}],
            "compositions": [{"aggregate": "complete", "assemblies": [root]}],
        }


def name_of(requirement: str) -> str:
    """The package that is required, as indexes spell it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0] if found else requirement).lower()


def purl(name: str) -> str:
    """The package URL of any version."""
    return f"pkg:pypi/{name}"


def component(name: str, requirement: str, scope: str) -> dict[str, Any]:
    """A package that the wheel asks for."""
    return {
        "type": "library",
        "bom-ref": purl(name),
        "name": name,
        "scope": scope,
        "purl": purl(name),
        "properties": [{"name": "lro:requirement", "value": requirement}],
    }
