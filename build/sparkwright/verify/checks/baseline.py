"""Failures of the baseline in comparisons: they invalidate a comparison and do not fail the server."""

from __future__ import annotations

import dataclasses

from sparkwright.engine.findings import Verdict
from sparkwright.verify.checks.common import CheckedCells


def baseline_failures_as_invalid(seen: CheckedCells) -> CheckedCells:
    """Return *seen* with failures of the baseline as invalid: there is nothing to compare with."""
    baseline = {cell.key for cell in seen.planned if cell.arm == "baseline"}
    return dataclasses.replace(
        seen,
        troubles=tuple(
            dataclasses.replace(trouble, verdict=Verdict.INVALID)
            if trouble.cell in baseline and trouble.verdict is Verdict.FAIL
            else trouble
            for trouble in seen.troubles
        ),
    )
