"""The memory that a server needs for large replies (docs/reference/limits.md)."""

from __future__ import annotations

from pathlib import Path

from tests.security.memory import SIZE, Served, together


def test_server_uses_bounded_memory_for_large_replies(tmp_path: Path) -> None:
    """In parallel, four lists and four batches of 40 operations of 1.8 MB use less than 300 MB."""
    served = Served("sqlite", "text", str(tmp_path / "operations.db"), 40, SIZE)
    try:
        found = together(*[served.walk] * 4, *[served.batch] * 4)
        assert found == [40] * 4 + [429] * 4
        assert served.memory("VmHWM") - served.idle < 300
    finally:
        served.close()
