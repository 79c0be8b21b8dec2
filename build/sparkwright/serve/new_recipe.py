"""A recipe for a checkpoint: what follows from its configuration, and the context that fits a GB10."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.commands import Remark
from sparkwright.recipes.imported import file_name
from sparkwright.recipes.recipe import Recipe
from sparkwright.recipes.release_options import Problem
from sparkwright.serve.preflight.checkpoint import find_quantization
from sparkwright.serve.preflight.facts import PreflightRequest, StartFacts, read_facts
from sparkwright.serve.preflight.finding import require_clear
from sparkwright.serve.preflight.hub import Hub
from sparkwright.serve.preflight.machine import CardFacts, HostFacts
from sparkwright.serve.preflight.run import PreflightReport, inspect_start
from sparkwright.serve.preflight.shape import model_shape
from sparkwright.serve.settings import with_settings

_KIB = 1 << 10
SPARK = HostFacts(
    machine="aarch64",
    meminfo={"MemTotal": 127_600_000 * _KIB, "MemAvailable": 122_000_000 * _KIB},
    card=CardFacts("NVIDIA GB10", "12.1"),
)
"""A DGX Spark that has nothing else to do."""

# How models of a type (`model_type`) write calls of tools, and thoughts, by vLLM's names of the parsers.
_PARSERS = {
    "deepseek_v3": ("deepseek_v3", "deepseek_r1"),
    "deepseek_v32": ("deepseek_v32", "deepseek_v3"),
    "deepseek_v4": ("deepseek_v4", "deepseek_v4"),
    "gemma4": ("gemma4", "gemma4"),
    "glm4_moe": ("glm45", "glm45"),
    "glm4_moe_lite": ("glm47", "glm45"),
    "gpt_oss": ("openai", "openai_gptoss"),
    "llama": ("llama3_json", ""),
    "llama4": ("llama4_pythonic", ""),
    "minimax_m2": ("minimax_m2", "minimax_m2"),
    "ministral3": ("mistral", "mistral"),
    "mistral": ("mistral", ""),
    "mistral3": ("mistral", "mistral"),
    "nemotron_h": ("qwen3_coder", "nemotron_v3"),
    "phi4mm": ("", ""),
    "qwen2": ("hermes", ""),
    "qwen3": ("hermes", "qwen3"),
    "qwen3_moe": ("hermes", "qwen3"),
    "qwen3_next": ("qwen3_coder", ""),
    "qwen3_5": ("qwen3_coder", "qwen3"),
    "qwen3_5_moe": ("qwen3_coder", "qwen3"),
    "seed_oss": ("seed_oss", "seed_oss"),
}
_PARSER_FLAGS = ("tool-call-parser", "reasoning-parser")
_SHARE = 0.85
_REQUESTS = 16
_SHORTEST, _UNPLANNED = 1024, 32_768
# Of the machine that the recipe is made on, and of a link between two.
_OF_HOST = frozenset({
    "available", "compiler", "driver", "headers", "page-cache", "persistence", "swap",
    "link", "link-interface", "nccl", "rdma", "rdma-device",
})  # fmt: skip


def new_recipe(
    model: str,
    series: str,
    environment: Mapping[str, str],
    *,
    name: str = "",
    speculative: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> tuple[Recipe, tuple[Remark, ...]]:
    """Return the recipe of the checkpoint *model*, a folder or an id of the hub, and what deserves a remark.

    *speculative* is as ``--speculative-config`` has it, with the drafter as ``model``; *settings* are flags,
    each as ``NAME=VALUE``.

    Raises:
        ConfigError: the checkpoint cannot be read.
        PreflightError: it cannot be served on a GB10; each cause is one line.
    """
    drafts, last = dict(speculative or {}), model.rstrip("/").rpartition("/")[2]
    recipe = Recipe(
        format=1,
        name=file_name(name) or file_name(last) or "new",
        title=f"{last}, by its own configuration",
        model=model,
        drafter=str(drafts.pop("model", None) or ""),
        speculative=drafts,
        capability="12.1",
        series=(series,),
        why={f"speculative.{key}": "stated when the recipe was made" for key in drafts},
    )
    request = PreflightRequest(recipe, host=SPARK, environment=environment, hub=Hub(environment))
    facts = read_facts(request)
    _require_configuration(facts)
    recipe, remarks = _described(recipe, facts)
    recipe = with_settings(recipe, settings)
    recipe = msgspec.structs.replace(recipe, nodes=_machines(recipe))
    recipe, report, more = _fitted(request, recipe, facts, settings)
    # Nothing starts here, so that --force would lift nothing.
    found = [replace(one, liftable=False) for one in report.findings if one.check not in _OF_HOST]
    require_clear(found)
    told = (Remark("wrong", one.what, one.because) for one in found if one.level == "warn")
    return recipe, (*remarks, *more, *told)


def _machines(recipe: Recipe) -> int:
    """Return the number of DGX Sparks, with a card each, that the flags of *recipe* split the model over."""
    sizes = [recipe.flags.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline")]
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def without_unknown_parsers(
    recipe: Recipe, problems: Sequence[Problem]
) -> tuple[Recipe, tuple[Remark, ...], tuple[Problem, ...]]:
    """Return *recipe* without parsers that the release has not, a remark for each, and the other problems."""
    missing = {
        flag: one
        for one in problems
        for flag in _PARSER_FLAGS
        if one.kind == "value" and one.name == f"--{flag} {recipe.flags.get(flag)}"
    }
    left = set(missing) | ({"enable-auto-tool-choice"} if "tool-call-parser" in missing else set())
    changed = msgspec.structs.replace(
        recipe,
        flags={flag: value for flag, value in recipe.flags.items() if flag not in left},
        why={flag: why for flag, why in recipe.why.items() if flag not in left},
    )
    remarks = tuple(Remark("left out", one.name, one.because) for one in missing.values())
    return changed, remarks, tuple(one for one in problems if one not in missing.values())


def _require_configuration(facts: StartFacts) -> None:
    """Refuse a checkpoint without a configuration that can be read.

    Raises:
        ConfigError: there is none.
    """
    names = {facts.recipe.model: facts.target}
    names |= {facts.recipe.drafter: facts.drafter} if facts.recipe.drafter else {}
    for name, checkpoint in names.items():
        if checkpoint is None or not checkpoint.config:
            remote = facts.remote.get(name)
            told = (remote.refused or remote.unread or "it is not on this machine") if remote else ""
            told = told or ("; ".join(checkpoint.unreadable.values()) if checkpoint else "")
            raise ConfigError(
                f"the configuration of {name} cannot be read",
                because=told or "it has no config.json of its own",
                next_step="name a folder with a checkpoint, or a model of the hub",
            )


def _described(recipe: Recipe, facts: StartFacts) -> tuple[Recipe, list[Remark]]:
    """Return *recipe* with what the configuration says, and what it leaves open."""
    assert facts.target is not None  # noqa: S101 - `_require_configuration`
    target, remarks = facts.target, []
    kind = str(target.config.get("model_type") or target.text.get("model_type") or "")
    tool, reasoning = _PARSERS.get(kind, ("", ""))
    if kind not in _PARSERS:
        what = f"model_type {kind}" if kind else "no model_type"
        remarks.append(
            Remark("left out", what, "the form of its calls and thoughts is not known: --set them")
        )
    if target.config.get("auto_map"):
        own = "it brings code of its own, which is not run: --set trust-remote-code=true runs it as you"
        remarks.append(Remark("left out", ", ".join(target.architectures), own))
    shape = model_shape(target.text)
    tied = target.config.get("tie_word_embeddings", target.text.get("tie_word_embeddings"))
    flags: dict[str, Any] = {"gpu-memory-utilization": _SHARE, "max-num-seqs": _REQUESTS}
    why = {"gpu-memory-utilization": "leaves 18 GiB of a GB10's memory to the host"}
    if tool:
        flags |= {"enable-auto-tool-choice": True, "tool-call-parser": tool}
    flags |= {"reasoning-parser": reasoning} if reasoning else {}
    why |= {flag: f"models of the type {kind} write so" for flag in _PARSER_FLAGS if flag in flags}
    return msgspec.structs.replace(
        recipe,
        weights=find_quantization(target).method,
        traits=(*shape.traits, *(("tied-embeddings",) if tied else ())),
        flags=flags,
        why={**recipe.why, **why},
    ), remarks


def _fitted(
    request: PreflightRequest, recipe: Recipe, facts: StartFacts, settings: Sequence[str]
) -> tuple[Recipe, PreflightReport, list[Remark]]:
    """Return *recipe* with the longest context and the most requests whose KV cache fits a GB10.

    What *settings* state stays as it is.
    """
    assert facts.target is not None  # noqa: S101 - `_require_configuration`
    stated = {one.partition("=")[0].strip().lstrip("-").replace("_", "-") for one in settings}
    known = model_shape(facts.target.text).longest
    longest = known or _UNPLANNED

    def tried(**flags: int) -> tuple[Recipe, PreflightReport]:
        new = {name.replace("_", "-"): value for name, value in flags.items()}
        new = {name: value for name, value in new.items() if name not in stated}
        made = msgspec.structs.replace(recipe, flags={**recipe.flags, **new})
        return made, inspect_start(replace(request, recipe=made))

    length, guess = longest, ""
    made, report = tried(max_model_len=length)
    if report.budget.plan is None:
        length, guess = min(length, _UNPLANNED), report.budget.plan_unknown
        made, report = tried(max_model_len=length)
    elif not known and "max-model-len" not in stated:
        guess = "the configuration states no longest context"
    while length > _SHORTEST and any(one.check == "kv-cache" for one in report.findings):
        length //= 2
        made, report = tried(max_model_len=length)
    plan, pool = report.budget.plan, report.budget.pool()
    requests = "not planned"
    # The length is 0 where vLLM is told to find it.
    if plan is not None and plan.groups and pool > 0 and report.budget.length > 0:
        requests = f"as many as fit at once, at most {_REQUESTS}"
        fitting = pool // plan.block_bytes // plan.request_blocks(report.budget.length)
        made, report = tried(max_model_len=length, max_num_seqs=max(1, min(_REQUESTS, fitting)))
    most = "the longest context of the checkpoint" if length == longest else f"of {longest:,}, as fits a GB10"
    reasons = {"max-model-len": f"it is a guess: {guess}" if guess else most, "max-num-seqs": requests}
    reasons = {name: why for name, why in reasons.items() if name not in stated}
    made = msgspec.structs.replace(made, why={**reasons, **made.why})
    remarks = [Remark("wrong", f"max-model-len {length}", f"it is a guess: {guess}")] if guess else []
    return made, report, remarks
