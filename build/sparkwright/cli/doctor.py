"""``sparkwright doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

import click

from sparkwright.base.errors import ConfigError, SparkwrightError, ToolError
from sparkwright.base.text import human_size
from sparkwright.cli.options import series_option
from sparkwright.cli.output import print_json
from sparkwright.cli.preflight import show_budget
from sparkwright.cli.session import Session, common_options, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.git import require_git
from sparkwright.native.doctor import MachineCheck, Verdict, check_gpu, find_gpu, native_checks
from sparkwright.recipes import served_recipe
from sparkwright.serve.preflight import (
    Finding,
    Hub,
    PreflightReport,
    PreflightRequest,
    inspect_start,
    require_clear,
)

_NEEDED_BYTES = 3 << 30
_INDEX_REMEDY = "check pip's index-url and extra-index-url"


@click.command("doctor")
@click.option("--recipe", default="", help="Check too that this recipe, a name or file, would start here.")
@click.option("--use", default="", help="With --recipe: a use of it; single by default.")
@series_option
@common_options
@run_in_session
def command(session: Session, *, recipe: str, use: str) -> None:
    """Check that this machine has what is needed."""
    if use and not recipe:
        raise ConfigError(
            f"--use {use} is of no recipe", because="--recipe is not given", next_step="name the recipe too"
        )
    report = _preflight(recipe, use)
    findings = [
        _python(),
        _git(),
        _disk(session),
        _index(session),
        MachineCheck("machine", "pass", f"{platform.machine()}, {platform.system()} {platform.release()}"),
        *_native(session),
    ]
    if report is not None:
        findings += _as_checks(report.findings)
    if session.as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        show_table(
            ("what", "verdict", "found", "remedy"),
            [(finding.what, finding.verdict, finding.detail, finding.remedy) for finding in findings],
        )
        if report is not None:
            show_budget(report)
    if report is not None:
        require_clear(report.findings)
    if failed := [finding for finding in findings if finding.verdict == "fail"]:
        raise ToolError(
            f"{len(failed)} of {len(findings)} checks failed",
            because="; ".join(f"{finding.what}: {finding.detail}" for finding in failed),
            next_step="; ".join(finding.remedy for finding in failed if finding.remedy),
        )


def _preflight(recipe: str, use: str) -> PreflightReport | None:
    return (
        inspect_start(PreflightRequest(recipe=served_recipe(recipe, use), hub=Hub(os.environ)))
        if recipe
        else None
    )


def _as_checks(found: Iterable[Finding]) -> list[MachineCheck]:
    """Return findings of preflight as checks of the machine."""
    verdicts: dict[str, Verdict] = {"refuse": "fail", "warn": "to do", "note": "pass"}
    rows = [
        MachineCheck(
            f"recipe: {one.check}",
            verdicts[one.level],
            f"{one.what}: {one.because}" if one.because else one.what,
            one.next_step,
        )
        for one in found
    ]
    return rows or [MachineCheck("recipe", "pass", "nothing speaks against a start")]


def _python() -> MachineCheck:
    good = sys.version_info >= (3, 11)
    remedy = "" if good else "install Python 3.11 or newer, and create the environment again"
    verdict: Literal["pass", "fail"] = "pass" if good else "fail"
    return MachineCheck("python", verdict, f"{platform.python_version()} (3.11 or newer)", remedy)


def _git() -> MachineCheck:
    try:
        return MachineCheck("git", "pass", require_git())
    except ToolError as error:
        return MachineCheck("git", "fail", f"{error}; 2.38 or newer is needed", error.next_step)


def _disk(session: Session) -> MachineCheck:
    free = shutil.disk_usage(session.store.home).free
    verdict: Literal["pass", "fail"] = "pass" if free >= _NEEDED_BYTES else "fail"
    return MachineCheck(
        "disk",
        verdict,
        f"{human_size(free)} free in {session.store.home} ({human_size(_NEEDED_BYTES)} wanted)",
        "" if verdict == "pass" else "free some space, or point SPARKWRIGHT_HOME to a larger disk",
    )


def _index(session: Session) -> MachineCheck:
    if session.offline:
        return MachineCheck("package index", "skipped", "--offline")
    from sparkwright.upstream import read_settings
    from sparkwright.upstream.commit_index import list_wheels
    from sparkwright.upstream.index import find

    lock = session.checkout.lock
    try:
        listed = find("vllm", lock.release.version, read_settings()) if lock.sdist else []
        commits = {wheel.commit for wheel in lock.wheels.values() if wheel.commit}
        by_commit = [wheel for commit in commits for wheel in list_wheels(commit, read_settings())]
    except SparkwrightError as error:
        return MachineCheck("package index", "fail", str(error), error.next_step)
    names = {*(file.filename for file in listed), *(wheel.filename for wheel in by_commit)}
    files = [*lock.wheels.values(), *([lock.sdist] if lock.sdist else [])]
    missing = {file.filename for file in files} - names
    if missing:
        return MachineCheck(
            "package index", "fail", f"it does not list {', '.join(sorted(missing))}", _INDEX_REMEDY
        )
    return MachineCheck(
        "package index", "pass", f"it lists vllm {lock.release.version} and the wheels of the lock"
    )


def _native(session: Session) -> list[MachineCheck]:
    """Return the requirements of compiling kernels, none of which a wheel with upstream's needs."""
    native = session.checkout.lock.native
    if native is None:
        return [check_gpu(find_gpu())]
    return native_checks(native, session.store.home, os.environ)
