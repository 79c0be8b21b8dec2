"""The checks, as rehearsals and bisections are given them."""

from __future__ import annotations

from pathlib import Path

from sparkwright.distributed.tasks import Task
from sparkwright.engine.findings import Finding
from sparkwright.engine.verifier import CheckRequest, Verifier
from sparkwright.store import Store
from sparkwright.verify.checks import ALL
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of
from sparkwright.verify.remote import run_task
from sparkwright.verify.runner import run_verification

_PAIRED = frozenset({"compare", "parity"})  # they need two servers


def _options(request: CheckRequest) -> VerifyOptions:
    is_wheel = request.vllm.suffix == ".whl"
    return VerifyOptions(
        recipe=request.recipe,
        wheel=str(request.vllm) if is_wheel else "",
        python="" if is_wheel else str(request.vllm),
        against="" if request.against is None else str(request.against),
        profile=request.profile,
        checks=request.checks,
        categories=request.categories,
        levels=request.levels,
        seed=request.seed,
    )


def _run(request: CheckRequest, folder: Path) -> tuple[Finding, ...]:
    return tuple(run_verification(plan_of(_options(request)), folder, offline=request.offline).run.findings)


def _task(store: Store, request: CheckRequest, name: str) -> Task:
    return run_task(store, _options(request), name, offline=request.offline)


VERIFIER = Verifier(tuple(name for name in ALL if name not in _PAIRED), _run, _task)
"""All of them."""
