"""The command ``lro``: check long-running methods, run a service, call servers.

The command needs the extra ``cli``; this module can be imported without the extra.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from lro.errors import MissingExtra, check_texts

_PACKAGES: Final = ("click", "rich")
"""Packages that the extra ``cli`` installs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the arguments of the process.

    Returns:
        The exit status: 0 if all is well, 1 if there are findings, 2 if the arguments or files
        cannot be used or an extra is missing, 130 after Ctrl-C, 141 if the reader of the output
        has closed it.

    Raises:
        DeclarationError: The arguments are not a tuple or list of texts.
    """
    if arguments is not None:
        check_texts("arguments", arguments)
    # If standard error is closed, a connection could get its descriptor, and then our messages.
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
    if sys.stdout is None:
        print("lro: standard output is closed", file=sys.stderr)
        return 2
    try:
        from lro.cli import _app

        return _app.run(arguments)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _PACKAGES:
            raise
        print(f"lro: {MissingExtra('the command lro', 'cli')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # Ctrl-C while modules are imported
        return 130
