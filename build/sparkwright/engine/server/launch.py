"""From a recipe or a command to a server that is ready to be started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from sparkwright.base.machine import card_capability, card_memory_gib, free_port
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.flashinfer import jobs_variable
from sparkwright.engine.installed import read_installed
from sparkwright.engine.models import fetch_models
from sparkwright.engine.observations import BootFacts
from sparkwright.engine.runtime import vllm_command
from sparkwright.engine.server.lifecycle import Launch, ServerProcess
from sparkwright.engine.tiny import write_tiny_models
from sparkwright.recipes.recipe import TINY, Recipe, serve_arguments
from sparkwright.recipes.rules import check_compatible

_DEFAULTS = {
    "PYTHONUNBUFFERED": "1",  # so that the log is complete up to a crash
    "NO_COLOR": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def start_server(
    what: Recipe | Sequence[str | Path],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    speed: float = 1.0,
    deadlines: Deadlines | None = None,
    python: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    model: str = "",
    api_key: str = "",
    boot_s: float | None = None,
    end_s: float = 30.0,
    known: BootFacts | None = None,
    card: str = "",
) -> ServerProcess:
    """Return a server that starts when its block of ``async with`` begins.

    Args:
        what: a recipe, or the command of a server with vLLM's API; in its arguments ``{host}``,
            ``{port}`` and ``{folder}`` are replaced by these.
        folder: folder for the log, evidence and generated models.
        environment: variables on top of this process's and the recipe's.
        speed: seconds of the server's clock in a real one; above 1 only for a simulator.
        deadlines: deadlines of canaries.
        python: interpreter of the environment with vLLM, for a recipe; this process's by default.
        host: address to listen at.
        port: port to listen at; 0 chooses a free one.
        model: served model name of a command's server; empty reads it there. A recipe has its own.
        api_key: key that clients send; by default that of the variable VLLM_API_KEY, which vLLM would take
            as well. A recipe's server is started with it.
        boot_s: limit of the boot, in the server's seconds; by default `BOOT_S` and more for large models.
        end_s: time from SIGTERM until it is killed, in real seconds.
        known: facts of a command's server that its log lacks, such as the card's memory.
        card: path of a simulator's page with the readings of its card.

    Raises:
        IncompatibleOptionsError: the recipe's options are known not to work with that vLLM on this card.
        ServerError: *python* has no vLLM.
    """
    folder = folder.absolute()
    port = port or free_port(host)
    models: Callable[[], Awaitable[int]] | None = None
    whole = {**os.environ, **_DEFAULTS}
    if isinstance(what, Recipe):
        interpreter = (python or Path(sys.executable)).absolute()
        installed = read_installed(interpreter)
        check_compatible(what, installed.version, capability=card_capability(), carries=installed.carries)
        recipe = _with_models(what, folder)
        argv = (*vllm_command(interpreter), *serve_arguments(recipe, host=host, port=port))
        whole |= recipe.environment
        whole |= {"VLLM_API_KEY": api_key} if api_key else {}
        whole |= environment or {}
        whole |= jobs_variable(what, whole)
        models = partial(fetch_models, recipe, interpreter, whole, folder)
        model, facts = recipe.served_names[0], _foreseen(recipe, installed.version)
    else:
        argv = _command([str(part) for part in what], host, port, folder)
        whole |= environment or {}
        facts = known or BootFacts()
    return ServerProcess(
        Launch(
            argv=argv,
            environment=whole,
            folder=folder,
            host=host,
            port=port,
            model=model,
            api_key=api_key or whole.get("VLLM_API_KEY", ""),
            speed=speed,
            deadlines=deadlines or Deadlines(),
            boot_s=boot_s,
            end_s=end_s,
            facts=facts,
            card=card,
            models=models,
        )
    )


def _command(argv: list[str], host: str, port: int, folder: Path) -> tuple[str, ...]:
    values = {"{host}": host, "{port}": str(port), "{folder}": str(folder)}
    for name, value in values.items():
        argv = [part.replace(name, value) for part in argv]
    # Where it is found must not depend on the folder that it will work in.
    found = shutil.which(argv[0])
    return (str(Path(found).absolute()) if found else argv[0], *argv[1:])


def _with_models(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with paths of generated models in place of their placeholders."""
    if not recipe.model.startswith(TINY) and not recipe.drafter.startswith(TINY):
        return recipe

    target, drafter = write_tiny_models(folder / "tiny-models")
    places = {f"{TINY}target": str(target), f"{TINY}drafter": str(drafter)}
    return msgspec.structs.replace(
        recipe,
        model=places.get(recipe.model, recipe.model),
        drafter=places.get(recipe.drafter, recipe.drafter),
    )


def _foreseen(recipe: Recipe, version: str) -> BootFacts:
    """Return the facts of a boot that the recipe and the card determine beforehand."""
    whole = {name: value for name, value in recipe.flags.items() if isinstance(value, int)}
    return BootFacts(
        version=version,
        capability=card_capability(),
        total_gib=card_memory_gib(),
        utilization=float(recipe.flags.get("gpu-memory-utilization", -1)),
        max_model_len=int(whole.get("max-model-len", -1)),
        max_num_seqs=int(whole.get("max-num-seqs", -1)),
    )
