"""``python -m lro.cli``: the command, where its script is not on the path."""

import sys

from lro.cli import main

if __name__ == "__main__":
    sys.exit(main())
