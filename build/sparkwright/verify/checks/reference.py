"""Comparison with a stored reference of the same checkpoint: probabilities and greedy answers.

A wrong target model is seen by nothing that compares a server with itself: speculation that is lossless keeps
its errors too. The limits follow from the reference: how far its server was from itself at two batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, describe, not_applicable, triage
from sparkwright.verify.checks.distance import distances
from sparkwright.verify.checks.divergence import NoLogprobsError, Pairing, pair
from sparkwright.verify.checks.lossless import LIMIT_NAT, MARGIN, NOISY_NAT
from sparkwright.verify.reference import Reference
from sparkwright.verify.statistics import one_sided_excess, ratio_interval, share_interval

LIMIT_MEAN = 0.005
"""Mean distance of the tokens' distributions in nats; other batch sizes in bfloat16 make ten-thousandths."""
LIMIT_ONE = 0.1
"""The same of one answer."""
NOISE_FACTOR = 4.0
"""Least distance beyond that of the reference's server from itself."""
LEVEL = 0.99
LEAST_TOKENS = 8
"""Tokens of an answer, up to where it leaves the reference, that its mean may be judged by."""
FEW_PROMPTS = 8
SURE = 0.001
"""Chance below which a server is said to be farther from the reference than that is from itself."""


@dataclass(frozen=True)
class ReferenceCheck:
    """The prompts of a reference once more, one at a time and several at a time.

    Attributes:
        reference: to compare with; nothing is sent without one.
    """

    reference: Reference | None = None
    name: str = "reference"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the reference's cells."""
        del context
        if self.reference is None:
            return ()
        return tuple(one.cell for one in (*self.reference.answers, *self.reference.again))

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on probabilities, on greedy answers and on the tokens of prompts."""
        seen = triage(self, context, observations)
        if self.reference is None:
            return [not_applicable(seen, _PROBABILITIES, _FAR, "no reference was given (--reference)")]
        against = _Compared.of(self.reference, seen)
        return [
            _probabilities(against, seen),
            _answers(against, seen),
            _prompts(self.reference, seen),
        ]


# In no profile: --reference adds it.
CHECK = RegisteredCheck(ReferenceCheck())

_PROBABILITIES = "probabilities are those of the reference"
_FAR = (
    "At each token of greedy answers, up to the first that is another: how far the probabilities of the most"
    " likely tokens are from the reference's (a lower bound of the Kullback-Leibler divergence). The"
    " reference's server against itself, over two batch sizes, gives the effect of rounding."
)


@dataclass(frozen=True)
class _Compared:
    """A server's answers beside the reference's.

    Attributes:
        own: distances by prompt of the reference's server from itself.
        own_gaps: gaps of its answers from its own.
        found: distances by kind of prompt, and by cell and prompt.
        pairings: greedy answers beside the reference's, by cell.
        batched: names of the cells with several requests at a time.
        against: reasons for which there is nothing to compare.
    """

    own: Mapping[str, list[float]] = field(default_factory=dict)
    own_gaps: tuple[float, ...] = ()
    found: Mapping[str, Mapping[tuple[str, str], list[float]]] = field(default_factory=dict)
    pairings: tuple[tuple[Cell, Pairing], ...] = ()
    batched: frozenset[str] = frozenset()
    against: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, reference: Reference, seen: CheckedCells) -> _Compared:
        base = {one.cell.tags["kind"]: one for one in reference.answers}
        own: dict[str, list[float]] = {}
        found: dict[str, dict[tuple[str, str], list[float]]] = {}
        try:
            for one in reference.again:
                own |= distances(base[one.cell.tags["kind"]], one)
            own_gaps = [gap for one in reference.again for gap in pair(base[one.cell.tags["kind"]], one).gaps]
            pairings = [(one.cell, pair(base[one.cell.tags["kind"]], one)) for one in seen.sound]
        except NoLogprobsError as error:
            return cls(against=((Verdict.INVALID, str(error)),))
        for one in seen.sound:
            kind = one.cell.tags["kind"]
            for prompt, bounds in distances(base[kind], one).items():
                if bounds:
                    found.setdefault(kind, {})[describe(one.cell), prompt] = bounds
        if not found:
            return cls(against=((Verdict.INCONCLUSIVE, "there are no answers to compare"),))
        batched = frozenset(describe(one.cell) for one in reference.again)
        return cls(own, tuple(own_gaps), found, tuple(pairings), batched)

    @property
    def noise(self) -> float:
        """Mean distance of the reference's server from itself."""
        return _mean(self.own.values())

    @cached_property
    def excess(self) -> float:
        """Chance that a server which is as far as the reference's is from itself looks so far or farther.

        Answers at the higher batch size alone are compared, since the reference's own distance is between the
        two sizes.
        """
        null = [_mean([bounds]) for bounds in self.own.values() if bounds]
        observed = [
            _mean([bounds])
            for answers in self.found.values()
            for (where, prompt), bounds in answers.items()
            if where in self.batched and prompt in self.own
        ]
        return one_sided_excess(null, observed) if null and observed else 1.0

    @property
    def limit(self) -> float:
        """Mean distance that rounding does not explain."""
        return max(LIMIT_MEAN, NOISE_FACTOR * self.noise)

    @property
    def limit_one(self) -> float:
        """The same of one answer."""
        worst = max((_mean([bounds]) for bounds in self.own.values()), default=0.0)
        return max(LIMIT_ONE, NOISE_FACTOR * worst)


def _mean(answers: Iterable[Sequence[float]]) -> float:
    values = [value for bounds in answers for value in bounds]
    return sum(values) / len(values) if values else 0.0


# Findings ------------------------------------------------------------------------------------------------


def _prompts(reference: Reference, seen: CheckedCells) -> Finding:
    known = {sample.prompt: sample.prompt_tokens for one in reference.answers for sample in one.samples}
    other = [
        (sample.prompt, sample.prompt_tokens)
        for one in seen.sound
        for sample in one.counted
        if sample.prompt_tokens != known.get(sample.prompt)
    ]
    against: list[Reason] = []
    if other:
        name, tokens = other[0]
        shown = f"{name} came to {tokens} tokens, in the reference to {known.get(name)}"
        against.append(
            (Verdict.INVALID, f"{shown}: another tokenizer or chat template, so that prompts are others")
        )
    return conclude(
        seen,
        "prompts are those of the reference",
        "Each prompt has as many tokens as in the reference: tokenizer and chat template are the same.",
        against=against,
        passed=f"{len(known)} prompts have the same number of tokens",
        threshold="no difference",
        measured={"prompts": len(known), "made of": reference.identity.model, "made": reference.created},
        warnings=seen.notes,
        lenient=True,
    )


def _probabilities(compared: _Compared, seen: CheckedCells) -> Finding:
    against, measured = list(compared.against), dict[str, float | str]()
    if not against:
        limit = compared.limit
        for kind, answers in compared.found.items():
            reason, figures = _judged(kind, answers, limit)
            measured |= figures
            against += reason
        against += _odd(compared)
        measured["tokens compared"] = sum(
            len(bounds) for answers in compared.found.values() for bounds in answers.values()
        )
        measured["reference from itself, mean nat"] = round(compared.noise, 5)
        measured["farther than the reference from itself, p"] = round(compared.excess, 4)
    shown = ", ".join(f"{name} {value}" for name, value in measured.items() if "mean distance" in name)
    warnings = []
    if not compared.against and compared.excess < SURE:
        of_own = "probabilities are farther from the reference's than its server is from itself"
        warnings = [f"{of_own} (p = {compared.excess:.4f}): other kernels, or a fault that is small"]
    return conclude(
        seen,
        _PROBABILITIES,
        _FAR,
        against=against,
        passed=shown,
        threshold=f"fails where the {LEVEL:.0%} interval of the mean lies above {compared.limit:.4f} nat"
        f" ({LIMIT_MEAN}, or {NOISE_FACTOR:.0f} times the reference's server from itself), or that of one"
        f" answer above {compared.limit_one:.3f}; decides nothing where the interval reaches beyond",
        measured=measured,
        warnings=warnings,
    )


def _judged(
    kind: str, answers: Mapping[tuple[str, str], list[float]], limit: float
) -> tuple[list[Reason], dict[str, float | str]]:
    """Return the reasons against the answers of one kind of prompts, and their figures.

    An answer at two batch sizes counts once: its prompt is the unit.
    """
    by_prompt: dict[str, list[float]] = {}
    for (_, prompt), bounds in answers.items():
        by_prompt.setdefault(prompt, []).extend(bounds)
    if len(by_prompt) < 2:  # noqa: PLR2004 - no interval
        return [(Verdict.INCONCLUSIVE, f"{kind}: one prompt is too few")], {}
    sums = [sum(bounds) for bounds in by_prompt.values()]
    mean, low, high = ratio_interval(sums, [len(bounds) for bounds in by_prompt.values()], LEVEL)
    shown = f"{mean:.4f} nat ({max(0.0, low):.4f} to {high:.4f})"
    figures: dict[str, float | str] = {f"{kind} mean distance": shown}
    if low > limit:
        cause = f"{kind} prompts: probabilities are {shown} from the reference's in the mean"
        return [(Verdict.FAIL, f"{cause}, beyond {limit:.4f}")], figures
    if high > limit:
        cause = f"{kind} prompts: a mean distance of {shown} may be beyond {limit:.4f}"
        return [(Verdict.INCONCLUSIVE, cause)], figures
    return [], figures


def _odd(compared: _Compared) -> list[Reason]:
    """Return the reason against single answers that are far from the reference's."""
    means = {
        (kind, *place): _mean([bounds])
        for kind, answers in compared.found.items()
        for place, bounds in answers.items()
        if len(bounds) >= LEAST_TOKENS
    }
    odd = {place: mean for place, mean in means.items() if mean > compared.limit_one}
    if not odd:
        return []
    _, where, prompt = max(odd, key=lambda place: odd[place])
    kinds = " and ".join(sorted({kind for kind, _, _ in odd}))
    shown = f"{len(odd)} of {len(means)} answers, all to {kinds} prompts, are far from the reference's"
    return [(Verdict.FAIL, f"{shown}: in {where} {prompt} {max(odd.values()):.3f} nat in the mean")]


def _answers(compared: _Compared, seen: CheckedCells) -> Finding:
    usual = max(compared.own_gaps, default=0.0)
    limit = max(LIMIT_NAT, MARGIN * usual)
    against, measured = list(compared.against), dict[str, float | str]()
    gaps = [gap for _, pairing in compared.pairings for gap in pairing.gaps]
    if not against:
        against, measured = _parted(compared, gaps, limit)
    if usual > NOISY_NAT and not against:
        noisy = f"the reference's server differs from itself at tokens {usual:.2f} nat apart"
        against = [(Verdict.INCONCLUSIVE, f"{noisy}, too far for a comparison")]
    return conclude(
        seen,
        "greedy answers are the reference's up to near ties",
        "At the first token where a greedy answer leaves the reference's: by how much less likely that token"
        " is there than the reference's own.",
        against=against,
        passed=f"{measured.get('answers that are the same %', 100)} % of {len(gaps)} answers are the same,"
        f" and none leaves the reference's by more than {max(gaps, default=0.0):.3f} nat",
        threshold=f"no gap above {limit:.2f} nat ({LIMIT_NAT} nat, or {MARGIN:.0f} times the largest of the"
        " reference's server from itself)",
        measured=measured,
        lenient=True,
    )


def _parted(
    compared: _Compared, gaps: Sequence[float], limit: float
) -> tuple[list[Reason], dict[str, float | str]]:
    """Return the reasons against answers that leave the reference's, and the figures."""
    same = sum(gap == 0 for gap in gaps)
    low, high = share_interval(same, len(gaps))
    tokens = sum(length for _, pairing in compared.pairings for length in pairing.lengths)
    left = len(gaps) - same
    measured: dict[str, float | str] = {
        "answers": len(gaps),
        "answers that are the same %": round(100 * same / len(gaps), 1),
        "answers that are the same, 95 % interval": f"{100 * low:.1f} to {100 * high:.1f} %",
        "tokens to the first difference": round(tokens / max(1, left), 1),
        "largest gap nat": round(max(gaps), 4),
        "reference's largest gap from itself nat": round(max(compared.own_gaps, default=0.0), 4),
    }
    if len(gaps) < FEW_PROMPTS:
        return [(Verdict.INCONCLUSIVE, f"{len(gaps)} answers are too few")], measured
    wrong = [
        (difference, describe(cell))
        for cell, pairing in compared.pairings
        for difference in pairing.found
        if difference.gap > limit
    ]
    if not wrong:
        return [], measured
    worst, where = max(wrong, key=lambda entry: entry[0].gap)
    shown = f"{len(wrong)} of {len(gaps)} answers leave the reference's, such as in {where} {worst}"
    return [(Verdict.FAIL, shown)], measured
