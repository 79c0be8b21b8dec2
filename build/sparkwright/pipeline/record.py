"""What a wheel says of itself, under ``dist-info/sparkwright/``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.pipeline.binaries import version_of
from sparkwright.pipeline.job import require
from sparkwright.wheel.kernels import KERNELS
from sparkwright.wheel.provenance import ALLOWED

if TYPE_CHECKING:
    from sparkwright.carries import Carry
    from sparkwright.pipeline.job import BuildState, Job

RECORD_FORMAT = 1


def wheel_record(job: Job, known: BuildState) -> dict[str, Any]:
    """The files of the record: the point, and each carry's outcome and proof.

    No time, place or machine is in it: the same inputs give the same wheel.
    """
    report = require(known.report)
    point = {
        "format": RECORD_FORMAT,
        "digest": job.point.digest,
        "version": version_of(job, known),
        "platform": job.options.platform,
        "kernels": job.kernels,
        "made-by": f"sparkwright {__version__}",
        "point": job.point.describe(),
        "merge": {
            "pristine": report.pristine,
            "merged": report.tree,
            "commit": report.commit,
        },
    }
    # Those that decide nothing are not named: the same point gives the same wheel.
    carries = [_carry(job, known, carry) for carry in job.point.deciding]
    files = {"point.json": point, "carries.json": {"format": RECORD_FORMAT, "carries": carries}}
    return files if known.binaries is None else {**files, KERNELS: known.binaries.record}


def _carry(job: Job, known: BuildState, carry: Carry) -> dict[str, Any]:
    outcome = require(known.report).outcome(carry.name)
    proof = known.proofs.get(carry.name)
    described: dict[str, Any] = {
        "name": carry.name,
        "title": carry.spec.title,
        "runner": carry.spec.runner,
        "upstream": [entry.pull for entry in carry.spec.upstream],
        "evidence": to_builtins(carry.spec.evidence),
        "outcome": str(outcome.kind),
        "detail": outcome.detail,
        **({"source": outcome.source} if outcome.source else {}),
        "paths": list(outcome.paths),
        "hazards": to_builtins(outcome.hazards),
    }
    if proof is not None:
        described["proof"] = {
            "key": proof.key,
            "verdict": str(proof.verdict),
            "environment": proof.environment,
        }
    elif outcome.kind.wants_proof:
        described["unproved"] = ALLOWED if carry.name in job.options.allow_unproved else ""
    return described
