"""Findings about the vLLM that would serve: options, kernels that are compiled late, what it cannot serve."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

import msgspec
from packaging.version import Version

from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.flashinfer import build_command
from sparkwright.engine.installed import COMPANION, LOADERS, EngineFacts, runs_on
from sparkwright.lock.model import series_of
from sparkwright.recipes.recipe import Recipe
from sparkwright.recipes.release_options import question_of
from sparkwright.recipes.rules import ServerOptions, before, incompatibilities
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.facts import PreflightRequest, StartFacts
from sparkwright.serve.preflight.finding import Finding, finding
from sparkwright.serve.preflight.machine import CardFacts, HostFacts
from sparkwright.serve.preflight.shape import model_shape, whole_number

_RELEASE = re.compile(r"\d+\.\d+")
# Other rules about a model's traits have checks that read its sizes.
_BY_CHECKPOINT = {"hybrid-steps-without-drafts", "mla-drafts", "mla-runner-v2"}
_OPTION_ROWS = {
    "deprecated": "deprecated-flag",
    "variable": "dead-variable",
    "shell variable": "dead-variable/shell",
    "parser": "options/parser",
}
_ARCHITECTURES = ("FLASHINFER_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST", "CUTE_DSL_ARCH")
_FIRST_NVCC = {"12.1": (12, 9), "12.0": (12, 8), "10.0": (12, 8)}
_FIRST_THAT_LOOKS = Version("0.7")
_NOT_FLASHINFER = ("Gemma3", "Gemma4", "GptOss")
# Read in 0.24.0: model_executor/layers/attention/mla_attention.py:1422, and line 86 of flash_attn.py in
# v1/attention/backends/mla/prefill.
_LATENT_UNTIL = "0.25"
_MOST, _PROMPTS, _BLOCKS, _BLOCK = 65_536, 8, 4, 16
_USUAL_REQUESTS = 256


def check_engine(facts: StartFacts) -> Iterator[Finding]:
    """Yield findings about options, wheel and loader, and models that the release does not know."""
    if (engine := facts.engine) is None:
        return
    yield from _rules(facts, engine)
    yield from _wheel(facts.host, engine)
    loader = str(facts.recipe.flags.get("load-format", ""))
    if loader in LOADERS and engine.packages.get(loader) == "":
        yield finding("loader", name=loader)  # vLLM notices late
    for checkpoint in (facts.target, facts.drafter):
        if checkpoint is not None:
            yield from _architecture(engine, checkpoint)


def _rules(facts: StartFacts, engine: EngineFacts) -> Iterator[Finding]:
    """Yield a finding for each combination of options that is known not to work in that vLLM on that card.

    Rules of `_BY_CHECKPOINT` hold for traits that the model's sizes show, too.
    """
    recipe, capability = facts.recipe, facts.host.card.capability if facts.host.card else ""
    if not engine.version:
        return
    broken = incompatibilities(recipe, engine.version, capability, engine.carries)
    shown = set(model_shape(facts.target.text).traits if facts.target else ()) - set(recipe.traits)
    if shown:
        told = msgspec.structs.replace(recipe, traits=(*recipe.traits, *sorted(shown)))
        more = incompatibilities(told, engine.version, capability, engine.carries)
        broken = (*broken, *(rule for rule in more if rule.name in _BY_CHECKPOINT and rule not in broken))
    for rule in broken:
        texts = {"reason": rule.reason, "source": rule.source, "instead": rule.instead}
        yield replace(finding("rule", version=engine.version, **texts), check=f"rule {rule.name}")


def _wheel(host: HostFacts, engine: EngineFacts) -> Iterator[Finding]:
    """Yield findings about a wheel for another machine or another card."""
    # So that a remedy builds no other release.
    series = f" --series {series_of(engine.version)}" if _RELEASE.match(engine.version) else ""
    if engine.machine and host.machine and engine.machine != host.machine:
        yield finding("wheel-machine", wheel=engine.machine, machine=host.machine, series=series)
    card, codes = host.card, ", ".join(sorted(engine.codes))
    if card and codes and not any(runs_on(code, card.capability) for code in engine.codes):
        yield finding("wheel-card", codes=codes, card=card.name, capability=card.capability, series=series)


def _architecture(engine: EngineFacts, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield a finding about architectures that the release does not know."""
    names, config = checkpoint.architectures, checkpoint.config
    # Code of its own, or a form that vLLM renames.
    other = config.get("auto_map") or config.get("speculators_model_type")
    if not engine.architectures or not names or other:
        return
    # The names that vLLM gives a drafter's architectures (transformers_utils/configs/eagle.py).
    drafting = {f"{eagle}{name}" for name in names for eagle in ("Eagle", "Eagle3")}
    heads = {name.replace("ForCausalLM", "MTP") for name in names}
    if not engine.architectures & {*names, *drafting, *heads}:
        architectures = ", ".join(names)
        yield finding(
            "architecture", version=engine.version, architectures=architectures, model=checkpoint.name
        )


# Options ---------------------------------------------------------------------------------------------------


def check_options(request: PreflightRequest, engine: EngineFacts | None) -> Iterator[Finding]:
    """Yield a finding for each flag and variable that the release refuses, or that has no effect there.

    The release's own parser is asked; nothing is found where it cannot be asked yet.
    """
    if request.ask is None or engine is None:
        return
    try:
        answer = request.ask(request.python, engine, [question_of(request.recipe, request.environment)])
    except SparkwrightError as error:
        yield finding("options/unasked", because=error.because or error.what)
        return
    if answer is None:
        return
    for problem in answer.problems[0]:
        nearest = f"; the nearest name is {problem.nearest}" if problem.nearest else ""
        because = f"{problem.because}{nearest}" if problem.refuses else problem.because
        texts = {"name": problem.name, "because": because, "nearest": nearest}
        yield finding(_OPTION_ROWS.get(problem.kind, "options"), version=answer.version, **texts)


# Latent attention ------------------------------------------------------------------------------------------


def part_tokens(longest: int, requests: int) -> int:
    """Return the tokens of a context that one part holds when *requests* prompts have one."""
    workspace = min(max(_PROMPTS * longest, _BLOCKS * requests * _BLOCK), _MOST)
    return max(workspace, requests * _BLOCK) // requests


def check_latent(facts: StartFacts) -> Iterator[Finding]:
    """Yield a finding where contexts can take several parts whose strides differ.

    FlashAttention 2 pads the values of a head to the size of a query's. The output of a part then has another
    stride than what parts were added up to, unless both sizes are the same, as in Mistral-Small-4.
    """
    target, engine, card = facts.target, facts.engine, facts.host.card
    if target is None or engine is None or card is None or not before(engine.version, _LATENT_UNTIL):
        return
    config = target.text
    query = whole_number(config, "qk_nope_head_dim") + whole_number(config, "qk_rope_head_dim")
    values = whole_number(config, "v_head_dim")
    shape, options = model_shape(config), ServerOptions.of(facts.recipe, card.capability)
    pads = options.family(12) is True or options.family(8) is True
    if not shape.mla or not pads or not values or query == values:
        return
    longest = options.number("max-model-len") or shape.longest
    requests = options.number("max-num-seqs") or _USUAL_REQUESTS
    part = part_tokens(longest, requests)
    if longest > part:
        sizes = {"values": values, "query": query, "part": part, "prompts": _PROMPTS, "most": _MOST}
        names = {"version": engine.version, "model": target.name}
        yield finding("latent-context", requests=requests, **names, **sizes)


# Kernels ---------------------------------------------------------------------------------------------------


def check_compilers(facts: StartFacts) -> Iterator[Finding]:
    """Yield findings about just-in-time compilers: FlashInfer's, Triton's, CuTe's."""
    engine, card, environment = facts.engine, facts.host.card, facts.request.variables
    if card is None:
        return
    why, lacks = ("", ()) if engine is None else _missing(facts, engine, card.capability)
    if engine is not None and why:
        yield from _uncompiled(facts, engine, card, why, lacks)
    prebuilt = not why and engine is not None and bool(engine.packages.get(COMPANION))
    for name in () if prebuilt else _ARCHITECTURES:
        value = environment.get(name, "")
        if value and not _names(value, card.capability):
            digits = card.capability.replace(".", "")
            right = f"sm_{digits}a" if name == "CUTE_DSL_ARCH" else f"{card.capability}a"
            of = {"card": card.name, "capability": card.capability}
            yield finding("jit-architecture", name=name, value=value, right=right, **of)
    ptxas = environment.get("TRITON_PTXAS_PATH", "")
    if ptxas and not os.access(ptxas, os.X_OK):
        yield finding("ptxas", program=ptxas)


def _missing(facts: StartFacts, engine: EngineFacts, capability: str) -> tuple[str, tuple[str, ...]]:
    """Return why kernels of FlashInfer that the start needs are in no installed file; empty if they are.

    And their names, where some are. A companion without sparkwright's record is treated as complete, since it
    does not list its kernels.
    """
    if not engine.installed and (lacks := facts.request.lacks):
        return f"no companion for this card was found that holds {', '.join(lacks)}", lacks
    if not engine.packages.get("flashinfer-python"):
        return "", ()
    if not engine.packages.get(COMPANION):
        return f"{COMPANION} is not installed", ()
    if engine.companion_of != (version := engine.packages["flashinfer-python"]):
        return f"the installed {COMPANION} is for FlashInfer {engine.companion_of}, not {version}", ()
    if _is_of_another_card(engine, capability):
        return f"the installed {COMPANION} is for {engine.companion_arch}", ()
    lacks = engine.companion_lacks.get(facts.recipe.name, engine.companion_lacks.get("*", ()))
    return (f"the installed {COMPANION} lacks {', '.join(lacks)}" if lacks else "", lacks)


def _is_of_another_card(engine: EngineFacts, capability: str) -> bool:
    arch = engine.companion_arch if engine.packages.get(COMPANION) else ""
    return bool(arch) and arch.rstrip("af") != capability


def _uncompiled(
    facts: StartFacts, engine: EngineFacts, card: CardFacts, why: str, lacks: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield findings about kernels that are compiled late, or not at all; *lacks* names them, or all are."""
    host = facts.host
    command = build_command(
        engine.version, engine.machine or host.machine, card.capability, facts.recipe.name
    )
    remedy = f"install a companion with them ({command})"
    version = engine.packages.get("flashinfer-python", "")
    if not lacks and _is_of_another_card(engine, card.capability) and Version(version) < _FIRST_THAT_LOOKS:
        of = {"arch": engine.companion_arch, "card": card.name, "capability": card.capability}
        companion = f"{COMPANION}-sm{engine.companion_arch.replace('.', '')}"
        yield finding("companion", companion=companion, version=version, **of)
        return
    nvcc, oldest = host.compiler, _FIRST_NVCC.get(card.capability, ())
    old = bool(host.nvcc) and host.nvcc < oldest
    texts = {"kernels": "some of FlashInfer's kernels" if lacks else "FlashInfer's kernels", "why": why}
    texts["remedy"] = remedy
    if not nvcc:
        sampler = ", or set VLLM_USE_FLASHINFER_SAMPLER=0" if not lacks or "sampling" in lacks else ""
        yield finding("nvcc", sampler=sampler, **texts)
    elif old:
        versions = {"cuda": ".".join(map(str, host.nvcc)), "oldest": ".".join(map(str, oldest))}
        yield finding("nvcc/old", nvcc=nvcc, capability=card.capability, **versions, **texts)
    else:
        yield finding("jit", nvcc=nvcc, **texts)
    attention = not lacks or any(name.startswith("attention-") for name in lacks)
    if attention and (not nvcc or old):
        yield from _fp8_attention(facts.recipe, card, engine, facts.target, remedy)


def _fp8_attention(
    recipe: Recipe, card: CardFacts, engine: EngineFacts, target: Checkpoint | None, remedy: str
) -> Iterator[Finding]:
    """Yield a finding where vLLM chooses FlashInfer for an FP8 cache and has no kernel of it (vllm#60262).

    FLASH_ATTN reads such a cache on 9.x alone, and FLASHINFER is next, whether it can compile or not. Windows
    over images (Gemma) and sinks (gpt-oss) are left to TRITON_ATTN, and latent attention to TRITON_MLA.
    """
    options = ServerOptions.of(msgspec.structs.replace(recipe, speculative={}), card.capability)
    others = target is not None and any(name.startswith(_NOT_FLASHINFER) for name in target.architectures)
    latent = "mla" in options.traits or (target is not None and model_shape(target.text).mla)
    fp8 = options.kv in {"fp8", "fp8_e4m3", "fp8_e5m2"}
    chosen = not options.backends or "FLASHINFER" in options.backends
    if not fp8 or not chosen or others or latent or options.family(12) is not True:
        return
    yield finding("fp8-kv-fallback", version=engine.version, capability=card.capability, remedy=remedy)


def _names(value: str, capability: str) -> bool:
    """Tell if a list of architectures has *capability*, however it spells it."""
    digits = capability.replace(".", "")
    spellings = re.findall(r"(\d+)\.?(\d)[af]?", value)
    return any(f"{major}{minor}" == digits for major, minor in spellings)
