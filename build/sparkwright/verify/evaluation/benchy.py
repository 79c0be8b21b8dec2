"""One run of llama-benchy against a server: its own tables are those that users publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkwright.base.errors import ConfigError
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.evaluation.judge import CHECK, run_of
from sparkwright.verify.evaluation.run import RESULTS, EvalRequest, EvalTool, run_tool
from sparkwright.verify.run import Run

BENCHY = EvalTool(
    "llama-benchy",
    "llama_benchy",
    "llama-benchy==0.4.0",
    "it loads the tokenizer of its --model: name another one by -- --tokenizer",
)
FILE = f"{RESULTS}/llama-benchy.json"
"""Its result in the run's folder."""
# It takes the key on its command line alone, which every user of the machine can read.
_WITH_KEY = (
    "import os, runpy, sys; sys.argv += ['--api-key', os.environ['OPENAI_API_KEY']];"
    " runpy.run_module('llama_benchy', run_name='__main__')"
)
_FIGURES = {"pp_throughput": "pp tok/s", "tg_throughput": "tg tok/s", "e2e_ttft": "TTFT ms"}


def run_benchy(request: EvalRequest, folder: Path, cache: Path) -> Run:
    """Run llama-benchy with the arguments of *request* and return its figures as a run; `FILE` has them all.

    Raises:
        ConfigError: it left no result, or another one than this version's.
        ServerError: it cannot be installed, a request failed, or it did.
        NotInStoreError: it would have to be fetched, and the network is off.
    """
    target = folder / FILE
    arguments = ["--base-url", f"{request.url}/v1", "--model", request.model, "--exit-on-first-fail"]
    arguments += ["--format", "json", "--save-result", str(target)]
    run_tool(BENCHY, request, ["-c", _WITH_KEY, *arguments], target.parent, cache)
    try:
        tests = [_figures(one) for one in json.loads(target.read_text(encoding="utf-8"))["benchmarks"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{target} cannot be read", because=repr(error)) from error
    measured: dict[str, float | str] = {name: figures for name, figures in tests if figures}
    finding = Finding(
        check=CHECK,
        name="llama-benchy measured every test",
        definition="Its prompts are sent to the server, and its figures are means by its own definitions.",
        verdict=Verdict.PASS if tests and len(measured) == len(tests) else Verdict.INCONCLUSIVE,
        cause="; ".join(f"{name}: {told}" for name, told in measured.items()) or "no test has a figure",
        measured=measured,
        threshold="none: speed is not judged",
    )
    return run_of(request, [finding], tool=BENCHY.requirement, arguments=" ".join(request.arguments))


def _figures(test: dict[str, Any]) -> tuple[str, str]:
    """Return a test's name, as in the program's own table, and its mean figures; none if one is missing."""
    name = (
        f"pp{test['prompt_size']} tg{test['response_size']} @ d{test['context_size']} c{test['concurrency']}"
    )
    if test["is_context_prefill_phase"]:
        name = f"context of {name}"
    means = {title: test[key] and test[key]["mean"] for key, title in _FIGURES.items()}
    if None in means.values():
        return name, ""
    return name, ", ".join(f"{title} {mean:.1f}" for title, mean in means.items())
