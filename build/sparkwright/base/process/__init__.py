"""Start programs: run them to their end, within limits, or in a session that outlives no caller.

Open `run` first. `session` starts programs in the background, `limited` kills those that exceed limits, and
`dialogue` talks with one while it runs.
"""

from sparkwright.base.process.dialogue import Dialogue
from sparkwright.base.process.installer import install_packages, make_venv, uv_program
from sparkwright.base.process.limited import LimitsExceeded, ProcessLimits, run_limited, watch
from sparkwright.base.process.run import Completed, UnguardedProcess, run, start_unguarded, stream, which
from sparkwright.base.process.session import Ended, Running, resident_mib, start

__all__ = [
    "Completed",
    "Dialogue",
    "Ended",
    "LimitsExceeded",
    "ProcessLimits",
    "Running",
    "UnguardedProcess",
    "install_packages",
    "make_venv",
    "resident_mib",
    "run",
    "run_limited",
    "start",
    "start_unguarded",
    "stream",
    "uv_program",
    "watch",
    "which",
]
