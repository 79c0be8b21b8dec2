"""Judge a cell by the record that it left: pure functions, no import of vLLM."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pair import scoring
from pair.scoring import TOKENS

from fleet.load import expected, prefix, requests
from fleet.matrix import CACHES, Cell, Expectation

ALLOWED = {cache: scoring.ALLOWED[dtype] for cache, dtype in CACHES.items()}
"""Nats that the first other token of an answer may be below the reference's, which has the same cache."""
WIDER = {"hybrid": 0.4}
"""Least allowance of a shape, in nats, by what rounding makes of its experts and states.

Over 581 places its answers in bfloat16 are up to 0.20 nats from those in float32, and those of two engines
may be on either side.
"""
GROSS = 0.5
"""Share of compared tokens, of all levels, from which a format's answers are not those of 16 bits at all.

Answers are one of four tokens. Those to another context are others at three of four places; those over the
coarsest format that was served right, NVFP4, were at 73 of 236.
"""
RUNNERS = {"v1": ("GPUModelRunner", ".worker.gpu_model_runner."), "v2": ("GPUModelRunner", ".worker.gpu.")}
PROPOSERS = {"dflash": "dflash", "windows": "dflash", "eagle3": "eagle", "mtp": "", "ngram": "ngram"}
_WHERE = r"^(?:\[rank\d+\]:|\(\w+ pid=\d+\)(?: ERROR [^\]]*\])?)?\s*"  # what logs put before a line
# An error by its class, or as pydantic says it on the line that follows.
CLEAN = re.compile(
    _WHERE + r"((?:(?:\w+\.)*\w*(?:Error|Exception)\b|(?:Value|Assertion) error,).*)", re.MULTILINE
)
CRASH = re.compile(
    r"illegal memory access|device-side assert|CUDA error|out of memory|Segmentation fault|core dumped"
    r"|EngineDeadError|EngineCore encountered|Fatal Python error",
    re.IGNORECASE,
)

# Errors of the machine and its packages, which say nothing of what vLLM serves.
SURROUNDINGS = re.compile(
    r"ModuleNotFoundError|ImportError|No module named|Could not import module|EADDRINUSE|No space left",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Compared:
    """Answers beside those of the reference, each up to the first other token."""

    tokens: int
    others: int  # answers that come to another token
    worst: float  # nats below the reference's own


def compared(answers: list[dict[str, Any]], right: list[dict[str, Any]]) -> Compared:
    """Compare answers with the reference's, which say how near other tokens came at each place."""
    tokens, others, worst = 0, 0, 0.0
    for one, other in zip(answers, right, strict=True):
        for place, (token, wanted) in enumerate(zip(one["tokens"], other["tokens"], strict=False)):
            tokens += 1
            if token == wanted:
                continue
            others += 1
            gap = _gap(other["near"][place], token)
            worst = gap if math.isnan(gap) or gap > worst else worst
            break
    return Compared(tokens, others, worst)


def too_many(some: Compared, cache: str) -> bool:
    """Return whether more tokens are others than near ties explain.

    A single one in few compared tokens says nothing of a share; 1.64 deviations more: one of twenty.
    """
    usual = scoring.RARE[CACHES[cache]] * some.tokens
    return not some.tokens or some.others > max(1, usual + 1.64 * math.sqrt(usual))


def allowed(cell: Cell) -> float:
    """Return how far the first other token of an answer may be below the reference's, in nats."""
    return max(ALLOWED[cell.cache], WIDER.get(cell.shape, 0.0))


def _gap(near: dict[str, float], token: int) -> float:
    """Return how far a token is below the reference's own, in nats; infinite if that was not kept.

    Rows of the output head come in pairs of opposite sign, and all other rows are zero or small. So every
    other token is halfway between the two of a pair.
    """
    if str(token) in near:
        return near[str(token)]
    both = [near.get(str(one), math.inf) for one in TOKENS[:2]]
    return sum(both) / 2


def pooled(seen: dict[str, Any], right: dict[str, Any]) -> Compared:
    """Compare the answers of all levels that both have."""
    both = [level for level in seen["levels"] if level in right["levels"]]
    answers = [one for level in both for one in seen["levels"][level]["answers"]]
    return compared(answers, [one for level in both for one in right["levels"][level]["answers"]])


def outcome(line: dict[str, Any]) -> str:
    """Return what became of a cell: ``served``, ``refused``, ``crashed`` or ``out of time``.

    Out of time is a cell that was ended for the session's budget before its own time limit was over. One that
    says before that what broke it, such as an error of CUDA, has crashed.
    """
    seen = line.get("seen") or {}
    if line["status"] == 0 and seen.get("stage") == "end":
        return "served"
    if line["status"] is None and line.get("cut") and not CRASH.search(line["tail"]):
        return "out of time"
    booted = seen.get("stage", "start") != "start"
    if line["status"] is None or line["status"] < 0 or booted or CRASH.search(line["tail"]):
        return "crashed"
    return "refused" if reason(line) else "crashed"


def reason(line: dict[str, Any]) -> str:
    """Return the last error that a log names, in one line."""
    found = [match.group(1).strip() for match in CLEAN.finditer(line["tail"])]
    own = [text for text in found if "Engine core initialization failed" not in text]
    return (own or found or [""])[-1][:300]


def faults(
    cell: Cell,
    line: dict[str, Any],
    right: dict[str, Any] | None,
    wanted: Expectation,
    asked: dict[str, Any],
    *,
    plain: dict[str, Any] | None = None,
) -> list[str]:
    """Return everything that is wrong with a cell, in words; an empty list is a pass, or was out of time."""
    came = outcome(line)
    if came == "out of time":
        return []
    if came == "crashed":
        stage = (line.get("seen") or {}).get("stage", "start")
        return [f"exit status {line['status']} after stage {stage!r}: {reason(line) or 'no error is named'}"]
    if came == "refused":
        return _refusal_faults(line, wanted)
    if wanted.outcome == "refused":
        return ["it was served, and must be refused"]
    seen = line["seen"]
    found = _view_faults(cell, seen, asked) + _level_faults(cell, seen, asked["levels"])
    if right is None:
        return [*found, "there is no reference to compare answers with"]
    if seen.get("wheel") != right.get("wheel"):
        found.append(f"the wheel is {seen.get('wheel')}, and the reference's {right.get('wheel')}")
    return found + _answer_faults(cell, seen, right, asked) + _format_faults(cell, seen, plain)


def _format_faults(cell: Cell, seen: dict[str, Any], plain: dict[str, Any] | None) -> list[str]:
    """Find answers that a cache's format cannot have made of those over 16 bits."""
    if plain is None or cell.synthetic:
        return []
    some = pooled(seen, plain)
    if some.others < GROSS * some.tokens:
        return []
    return [f"{some.others} of {some.tokens} tokens are not those of a cache of 16 bits"]


def _refusal_faults(line: dict[str, Any], wanted: Expectation) -> list[str]:
    if SURROUNDINGS.search(reason(line)):
        return [f"the installation or the machine ended it, and nothing is shown: {reason(line)}"]
    if wanted.outcome == "serves":
        return [f"it was refused: {reason(line)}"]
    if wanted.pattern and not re.search(wanted.pattern, reason(line)):
        return [f"it was refused with other words: {reason(line)}"]
    return []


def _view_faults(cell: Cell, seen: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Check runner, drafter, backends, caches and graphs."""
    # A version without its local part stands for every wheel of the release.
    right = asked["version"] in (seen["vllm"], seen["vllm"].partition("+")[0], seen.get("wheel"))
    found = [] if right else [f"vLLM is {seen['vllm']} instead of {asked['version']}"]
    return found + _runner_faults(cell, seen["view"], asked) + _layer_faults(cell, seen["view"], asked)


def _runner_faults(cell: Cell, view: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    found = []
    if asked["device"] == "cuda":
        name, module = RUNNERS[cell.runner]
        if not (view["runner"].endswith(name) and module in view["runner"]):
            found.append(f"the runner is {view['runner']}")
        if cell.eager == bool(view["captured"]):
            found.append(f"{view['captured']} graphs were captured")
    part = PROPOSERS.get(cell.drafter)
    if (part is None) == bool(view["drafter"]) or (part and part not in view["drafter"].lower()):
        found.append(f"the drafter is {view['drafter'] or 'none'}")
    if view["prefix_cache"] != asked["prefix"]:
        found.append(f"the prefix cache is {'on' if view['prefix_cache'] else 'off'}")
    return found


def target_layers(view: dict[str, Any], count: int) -> dict[str, dict[str, Any]]:
    """Return the target's layers of attention: a drafter's come after its last, or under another prefix."""
    found = {}
    for name, one in view["layers"].items():
        place = re.match(r"model\.layers\.(\d+)\.", name)
        if place and int(place[1]) < count and one["kind"] in ("Attention", "MLAAttention"):
            found[name] = one
    return found


def names_of(cache: str) -> set[str]:
    """Return the names that vLLM has for the format of a cache."""
    return {"auto", "bfloat16"} if cache == "bf16" else {cache, f"{cache}_e4m3"}


def _layer_faults(cell: Cell, view: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    own = target_layers(view, asked["layers"])
    if not own:
        return ["no layer of attention was seen"]
    found = []
    if asked["backend"]:
        others = sorted({one["backend"] for one in own.values()} - {asked["backend"]})
        found += [f"layers are served by {', '.join(others)} instead of {asked['backend']}"] if others else []
    stored = {one["cache"] for one in own.values()}
    if stored - names_of(cell.cache):
        found.append(f"caches are {', '.join(sorted(stored))} instead of {CACHES[cell.cache]}")
    if cell.shape == "gptoss" and asked["device"] == "cuda" and not all(one["sinks"] for one in own.values()):
        found.append("layers have no sinks")
    if cell.shape == "gemma4" and {one["size"] for one in own.values()} != {256, 512}:
        found.append(f"heads are of {sorted({one['size'] for one in own.values()})}")
    return found


def _level_faults(cell: Cell, seen: dict[str, Any], levels: list[int]) -> list[str]:
    """Check that every request was answered in full, and what was counted."""
    found = []
    for level in levels:
        line = seen["levels"].get(str(level))
        if line is None:
            found.append(f"c={level}: never served")
            continue
        lengths = [len(one["tokens"]) for one in line["answers"]]
        if lengths != [one.output for one in requests(level)]:
            found.append(f"c={level}: answers of {lengths} tokens")
        found += [f"c={level}: {fault}" for fault in _counter_faults(cell, line["counters"], level)]
    return found


def _counter_faults(cell: Cell, counted: dict[str, int], level: int) -> list[str]:
    if cell.drafter == "none":
        return [f"{value} {name} without a drafter" for name, value in counted.items() if value]
    missing = sorted({"drafts", "drafted", "accepted"} - counted.keys())
    if missing:
        return [f"no counter of {', '.join(missing)}"]
    if cell.synthetic:
        return [
            f"{name} rose by {counted[name]} instead of {value}"
            for name, value in expected(level).items()
            if counted[name] != value
        ]
    if not 0 <= counted["accepted"] <= counted["drafted"]:
        return [f"{counted['accepted']} of {counted['drafted']} drafted tokens were accepted"]
    if not counted["drafted"] and cell.drafter != "ngram":
        return ["nothing was drafted"]
    return []


def _answer_faults(
    cell: Cell, seen: dict[str, Any], right: dict[str, Any], asked: dict[str, Any]
) -> list[str]:
    """Compare answers with the reference's, level by level, and from the prefix cache."""
    found, wrong = [], []
    for level in asked["levels"]:
        line, other = seen["levels"].get(str(level)), right["levels"].get(str(level))
        if line is None:
            continue
        if other is None:
            found.append(f"c={level}: the reference has no such level")
            continue
        short = shortfalls(line["answers"], other["answers"], cell.cache, allowed(cell))
        wrong += [f"c={level}: {one}" for one in short]
    if cell.synthetic:
        return found if wrong else [*found, "drafts were accepted blindly, and the answers are right"]
    found += wrong
    for name in ("cold", "warm"):
        if name not in seen or len(seen[name]["tokens"]) != prefix().output:
            found.append(f"{name}: not answered in full")
            continue
        some = compared([seen[name]], [right["cold"]])
        if not some.worst <= allowed(cell):
            found.append(f"{name}: a token is {some.worst:.3f} nats below the reference's")
    if asked["prefix"] and "warm" in seen and not seen["warm"]["cached"]:
        found.append("warm: nothing came from the prefix cache")
    return found


def shortfalls(
    answers: list[dict[str, Any]], right: list[dict[str, Any]], cache: str, limit: float
) -> list[str]:
    """Return where *answers* over a *cache* are others than rounding explains, up to *limit* nats."""
    if len(answers) != len(right):
        return [f"{len(answers)} answers instead of {len(right)}"]
    some, found = compared(answers, right), []
    if not some.worst <= limit:  # what is no number is no less than anything
        found.append(f"a token is {some.worst:.3f} nats below the reference's, {limit} allowed")
    if too_many(some, cache):
        found.append(f"{some.others} of {some.tokens} compared tokens are others")
    return found


# The matrix as people read it ----------------------------------------------------------------------------

Row = tuple[Cell, dict[str, Any], dict[str, Any] | None, dict[str, Any] | None, list[str]]
"""A cell, its record, what its reference's engine wrote, the same of 16 bits, and its faults."""


def _beside(seen: dict[str, Any], right: dict[str, Any] | None) -> str:
    some = pooled(seen, right) if right else None
    return f"{some.others}/{some.tokens} ({some.worst:.2f})" if some else ""


def _row(row: Row) -> str:
    cell, line, right, plain, found = row
    seen, came = line.get("seen") or {}, outcome(line)
    served = came == "served"
    verdict = "not run to its end" if came == "out of time" else "FAIL" if found else "pass"
    counted = [one["counters"] for one in seen["levels"].values()] if served else []
    drafted, accepted = (sum(one.get(name, 0) for one in counted) for name in ("drafted", "accepted"))
    says = "; ".join(found) or ("" if served else reason(line))
    columns = [
        cell.name, came, verdict, str(seen.get("boot_seconds", "")), f"{line['seconds']:.0f}",
        _beside(seen, right) if served else "", _beside(seen, plain) if served else "",
        f"{accepted}/{drafted}" if drafted else "", str(seen["warm"]["cached"]) if served else "",
        says.replace("|", "\\|")[:300],
    ]  # fmt: skip
    return f"| {' | '.join(columns)} |"


def table(rows: list[Row], asked: int) -> str:
    """Return the matrix of *asked* cells as Markdown, and the tally under it."""
    failed = sum(bool(found) for *_, found in rows)
    late = sum(outcome(line) == "out of time" for _, line, *_ in rows)
    wheels = sorted({(line.get("seen") or {}).get("wheel", "") for _, line, *_ in rows} - {""})
    return "\n".join(
        [
            f"wheel: {', '.join(wheels)}\n",
            "| cell | outcome | verdict | boot s | s | others | of 16 bits | accepted | cached | says |",
            "|---|---|---|---:|---:|---|---|---|---:|---|",
            *map(_row, rows),
            (
                f"\n{len(rows) - failed - late} passed, {failed} failed, {late} out of time,"
                f" {asked - len(rows)} not run"
            ),
        ]
    )
