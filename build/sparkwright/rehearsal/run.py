"""A rehearsal from a merge to a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import RehearsalError, ServerError, unknown_name
from sparkwright.base.events import task
from sparkwright.engine.outcomes import (
    CheckOutcome,
    CheckRequest,
    Verifier,
    broken_server,
    error_line,
    outcomes_of,
)
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport
from sparkwright.pipeline.job import Job
from sparkwright.publish.index import dist_folder
from sparkwright.rehearsal.model import (
    DATA,
    DEFAULT,
    PACKAGE,
    PARITY,
    SPECULATION,
    RehearsalOptions,
    RehearsalResult,
    ServedTree,
    statements,
    worst,
    write_report,
)
from sparkwright.rehearsal.stock import nearest_release, pin_of, prepare_model, require_wheel, write_recipe
from sparkwright.rehearsal.tree import prepare

_SUPPORT = "cpu-speculation"


def rehearse(
    job: Job, report: MergeReport, verifier: Verifier, options: RehearsalOptions | None = None
) -> RehearsalResult:
    """Serve the merged Python of *report* on the CPU and verify it.

    A rehearsal that was interrupted continues where it was: no cell is measured twice. No server outlives it.

    Raises:
        RehearsalError: wheel, model or environment cannot be had.
        NotInStoreError: one of them is not in the store, and the network is off.
        UnknownNameError: there is no such check.
    """
    options = options or RehearsalOptions()
    if unknown := [name for name in options.checks if name not in DEFAULT]:
        raise unknown_name("check of a rehearsal", unknown[0], list(DEFAULT))
    started, wanted = time.monotonic(), report.version
    report = _onto_served(job, report)
    version = report.version
    served = prepare(job, python_changes(job, report), version)
    pristine = prepare(job, {}, version) if PARITY in options.checks else None
    folder = options.out
    if folder is None:
        beside = None if pristine is None else pristine.key
        key = digest_of([served.key, beside, served.recipe.name, options.checks, options.seed])[:12]
        folder = dist_folder(job.checkout.folder, None) / "rehearsal" / f"{version}-{key}"
    folder = folder.absolute()
    checks = _Rehearsal(job, verifier, options, folder, served, pristine).run()
    result = RehearsalResult(
        verdict=worst(checks),
        checks=checks,
        version=version,
        exact=version == wanted,
        report=str(folder / DATA),
        seconds=round(time.monotonic() - started, 1),
        statements=statements(report, served, wanted=wanted),
    )
    return write_report(result, folder)


def _onto_served(job: Job, report: MergeReport) -> MergeReport:
    """Return *report*, or the merge onto the nearest older release that has a wheel for the CPU."""
    version = nearest_release(job, report.version)
    return report if version == report.version else _merged_onto(job, report, version)


def serve_nearest(job: Job, report: MergeReport) -> ServedTree:
    """Return the merged Python of *report* over the CPU's wheel of its release, or of the nearest older one.

    Raises:
        RehearsalError: wheel, model or environment cannot be had.
        NotInStoreError: one of them is not in the store, and the network is off.
    """
    report = _onto_served(job, report)
    return prepare(job, python_changes(job, report), report.version)


def python_changes(job: Job, report: MergeReport) -> dict[str, bytes | None]:
    """Return the files that the merge *report* changes of the Python of upstream's wheel."""
    return {path: data for path, data in job.changes(report).items() if path.startswith(PACKAGE)}


def _merged_onto(job: Job, report: MergeReport, version: str) -> MergeReport:
    """Return the merge of the same revisions onto an older release, without those that do not merge there.

    A carry's revision for that release would be another patch than the one to rehearse.
    """
    with task(f"merge onto {version}, which has a wheel for the CPU"):
        request = job.merge_request(job.source.release(version), report.version)
        older = structs.replace(merge_patchset(job.repository, request), version=version)
    if not any(outcome.kind.in_tree for outcome in older.outcomes):
        raise RehearsalError(
            f"vllm {report.version} cannot be rehearsed",
            because=f"it has no wheel for the CPU, and onto {version}, which has one, no carry merges",
            next_step="verify the wheel on a card: sparkwright verify",
        )
    return older


@dataclass(frozen=True)
class _Rehearsal:
    """The servers of one rehearsal.

    Attributes:
        pristine: the unpatched one, if answers are compared.
    """

    job: Job
    verifier: Verifier
    options: RehearsalOptions
    folder: Path
    served: ServedTree
    pristine: ServedTree | None

    def run(self) -> tuple[CheckOutcome, ...]:
        """Run every check and return the outcomes."""
        plain = [name for name in self.options.checks if name != SPECULATION]
        found = self._plain(plain) if plain else []
        if SPECULATION in self.options.checks:
            found.append(self._speculation())
        return tuple(found)

    def _plain(self, names: Sequence[str]) -> list[CheckOutcome]:
        against = None if self.pristine is None else self.pristine.python
        request = self._request(self.served, names, self.served.recipe, against=against)
        try:
            findings = self.verifier.run(request, self.folder / "plain")
        except ServerError as error:
            return broken_server(error, names)
        return outcomes_of(findings, names)

    def _speculation(self) -> CheckOutcome:
        """Serve with n-gram speculation, beside the same tree without; skipped where upstream cannot."""
        support = self._supports_speculation()
        if support:
            return CheckOutcome(SPECULATION, "skipped", support)
        recipe = self._speculative_recipe()
        folder = self.folder / "speculation"
        names = ("boot", PARITY)
        try:
            findings = self.verifier.run(self._request(self.served, names, recipe), folder)
        except ServerError as error:
            outcome = broken_server(error, names)[0]
            return replace(outcome, name=SPECULATION, signature=f"{SPECULATION}: {outcome.signature}")
        bad = [one for one in outcomes_of(findings, names) if one.verdict != "passed"]
        if not bad:
            return CheckOutcome(
                SPECULATION, "passed", "n-gram drafts are verified, and answers stay the same"
            )
        found = next((one for one in bad if one.verdict == "failed"), bad[0])
        return replace(found, name=SPECULATION, detail=f"{found.name}: {found.detail}")

    def _speculative_recipe(self) -> Path:
        access = self.job.access
        model = prepare_model(access, pin_of(self.job).model, self.served.python)
        return write_recipe(access.store, model, speculative=True)

    def _supports_speculation(self) -> str:
        """Return the reason for which the unpatched wheel cannot speculate; empty if it can.

        It is found once for each wheel, by starting it, and recorded.
        """
        version = self.served.version
        key = require_wheel(self.job, version).sha256
        if (record := self.job.store.find_record(_SUPPORT, key)) is not None:
            return str(record["because"])
        stock = self.pristine or prepare(self.job, {}, version)
        request = self._request(stock, ("boot",), self._speculative_recipe())
        because = ""
        try:
            self.verifier.run(request, self.folder / "speculation-unpatched")
        except ServerError as error:
            because = f"upstream's wheel for the CPU, {version}, does not start with it: {error_line(error)}"
        self.job.store.put_record(_SUPPORT, key, {"version": version, "because": because})
        return because

    def _request(
        self, tree: ServedTree, names: Sequence[str], recipe: Path, *, against: Path | None = None
    ) -> CheckRequest:
        return CheckRequest(tree.python, str(recipe), tuple(names), against, seed=self.options.seed)
