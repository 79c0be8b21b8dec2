"""``sparkwright doctor``."""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from typing import Literal

import click

from sparkwright.cli.session import Session, common_options, print_json, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.cli.terminal import human_size
from sparkwright.errors import SparkwrightError, ToolError
from sparkwright.git import require_git
from sparkwright.process import run

__all__ = ["command"]

_NEEDED_BYTES = 3 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Literal["pass", "fail", "skipped"]
    detail: str


@click.command("doctor")
@common_options
@run_in_session
def command(session: Session) -> None:
    """Check that this machine has what is needed."""
    findings = [
        _python(),
        _git(),
        _disk(session),
        _index(session),
        _gpu(),
        Finding("machine", "pass", f"{platform.machine()}, {platform.system()} {platform.release()}"),
    ]
    if session.as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        show_table(
            ("what", "verdict", "found"),
            [(finding.what, finding.verdict, finding.detail) for finding in findings],
        )
    if failed := [finding for finding in findings if finding.verdict == "fail"]:
        raise ToolError(
            f"{len(failed)} of {len(findings)} checks failed",
            because="; ".join(f"{finding.what}: {finding.detail}" for finding in failed),
        )


def _python() -> Finding:
    good = sys.version_info >= (3, 11, 4)
    return Finding("python", "pass" if good else "fail", f"{platform.python_version()} (3.11.4 or newer)")


def _git() -> Finding:
    try:
        return Finding("git", "pass", require_git())
    except ToolError as error:
        return Finding("git", "fail", f"{error}; 2.38 or newer is needed")


def _disk(session: Session) -> Finding:
    free = shutil.disk_usage(session.store.home).free
    verdict: Literal["pass", "fail"] = "pass" if free >= _NEEDED_BYTES else "fail"
    return Finding(
        "disk",
        verdict,
        f"{human_size(free)} free in {session.store.home} ({human_size(_NEEDED_BYTES)} wanted)",
    )


def _index(session: Session) -> Finding:
    if session.offline:
        return Finding("package index", "skipped", "--offline")
    from sparkwright.upstream import read_settings
    from sparkwright.upstream.index import find

    lock = session.checkout.lock
    try:
        files = find("vllm", lock.release.version, read_settings())
    except SparkwrightError as error:
        return Finding("package index", "fail", str(error))
    names = {file.filename for file in files}
    missing = {lock.sdist.filename, *(wheel.filename for wheel in lock.wheels.values())} - names
    if missing:
        return Finding("package index", "fail", f"it does not list {', '.join(sorted(missing))}")
    return Finding(
        "package index", "pass", f"it lists vllm {lock.release.version} and the wheels of the lock"
    )


def _gpu() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", "skipped", "no nvidia-smi; building needs no GPU")
    query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    done = run(query, accept=range(256), timeout=20)
    return Finding("gpu", "pass" if done.status == 0 else "skipped", done.text or done.stderr.strip())
