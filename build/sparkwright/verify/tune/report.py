"""The files of a search, made from its journal alone: page, figures, ranking and the recipe to serve."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_file, to_json
from sparkwright.verify.journal import FILE, Manifest
from sparkwright.verify.report import render_csv
from sparkwright.verify.results import REPORT, TABLE, replace_file
from sparkwright.verify.run import Run
from sparkwright.verify.tune.noise import Ratio
from sparkwright.verify.tune.page import objective_words, render_tune
from sparkwright.verify.tune.result import Row, TuneResult, conclude_search
from sparkwright.verify.tune.search import Known
from sparkwright.verify.tune.winner import Occasion, winner_text

RESULT, RECIPE = "tune.json", "recipe.toml"


@dataclass(frozen=True)
class TuneFiles:
    """A search's result and its files.

    Attributes:
        described: the result as JSON-ready data.
        files: each file's path, size in bytes and SHA-256.
    """

    result: TuneResult
    folder: Path
    described: dict[str, Any]
    files: tuple[tuple[Path, int, str], ...]


def write_search(known: Known, folder: Path, manifest: Manifest) -> TuneFiles:
    """Write the page, the figures, the table of cells and the recipe to serve to *folder*.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    result, options = conclude_search(known), known.search.options
    base = known.search.space.configurations[0].recipe
    observations = tuple(known.measured.values())
    seconds = sum(one.seconds for one in observations)
    told = {"recipe": base.title, **_told(known, manifest)}
    described = describe_result(result)
    rendered = {
        REPORT: render_tune(result, options, told, seconds).encode(),
        RESULT: to_json({**described, "provenance": told}) + b"\n",
    }
    if observations:
        run = Run(manifest={"speed": options.profile.speed}, observations=observations)
        rendered[TABLE] = render_csv(run).encode()
    occasion = Occasion(
        where=told["machine"],
        date=manifest.created[:10],
        run=manifest.run,
        objective=objective_words(options),
    )
    if text := winner_text(base, result, occasion):
        rendered[RECIPE] = text.encode()
    else:
        (folder / RECIPE).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in rendered.items():
        replace_file(folder / name, data)
    paths = [folder / name for name in (*rendered, FILE)]
    files = tuple((path, path.stat().st_size, sha256_file(path)) for path in paths)
    return TuneFiles(result, folder, described, files)


def _told(known: Known, manifest: Manifest) -> dict[str, str]:
    """Return the provenance of a search, by name."""
    facts = next(iter(known.facts.values()), None)
    version = facts.version if facts is not None else ""
    machine = "a simulator" if known.search.options.simulator else platform.node() or platform.machine()
    options = {name: _words(value) for name, value in manifest.options.items()}
    return {
        "machine": f"{machine}, vLLM {version}" if version else machine,
        "began": manifest.created,
        "objective": objective_words(known.search.options),
        **{name: value for name, value in manifest.identity.items() if name != "recipe"},
        **{f"option {name}": value for name, value in options.items()},
        **manifest.client,
    }


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_words(one)}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def describe_result(result: TuneResult) -> dict[str, Any]:
    """Return *result* as JSON-ready data."""
    return {
        "outcome": result.outcome.name.lower(),
        "result": result.said,
        "speculation": [
            {
                "configuration": one.configuration,
                "without": one.without,
                "result": one.said,
                "levels": [{"level": level.level, **_ratio(level.ratio)} for level in one.payoffs],
            }
            for one in result.speculation
        ],
        "to-serve": result.chosen.configuration.key if result.chosen is not None else None,
        "not-told-apart": list(result.open),
        "not-told-apart-within": round(result.within, 5),
        "starts": result.starts,
        "ended-at-the-starts-of-the-grid": result.bounded,
        "spread-between-starts": round(result.noise.spread, 5),
        "configurations": [_row(row) for row in result.rows],
    }  # fmt: skip


def _row(row: Row) -> dict[str, Any]:
    return {
        "key": row.configuration.key,
        "name": row.configuration.name,
        "settings": dict(row.configuration.settings),
        "own": row.configuration.own,
        "state": str(row.standing.state),
        "because": row.standing.why,
        "starts": len(row.trial.starts),
        "quality-checked": row.checked,
        "remarks": list(row.remarks),
        "against-the-recipe": _ratio(row.to_own) if row.to_own is not None else None,
        "levels": [
            {
                "level": one.level,
                "tokens-per-s": round(one.rate, 3),
                "ttft-p50-s": round(one.ttft_p50, 4),
                "ttft-p95-s": round(one.ttft_p95, 4),
                "tpot-p50-s": round(one.tpot_p50, 5),
                "on-front": one.on_front,
            }
            for one in row.levels
        ],
        "flags": to_builtins(row.configuration.recipe.flags),
        "speculative": to_builtins(row.configuration.recipe.speculative),
    }


def _ratio(ratio: Ratio) -> dict[str, float]:
    return {"ratio": round(ratio.value, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4)}
