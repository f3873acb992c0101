"""``python -m bench [NAME ...]``: all benches, or those named. See docs/explanation/speed.md."""

from __future__ import annotations

import importlib
import platform
import sys

NAMES = ("start_to_result", "http_get", "wake", "codec", "imports")


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise SystemExit(f"no such bench: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    print(f"CPython {platform.python_version()}, {platform.machine()}; ours / floor = ratio")
    for name in names or NAMES:
        module = importlib.import_module(f"bench.{name}")
        print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        for line in module.run():
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
