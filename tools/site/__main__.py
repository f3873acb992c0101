"""Build the site into ``site``; ``--serve`` then shows it on this machine."""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import tempfile
from pathlib import Path

from tools.site.api import ROOT
from tools.site.building import SiteError, build


def main() -> int:
    """The exit status is 1 where Zensical warns of anything."""
    options = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    options.add_argument("--serve", action="store_true", help="serve it until Ctrl-C")
    options.add_argument("--port", type=int, default=8000)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            built = build(Path(folder))
        except SiteError as error:
            print(error, file=sys.stderr)
            return 1
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.copytree(built, ROOT / "site")
    print(f"built {len(list((ROOT / 'site').rglob('*.html')))} pages in site/")
    if asked.serve:
        serve(ROOT / "site", asked.port)
    return 0


def serve(folder: Path, port: int) -> None:
    """Serve the files on the loopback address until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"serving on http://127.0.0.1:{server.server_port}, until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    sys.exit(main())
