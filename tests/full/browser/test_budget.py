"""The size of the console's files, and what they may not contain."""

from __future__ import annotations

import re
from pathlib import Path

import lro._console
from lro.console import page_files

ASSETS = Path(lro._console.__file__).with_name("assets")
FIRST = ("index.html", "console.css", "console.js")
"""The files that the browser loads before the list appears."""


def sizes() -> dict[str, tuple[int, int]]:
    """Return the size of each file as it is sent: plain and gzipped."""
    files = {re.sub(r"\.[0-9a-f]{16}", "", path): file for path, file in page_files().items()}
    return {
        path.strip("/") or "index.html": (len(file.content), len(file.packed))
        for path, file in files.items()
    }


def test_first_view_is_at_most_22_kilobytes_gzipped() -> None:
    """Page, style and script have at most 22 KB gzipped in total; other views share one file."""
    found = sizes()
    assert set(found) == {*FIRST, "views.js", "icon.svg"}
    assert sum(found[name][1] for name in FIRST) <= 22 * 1024
    assert found["views.js"][1] <= 10 * 1024
    plain = {name: content for name, (content, _) in found.items()}
    assert plain["index.html"] <= 3 * 1024
    assert plain["console.js"] <= 45 * 1024


def test_files_obey_the_content_security_policy() -> None:
    """The files build no markup from text, have no inline styles and name no other server."""
    forbidden = (
        r"https?://(?!www\.w3\.org/2000/svg)[\w.]|innerHTML|outerHTML|insertAdjacentHTML"
        r"|document\.write|eval\(|\bFunction\(|style="
    )
    for file in ASSETS.rglob("*.*"):
        if file.is_file():
            assert not re.search(forbidden, file.read_text()), file.name
