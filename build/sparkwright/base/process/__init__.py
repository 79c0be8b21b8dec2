"""Start programs: run them to their end, within limits, or in a session that outlives no caller.

Open `run` first. `session` starts programs that go on in the background, `limited` kills what takes too much.
"""

from sparkwright.base.process.limited import Limits, LimitsExceeded, run_limited
from sparkwright.base.process.run import Companion, Completed, companion, run, stream, which
from sparkwright.base.process.session import Ended, Running, resident_mib, start

__all__ = [
    "Companion",
    "Completed",
    "Ended",
    "Limits",
    "LimitsExceeded",
    "Running",
    "companion",
    "resident_mib",
    "run",
    "run_limited",
    "start",
    "stream",
    "which",
]
