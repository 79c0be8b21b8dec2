"""Comparison of greedy answers with those of another server of the same model: another wheel, or a plain one.

A smaller sibling of `lossless`, for servers that take a minute to start and compute as others do: one start
of each, and no tasks, which a small model does not solve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.capabilities import BASELINE
from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.baseline import baseline_failures_as_invalid
from sparkwright.verify.checks.common import CheckedCells, conclude, describe, triage
from sparkwright.verify.checks.divergence import NoLogprobsError, pair
from sparkwright.verify.checks.lossless import ALTERNATIVES, LIMIT_NAT, MARGIN, NOISY_NAT

LEVELS = (1, 8)
LENGTH = 48
FEW_PROMPTS = 8


@dataclass(frozen=True)
class Parity:
    """The same prompts to both servers, one at a time and eight at a time."""

    name: str = "parity"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return one cell for each level and server, the main one's first."""
        return tuple(_cell(context, arm, level) for arm in ("main", "baseline") for level in LEVELS)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return one finding on the first tokens at which answers differ."""
        seen = baseline_failures_as_invalid(triage(self, context, observations))
        limit, measured, against = LIMIT_NAT, dict[str, float | str](), list[tuple[Verdict, str]]()
        try:
            limit, measured, against = _compare(seen)
        except NoLogprobsError as error:
            against = [(Verdict.INVALID, str(error))]
        return [
            conclude(
                seen,
                "answers are those of the other server",
                "At the first token where a greedy answer leaves that of the other server: by how much less"
                " likely the token is for that server than its own. The other server against itself, over"
                " two batch sizes, gives the effect of rounding alone.",
                against=against,
                passed=f"{measured.get('answers that differ', 0)} of {measured.get('answers', 0)} answers"
                f" differ, none by more than {measured.get('largest gap nat', 0)} nat",
                threshold=f"no gap above {limit:.2f} nat ({LIMIT_NAT} nat, or {MARGIN:.0f} times the largest"
                " of the other server against itself if that is more)",
                measured=measured,
                warnings=seen.notes,
                needs=(BASELINE,),
            )
        ]


# In no profile: rehearsals run it, and --checks.
CHECK = RegisteredCheck(Parity())


def _cell(context: Context, arm: str, level: int) -> Cell:
    sizes = context.profile
    each = -(-sizes.lossless_prompts // len(sizes.categories))
    prompts = [
        prompt
        for category in sizes.categories
        for prompt in context.corpus.prompts(category, each, sizes.seed, "parity")
    ][: sizes.lossless_prompts]
    load = Load(
        concurrency=level,
        requests=len(prompts),
        max_tokens=min(LENGTH, sizes.max_tokens),
        logprobs=ALTERNATIVES,
        seed=sizes.seed,
    )
    return Cell(
        check="parity",
        name=f"answers c={level}",
        load=load,
        prompts=tuple(prompts),
        arm=arm,
        tags={"level": str(level)},
    )


def _compare(seen: CheckedCells) -> tuple[float, dict[str, float | str], list[tuple[Verdict, str]]]:
    """Return the limit, the figures and the reasons against.

    Raises:
        NoLogprobsError: an answer has no log-probabilities where they are needed.
    """
    by_place = {(o.cell.arm, o.cell.load.concurrency): o for o in seen.sound}
    reference = by_place.get(("baseline", 1))
    if reference is None:
        return LIMIT_NAT, {}, [(Verdict.INCONCLUSIVE, "there are no answers of the other server")]
    of_itself = by_place.get(("baseline", LEVELS[-1]))
    own = pair(reference, of_itself).gaps if of_itself is not None else []
    usual = max(own, default=0.0)
    limit = max(LIMIT_NAT, MARGIN * usual)
    compared = [(o.cell, pair(reference, o)) for (arm, _), o in by_place.items() if arm == "main"]
    gaps = [gap for _, pairing in compared for gap in pairing.gaps]
    measured: dict[str, float | str] = {
        "answers": len(gaps),
        "answers that differ": sum(gap > 0 for gap in gaps),
        "largest gap nat": round(max(gaps, default=0.0), 4),
        "other server's largest gap nat": round(usual, 4),
    }
    if min((len(pairing.lengths) for _, pairing in compared), default=0) < FEW_PROMPTS:
        return limit, measured, [(Verdict.INCONCLUSIVE, f"fewer than {FEW_PROMPTS} answers to compare")]
    if usual > NOISY_NAT:
        noisy = f"the other server differs from itself at tokens {usual:.2f} nat apart"
        return limit, measured, [(Verdict.INCONCLUSIVE, f"{noisy}, too far for a comparison")]
    found = [
        (difference, describe(cell))
        for cell, pairing in compared
        for difference in pairing.found
        if difference.gap > limit
    ]
    if not found:
        return limit, measured, []
    worst, where = max(found, key=lambda entry: entry[0].gap)
    shown = f"{len(found)} of {len(gaps)} answers leave the other server's, such as in {where} {worst}"
    return limit, measured, [(Verdict.FAIL, shown)]
