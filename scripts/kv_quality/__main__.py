"""Measure what a KV cache's format costs a trained model, on the CPU or a GPU.

    python scripts/kv_quality MODEL -o RESULTS                      # text, needles, answers, calls of a tool
    python scripts/kv_quality MODEL -o RESULTS --drafter FOLDER     # acceptance over these answers
    python scripts/kv_quality -o RESULTS --report                   # the tables

Keys and values are rounded to the format when the model stores them, after the rotary positions, so that
attention reads what a cache of that format would hold. Factors of matrices are rounded to bfloat16 and added
up in float32, as on tensor cores; all else is float32. It shows the format's loss, not the kernels' (those
are proved against the same bytes elsewhere), nor that of queries in FP8, which vLLM adds over an FP8 cache.

Needs torch and transformers, such as the environment of a rehearsal has. MODEL is a folder as transformers
saves it. Each measurement of a format is a line of RESULTS: a stopped run goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kv_quality.subject import Subject

sys.path.insert(0, str(Path(__file__).parents[1]))


def open_subject(given: argparse.Namespace) -> Subject:
    """Return the model on its device, on which tensors are made from then on."""
    import torch

    from kv_quality.subject import Subject

    subject = Subject(given.model)
    subject.model.to(given.device)
    torch.set_default_device(given.device)
    return subject


def measure(given: argparse.Namespace) -> None:
    """Make the measurements of text, needles, answers and calls that the results lack."""
    import torch

    from kv_quality.acceptance import by_look_up
    from kv_quality.measures import calibration, plan, prompts

    started = time.monotonic()
    with torch.inference_mode():
        subject = open_subject(given)
        subject.calibrate(calibration(subject))
        done = {(line["model"], line["part"], line["row"]["format"]) for line in read(given.output)}
        for part, names, make in plan(subject, given.windows):
            missing = [one for one in given.formats or names if (given.name, part, one) not in done]
            if not missing or not part.startswith(given.only):
                continue
            if time.monotonic() - started > given.seconds:
                print(f"{part} and what follows: left out, the seconds are spent", flush=True)
                break
            began = time.monotonic()
            for row in make(missing):
                keep(given, part, row)
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
        asked = prompts(subject)
        for name, answers in answered(given, "acceptance look-up"):
            keep(given, "acceptance look-up", {"format": name, "rows": by_look_up(asked, answers)})


def measure_drafts(given: argparse.Namespace) -> None:
    """Measure acceptance over each format's answers; train a drafter first if its folder has none."""
    import torch

    from kv_quality import acceptance, training
    from kv_quality.measures import calibration, prompts

    given.drafter.mkdir(parents=True, exist_ok=True)
    data, weights = given.drafter / "data.pt", given.drafter / "drafter.pt"
    subject = open_subject(given)
    with torch.inference_mode():
        subject.calibrate(calibration(subject))
    if not weights.exists():
        with torch.inference_mode():
            training.make_data(subject, data, given.answers, given.pieces)
        told = training.train(subject, torch.load(data), weights, given.steps, seed=0)
        keep(given, "drafter", {"format": "", **told})
        print(told, flush=True)
    with torch.inference_mode():
        drafter = training.load(subject, weights)
        asked = prompts(subject)
        for name, answers in answered(given, "acceptance block"):
            rows = acceptance.by_block(subject, drafter, asked, name, answers)
            keep(given, "acceptance block", {"format": name, "rows": rows})
            print(f"acceptance, {name}", flush=True)


def answered(given: argparse.Namespace, part: str) -> list[tuple[str, dict[str, list[int]]]]:
    """Return formats and greedy answers over them, of formats for which the results lack *part*."""
    found = [line for line in read(given.output) if line["model"] == given.name]
    done = {line["row"]["format"] for line in found if line["part"] == part}
    rows = [line["row"] for line in found if line["part"] == "greedy all"]
    return [(row["format"], row["answers"]) for row in rows if row["format"] not in done]


def keep(given: argparse.Namespace, part: str, row: dict[str, Any]) -> None:
    """Write a *row* of the measurement *part* to the end of the results."""
    line = {"model": given.name, "part": part, "row": row}
    with given.output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(results: Path) -> list[dict[str, Any]]:
    """Return the lines of *results*; none if there is no such file."""
    if not results.exists():
        return []
    with results.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="kv_quality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="folder of a model as transformers saves it")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of the results, a line each")
    parser.add_argument(
        "--name",
        help="what the model is called in the tables; its folder by default; with --report: only this model",
    )
    parser.add_argument("--windows", type=int, default=8, help="windows of text of 1,024 tokens")
    parser.add_argument(
        "--only", default="", help="measurements whose name begins so: text, needle, greedy, tools"
    )
    parser.add_argument(
        "--formats", nargs="+", default=(), metavar="NAME", help="of the tables; all by default"
    )
    parser.add_argument(
        "--exact", action="store_true", help="take factors in float32 instead of bfloat16; slow"
    )
    parser.add_argument(
        "--drafter", type=Path, metavar="FOLDER", help="train a drafter there; measure acceptance"
    )
    parser.add_argument("--answers", type=int, default=48, help="answers that the drafter is trained on")
    parser.add_argument("--pieces", type=int, default=96, help="pieces of text that it is trained on")
    parser.add_argument("--steps", type=int, default=250, help="of the drafter's training")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cuda takes factors in TF32, or --exact"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no measurement is begun")
    parser.add_argument("--report", action="store_true", help="print the tables of the results")
    parser.add_argument(
        "--chart", type=Path, metavar="FILE", help="with --report: draw divergence by position"
    )
    return parser


def main() -> None:
    """Measure, or print the tables."""
    parser = command_line()
    given = parser.parse_args()
    if given.report:
        from kv_quality import tables

        lines = [line for line in read(given.output) if given.name in {None, line["model"]}]
        print(tables.report(lines))
        if given.chart:
            from kv_quality.chart import draw

            given.chart.write_text(draw(lines), encoding="utf-8")
        return
    if given.model is None:
        parser.error("name the folder of a model")
    given.name = given.name or given.model.name
    if not given.exact:
        import torch

        torch.set_float32_matmul_precision("medium")
    (measure_drafts if given.drafter else measure)(given)


if __name__ == "__main__":
    main()
