"""The server under test: its process, and the facts in its log.

Read `launch` first: `start_server` takes a recipe. `lifecycle` runs a server, `bootlog` reads its log,
`failures` and `evidence` explain and record a failed one.
"""

from sparkwright.engine.server.bootlog import error_lines, facts_from_metrics, read_boot_log
from sparkwright.engine.server.environment import prepare_wheel
from sparkwright.engine.server.failures import Cause, ServerFailedError, diagnose, known_cause
from sparkwright.engine.server.host import sample_host
from sparkwright.engine.server.launch import start_server
from sparkwright.engine.server.lifecycle import BOOT_S, ServerProcess

__all__ = [
    "BOOT_S",
    "Cause",
    "ServerFailedError",
    "ServerProcess",
    "diagnose",
    "error_lines",
    "facts_from_metrics",
    "known_cause",
    "prepare_wheel",
    "read_boot_log",
    "sample_host",
    "start_server",
]
