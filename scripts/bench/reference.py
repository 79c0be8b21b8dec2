"""Measure which errors of logits a stored reference detects, and how often it alarms on a healthy server.

python scripts/bench/reference.py [--seeds 20]

Answers are those of the simulator's language model, without a server: logits are rounded differently for each
start and batch size, and an error of a deviation in nats is added to all of them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import MetricsSnapshot, Observation, Sample, TokenLogprobs
from sparkwright.verify.check import Context
from sparkwright.verify.checks.reference import CHECK, LEVELS, TOKENS, TOP, Reference, reference_check
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.profiles import Profile
from sparkwright.verify.simulator.model import Sampling, TokenGenerator, answer_to, encode

ERRORS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class Server:
    """A simulated server.

    Attributes:
        error: deviation of an error of its logits.
    """

    seed: int
    error: float = 0.0

    def observe(self, cell: Cell) -> Observation:
        """Return the answers to *cell*."""
        samples = []
        for prompt in cell.prompts:
            tokens = encode(prompt.text)
            sampling = Sampling(noise=self.seed + 1, detailed=True, error=self.error)
            generator = TokenGenerator(tokens, answer_to(prompt.text), sampling)
            choices = [generator.next(cell.load.concurrency) for _ in range(TOKENS)]
            logprobs = [
                TokenLogprobs(
                    f"token_id:{choice.token}",
                    choice.logprob,
                    {f"token_id:{token}": logprob for token, logprob in choice.top[:TOP]},
                )
                for choice in choices
            ]
            samples.append(
                Sample(
                    prompt=prompt.name,
                    category=prompt.category,
                    started=1,
                    ended=2,
                    prompt_tokens=len(tokens),
                    output_tokens=TOKENS,
                    token_ids=tuple(choice.token for choice in choices),
                    logprobs=tuple(logprobs),
                )
            )
        before, after = (MetricsSnapshot(at=at, generation_tokens=0, start_s=1) for at in (0, 1))
        return Observation(cell=cell, samples=tuple(samples), before=before, after=after)


def make(seed: int) -> Reference:
    """Return a reference of a healthy server; another seed has other prompts, and so other errors."""
    context = Context(Profile(name="bench", seed=seed), load_corpus(), {})
    seen = [Server(10_000 + seed).observe(cell) for cell in CHECK.cells(context)]
    answers, again = (tuple(o for o in seen if o.cell.load.concurrency == level) for level in LEVELS)
    return Reference(answers, again)


def main() -> int:
    """Print a table: share of servers that fail, or are undecided, by error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="servers of each row")
    options = parser.parse_args()
    print("| tokens compared | error, nat | mean distance, nat | fail | undecided | pass |")
    print("|---|---|---|---|---|---|")
    context = Context(Profile(name="bench"), load_corpus(), {})
    checks = [reference_check(make(seed)) for seed in range(options.seeds)]
    for error in ERRORS:
        found, tokens, means = Counter[Verdict](), [], []
        for seed, check in enumerate(checks):
            server = Server(seed, error)
            findings = check.judge(context, [server.observe(cell) for cell in check.cells(context)])
            verdicts = {finding.verdict for finding in findings}
            order = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS)
            found[next(verdict for verdict in order if verdict in verdicts)] += 1
            measured = next(one.measured for one in findings if "tokens compared" in one.measured)
            tokens.append(int(measured["tokens compared"]))
            means.append(float(str(measured["raw mean distance"]).partition(" ")[0]))
        row = (
            round(sum(tokens) / len(tokens)), error, f"{sum(means) / len(means):.4f}",
            found[Verdict.FAIL], found[Verdict.INCONCLUSIVE] + found[Verdict.INVALID],
            found[Verdict.PASS],
        )  # fmt: skip
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
