"""``python -m examples.analysis serve|demo|draw``."""

from __future__ import annotations

import importlib
import sys
from typing import Final

USAGE: Final = "usage: python -m examples.analysis serve|demo|draw [--help | OPTIONS]"
MODULES: Final = {"serve": "server", "demo": "demo", "draw": "drawing"}


def main() -> None:
    match sys.argv[1:]:
        case ["serve" | "demo" | "draw" as name, *rest]:
            importlib.import_module(f"examples.analysis.{MODULES[name]}").main(rest)
        case ["-h" | "--help"]:
            print(USAGE)
        case _:
            raise SystemExit(USAGE)


if __name__ == "__main__":
    main()
