"""Runs the command by ``python -m lro.cli``, even if the script ``lro`` is not on the path."""

import sys

from lro.cli import main

if __name__ == "__main__":
    sys.exit(main())
