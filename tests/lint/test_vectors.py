"""The linter agrees with every vector of spec §8."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from lro import OperationInfo
from lro.lint import Finding, breaking, lint, operation_infos
from lro.lint._descriptors import DescriptorSet
from lro.lint._lint import resolved_info
from tests.vector_files import vectors


def cases(name: str) -> list[Any]:
    """The cases of a file, each with the imports that are common to all."""
    content = vectors(name)
    assert len(content["cases"]) == content["count"]
    base = base64.b64decode(content["base_files"])
    return [pytest.param(case, base, id=case["id"]) for case in content["cases"]]


def facts_of(finding: Finding, *names: str) -> dict[str, object]:
    """What a vector says of a finding: these facts, where there are any."""
    facts = {name: getattr(finding, name) for name in names}
    return {name: fact for name, fact in facts.items() if fact is not None}


def names_of(info: OperationInfo) -> dict[str, str]:
    """The names that there are."""
    named = {"response_type": info.response_type, "metadata_type": info.metadata_type}
    return {field: name for field, name in named.items() if name}


@pytest.mark.parametrize(("case", "base"), cases("opinfo_lint"))
def test_lint(case: dict[str, Any], base: bytes) -> None:
    """The findings and the full names of types are those of the case, in its order.

    The registry has the methods with both types.
    """
    data = base + base64.b64decode(case["files"])
    found = lint(data, targets=case["targets"])
    assert [facts_of(one, "method", "code", "severity") for one in found] == case["expect"][
        "findings"
    ]
    files = DescriptorSet(data)
    infos = {str(rpc.name): resolved_info(files, rpc) for rpc in files.rpcs("", case["targets"])}
    resolved = {method: names_of(info) for method, info in infos.items() if info is not None}
    assert {method: found for method, found in resolved.items() if found} == case["expect"][
        "resolved"
    ]
    registry = operation_infos(data)
    complete = {method for method, found in resolved.items() if len(found) == 2}
    assert {method: names_of(registry[method]) for method in registry} == {
        method: resolved[method] for method in complete
    }


@pytest.mark.parametrize(("case", "base"), cases("opinfo_breaking"))
def test_breaking(case: dict[str, Any], base: bytes) -> None:
    """The changes are those of the case, with the old and the new type."""
    found = breaking(
        base + base64.b64decode(case["old_files"]),
        base + base64.b64decode(case["new_files"]),
        old_targets=case["old_targets"],
        new_targets=case["new_targets"],
    )
    said = [facts_of(one, "method", "code", "old", "new") for one in found]
    assert said == case["expect"]
