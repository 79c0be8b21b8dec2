"""Describe a run for an owner's report: figures, verdicts, wheel, recipe and the kind of machine."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from sparkwright.engine.observations import BootFacts
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.journal import Run, worst
from sparkwright.verify.report.figures import CellFigures, cells, level_of, swept


def owner_figures(run: Run) -> dict[str, Any]:
    """Return the figures of *run* as JSON-ready data, `None` where one is unknown."""
    requests = [sample for seen in run.observations for sample in (*seen.counted, *seen.failed)]
    kinds = (one.failure.kind for seen in run.observations for one in seen.failed if one.failure is not None)
    return {
        "verdict": str(run.verdict),
        "seconds": float(run.manifest.get("seconds", 0.0)),
        "requests": len(requests),
        "checks": {name: str(worst(found)) for name, found in run.by_check.items()},
        "levels": [
            _level(c, of, run.speed)
            for c, of in swept(cells(run)).items()
            if all(math.isfinite(cell.tok_s) for cell in of)
        ],
        "failures": dict(sorted(Counter(map(str, kinds)).items())),
        "memory": _memory(run),
    }  # fmt: skip


def owner_machine(run: Run) -> dict[str, Any]:
    """Return the machine of *run* by the head of its journal: of a card only its maker's name for it."""
    manifest = run.manifest
    client = re.match(r"(\w+), ([0-9]{1,4}) cores", str(manifest.get("client", "")))
    memory = re.match(r"([0-9]{1,5}) GiB", str(manifest.get("memory", "")))
    card = re.sub(r"[^A-Za-z0-9 -]", "", str(manifest.get("card-name", ""))).strip()[:64]
    driver = re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}", str(manifest.get("driver", "")))
    capability = str(manifest.get("card", ""))
    kind = "simulator" if "simulator" in manifest else "card" if capability else "cpu"
    return {
        "kind": kind,
        "platform": client[1] if client else "",
        "cores": int(client[2]) if client else 0,
        "memory-gib": int(memory[1]) if memory else 0,
        "card": (card or "unknown") if kind == "card" else "",
        "capability": capability if kind == "card" else "",
        "driver": driver[0] if driver and kind == "card" else "",
    }


def _level(concurrency: int, of: list[CellFigures], speed: float) -> dict[str, Any]:
    found, rates = level_of(concurrency, of, speed), [cell.tok_s for cell in of]
    shares = [cell.acceptance.rate for cell in of if cell.acceptance]
    return {
        "c": concurrency,
        "tok-s": [*map(_known, (found.tok_s, min(rates), max(rates)))],
        "ttft-p50-ms": _known(found.ttft_p50_ms),
        "ttft-p95-ms": _known(found.ttft_p95_ms),
        "tpot-p50-ms": _known(found.tpot_p50_ms),
        "tokens-per-step": _known(found.acceptance),
        "accepted": _known(sum(shares) / len(shares) if shares else math.nan),
        "disturbed": any(disturbances(cell.observation) for cell in of),
    }


def _memory(run: Run) -> dict[str, float]:
    facts = run.facts.get(("main", 0), BootFacts())
    most = max((one.server_rss_mib for seen in run.observations for one in seen.host), default=-1.0)
    names = ("weights-gib", "kv-gib", "kv-tokens", "server-gib")
    found = map(_known, (facts.weights_gib, facts.kv_gib, facts.kv_tokens, most / 1024))
    return {name: value for name, value in zip(names, found, strict=True) if value is not None}


def _known(value: float) -> float | None:
    """Return *value* to six digits, or `None` if it is unknown."""
    return float(f"{value:.6g}") if math.isfinite(value) and value >= 0 else None
