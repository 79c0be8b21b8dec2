"""The server under test: its recipe and options, its process, and the facts in its log.

Read `launch` first: `start_server`. `recipe` and `rules` define the servers that may be started, `lifecycle`
runs one, `bootlog` reads its log, `failures` and `evidence` explain and record a failed one.
"""

from sparkwright.verify.server.bootlog import error_lines, facts_from_metrics, read_boot_log
from sparkwright.verify.server.environment import Installed, find_installed, prepare_wheel
from sparkwright.verify.server.failures import CAUSES, Cause, diagnose
from sparkwright.verify.server.host import card_capability, sample_host
from sparkwright.verify.server.launch import BOOT_S, start_server
from sparkwright.verify.server.lifecycle import ServerFailedError, ServerProcess
from sparkwright.verify.server.recipe import Recipe, load_recipe, recipes, variant
from sparkwright.verify.server.rules import RULES, Rule, check_compatible, incompatibilities

__all__ = [
    "BOOT_S",
    "CAUSES",
    "RULES",
    "Cause",
    "Installed",
    "Recipe",
    "Rule",
    "ServerFailedError",
    "ServerProcess",
    "card_capability",
    "check_compatible",
    "diagnose",
    "error_lines",
    "facts_from_metrics",
    "find_installed",
    "incompatibilities",
    "load_recipe",
    "prepare_wheel",
    "read_boot_log",
    "recipes",
    "sample_host",
    "start_server",
    "variant",
]
