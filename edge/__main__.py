"""Runs an edge: `python -m edge`."""

import sys

from edge.main import main

if __name__ == "__main__":
    sys.exit(main())
