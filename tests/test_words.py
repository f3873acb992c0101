"""Words and names that the project has given up occur nowhere in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

READ: Final = ("src", "docs", "examples", "tests", "bench", "changelog.d", "tools")
ALSO_READ: Final = (
    *("README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("noxfile.py", "pyproject.toml", "run.py"),
)

WORDS: Final[Mapping[str, str]] = {
    "adopt adopts adopted adopting adoption": "recover",
    "amid": "during",
    "anew": "again",
    "anybody": "any caller, process or thread: name the actor",
    "bell bells": "notifier",
    "bury buries buried burying": "reap",
    "carrier carriers": "worker task",
    "crew crews": "worker threads",
    "curious": "wants_progress",
    "desk desks": "what it is: a service, a queue",
    "ear ears": "change subscription",
    "errand errands": "what it is: a task, a method",
    "everybody": "all callers, processes or threads: name the actors",
    "forsake forsakes forsook forsaken": "detach",
    "glance glances glanced": "poll_states, StateSummary",
    "heard hearing hearings": "notified, change listener",
    "house houses": "what it holds: a service",
    "hunt hunts hunted hunter hunters hunting": "scan for orphans",
    "lane lanes": "poller",
    "ledger ledgers": "RecordUpdater",
    "lest": "so that ... not",
    "lookout lookouts": "watcher",
    "mailbox mailboxes": "channel",
    "muster musters mustered": "ensure_started",
    "nobody": "no caller, process or thread: name the actor",
    "nor": "and ... not: two sentences; neither ... nor on one line is fine",
    "nursery nurseries": "what it holds: child processes",
    "patiently": "retry_while_unavailable",
    "recipe recipes": "FunctionReference",
    "somebody": "a caller, process or thread: name the actor",
    "staffed": "pooled",
    "tell tells telling told": "report, raise, notify, say",
    "unbegun": "not_started",
    "unseal": "decode_page_token",
    "upkeep": "maintenance",
    "whoever": "the caller, process or thread that: name the actor",
}
"""Words that occur in no text and in no part of a name, and what to write instead."""

NAMES: Final[Mapping[str, str]] = {
    "Hands HANDS": "CallThreads, ChildMain",
    "KnownRecords RecentRecords": "RecordCache",
    "LoopRooms WaitingRoom": "LoopWaiters, Waiters",
    "TROUBLE": "DATABASE_ERRORS",
    "_disclosure": "public_errors",
    "await_": "wait_async",
    "below_mount": "strip_mount",
    "hand_back": "release",
    "hands_only": "is_worker_process",
    "lie_down": "try_sleep",
}
"""Names that are gone as a whole, where their words are ordinary English."""

MEMBERS: Final[Mapping[str, str]] = {
    "ring": "notify",
    "went": "exited",
}
"""Functions and attributes that are gone, whose names are ordinary words."""

EXEMPT: Final[Mapping[str, str]] = {
    '"nobody"': "a user of Debian, as whom PostgreSQL runs",
    "'nobody'": "the same",
    "``nobody``": "the same",
    "hunter2": "a secret of the application, which must not reach callers",
    ".tell()": "the method of Python's files",
}
"""Texts that the check passes over, and why."""

INSTEAD: Final = {word: text for words, text in WORDS.items() for word in words.split()}
INSTEAD_OF_NAME: Final = {name: text for names, text in NAMES.items() for name in names.split()}


def found(text: str) -> Iterator[tuple[str, str]]:
    """The words and names in a text that are gone, each with what to write instead."""
    for exempt in EXEMPT:
        text = text.replace(exempt, " ")
    text = re.sub(r"\bneither\b(.*?)\bnor\b", r"\1", text, flags=re.IGNORECASE)
    for member in re.findall(r"(?:def |\.)(\w+)", text):
        if member in MEMBERS:
            yield member, MEMBERS[member]
    for name in re.findall(r"[^\W\d]\w*", text):
        if name in INSTEAD_OF_NAME:
            yield name, INSTEAD_OF_NAME[name]
        for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name):
            if part.lower() in INSTEAD:
                yield part, INSTEAD[part.lower()]


def files() -> Iterator[tuple[str, Path]]:
    """Every text that is read, by its path from the root; this file is not."""
    folders = [path for folder in READ for path in sorted((ROOT / folder).rglob("*"))]
    for path in [*folders, *(ROOT / name for name in ALSO_READ)]:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in {".py", ".md", ".toml"} and path != Path(__file__).resolve():
            yield name, path


def test_words_that_are_gone_occur_nowhere() -> None:
    """A failure names the file, the line, the word, and what to write instead."""
    wrong = []
    for name, path in files():
        lines = [name, *path.read_text("utf-8").splitlines()]  # the path counts as line 0
        for number, line in enumerate(lines):
            for word, instead in found(line):
                wrong.append(f"{name}:{number}: {word!r}: write: {instead}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class OpenLedger: ...", ["Ledger"]),
        ("MAX_LEDGERS = told_twice", ["LEDGERS", "told"]),
        ("# Nobody waits, nor does 'LoopRooms'.", ["Nobody", "nor", "LoopRooms"]),
        ("It is neither true nor false, nor both.", ["nor"]),
        ("def test_bell(self) -> None:", ["bell"]),
        ("house2 = 1", ["house"]),
        ("await_all, more_hand_back = file.tell(), 'hunter2'", []),
        ("store.await_(name)", ["await_"]),
        ("He went on, bellows in hands, through normal rooms.", []),
        ("process.went, def ring(self): return", ["went", "ring"]),
    ],
)
def test_gone_words_are_found_in_names_and_text(text: str, words: list[str]) -> None:
    """Names are split at underscores and capitals; longer words that contain one are others."""
    assert [word for word, _ in found(text)] == words


def test_each_exempt_text_occurs() -> None:
    """An exemption that is no longer needed is removed."""
    texts = [path.read_text("utf-8") for _, path in files()]
    assert [one for one in EXEMPT if not any(one in text for text in texts)] == []
