"""The server under test: its recipe and options, its process, and the facts in its log.

Read `launch` first: `start_server`. `recipe` and `rules` define the servers that may be started, `lifecycle`
runs one, `bootlog` reads its log, `failures` and `evidence` explain and record a failed one.
"""

from sparkwright.verify.server.bootlog import error_lines, facts_from_metrics, read_boot_log
from sparkwright.verify.server.environment import find_installed, prepare_wheel
from sparkwright.verify.server.host import sample_host
from sparkwright.verify.server.launch import start_server
from sparkwright.verify.server.lifecycle import ServerFailedError, ServerProcess
from sparkwright.verify.server.recipe import Recipe, load_recipe, variant

__all__ = [
    "Recipe",
    "ServerFailedError",
    "ServerProcess",
    "error_lines",
    "facts_from_metrics",
    "find_installed",
    "load_recipe",
    "prepare_wheel",
    "read_boot_log",
    "sample_host",
    "start_server",
    "variant",
]
