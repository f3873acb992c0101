"""The command ``lro``: check long-running methods, ask servers. Needs the extra ``cli``.

This module can be imported without the extra; only running the command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from lro._base.arguments import check_texts
from lro._base.errors import MissingExtra

_PACKAGES: Final = ("click", "rich")
"""What the extra installs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process.

    Returns:
        The exit status: 0 if nothing was found, 1 if something was, 2 if the arguments or files
        cannot be used or an extra is missing, 130 after Ctrl-C, 141 if the
        reader of the output has gone.

    Raises:
        DeclarationError: The arguments are not a tuple or list of texts.
    """
    if arguments is not None:
        check_texts("arguments", arguments)
    if sys.stderr is None:  # closed: a connection would get its number, and then the messages
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
    except KeyboardInterrupt:  # while modules were loaded
        return 130
