"""Preflight: find out that a server would not start, or the host not survive it, before weights are read.

Open `run` first: `run_preflight` collects the findings, `inspect_start` the memory budget too. `checkpoint`,
`hub`, `machine` and `link` read facts, which `facts` puts together; `files`, `drafter`, `engine_checks` and
`memory` judge them. `kv_plan` repeats vLLM's layout of the KV cache; ``findings.toml`` has every text.
"""

from sparkwright.engine.installed import EngineFacts
from sparkwright.serve.preflight.checkpoint import find_folder, find_quantization
from sparkwright.serve.preflight.engine_checks import check_options
from sparkwright.serve.preflight.facts import (
    AskOptions,
    PreflightRequest,
    StartFacts,
    read_engine,
    read_facts,
)
from sparkwright.serve.preflight.finding import Finding, refusal, refusals, require_clear, warn_or_refuse
from sparkwright.serve.preflight.hub import Hub
from sparkwright.serve.preflight.link import LinkFacts, SysFs, read_link
from sparkwright.serve.preflight.machine import CardFacts, HostFacts, check_room, read_host
from sparkwright.serve.preflight.memory import BudgetRow
from sparkwright.serve.preflight.run import (
    EARLY,
    OF_HOST,
    PreflightReport,
    inspect_start,
    run_preflight,
)
from sparkwright.serve.preflight.shape import model_shape

__all__ = [
    "EARLY",
    "OF_HOST",
    "AskOptions",
    "BudgetRow",
    "CardFacts",
    "EngineFacts",
    "Finding",
    "HostFacts",
    "Hub",
    "LinkFacts",
    "PreflightReport",
    "PreflightRequest",
    "StartFacts",
    "SysFs",
    "check_options",
    "check_room",
    "find_folder",
    "find_quantization",
    "inspect_start",
    "model_shape",
    "read_engine",
    "read_facts",
    "read_host",
    "read_link",
    "refusal",
    "refusals",
    "require_clear",
    "run_preflight",
    "warn_or_refuse",
]
