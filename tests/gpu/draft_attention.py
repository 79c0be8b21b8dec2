#!/usr/bin/env python3
"""Sliding windows in DFlash drafters on one GPU: what is computed, that it serves, that windows are applied.

Needs a GPU, torch and a vLLM wheel of 0.24 that holds the carry ``dflash-sliding-window``, or for ``compare``
on model runner V2 one of 0.33; downloads nothing and imports nothing of this project but its tiny models::

    python3 tests/gpu/draft_attention.py --out /tmp/draft
    python3 tests/gpu/draft_attention.py --out /tmp/draft --only attention compare serve-full-flash
    python3 tests/gpu/draft_attention.py --out /tmp/draft --only attention --device cpu   # small, Triton only
    python3 tests/gpu/draft_attention.py --out /tmp/draft --runner v2                   # 0.33: compare alone

The parts, each in processes of its own, and what fails the script:

- ``attention``: FlashAttention 2 and Triton attention, with metadata from vLLM's builders, against a masked
  float32 reference, for histories below, at and beyond windows of 64 and 2048, causal and not, with grouped
  queries and padded batches; one process for each binary of their kernels. The relative error must be
  small, and that to the next smaller and larger window and to the other causality must not be.
- ``refuse``: asked for model runner V2, vLLM says that it takes no windows and what to do.
- ``compare``: drafters with the same weights, and windows of 64, of more than the context, and none. In the
  first proposal after a prompt shorter than 64 the first two must give the same, after a longer one not;
  the third must differ from the second, since its layers are not causal. The layers' windows and backend
  must be those asked for.
- ``serve-…``: a tiny Qwen3 with a drafter of four sliding layers and a full one, window 64, on model runner
  V1, at 1 to 65 requests at once with prompts on both sides of the window, as `serve_pair.py` does it:
  tokens and vLLM's counters as predicted, runner, backend, window, causality and KV cache group of every
  draft layer as they must be, graphs replayed, or, eager, never.

``OUT`` receives ``attention.jsonl``, ``lines.jsonl``, ``report.json``, ``table.md`` and each process's log.
The exit status is 0 when everything passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pair.install import Check
from pair.models import MAX_MODEL_LEN, WINDOW_LAYERS, write_models, write_window_drafter
from pair.sessions import engines_end_on_sigterm, session
from serve_pair import BAD_SIGNS, LEVELS, RUNNERS, Run, environment, say

WINDOW = 64
PROMPTS = (40, 300)  # shorter than the window with the drafted block, and longer
VIEW = "pair.draft.DraftView"
SAME, APART = 1e-2, 5e-2  # relative difference of hidden states; two kernels round bfloat16 differently
SECONDS = {"attention": 240, "refuse": 120, "compare": 240}
FLASH = ("64", "128", "128-causal", "256")
GROUPS = {"cuda": ("TRITON_ATTN", *(f"FLASH_ATTN-{one}" for one in FLASH)), "cpu": ("TRITON_ATTN",)}


@dataclass(frozen=True)
class Serving:
    """One engine: the drafter's backend, and how graphs are captured; None for eager."""

    backend: str
    graphs: str | None
    runner: str | None = "0"  # what VLLM_USE_V2_MODEL_RUNNER is set to; None leaves it to vLLM


SERVING = {
    # Left to itself, vLLM would take model runner V2 for a dense Qwen3.
    "serve-eager-flash": Serving("FLASH_ATTN", None, runner=None),
    "serve-full-flash": Serving("FLASH_ATTN", "FULL_AND_PIECEWISE"),
    "serve-piecewise-triton": Serving("TRITON_ATTN", "PIECEWISE"),
    "serve-full-triton": Serving("TRITON_ATTN", "FULL_AND_PIECEWISE"),
}
DRAFTERS = {"window": WINDOW, "wide": 2 * MAX_MODEL_LEN, "none": None}
PARTS = ["attention", "refuse", "compare", *SERVING]


@dataclass
class Work:
    """The places of a run, and its findings."""

    args: argparse.Namespace
    scratch: Path
    checks: dict[str, list[Check]] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """The folder for results."""
        return Path(self.args.out)

    def start(self, name: str, command: list[str], seconds: float, runner: str | None = "0") -> int | None:
        """Run a process of ours to its end; return its exit status, or None after *seconds*."""
        env = environment(Run("v1-eager"), self.scratch)
        env.pop("VLLM_USE_V2_MODEL_RUNNER")
        env["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # compiled for a minute, and no request here needs it
        if runner is not None:
            env["VLLM_USE_V2_MODEL_RUNNER"] = runner
        with (
            session([sys.executable, "-m", *command], self.out / f"{name}.log", env) as child,
            contextlib.suppress(subprocess.TimeoutExpired),
        ):
            return child.wait(seconds)
        return None

    def engine(
        self, name: str, module: str, seconds: float, runner: str | None = "0", **spec: Any
    ) -> int | None:
        """Run a process with an engine, as `pair.engine` takes it."""
        whole = {
            "run": name,
            "eager": True,
            "target": str(self.scratch / "target"),
            "levels": self.args.levels,
            "max_num_seqs": 65,
            "gpu_memory_utilization": self.args.gpu_memory_utilization,
            "carried": [],
            "native": [],
            "lines": str(self.out / "lines.jsonl"),
            "view": VIEW,
            **spec,
        }
        file = self.scratch / f"{name}.json"
        file.write_text(json.dumps(whole), encoding="utf-8")
        return self.start(name, [module, str(file)], seconds, runner)

    def lines(self, name: str, file: str = "lines.jsonl") -> list[dict[str, Any]]:
        """Return what the processes of *name* wrote."""
        path = self.out / file
        texts = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line for line in map(json.loads, texts) if line.get("run", name) == name]

    def log(self, name: str) -> str:
        """Return what the process of *name* said."""
        return (self.out / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    parser.add_argument("--runner", choices=("v1", "v2"), default="v1", help="v2 has the part compare alone")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="all of the runner's by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="for the part attention")
    parser.add_argument("--levels", nargs="+", type=int, default=LEVELS)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.5)
    parser.add_argument("--boot-seconds", type=int, default=300)
    args = parser.parse_args()
    parts = PARTS if args.runner == "v1" else ["compare"]
    args.only = args.only or parts
    if others := [part for part in args.only if part not in parts]:
        parser.error(f"not on model runner {args.runner}: {', '.join(others)}")
    return args


def ended(name: str, status: int | None, log: str) -> list[Check]:
    """Check that the process ended well, and that its log has no sign of a fault."""
    bad = [text.strip()[:200] for text in log.splitlines() if BAD_SIGNS.search(text)]
    end = Check("came to its end", status == 0, f"{name}: exit status {status}")
    return [end, Check("log", not bad, bad[0] if bad else "no sign of a fault")]


def attention(work: Work) -> list[Check]:
    """Check what the backends compute."""
    from pair.judge import faults

    device = work.args.device
    (work.out / "attention.jsonl").unlink(missing_ok=True)

    def start(group: str) -> int | None:
        command = ["pair.attention", str(work.out / "attention.jsonl"), device, group]
        return work.start(f"attention-{group}", command, SECONDS["attention"])

    with engines_end_on_sigterm(), ThreadPoolExecutor(len(GROUPS[device])) as pool:
        statuses = dict(zip(GROUPS[device], pool.map(start, GROUPS[device]), strict=True))
    checks = []
    for line in work.lines("attention", "attention.jsonl"):
        found = faults(line)
        nearest = min(line["apart"].values(), default=math.nan)
        detail = (
            f"error {line['error']:.1e}, worst row {line['worst_row']:.1e}, neighbours from {nearest:.1e}, "
            f"{line['seconds']} s"
        )
        checks.append(Check(case_name(line), not found, "; ".join(found) or detail))
    checks.append(Check("cases", bool(checks), f"{len(checks)} cases"))
    for group, status in statuses.items():
        checks += ended(f"attention-{group}", status, work.log(f"attention-{group}"))
    return checks


def case_name(line: dict[str, Any]) -> str:
    """Return a case in words."""
    causal = "causal" if line["causal"] else "non-causal"
    window = f"window {line['window']}" if line["window"] else "no window"
    heads = f"{line['heads']}/{line['kv_heads']}x{line['head_size']}"
    return f"{line['backend']} {window} {causal} {heads} K={line['drafts']} {line['histories']}"


def refuse(work: Work) -> list[Check]:
    """Model runner V2, when it is asked for."""
    status = work.engine(
        "refuse", "pair.engine", SECONDS["refuse"], "1", drafter=str(work.scratch / "window"), levels=[]
    )
    said = [text for text in work.log("refuse").splitlines() if "VLLM_USE_V2_MODEL_RUNNER=0" in text]
    served = any(line["kind"] == "boot" for line in work.lines("refuse"))
    refused = status not in (0, None) and not served and bool(said)
    return [Check("V2 refuses windows", refused, said[-1].strip()[:300] if said else f"status {status}")]


def apart(left: list[float], right: list[float]) -> float:
    """Norm of the difference of two vectors, in terms of the second's."""
    if len(left) != len(right) or not right:
        return math.nan
    return math.dist(left, right) / math.hypot(*right)


def compare(work: Work) -> list[Check]:
    """Return the same weights with three kinds of windows."""
    checks, states, tokens = [], {}, {}
    for name in DRAFTERS:
        run = f"compare-{name}"
        status = work.engine(
            run, "pair.draft", SECONDS["compare"], "1" if work.args.runner == "v2" else "0",
            drafter=str(work.scratch / name), prompts=PROMPTS,
            speculative={"attention_backend": "FLASH_ATTN"},
        )  # fmt: skip
        lines = work.lines(run)
        states |= {(name, line["prompt"]): line["states"] for line in lines}
        tokens |= {(name, line["prompt"]): line["tokens"] for line in lines}
        checks += ended(run, status, work.log(run))
        checks += [window_check(name, line["layers"]) for line in lines[:1]]
    short, long = PROMPTS
    for what, left, right, prompt, same in (
        ("within the window, windows change nothing", "window", "wide", short, True),
        ("beyond the window, they do", "window", "wide", long, False),
        ("within the window, causality does", "none", "wide", short, False),
    ):
        pair = (left, prompt), (right, prompt)
        found = apart(*(states.get(one, []) for one in pair))
        drafts = [tokens.get(one) for one in pair]
        ok = found <= SAME if same else found > APART
        equal = "the same" if drafts[0] == drafts[1] else "different"
        detail = f"hidden states differ by {found:.2e}, drafts are {equal}"
        checks.append(Check(f"{what} (prompt {prompt})", ok, detail))
    return checks


def window_check(name: str, layers: list[dict[str, Any]]) -> Check:
    """Return the windows and backend of the drafter *name*, one of `DRAFTERS`."""
    window = DRAFTERS[name]
    sliding = [kind == "sliding_attention" and window is not None for kind in WINDOW_LAYERS]
    wanted = [[window - 1, 0] if one and window else [-1, -1] for one in sliding]
    found = [layer["window"] for layer in layers]
    backends = {layer["backend"] for layer in layers}
    ok = found == wanted and backends == {"FLASH_ATTN"}
    return Check(f"windows of {name}", ok, f"{found} on {', '.join(sorted(backends))}")


def draft_layer_checks(serving: Serving, boot: dict[str, Any], end: dict[str, Any]) -> list[Check]:
    """Window, backend, KV and causality of each draft layer."""
    layers, causality = boot["asked"][0], end["asked"][0]
    sliding = [kind == "sliding_attention" for kind in WINDOW_LAYERS]
    windows = [[WINDOW - 1, 0] if one else [-1, -1] for one in sliding]
    found = [layer["window"] for layer in layers]
    backends = {layer["backend"] for layer in layers}
    places = {(layer["kv"], layer["group"]) for layer in layers}
    causal = [causality.get(layer["name"]) for layer in layers]
    return [
        Check("draft windows", found == windows, str(found)),
        Check("draft backend", backends == {serving.backend}, str(backends)),
        Check(
            "draft KV", len(places) == 1 and {kv for kv, _ in places} == {"FullAttentionSpec"}, str(places)
        ),
        Check("draft causality", causal == [[str(one)] for one in sliding], str(causal)),
    ]


def serve(work: Work, name: str) -> list[Check]:
    """Serve a drafter with windows at all levels."""
    serving = SERVING[name]
    status = work.engine(
        name,
        "pair.engine",
        work.args.boot_seconds + 20 * len(work.args.levels),
        serving.runner,
        drafter=str(work.scratch / "window"),
        eager=serving.graphs is None,
        compilation={"cudagraph_mode": serving.graphs} if serving.graphs else {},
        speculative={"attention_backend": serving.backend},
        ask=["pair_draft_layers"],
        ask_at_end=["pair_draft_causality"],
    )
    lines = work.lines(name)
    boots, ends = ([line for line in lines if line["kind"] == kind] for kind in ("boot", "end"))
    checks = ended(name, status, work.log(name))
    if len(boots) == len(ends) == 1:
        view = boots[0]["view"]
        wanted = dict(zip(("runner", "drafter", "rejection_sampler"), RUNNERS["v1"], strict=True))
        checks += [Check(key, view[key] == value, view[key]) for key, value in wanted.items()]
        mode, captured = view["cudagraph_mode"], view["captured"]
        same_mode = mode.rpartition(".")[2] == serving.graphs
        right = captured > 0 and same_mode if serving.graphs else captured == 0
        checks.append(Check("graphs", right, f"{mode}, {captured} captured"))
        checks.append(Check("first request", boots[0]["canary"], f"booted in {boots[0]['seconds']} s"))
        checks += draft_layer_checks(serving, boots[0], ends[0])
    else:
        checks.append(Check("boot and end", ok=False, detail=f"{len(boots)} boots, {len(ends)} ends"))
    levels = {line["c"]: line for line in lines if line["kind"] == "level"}
    for level in work.args.levels:
        found = levels.get(level, {"faults": ["never served"]})["faults"]
        checks.append(Check(f"c={level}", not found, "; ".join(found[:8]) or "as predicted"))
    return checks


def table(checks: dict[str, list[Check]]) -> str:
    """All checks as Markdown."""
    rows = ["| part | check | verdict | found |", "|---|---|---|---|"]
    for part, some in checks.items():
        rows += [f"| {part} | {one.name} | {'pass' if one.ok else 'FAIL'} | {one.detail} |" for one in some]
    return "\n".join(rows)


def run_part(work: Work, part: str) -> list[Check]:
    """Run one part; record any error as its failure."""
    started = time.monotonic()
    try:
        if part in SERVING:
            checks = serve(work, part)
        else:
            checks = {"attention": attention, "refuse": refuse, "compare": compare}[part](work)
    except Exception as error:  # noqa: BLE001 - the other parts are to run
        checks = [Check("ran", ok=False, detail=repr(error)[:500])]
    for check in checks:
        say(f"{'ok  ' if check.ok else 'FAIL'} {part}: {check.name}: {check.detail}")
    say(f"     {part}: {time.monotonic() - started:.0f} s")
    return checks


def main() -> int:
    """Run the parts, print the tally."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "lines.jsonl").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="draft-attention-") as folder:
        work = Work(args, Path(folder))
        _, drafter = write_models(work.scratch)
        for name, window in DRAFTERS.items():
            write_window_drafter(drafter, name, window)
        for part in args.only:
            work.checks[part] = run_part(work, part)
            report = {one: [asdict(check) for check in some] for one, some in work.checks.items()}
            (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            (args.out / "table.md").write_text(table(work.checks) + "\n", encoding="utf-8")
    found = [check.ok for some in work.checks.values() for check in some]
    say(f"{sum(found)} passed, {len(found) - sum(found)} failed")
    return 0 if found and all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
