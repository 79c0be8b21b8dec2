"""The environment of a wheel: made once for a wheel and its runtime, and reused."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import TYPE_CHECKING

from sparkwright.base.digests import digest_of, sha256_bytes, sha256_file
from sparkwright.base.events import task
from sparkwright.engine.flashinfer import installed_variables
from sparkwright.engine.installed import read_installed
from sparkwright.engine.runtime import ExactRequirements, find_runtime, locked_requirements
from sparkwright.engine.server import card_capability, find_installed, prepare_wheel
from sparkwright.serve.model import Installation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkwright.recipes import Recipe
    from sparkwright.store import Store


def environment_folder(store: Store, wheel: Path, requirements: ExactRequirements) -> Path:
    """Return the folder of the environment of *wheel* with *requirements*, whether it is made or not."""
    parts = [
        sha256_file(wheel),
        sha256_bytes(requirements.text.encode()),
        sys.version,
        sysconfig.get_platform(),
    ]
    return store.environments / digest_of(parts)[:16]


def wheel_requirements(
    wheel: Path, patchsets: Path | None, *, locked: bool, runtime: Path | None = None
) -> ExactRequirements:
    """Return the requirements by which *wheel* is installed; without any if it is not to be *locked*.

    Args:
        wheel: the wheel.
        patchsets: the folder of patchsets of a checkout; `None` without one.
        locked: install by a locked runtime.
        runtime: the file with it, as the wheel's channel has it; looked for where `None`.

    Raises:
        ConfigError: it has no locked runtime.
        LockMismatchError: the runtime does not fit the wheel.
    """
    if not locked:
        return ExactRequirements()
    return locked_requirements(wheel, runtime or find_runtime(wheel, patchsets))


def install_wheel(
    store: Store,
    wheel: Path,
    recipe: Recipe,
    requirements: ExactRequirements,
    *,
    variables: Mapping[str, str] | None = None,
    offline: bool = False,
) -> Installation:
    """Return *wheel* installed with *requirements*.

    Args:
        store: holds the environment.
        wheel: the wheel.
        recipe: the recipe that is served.
        requirements: from `wheel_requirements`.
        variables: variables of the server that follow from what is installed.
        offline: install from the installer's cache alone.

    Raises:
        ServerError: it cannot be installed: it is of another machine, or a file has another digest.
        NotInStoreError: something would have to be fetched, and the network is off.
    """
    folder = environment_folder(store, wheel, requirements)
    with task(f"the environment of {wheel.name}"):
        python = prepare_wheel(
            wheel, folder, offline=offline, requirements=requirements.text, overrides=requirements.overrides
        )
    store.claim(folder)
    return Installation(python, sha256_file(wheel), recipe, wheel.name, variables or {})


def existing(python: Path, recipe: Recipe) -> Installation:
    """Return the vLLM that the interpreter *python* has.

    Raises:
        ServerError: it has none.
    """
    found = find_installed(python.absolute())
    described = f"vllm {found.version} of {python}"
    python = python.absolute()
    variables = installed_variables(
        read_installed(python), recipe.name, card_capability(), {**os.environ, **recipe.environment}, python
    )
    return Installation(python, digest_of([str(python), found.version]), recipe, described, variables)
