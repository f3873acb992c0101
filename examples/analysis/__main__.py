"""``python -m examples.analysis serve|demo``."""

from __future__ import annotations

import sys


def main() -> None:
    match sys.argv[1:]:
        case ["serve", *rest]:
            from examples.analysis.server import main as serve

            serve(rest)
        case ["demo", *rest]:
            from examples.analysis.demo import main as demo

            demo(rest)
        case _:
            raise SystemExit("usage: python -m examples.analysis serve|demo [--help | OPTIONS]")


if __name__ == "__main__":
    main()
