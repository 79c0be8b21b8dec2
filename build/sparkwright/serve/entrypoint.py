"""``python -m sparkwright.serve.entrypoint``: the entry point of the image.

Without arguments it writes the recipe that the container's variables describe, and is replaced by
`sparkwright serve`, so that signals reach that. Arguments that begin with ``--`` are added to EXTRA_ARGS;
others are a command to run.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sparkwright.base.errors import ConfigError, SparkwrightError
from sparkwright.recipes import Recipe
from sparkwright.recipes.write import recipe_text
from sparkwright.serve.container_env import known_names, recipe_of

RUNTIME = Path("/run/sparkwright")
FOLDER = "SPARKWRIGHT_RUN"
_KEYS = ("VLLM_API_KEY", "API_KEY")
_KEY_FILES = ("API_KEY_FILE", "VLLM_API_KEY_FILE")
_MOST_PORT = 65_535


@dataclass(frozen=True)
class EntryPlan:
    """The program that replaces the entry point, and the recipe and key from variables to write first."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    recipe: Recipe | None = None
    key: str = field(default="", repr=False)


def plan_entry(
    environment: Mapping[str, str], arguments: Sequence[str] = (), *, runtime: Path = RUNTIME
) -> EntryPlan:
    """Return the program for a container; recipe, key and state are kept in the folder *runtime*.

    Raises:
        ConfigError: variables are unknown, wrong or contradict each other.
        UnknownNameError: there is no such recipe.
    """
    # The variables of the image are not those of the programs in it; vLLM reads its own by other names.
    rest = {name: value for name, value in environment.items() if name not in known_names()}
    if arguments and not arguments[0].startswith("-"):
        return EntryPlan(tuple(arguments), dict(environment))
    extra = " ".join((environment.get("EXTRA_ARGS", ""), shlex.join(arguments)))
    recipe = recipe_of({**environment, "EXTRA_ARGS": extra})
    key, key_file = _key(environment, runtime)
    state = environment.get("SPARKWRIGHT_STATE") or str(runtime / "state.json")
    argv = ["sparkwright", "serve", str(runtime / "recipe.toml"), "--watch", "--state", state]
    argv += ["--host", environment.get("HOST") or "0.0.0.0"]  # noqa: S104 - the container's own network
    argv += ["--port", _port(environment.get("PORT") or "8000")]
    argv += ["--python", environment.get("VLLM_PYTHON") or sys.executable]
    if key_file:
        argv += ["--api-key-file", key_file]
    return EntryPlan(tuple(argv), rest, recipe, key)


def write_entry(plan: EntryPlan, runtime: Path = RUNTIME) -> None:
    """Write the recipe and the key of *plan* into *runtime*; the key with mode 600."""
    if plan.recipe is None:
        return
    runtime.mkdir(parents=True, exist_ok=True)
    # With its use applied; its reasons are of what the variables may have changed.
    served = msgspec.structs.replace(plan.recipe, uses={}, why={})
    (runtime / "recipe.toml").write_text(recipe_text(served), encoding="utf-8")
    if plan.key:
        path = runtime / "api-key"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(plan.key + "\n")


def _key(environment: Mapping[str, str], runtime: Path) -> tuple[str, str]:
    """Return the key to write, and the path of the file that holds it; both empty without a key.

    Raises:
        ConfigError: several keys are given.
    """
    named = [name for name in (*_KEY_FILES, *_KEYS) if environment.get(name)]
    if len({environment[name] for name in named}) > 1:
        raise ConfigError(
            "it is not clear which API key to take",
            because=f"{' and '.join(named)} are set",
            next_step="keep API_KEY_FILE, the path of a file of mode 600",
        )
    if not named:
        return "", ""
    if named[0] in _KEYS:
        return environment[named[0]], str(runtime / "api-key")
    return "", environment[named[0]]


def _port(text: str) -> str:
    if text.isdecimal() and 1 <= int(text) <= _MOST_PORT:
        return text
    raise ConfigError(f"PORT={text} is no port", next_step=f"give a number from 1 to {_MOST_PORT}")


def main(arguments: Sequence[str]) -> int:
    """Run the program that is asked for in place of this one; return a status only for an error."""
    from sparkwright.base.process import replace_process

    try:
        runtime = Path(os.environ.get(FOLDER) or RUNTIME)
        plan = plan_entry(os.environ, arguments, runtime=runtime)
        write_entry(plan, runtime)
        replace_process(plan.argv, plan.environment)
    except SparkwrightError as error:
        lines = [f"error: {error.what}", *(f"  {line}" for line in error.because.splitlines())]
        lines += [f"  next: {error.next_step}"] if error.next_step else []
        os.write(2, ("\n".join(lines) + "\n").encode())
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
