"""``sparkwright doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import asdict

import click

from sparkwright.base.errors import SparkwrightError, ToolError
from sparkwright.base.text import human_size
from sparkwright.cli.options import series_option
from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, common_options, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.git import require_git
from sparkwright.native.doctor import MachineCheck, check_gpu, find_gpu, native_checks

_NEEDED_BYTES = 3 << 30
_INDEX_REMEDY = "check pip's index-url and extra-index-url"


@click.command("doctor")
@series_option
@common_options
@run_in_session
def command(session: Session) -> None:
    """Check that this machine has what is needed; 'preflight' checks that a recipe would start on it."""
    findings = [
        _python(),
        _git(),
        _disk(session),
        _index(session),
        MachineCheck("machine", "pass", f"{platform.machine()}, {platform.system()} {platform.release()}"),
        *_native(session),
    ]
    if session.as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        show_table(
            ("what", "verdict", "found", "remedy"),
            [(finding.what, finding.verdict, finding.detail, finding.remedy) for finding in findings],
        )
    if failed := [finding for finding in findings if finding.verdict == "fail"]:
        raise ToolError(
            f"{len(failed)} of {len(findings)} checks failed",
            because="; ".join(f"{finding.what}: {finding.detail}" for finding in failed),
            next_step="; ".join(finding.remedy for finding in failed if finding.remedy),
        )


def _python() -> MachineCheck:
    good, found = sys.version_info >= (3, 11), f"{platform.python_version()} (3.11 or newer)"
    remedy = "" if good else "install Python 3.11 or newer, and create the environment again"
    return MachineCheck("python", "pass" if good else "fail", found, remedy)


def _git() -> MachineCheck:
    try:
        return MachineCheck("git", "pass", require_git())
    except ToolError as error:
        return MachineCheck("git", "fail", f"{error}; 2.38 or newer is needed", error.next_step)


def _disk(session: Session) -> MachineCheck:
    free = shutil.disk_usage(session.store.home).free
    found = f"{human_size(free)} free in {session.store.home} ({human_size(_NEEDED_BYTES)} wanted)"
    if free >= _NEEDED_BYTES:
        return MachineCheck("disk", "pass", found)
    return MachineCheck("disk", "fail", found, "free some space, or point SPARKWRIGHT_HOME to a larger disk")


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
