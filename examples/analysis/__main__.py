"""``python -m examples.analysis serve|demo|draw``."""

from __future__ import annotations

import sys
from typing import Final

USAGE: Final = "usage: python -m examples.analysis serve|demo|draw [--help | OPTIONS]"


def main() -> None:
    match sys.argv[1:]:
        case ["serve", *rest]:
            from examples.analysis.server import main as serve

            serve(rest)
        case ["demo", *rest]:
            from examples.analysis.demo import main as demo

            demo(rest)
        case ["draw", *rest]:
            from examples.analysis.drawing import main as draw

            draw(rest)
        case ["-h" | "--help"]:
            print(USAGE)
        case _:
            raise SystemExit(USAGE)


if __name__ == "__main__":
    main()
