"""Times the steps of a script that another launcher starts, for `scale.py`.

    LAUNCHER timed_under.py ORDERS REPORTS script.py [arguments]

ORDERS and REPORTS are file descriptors of the launcher, which starts its programs without them.
"""

from __future__ import annotations

import os
import sys

from bestof.cli.tune_trial import main

if __name__ == "__main__":
    launcher = os.getppid()
    orders = os.open(f"/proc/{launcher}/fd/{sys.argv[1]}", os.O_RDONLY)
    reports = os.open(f"/proc/{launcher}/fd/{sys.argv[2]}", os.O_WRONLY)
    # No settings: the script runs as it stands.
    sys.exit(main([str(launcher), "{}", str(orders), str(reports), *sys.argv[3:]]))
