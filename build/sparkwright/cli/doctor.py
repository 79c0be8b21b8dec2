"""``sparkwright doctor``."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from sparkwright.base.errors import SparkwrightError, ToolError
from sparkwright.base.machine import card_fields
from sparkwright.base.text import human_size
from sparkwright.cli.command import Command, Result, Table, takes, taking
from sparkwright.cli.options import FILE_TYPE, PATH_TYPE, SIDECARS, USE, complete_recipe
from sparkwright.cli.session import Session, run_in_session
from sparkwright.engine.environment import OfferedWheel, plan_environment, sources_here
from sparkwright.engine.release import ask_installed
from sparkwright.git.repository import require_git
from sparkwright.native.host import MachineCheck, check_gpu, native_checks
from sparkwright.recipes.recipe import Recipe, served_recipe
from sparkwright.serve.preflight.facts import PreflightRequest
from sparkwright.serve.preflight.finding import refusal
from sparkwright.serve.preflight.hub import Hub
from sparkwright.serve.preflight.run import inspect_start
from sparkwright.store.paths import open_store
from sparkwright.upstream.index import find, list_wheels
from sparkwright.upstream.network import read_settings

_NEEDED_BYTES = 3 << 30


@click.command("doctor", cls=Command)
@click.argument("recipe", metavar="[RECIPE]", default="", shell_complete=complete_recipe)
@USE
@click.option("--wheel", type=FILE_TYPE, help="The wheel to serve RECIPE with.")
@click.option("--python", type=PATH_TYPE, help="The interpreter whose vLLM serves RECIPE.")
@SIDECARS
@taking("series", "root", "store_url")
@takes("offline")
def command(
    *, recipe: str, use: str, wheel: Path | None, python: Path | None, sidecars_gib: float, offline: bool
) -> Result:
    """Check that this machine has what is needed, or that RECIPE would start on it and the machine survive.

    For RECIPE nothing is loaded. Of a model that is not on this machine, the hub is asked for sizes and
    headers alone; with --python, that vLLM is asked for its options. Shows the memory budget and what was
    found; the exit code is 76 if the server should not be started.
    """
    if not recipe:
        return _check_machine()
    chosen = served_recipe(recipe, use)
    report = inspect_start(
        PreflightRequest(
            recipe=chosen,
            python=python,
            wheel=wheel,
            environment={**os.environ, **({"HF_HUB_OFFLINE": "1"} if offline else {})},
            sidecars_gib=sidecars_gib,
            ask=partial(ask_installed, open_store()),
            lacks=_lacking(chosen, wheel) if wheel and not python else (),
            hub=Hub(os.environ),
        )
    )
    budget = [(row.part, _gib(row.gib, row.low, row.high), row.source) for row in report.rows]
    found = [asdict(one) for one in report.findings]
    columns = {"level": "level", "check": "check", "found": "what", "because": "because", "next": "next_step"}
    table = Table.of(found, columns)
    return Result(
        {"findings": found, "memory": [asdict(row) for row in report.rows]},
        [Table(("part", "GiB", "from"), budget), table if found else "nothing speaks against a start"],
        refusal(report.findings),
    )


def _lacking(recipe: Recipe, wheel: Path) -> tuple[str, ...]:
    """Return the kernels of FlashInfer that ``serve`` would install *wheel* without."""
    with contextlib.suppress(SparkwrightError):  # without a locked runtime, 'serve' says so itself
        return plan_environment(OfferedWheel(wheel), recipe, sources_here()).missing
    return ()


def _gib(gib: float | None, low: float | None, high: float | None) -> str:
    if gib is None:
        return "unknown"
    return f"{gib:.2f}" if low is None or high is None else f"{gib:.2f} ({low:.1f} to {high:.1f})"


@run_in_session
def _check_machine(session: Session) -> Result:
    try:
        git = MachineCheck("git", "pass", require_git())
    except ToolError as error:
        git = MachineCheck("git", "fail", f"{error}; 2.38 or newer is needed", error.next_step)
    free = shutil.disk_usage(session.store.home).free
    found = f"{human_size(free)} free in {session.store.home} ({human_size(_NEEDED_BYTES)} wanted)"
    disk = MachineCheck("disk", "pass", found)
    if free < _NEEDED_BYTES:
        remedy = "free some space, or point SPARKWRIGHT_HOME to a larger disk"
        disk = MachineCheck("disk", "fail", found, remedy)
    native = session.checkout.lock.native  # a wheel with upstream's kernels needs none of its requirements
    findings = [
        git,
        disk,
        _index(session),
        MachineCheck("machine", "pass", f"{platform.machine()}, {platform.system()} {platform.release()}"),
        *(
            native_checks(native, session.store.home)
            if native
            else [check_gpu(card_fields("name", "compute_cap", "driver_version"))]
        ),
    ]
    described = [asdict(one) for one in findings]
    failure = None
    if failed := [one for one in findings if one.verdict == "fail"]:
        failure = ToolError(
            f"{len(failed)} of {len(findings)} checks failed",
            because="; ".join(f"{one.what}: {one.detail}" for one in failed),
            next_step="; ".join(one.remedy for one in failed if one.remedy),
        )
    columns = {"what": "what", "verdict": "verdict", "found": "detail", "remedy": "remedy"}
    return Result(described, [Table.of(described, columns)], failure)


def _index(session: Session) -> MachineCheck:
    if session.offline:
        return MachineCheck("package index", "skipped", "--offline")
    lock = session.checkout.lock
    try:
        listed = find("vllm", lock.release.version, read_settings()) if lock.sdist else []
        commits = {wheel.commit for wheel in lock.wheels.values() if wheel.commit}
        by_commit = [wheel for commit in commits for wheel in list_wheels(commit, read_settings())]
    except SparkwrightError as error:
        return MachineCheck("package index", "fail", str(error), error.next_step)
    names = {*(file.filename for file in listed), *(wheel.filename for wheel in by_commit)}
    files = [*lock.wheels.values(), *([lock.sdist] if lock.sdist else [])]
    if missing := {file.filename for file in files} - names:
        lacks = f"it does not list {', '.join(sorted(missing))}"
        return MachineCheck("package index", "fail", lacks, "check pip's index-url and extra-index-url")
    told = f"it lists vllm {lock.release.version} and the wheels of the lock"
    return MachineCheck("package index", "pass", told)
