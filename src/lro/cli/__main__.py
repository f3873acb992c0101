"""``python -m lro.cli`` runs the command if its script is not on the path."""

import sys

from lro.cli import main

if __name__ == "__main__":
    sys.exit(main())
