"""Findings about the machine and its card: driver, mode, programs, ports, disk, the wheel's kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import structs

from sparkwright.engine.installed import LOADERS, EngineFacts, runs_on
from sparkwright.publish.series import series_of
from sparkwright.recipes import Recipe, incompatibilities
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.host import HostFacts
from sparkwright.serve.preflight.shape import model_shape

_RELEASE = re.compile(r"\d+\.\d+")
_OLDEST_DRIVER = 580
# Other rules about a model's traits have checks that read its sizes.
_BY_CHECKPOINT = {"hybrid-steps-without-drafts", "mla-drafts", "mla-runner-v2"}


def check_card(recipe: Recipe, host: HostFacts) -> Iterator[Finding]:
    """Yield findings about the card, its driver and mode, and other programs on it."""
    card = host.card
    if card is None:
        if recipe.capability:
            yield Finding(
                "card",
                "refuse",
                "no NVIDIA card can be used",
                f"the recipe is for compute capability {recipe.capability}, and nvidia-smi lists no card",
                "check nvidia-smi; in a container, start it with --gpus all",
                liftable=True,
            )
        return
    if recipe.capability and card.capability != recipe.capability:
        yield Finding(
            "capability",
            "warn",
            f"the recipe is for another card than {card.name}",
            f"it is for compute capability {recipe.capability}, and the card has {card.capability}",
            "name the recipe for this card, or copy it and change capability",
        )
    major = re.match(r"\d+", card.driver)
    if major and int(major.group()) < _OLDEST_DRIVER:
        yield Finding(
            "driver",
            "refuse",
            f"the driver {card.driver} is too old for CUDA 13",
            f"CUDA 13 needs driver {_OLDEST_DRIVER} or newer",
            "install a newer one: on a Spark with the system's update, on Ubuntu nvidia-driver-580-open",
            liftable=True,
        )
    yield from _mode(host)
    if host.processes:
        yield Finding(
            "card-processes",
            "warn",
            "other programs use the card",
            "; ".join(host.processes[:4]),
            "end them, or lower gpu-memory-utilization by what they take",
        )


def _mode(host: HostFacts) -> Iterator[Finding]:
    card = host.card
    if card is None:
        return
    if card.mode == "Prohibited":
        yield Finding(
            "compute-mode", "refuse", "the card allows no program", "its compute mode is Prohibited",
            "sudo nvidia-smi -c DEFAULT",
        )  # fmt: skip
    elif card.mode.startswith("Exclusive") and host.processes:
        yield Finding(
            "compute-mode",
            "refuse",
            "the card allows one program, and one is running",
            f"its compute mode is {card.mode}",
            "end that program, or sudo nvidia-smi -c DEFAULT",
        )
    if card.persistence == "Disabled":
        yield Finding(
            "persistence",
            "note",
            "the driver does not stay loaded",
            "persistence mode is off, so that each start initialises the card",
            "sudo nvidia-smi -pm 1",
        )


def check_ports(host: HostFacts, address: str, ports: Iterable[int]) -> Iterator[Finding]:
    """Yield a finding for each port that something listens at."""
    for port in ports:
        if port in host.taken:
            yield Finding(
                "port",
                "refuse",
                f"port {port} of {address} is taken",
                "something listens there",
                f"end it (ss -ltnp 'sport = :{port}'), or give another --port",
            )


def check_rules(
    recipe: Recipe, host: HostFacts, engine: EngineFacts, target: Checkpoint | None = None
) -> Iterator[Finding]:
    """Yield a finding for each combination of options that is known not to work in that vLLM on that card.

    Args:
        recipe: the recipe.
        host: the machine.
        engine: facts about vLLM.
        target: the model; rules of `_BY_CHECKPOINT` hold for traits that its sizes show, too.
    """
    if not engine.version:
        return
    capability = host.card.capability if host.card else ""
    broken = incompatibilities(recipe, engine.version, capability, engine.carries)
    shown = set(model_shape(target.text).traits if target is not None else ()) - set(recipe.traits)
    if shown:
        said = structs.replace(recipe, traits=(*recipe.traits, *sorted(shown)))
        more = incompatibilities(said, engine.version, capability, engine.carries)
        broken = (*broken, *(rule for rule in more if rule.name in _BY_CHECKPOINT and rule not in broken))
    for rule in broken:
        yield Finding(
            f"rule {rule.name}",
            "refuse",
            f"vLLM {engine.version} cannot serve these options",
            f"{rule.reason} ({rule.source})",
            rule.instead,
        )


def check_loader(recipe: Recipe, engine: EngineFacts) -> Iterator[Finding]:
    """Yield a finding if the package that loads the weights is not installed: vLLM notices late."""
    name = str(recipe.flags.get("load-format", ""))
    if name in LOADERS and engine.packages.get(name) == "":
        yield Finding(
            "loader",
            "refuse",
            f"{name} is not installed, by which the recipe loads its weights",
            "vLLM imports it once the model is made, and ends there",
            f"pip install {name} into that environment, serve the locked runtime, or --set load-format=auto",
        )


def check_wheel(host: HostFacts, engine: EngineFacts) -> Iterator[Finding]:
    """Yield findings about a wheel for another machine or another card."""
    if engine.machine and host.machine and engine.machine != host.machine:
        yield Finding(
            "wheel-machine",
            "refuse",
            "the wheel is for another machine",
            f"it is for {engine.machine}, and this is {host.machine}",
            f"build the wheel for this machine: make wheel PLATFORM={host.machine}{_series(engine)}",
        )
    card = host.card
    if card and engine.codes and not any(runs_on(code, card.capability) for code in engine.codes):
        yield Finding(
            "wheel-card",
            "refuse",
            "the wheel's kernels do not run on this card",
            f"they are for {', '.join(sorted(engine.codes))}, and {card.name} has {card.capability}",
            "use a wheel with upstream's kernels, or compile for this card: make wheel KERNELS=native ARCH=…"
            f"{_series(engine)}",
        )


def _series(engine: EngineFacts) -> str:
    """Return make's variable for the series of *engine*, so that a hint builds no other release."""
    return f" SERIES={series_of(engine.version)}" if _RELEASE.match(engine.version) else ""


def check_architecture(engine: EngineFacts, *checkpoints: Checkpoint | None) -> Iterator[Finding]:
    """Yield findings about architectures that the release does not know."""
    for checkpoint in checkpoints:
        if checkpoint is None or not engine.architectures or not checkpoint.architectures:
            continue
        if checkpoint.config.get("auto_map") or checkpoint.config.get("speculators_model_type"):
            continue  # code of its own, or a form that vLLM renames
        if not engine.architectures & {*checkpoint.architectures, *_drafting(checkpoint)}:
            yield Finding(
                "architecture",
                "warn",
                f"vLLM {engine.version} has no {', '.join(checkpoint.architectures)}",
                f"{checkpoint.name} names it, and the release's table of models does not; transformers' own "
                "code may serve it, slowly, or nothing",
                "use a series whose release has it",
            )


def _drafting(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the names that vLLM gives a drafter's architectures (transformers_utils/configs/eagle.py)."""
    for name in checkpoint.architectures:
        yield from (f"Eagle{name}", f"Eagle3{name}", name.replace("ForCausalLM", "MTP"))
