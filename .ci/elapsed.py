"""Run a command, and show on a terminal how long it has taken.

python .ci/elapsed.py WHAT COMMAND...

pip's own sign of life stands still while one file compiles. The exit status is the command's.
"""

import subprocess
import sys
from time import monotonic


def main(what: str, *command: str) -> int:
    began, shown = monotonic(), sys.stderr.isatty()
    if not shown:
        print(what, flush=True)
    with subprocess.Popen(command) as process:
        while True:
            if shown:
                minutes, seconds = divmod(int(monotonic() - began), 60)
                print(f"\r{what}: {minutes}:{seconds:02}", end="", file=sys.stderr, flush=True)
            try:
                status = process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
            if shown:
                print(file=sys.stderr)
            return status


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
