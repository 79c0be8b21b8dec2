"""The provenance record of a wheel, under ``dist-info/sparkwright/``."""

from __future__ import annotations

from typing import Any

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.carries import Carry
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState, require
from sparkwright.pipeline.trial import wants_proof
from sparkwright.pipeline.version import version_of
from sparkwright.wheel.kernels import KERNELS
from sparkwright.wheel.provenance import ALLOWED
from sparkwright.wheel.recorded import CARRIES, POINT

RECORD_FORMAT = 1


def wheel_record(job: Job, state: BuildState) -> dict[str, Any]:
    """Return the files of the record: the build spec, and each carry's outcome and proof.

    It contains no time, path or machine name: the same inputs give the same wheel.
    """
    report = require(state.report)
    point = {
        "format": RECORD_FORMAT,
        "digest": job.spec.digest,
        "version": version_of(job, state),
        "platform": job.options.platform,
        "kernels": job.kernels,
        **({"series": job.spec.lock.series} if job.spec.lock.series else {}),
        "made-by": f"sparkwright {__version__}",
        "point": job.spec.describe(),
        "merge": {
            "pristine": report.pristine,
            "merged": report.tree,
            "commit": report.commit,
        },
        **({} if job.stock_wheel.trust == "index" else {"trust": job.stock_wheel.trust}),
    }
    # Carries that are left out are not named: the same build spec gives the same wheel.
    carries = [_carry(job, state, carry) for carry in job.spec.deciding]
    files = {POINT: point, CARRIES: {"format": RECORD_FORMAT, "carries": carries}}
    return files if state.binaries is None else {**files, KERNELS: state.binaries.record}


def _carry(job: Job, state: BuildState, carry: Carry) -> dict[str, Any]:
    outcome = require(state.report).outcome(carry.name)
    proof = state.proofs.get(carry.name)
    described: dict[str, Any] = {
        "name": carry.name,
        "title": carry.spec.title,
        "runner": carry.at(require(state.report).version).spec.runner,
        "upstream": [entry.pull for entry in carry.spec.upstream],
        "evidence": to_builtins(carry.spec.evidence),
        **_content(carry, require(state.report).version),
        "outcome": str(outcome.kind),
        "detail": outcome.detail,
        **({"source": outcome.source} if outcome.source else {}),
        "paths": list(outcome.paths),
        "hazards": to_builtins(outcome.hazards),
    }
    if proof is not None:
        # Not its environment: the key covers what the proof hangs on, and any machine can make it again.
        described["proof"] = {"key": proof.key, "verdict": str(proof.verdict)}
    elif wants_proof(require(state.report), carry):
        described["unproved"] = ALLOWED if carry.name in job.options.allow_unproved else ""
    return described


def _content(carry: Carry, version: str) -> dict[str, Any]:
    """Return the content of *carry* at upstream *version*: its patch or its pull request."""
    if (pull := carry.spec.pull) is not None:
        return {"pull": {"repository": pull.repository, "number": pull.number, "head": pull.head}}
    revision = carry.revision_for(version)
    if revision is None:
        return {}
    return {"patch": {"file": revision.patch, "sha256": carry.patch_sha256(revision)}}
