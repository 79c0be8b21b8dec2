"""``python -m sparkwright.serve.health FILE``: exit 0 if the served engine brings tokens, else 1.

For health checks of containers: it reads the watchdog's state and sends no request of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sparkwright.serve.sd_notify import read_state

VARIABLE = "SPARKWRIGHT_STATE"


def main(arguments: list[str]) -> int:
    """Write the state to standard output; return the exit status."""
    named = arguments[0] if arguments else os.environ.get(VARIABLE, "")
    good, line = (
        read_state(Path(named)) if named else (False, f"name the file of the state, or set {VARIABLE}")
    )
    os.write(1, f"{line}\n".encode())
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
