"""Hooks of ``schemathesis`` that put real pictures into requests that should succeed.

Generated pictures are invalid, and only a start that succeeds makes an operation to follow.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.generation import GenerationMode

BODIES = json.loads(Path(os.environ["ANALYSIS_BODIES"]).read_text())
"""An accepted request for each path."""


@schemathesis.hook
def before_call(context: Any, case: Any, _: Any) -> None:
    """Put pictures into a generated body, or use the accepted body if links are followed."""
    body = BODIES.get(case.operation.path)
    if body is None or case.meta is None:
        return
    if case.meta.phase.name == "stateful":
        case.body = body
    elif case.meta.generation.mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
        case.body.update(body)
