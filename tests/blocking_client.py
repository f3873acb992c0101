"""Generate the blocking client from the async client: ``python -m tests.blocking_client``.

Format the generated file afterwards with ``ruff format src``. A test compares it with the output
of this module.
"""

from __future__ import annotations

import re
from typing import Final

from tests.sources import SRC

SOURCE: Final = SRC / "lro_client/_client/async_client.py"
TARGET: Final = SRC / "lro_client/_client/client.py"

HEADER: Final = '''"""The client that blocks, its handles, groups and pagers."""

# Generated from async_client.py by `python -m tests.blocking_client`: edit that file instead.
'''

REPLACED: Final = [
    # parts that only an event loop needs
    (r'^""".*?"""\n', HEADER),
    (r"\n    def __await__\(.*?(?=\n\n)", ""),
    (r" ``await operation`` gives the result\.", ""),
    # a generator needs no ``async with`` to close it, and can delegate to another generator
    (r"( +)async with aclosing\((.+)\) as (\w+):\n +async (for \w+ in )\3:\n", r"\1\4\2:\n"),
    (r"( +)for (\w+) in (.+):\n +yield \2\n", r"\1yield from \3\n"),
    # syntax of coroutines
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__a(enter|exit|iter)__", r"__\1__"),
    (r"\bAsyncGenerator\[(.+), None\]", r"Iterator[\1]"),
    (r"\bAwaitable\[None\]", "None"),
    (r"from contextlib import aclosing\n", ""),
    # names of classes, functions and modules
    (r"\basync_driver import AsyncDriver\b", "drivers import Driver"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b(handle_flows\.)async_", r"\1"),
    (r"\bDriver\(transport, sleep\)", "Driver(transport, config.clock, sleep)"),
    (r"\bcheck_awaits\b", "check_blocks"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\basyncio\.Future\b", "Future"),
    (r"import asyncio\n", "import time\n"),
    (r"(collections\.abc import ).*\n", r"\1Callable, Iterable, Iterator\n"),
    (r"    import uuid\n", "    import uuid\n    from concurrent.futures import Future\n"),
    # sentences in docstrings
    (r"It can be used on several event loops\.", "It can be shared between threads."),
    (r"a future of the event loop\. No task", "a future of the standard library. No thread"),
    (r"once each, on the event loop\.", "once each, in a thread."),
    (
        r"a function is called\n    before each request, and may be a coroutine function\.",
        "a function is called\n    before each request.",
    ),
]
"""Patterns and their replacements, applied in this order."""


def blocking(text: str) -> str:
    """Return the blocking form of a module of coroutines, before it is formatted.

    Raises:
        ValueError: A pattern does not occur, because the module has changed; adapt ``REPLACED``.
    """
    for pattern, by in REPLACED:
        text, count = re.subn(pattern, by, text, flags=re.DOTALL if ".*?" in pattern else 0)
        if not count:
            raise ValueError(f"{pattern} does not occur in {SOURCE.name}")
    return text


def main() -> None:
    """Write the blocking client."""
    TARGET.write_text(blocking(SOURCE.read_text()))


if __name__ == "__main__":
    main()
