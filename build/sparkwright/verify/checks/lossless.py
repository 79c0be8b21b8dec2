"""Comparison of greedy answers with those of the same model without speculation.

Healthy speculation is not identical token for token, because a verify step rounds otherwise than a plain one.
The differences to expect are measured, not assumed: by plain servers against each other, over two starts
and two batch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.capabilities import BASELINE, SPECULATION
from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.baseline import baseline_failures_as_invalid
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, describe, main_facts, triage
from sparkwright.verify.checks.divergence import NoLogprobsError, Pairing, find_cluster, own_gaps, pair
from sparkwright.verify.corpus import holds
from sparkwright.verify.statistics import mcnemar, one_sided_excess, percentile

LEVELS = (1, 8)
STARTS = (("baseline", 0), ("baseline", 1), ("main", 0))
LENGTH = 128
ALTERNATIVES = 5
TASK_LENGTHS = {"short tasks": 48, "worked tasks": 512}

LIMIT_NAT = 0.5
"""A gap that rounding does not explain: at logits around 20, bfloat16 has steps of 0.125."""
TIE_NAT = 0.3
"""Gaps up to two such steps and a bit are near ties, however many there are."""
MARGIN = 2.0
"""Least distance of a gap beyond plain servers' tail. That tail is the largest of some dozen gaps, and the
largest of as many others exceeds it in every other run of two equal servers, if only by a little."""
NOISY_NAT = 1.0
FEW_PROMPTS = 20
FEW_TASKS = 40
LEAST_RIGHT = 0.2
SURE = 0.01
TASKS_SURE = 0.02
ODD_SHARE = 0.05


@dataclass(frozen=True)
class Lossless:
    """Answers and tasks of a server with speculation against those of a plain one, started twice."""

    name: str = "lossless"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return answers with log-probabilities for each start and level; tasks for each arm's first.

        Without a baseline, answers of the main server alone.
        """
        cells = []
        alone = BASELINE in context.lacks
        for arm, boot in STARTS[-1:] if alone else STARTS:
            cells += [_answers(context, arm, boot, level) for level in LEVELS]
            if boot == 0 and not alone:
                cells += [_tasks(context, arm, kind) for kind in TASK_LENGTHS]
        return tuple(cells)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on near ties, fixed places, argmax tokens and solved tasks."""
        seen = baseline_failures_as_invalid(triage(self, context, observations))
        answers = seen.tagged(kind="answers")
        compared = _Compared.of(answers)
        differences = _differences(answers, compared, main_facts(context).speculative_tokens)
        return [
            differences,
            _places(answers, compared),
            _argmax(answers, differences.verdict),
            _accuracy(seen),
        ]


CHECK = RegisteredCheck(Lossless(), profiles={"full": 80, "cpu": 80, "demo": 70})


# Cells --------------------------------------------------------------------------------------------


def _answers(context: Context, arm: str, boot: int, level: int) -> Cell:
    sizes = context.profile
    each = -(-sizes.lossless_prompts // len(sizes.categories))
    prompts = context.prompts_of_each(each, "lossless")[: sizes.lossless_prompts]
    return Cell(
        check="lossless",
        name=f"answers c={level}",
        load=Load(
            concurrency=level,
            requests=len(prompts),
            max_tokens=min(LENGTH, sizes.max_tokens),
            logprobs=ALTERNATIVES,
            seed=sizes.seed,
        ),
        prompts=prompts,
        arm=arm,
        boot=boot,
        tags={"kind": "answers", "level": str(level)},
    )


def _tasks(context: Context, arm: str, kind: str) -> Cell:
    sizes = context.profile
    if kind == "short tasks":
        prompts = context.corpus.tasks(sizes.lossless_prompts, sizes.seed, "lossless")
    else:
        half = max(1, sizes.lossless_prompts // 2)
        prompts = context.prompts_of_each(half, "lossless tasks", ("math", "extraction"))
    return Cell(
        check="lossless",
        name=kind,
        load=Load(
            concurrency=max(LEVELS),
            requests=len(prompts),
            max_tokens=TASK_LENGTHS[kind],
            natural_stop=True,
            chat=True,
            thinking=context.profile.thinking,
            seed=sizes.seed,
        ),
        prompts=prompts,
        arm=arm,
        tags={"kind": "tasks"},
    )


# Differences ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Compared:
    """All answers compared with the reference: the plain server's first start, one request at a time.

    Attributes:
        null: plain answers, of the other start and at the higher concurrency.
        observed: answers of the speculating server, by level.
        against: reasons for which there is nothing to compare.
    """

    null: tuple[Pairing, ...] = ()
    observed: tuple[tuple[str, Pairing], ...] = ()
    against: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, answers: CheckedCells) -> _Compared:
        reference = next(
            (o for o in answers.sound if (o.cell.arm, o.cell.boot, o.cell.load.concurrency) == _REFERENCE),
            None,
        )
        if reference is None:
            return cls(against=((Verdict.INCONCLUSIVE, "there are no answers without speculation"),))
        others = [o for o in answers.sound if o is not reference]
        try:
            pairings = [(o.cell, pair(reference, o)) for o in others]
        except NoLogprobsError as error:
            return cls(against=((Verdict.INVALID, str(error)),))
        return cls(
            tuple(pairing for cell, pairing in pairings if cell.arm == "baseline"),
            tuple((describe(cell), pairing) for cell, pairing in pairings if cell.arm == "main"),
        )

    @property
    def null_gaps(self) -> list[float]:
        return [gap for pairing in self.null for gap in pairing.gaps]

    @property
    def gaps(self) -> list[float]:
        return [gap for _, pairing in self.observed for gap in pairing.gaps]

    @property
    def null_tail(self) -> float:
        """99.9th percentile of gaps between plain servers where they differ; 0 if they never do."""
        differing = [gap for gap in self.null_gaps if gap > 0]
        return percentile(differing, 99.9) if differing else 0.0

    def too_little(self) -> list[Reason]:
        """Return the reasons for which the comparison decides nothing."""
        if self.against:
            return list(self.against)
        fewest = min((len(pairing.lengths) for _, pairing in self.observed), default=0)
        if fewest < FEW_PROMPTS:
            return [(Verdict.INCONCLUSIVE, f"{fewest} prompts are too few to judge differences")]
        if len(self.null_gaps) < FEW_PROMPTS:
            few = f"{len(self.null_gaps)} pairs of plain answers are too few for a calibration"
            return [(Verdict.INCONCLUSIVE, few)]
        if self.null_tail > NOISY_NAT:
            noisy = f"plain servers differ from each other at tokens {self.null_tail:.2f} nat apart"
            return [(Verdict.INCONCLUSIVE, f"{noisy}, too far for a comparison")]
        return []


_REFERENCE = ("baseline", 0, 1)


def _differences(answers: CheckedCells, compared: _Compared, drafted: int) -> Finding:
    against = compared.too_little()
    limit, tie = max(LIMIT_NAT, MARGIN * compared.null_tail), max(TIE_NAT, compared.null_tail)
    measured: dict[str, float | str] = {}
    warnings = ["this server does not speculate: there is nothing to compare"] if drafted == 0 else []
    if not against:
        against = [*_too_unlikely(compared, limit), *_too_many(compared, tie)]
        rates = _rate(compared.null_gaps), _rate(compared.gaps)
        measured = {
            "answers that differ %": round(100 * rates[1], 1),
            "plain answers that differ %": round(100 * rates[0], 1),
            "largest gap nat": round(max(compared.gaps), 4),
            "plain servers' 99.9th percentile nat": round(compared.null_tail, 4),
            "answers": len(compared.gaps),
        }
        p = one_sided_excess([gap > 0 for gap in compared.null_gaps], [gap > 0 for gap in compared.gaps])
        if p < SURE and not against:
            shown = f"{rates[1]:.0%} of answers differ, of plain ones {rates[0]:.0%}"
            warnings.append(f"{shown}: more, but all of them at near ties")
    return conclude(
        answers,
        "differences from plain decoding are near ties",
        "At the first token where a greedy answer leaves that of the same model without speculation: by how"
        " much less likely the token is for the plain model than its own. Plain servers against each other,"
        " over two starts and two batch sizes, give the effect of rounding alone.",
        against=against,
        passed=f"{_rate(compared.gaps):.0%} of {len(compared.gaps)} answers differ, none by more than"
        f" {max(compared.gaps, default=0):.2f} nat",
        threshold=f"fails on any gap above {limit:.2f} nat ({LIMIT_NAT} nat, or {MARGIN:.0f} times the 99.9th"
        f" percentile among plain servers if that is more), or on surely more gaps"
        f" above {tie:.2f} nat than these have (p < {SURE})",
        measured=measured,
        warnings=[*warnings, *answers.notes],
        needs=(BASELINE,),
    )


def _rate(gaps: Sequence[float]) -> float:
    return sum(gap > 0 for gap in gaps) / len(gaps) if gaps else 0.0


def _too_unlikely(compared: _Compared, limit: float) -> list[Reason]:
    found = [
        (difference, where)
        for where, pairing in compared.observed
        for difference in pairing.found
        if difference.gap > limit
    ]
    if not found:
        return []
    worst, where = max(found, key=lambda entry: entry[0].gap)
    shown = f"{len(found)} of {len(compared.gaps)} answers part at a token that rounding does not explain"
    return [(Verdict.FAIL, f"speculation is lossy: {shown}, such as in {where} {worst}")]


def _too_many(compared: _Compared, tie: float) -> list[Reason]:
    null = [gap if gap > tie else 0.0 for gap in compared.null_gaps]
    observed = [gap if gap > tie else 0.0 for gap in compared.gaps]
    p = one_sided_excess(null, observed)
    if p >= SURE:
        return []
    shown = f"{sum(gap > 0 for gap in observed)} of {len(observed)} answers part at gaps above {tie:.2f} nat"
    return [(Verdict.FAIL, f"speculation is lossy: {shown}, more than plain ones (p = {p:.4f})")]


def _places(answers: CheckedCells, compared: _Compared) -> Finding:
    against = compared.too_little()
    if not against:
        cluster = find_cluster([pairing for _, pairing in compared.observed], compared.null)
        if cluster is not None:
            against = [(Verdict.FAIL, f"speculation is lossy at a fixed place: {cluster}")]
    total = sum(len(pairing.found) for _, pairing in compared.observed)
    return conclude(
        answers,
        "differences have no fixed position",
        "Positions of first differences: those of rounding are anywhere, those of a wrong index or block"
        " always at the same position in the output or in a block of the KV cache.",
        against=against,
        passed=f"{total} differences are spread as by chance",
        threshold="fails where four or more prompts differ at one place, chance has less than 0.001 for that,"
        " and plain servers show less than half as many",
        lenient=True,
        needs=(BASELINE,),
    )


def _argmax(answers: CheckedCells, differences: Verdict) -> Finding:
    """Return a finding on greedy tokens being the target's argmax; it needs no other server."""
    main = answers.where(lambda cell: cell.arm == "main")
    plain = answers.where(lambda cell: cell.arm == "baseline")
    against: list[Reason] = []
    limit = LIMIT_NAT
    try:
        usual = max((gap for o in plain.sound for _, _, gap in own_gaps(o)), default=0.0)
        limit = max(LIMIT_NAT, MARGIN * min(usual, NOISY_NAT))
        gaps = [gap for observation in main.sound for gap in own_gaps(observation)]
    except NoLogprobsError as error:
        against, gaps = [(Verdict.INVALID, str(error))], []
    odd = [entry for entry in gaps if entry[2] > limit]
    if odd:
        against = [_not_argmax(odd, len(gaps), differences, drafted=SPECULATION not in main.lacks)]
    elif not gaps and not against:
        against = [(Verdict.INCONCLUSIVE, "there are no answers to judge")]
    return conclude(
        main,
        "greedy tokens are the target model's argmax",
        "At every token of the answers: log-probability of the most likely token less that of the token that"
        " was taken, as the server itself reports them for its target model.",
        against=against,
        passed=f"all of {len(gaps)} tokens are the most likely ones or near ties",
        threshold=f"no token more than {limit:.2f} nat below the most likely one ({LIMIT_NAT} nat, or"
        f" {MARGIN:.0f} times the largest of plain servers if that is more)",
        measured={"tokens": len(gaps), "tokens that are not the most likely": len(odd)},
        lenient=True,
    )


def _not_argmax(
    odd: Sequence[tuple[str, int, float]], total: int, differences: Verdict, *, drafted: bool
) -> Reason:
    """Return the reason against tokens that are not the argmax: they or their log-probabilities are wrong."""
    prompt, position, gap = max(odd, key=lambda entry: entry[2])
    shown = f"{len(odd)} of {total} tokens are not the server's own most likely ones"
    shown = f"{shown}, such as in {prompt} token {position}, {gap:.2f} nat below"
    if len(odd) > ODD_SHARE * total and differences is Verdict.PASS:
        of_others = "yet answers are those of a plain server: its log-probabilities are of other tokens"
        return Verdict.INVALID, f"{shown}; {of_others}"
    return Verdict.FAIL, f"speculation is lossy: {shown}" if drafted else shown


# Tasks ---------------------------------------------------------------------------------------------------


def _accuracy(seen: CheckedCells) -> Finding:
    tasks = seen.tagged(kind="tasks")
    right = {arm: _right([o for o in tasks.sound if o.cell.arm == arm]) for arm in ("baseline", "main")}
    common = right["baseline"].keys() & right["main"].keys()
    plain = sum(right["baseline"][name] for name in common)
    main = sum(right["main"][name] for name in common)
    lost = sum(right["baseline"][name] and not right["main"][name] for name in common)
    won = sum(right["main"][name] and not right["baseline"][name] for name in common)
    against: list[Reason] = []
    p = mcnemar(lost, won)
    shown = f"{main} of {len(common)} tasks are solved, without speculation {plain}"
    if len(common) < FEW_TASKS:
        against.append((Verdict.INCONCLUSIVE, f"{len(common)} tasks are too few to tell"))
    elif p < TASKS_SURE and lost > won:
        against.append((Verdict.FAIL, f"{shown}: {lost} lost and {won} won (p = {p:.4f})"))
    elif plain < LEAST_RIGHT * len(common):
        against.append((Verdict.INCONCLUSIVE, f"{shown}: too few for a difference to show"))
    return conclude(
        tasks,
        "tasks are solved as well as without speculation",
        "Sums, look-ups, problems and extractions with one right answer, put to both servers; those that only"
        " one of them solves are compared (McNemar's exact test).",
        against=against,
        passed=f"{shown}; {lost} lost, {won} won",
        threshold=f"fails where more are lost than won and p < {TASKS_SURE}; decides nothing with fewer than"
        f" {FEW_TASKS} tasks, or where the plain server solves less than {LEAST_RIGHT:.0%}",
        measured={"solved": main, "solved without": plain, "tasks": len(common), "lost": lost, "won": won},
        lenient=True,
        needs=(BASELINE,),
    )


def _right(observations: Sequence[Observation]) -> dict[str, bool]:
    """Tell for each task with an answer, by prompt, if it was solved."""
    return {
        sample.prompt: holds(expected[sample.prompt], sample.text)
        for observation in observations
        for expected in ({prompt.name: prompt.expect for prompt in observation.cell.prompts},)
        for sample in observation.counted
        if expected.get(sample.prompt)
    }
