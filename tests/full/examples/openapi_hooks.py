"""Hooks for ``schemathesis`` that put real pictures into requests that are meant to succeed.

No generator makes a picture, and only a start that succeeds has an operation to follow.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.generation import GenerationMode

BODIES = json.loads(Path(os.environ["ANALYSIS_BODIES"]).read_text())
"""By path, a request that is accepted."""


@schemathesis.hook
def before_call(context: Any, case: Any, _: Any) -> None:
    """Put the pictures into a generated body; where links are followed, use the accepted body."""
    body = BODIES.get(case.operation.path)
    if body is None or case.meta is None:
        return
    if case.meta.phase.name == "stateful":
        case.body = body
    elif case.meta.generation.mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
        case.body.update(body)
