"""The Python environment that probes run in.

Probes import vLLM's own modules, which want torch and a dozen other packages. Those live in an
environment of their own, made once and kept in the store, so that the tool itself stays small.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from importlib import resources
from pathlib import Path

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import EnvironmentSetupError, NotInStoreError, ProcessError
from sparkwright.base.events import task
from sparkwright.base.process import install_packages, make_venv, run
from sparkwright.store import Store, remove_tree

_SHOWN = ("torch", "triton", "numpy")
_READY = "ready.json"


def requirements() -> str:
    """Return the pinned requirements of the environment, in pip's format."""
    return resources.files("sparkwright.probe").joinpath("requirements.txt").read_text(encoding="utf-8")


def environment_key() -> str:
    """Return the key of the environment: its requirements, and the Python and the machine that it is for."""
    return digest_of([requirements(), sys.version, sysconfig.get_platform()])[:16]


def prepare_environment(store: Store, *, offline: bool = False) -> Path:
    """Return the environment's interpreter; the environment is made when it is not there yet.

    Raises:
        NotInStoreError: it is not there and the network is off.
        EnvironmentSetupError: a package could not be installed.
    """
    key = environment_key()
    folder = store.environments / key
    python = folder / "bin" / "python"
    if (folder / _READY).is_file() and store.claim(folder):
        return python
    if offline:
        raise NotInStoreError(
            "the environment for probes has not been made",
            because="the network is off",
            next_step="run 'sparkwright carry prove' once without --offline",
        )
    with store.lock(f"environment-{key}", "the environment for probes"):
        if not (folder / _READY).is_file():
            _make(folder, python, requirements())
    return python


def _make(folder: Path, python: Path, wanted: str) -> None:
    remove_tree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    listed = folder.with_name(f"{folder.name}.txt")
    listed.write_text(wanted, encoding="utf-8")
    try:
        with task("make the environment for probes (torch and what vLLM imports; minutes, once)"):
            make_venv(folder, pip=True)
            install_packages(python, ["--requirement", listed])
    except ProcessError as error:
        raise EnvironmentSetupError(
            "the environment for probes could not be made",
            because=error.because,
            next_step="check the package index and the disk, then run again",
        ) from error
    (folder / _READY).write_text(json.dumps(_versions(python)), encoding="utf-8")


def _versions(python: Path) -> dict[str, str]:
    script = (
        "import importlib.metadata as m, json, platform;"
        f"found = {{name: m.version(name) for name in {_SHOWN!r}}};"
        "print(json.dumps({'python': platform.python_version(), **found}))"
    )
    versions: dict[str, str] = json.loads(run([python, "-I", "-c", script]).text)
    return versions


def describe_environment(python: Path) -> dict[str, str]:
    """Return versions of the interpreter and the packages that matter to a verdict."""
    versions: dict[str, str] = json.loads((python.parents[1] / _READY).read_text(encoding="utf-8"))
    return versions
