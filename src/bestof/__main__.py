"""`python -m bestof` is the command `bestof`."""

from __future__ import annotations

import sys

from bestof.cli import main

if __name__ == "__main__":
    sys.exit(main())
