"""What programs read: ``llms.txt``, ``llms-full.txt``, and the Markdown of each page beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import griffe

from tools.site.api import Api, is_attrs, shown_members
from tools.site.docstrings import constructor

SUMMARY: Final = (
    "Long-running operations for Python, by the interface of google.longrunning (AIP-151): a server"
    " core, lro, and a typed client, lro_client."
)


def write_llms(
    site: Path,
    sections: Mapping[str, Sequence[tuple[str, str]]],
    pages: Mapping[str, str],
    api: Api,
) -> None:
    """Write the files into the built site; ``pages`` has the Markdown of each by its path."""
    index, full = [f"# lro\n\n> {SUMMARY}\n"], []
    for section, entries in sections.items():
        index.append(f"\n## {section}\n\n")
        for title, page in entries:
            text = pages[page]
            if directive := re.fullmatch(r"::: (\S+)\n", text):
                text = _reference(api, directive[1])
            (site / page).write_text(text, encoding="utf-8")
            index.append(f"- [{title}]({page}): {first_sentence(text)}\n")
            full.append(f"<!-- {page} -->\n\n{text.strip()}\n")
    (site / "llms.txt").write_text("".join(index), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n".join(full), encoding="utf-8")


def first_sentence(text: str) -> str:
    """What a page is about: the first sentence below its title, without links."""
    body = re.sub(r"^#.*$|^!\[.*$|^\|.*$", "", text, flags=re.MULTILINE)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", body).strip()
    paragraph = " ".join(plain.split("\n\n", 1)[0].split())
    return re.split(r"(?<=[.:?])\s+(?=[A-Z`])", paragraph)[0]


def _reference(api: Api, path: str) -> str:
    """The entry of each name of a module: its signature, and its docstring as it is written."""
    module = api.modules[path]
    parts = [f"# {path}", _docstring(module)]
    for name in api.names(path):
        thing = module[name]
        parts += [f"## {path}.{name}", _signature(thing), _docstring(thing)]
        if thing.is_class:
            for member in shown_members(thing):
                one = thing.all_members[member]
                parts += [f"### {path}.{name}.{member}", _signature(one), _docstring(one)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _signature(thing: griffe.Object | griffe.Alias) -> str:
    """How it is called, or what type it has, as a block of Python."""
    if isinstance(thing, griffe.Alias):
        thing = thing.final_target
    said = ""
    if isinstance(thing, griffe.Function):
        said = thing.signature()
    elif isinstance(thing, griffe.Attribute):
        said = f"{thing.name}: {thing.annotation}" if thing.annotation else thing.name
    elif isinstance(thing, griffe.Class):
        made = constructor(thing) if is_attrs(thing) else thing.all_members.get("__init__")
        if isinstance(made, griffe.Function):
            said = made.signature(name=thing.name, return_type=False).replace("self, ", "", 1)
    return f"```python\n{said}\n```" if said else ""


def _docstring(thing: griffe.Object | griffe.Alias) -> str:
    text = thing.docstring.value if thing.docstring else ""
    return plain_roles(text)


def plain_roles(text: str) -> str:
    """Return a docstring with code in place of Sphinx roles."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
