"""The test vectors: cases for the rules of the specification that a vector can test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors"


def vectors(file: str) -> dict[str, Any]:
    """Return the content of a file of test vectors."""
    content: dict[str, Any] = json.loads((VECTORS / f"{file}.json").read_text("utf-8"))
    return content


def by_id(case: Mapping[str, Any]) -> str:
    """Return the id of a vector, to be used as the id of its test."""
    return str(case["id"])
