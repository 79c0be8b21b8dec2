"""The results of a run, made from its journal alone: report and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_file, to_json
from sparkwright.engine.findings import Verdict
from sparkwright.store.disk import storing, write_atomically
from sparkwright.verify.journal import FILE, Contents, Run, read_journal
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import profile_of

VERDICT_FORMAT = 1
"""Of ``verdict.json``: raised where a reader of the one before would misread it."""
REPORT, VERDICT = "report.html", "verdict.json"


@dataclass(frozen=True)
class Results:
    """A run and its result files.

    Attributes:
        files: each file's path, size in bytes and SHA-256.
    """

    run: Run
    folder: Path
    files: tuple[tuple[Path, int, str], ...]

    @property
    def report(self) -> Path:
        """The page to open first."""
        return self.folder / REPORT

    @property
    def verdict(self) -> Verdict:
        """Verdict of the run as a whole."""
        return self.run.verdict

    @property
    def described(self) -> dict[str, Any]:
        """The results as JSON-ready data."""
        return {
            **described(self.run),
            "files": [
                {"path": str(path), "size": size, "sha256": sha256} for path, size, sha256 in self.files
            ],
        }


def load_run(folder: Path) -> Run:
    """Return the run in *folder*, also an unfinished one.

    Raises:
        ConfigError: there is none, or its journal is damaged.
    """
    contents = read_journal(folder)
    return Run(
        manifest=_manifest(folder, contents),
        facts={place: boot.facts for place, boot in contents.boots.items()},
        observations=tuple(contents.measured.values()),
        findings=contents.findings,
        lacks=contents.manifest.lacks,
    )


def write_results(folder: Path) -> Results:
    """Write the report and the verdict of the run in *folder*.

    Raises:
        ConfigError: there is no run, or its journal is damaged.
        StorageError: the disk is full or cannot be written.
    """
    return write_report(load_run(folder), folder, also=(FILE,))


def write_report(run: Run, folder: Path, *, also: tuple[str, ...] = ()) -> Results:
    """Write the report and the verdict of *run* to *folder*.

    Args:
        run: observations and findings.
        folder: of the files; it is made if it is missing.
        also: names of files in it that belong to the results.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    from sparkwright.verify.report import render_html

    rendered = {REPORT: render_html(run).encode(), VERDICT: to_json(described(run)) + b"\n"}
    return Results(run, folder, write_files(folder, rendered, also))


def write_files(
    folder: Path, rendered: Mapping[str, bytes], also: Iterable[str] = ()
) -> tuple[tuple[Path, int, str], ...]:
    """Write files by name to *folder*; return the path, the size and the SHA-256 of each, and of others."""
    resumed = "copy the run to another disk, and resume it there: no cell is measured twice"
    with storing(f"writing to {folder}", instead=resumed if also else "name another folder: --out FOLDER"):
        for name, data in rendered.items():
            write_atomically(folder / name, data)
    paths = [folder / name for name in (*rendered, *also)]
    return tuple((path, path.stat().st_size, sha256_file(path)) for path in paths)


def described(run: Run) -> dict[str, Any]:
    """Return the content of ``verdict.json``."""
    return {
        "format": VERDICT_FORMAT,
        "verdict": str(run.verdict),
        "coverage": {
            "text": str(run.coverage),
            "checks": list(run.coverage.judged),
            "without": list(run.coverage.without),
            "applicable-conclusions": run.coverage.applicable,
            "conclusions": run.coverage.conclusions,
        },
        "lacks": dict(run.lacks),
        "run": dict(run.manifest),
        "servers": {f"{arm}-{boot}": to_builtins(facts) for (arm, boot), facts in run.facts.items()},
        "findings": [to_builtins(finding) for finding in run.findings],
        "cells": len(run.observations),
        "requests": sum(len(seen.samples) for seen in run.observations),
        "failed-requests": sum(len(seen.failed) for seen in run.observations),
    }


def _manifest(folder: Path, contents: Contents) -> dict[str, Any]:
    """Return the head of the report."""
    manifest = contents.manifest
    options = VerifyOptions.from_options(manifest.options)
    told: dict[str, Any] = {
        "title": manifest.server,
        "profile": options.profile,
        "started": manifest.created,
        "speed": profile_of(options).speed,
        "checks": profile_of(options).checks if options.compared or options.slo else _all_checks(options),
        "report": str(folder / REPORT),
        "files": _files(folder),
        "restarts": contents.restarts,
    }
    if options.url:
        told["url"] = options.url
    if options.recipe:
        told["recipe-name"] = options.recipe_name
    if options.wheel:
        told["wheel"] = {"name": Path(options.wheel).name, "sha256": manifest.identity["wheel"]}
    if not contents.findings:
        told["interrupted"] = "the run was stopped before its verdict"
    if seen := tuple(contents.measured.values()):
        told["seconds"] = round(sum(observation.seconds for observation in seen), 1)
    return {
        **told,
        **{name: value for name, value in manifest.identity.items() if name not in told},
        **manifest.client,
    }


def _all_checks(options: VerifyOptions) -> tuple[str, ...]:
    """Return the checks of the profile, and others that were selected."""
    usual = profile_of(msgspec.structs.replace(options, checks=())).checks
    return (*usual, *(name for name in options.checks if name not in usual))


def _files(folder: Path) -> dict[str, str]:
    """Return the raw files of the run, relative to the report, by their title."""
    found = {"journal": FILE} if (folder / FILE).is_file() else {}
    servers = sorted(path for path in folder.glob("servers/**/*") if path.is_file())
    return {
        **found,
        **{f"server {path.parent.name} {path.name}": str(path.relative_to(folder)) for path in servers},
    }
