"""Comparison of greedy answers with those of the same model without speculation.

Healthy speculation is not identical token for token, because a verify step rounds otherwise than a plain one.
The differences to expect are measured, not assumed: by plain servers against each other, over two starts
and two batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import BASELINE, SPECULATION, Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.answers import (
    ALTERNATIVES,
    LIMIT_NAT,
    MARGIN,
    NOISY_NAT,
    Agreement,
    NoLogprobsError,
    Solved,
    answers_agree,
    find_cluster,
    own_gaps,
    right_answers,
    too_noisy,
)
from sparkwright.verify.checks.common import CHAT, Check, Values, conclude
from sparkwright.verify.checks.triage import CheckedCells, Reason
from sparkwright.verify.statistics import one_sided_excess, percentile

LEVELS = (1, 8)
STARTS = (("baseline", 0), ("baseline", 1), ("main", 0))
LENGTH = 128
TASK_LENGTHS = {"short tasks": 48, "worked tasks": 512}

TIE_NAT = 0.3
"""Gaps up to two steps of bfloat16 and a bit are near ties, however many there are."""
FEW_PROMPTS = 20
FEW_TASKS = 40
LEAST_RIGHT = 0.2
SURE = 0.01
TASKS_SURE = 0.02
ODD_SHARE = 0.05
_REFERENCE = ("baseline", 0, 1)


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield answers with log-probabilities for each start and level; tasks for each arm's first.

    Without a baseline, answers of the main server alone.
    """
    sizes = context.profile
    alone = BASELINE in context.lacks
    prompts = _prompts(context, "lossless")
    for arm, boot in STARTS[-1:] if alone else STARTS:
        for level in LEVELS:
            yield context.cell(
                "lossless",
                f"answers c={level}",
                prompts,
                arm=arm,
                boot=boot,
                tags={"kind": "answers", "level": str(level)},
                concurrency=level,
                max_tokens=min(LENGTH, sizes.max_tokens),
                logprobs=ALTERNATIVES,
            )
        for kind, length in TASK_LENGTHS.items() if boot == 0 and not alone else ():
            yield context.cell(
                "lossless",
                kind,
                _tasks(context, kind),
                arm=arm,
                tags={"kind": "tasks"},
                concurrency=max(LEVELS),
                max_tokens=length,
                thinking=sizes.thinking,
                **CHAT,
            )


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on near ties, fixed places, argmax tokens and solved tasks."""
    seen = seen.without_failed_baseline()
    answers = seen.tagged(kind="answers")
    found = _compared(answers)
    against = list(found.against) or _too_little(found)
    differences = _differences(answers, found, against, context.main.speculative_tokens)
    return [
        differences,
        _places(answers, found, against),
        _argmax(answers, differences.verdict),
        _accuracy(seen.tagged(kind="tasks")),
    ]


CHECK = Check("lossless", cells, judge)


def _prompts(context: Context, salt: str) -> Sequence[Prompt]:
    sizes = context.profile
    each = -(-sizes.lossless_prompts // len(sizes.categories))
    return context.prompts_of_each(each, salt)[: sizes.lossless_prompts]


def _tasks(context: Context, kind: str) -> Sequence[Prompt]:
    sizes = context.profile
    if kind == "short tasks":
        return context.corpus.tasks(sizes.lossless_prompts, sizes.seed, "lossless")
    half = max(1, sizes.lossless_prompts // 2)
    return context.prompts_of_each(half, "lossless tasks", ("math", "extraction"))


# Differences ---------------------------------------------------------------------------------------------


def _compared(answers: CheckedCells) -> Agreement:
    """Return all answers beside those of the plain server's first start; its others are the null."""
    places = {(o.cell.arm, o.cell.boot, o.cell.load.concurrency): o for o in answers.sound}
    reference = places.pop(_REFERENCE, None)
    if reference is None:
        return Agreement(against=((Verdict.INCONCLUSIVE, "there are no answers without speculation"),))
    of_arm = {
        name: [(reference, o) for (arm, *_), o in places.items() if arm == name]
        for name in ("main", "baseline")
    }
    return answers_agree(of_arm["main"], of_arm["baseline"])


def _tail(found: Agreement) -> float:
    """Return the 99.9th percentile of gaps between plain servers where they differ; 0 if they never do."""
    differing = [gap for gap in found.null_gaps if gap > 0]
    return percentile(differing, 99.9) if differing else 0.0


def _too_little(found: Agreement) -> list[Reason]:
    """Return the reasons for which the comparison decides nothing."""
    if found.fewest < FEW_PROMPTS:
        return [(Verdict.INCONCLUSIVE, f"{found.fewest} prompts are too few to judge differences")]
    if len(found.null_gaps) < FEW_PROMPTS:
        few = f"{len(found.null_gaps)} pairs of plain answers are too few for a calibration"
        return [(Verdict.INCONCLUSIVE, few)]
    return too_noisy("plain servers differ from each other", _tail(found))


def _differences(answers: CheckedCells, found: Agreement, against: list[Reason], drafted: int) -> Finding:
    tail, gaps = _tail(found), found.gaps
    limit, tie = max(LIMIT_NAT, MARGIN * tail), max(TIE_NAT, tail)
    measured: Values = {}
    warnings = ["this server does not speculate: there is nothing to compare"] if drafted == 0 else []
    plain_rate, rate = _rate(found.null_gaps), _rate(gaps)
    if not against:
        if shown := found.beyond(limit, "part at a token that rounding does not explain"):
            against = [(Verdict.FAIL, f"speculation is lossy: {shown}")]
        against = [*against, *_too_many(found, tie)]
        measured = {
            "answers that differ %": round(100 * rate, 1),
            "plain answers that differ %": round(100 * plain_rate, 1),
            "largest gap nat": round(max(gaps), 4),
            "plain servers' 99.9th percentile nat": round(tail, 4),
            "answers": len(gaps),
        }
        p = one_sided_excess([gap > 0 for gap in found.null_gaps], [gap > 0 for gap in gaps])
        if p < SURE and not against:
            shown = f"{rate:.0%} of answers differ, of plain ones {plain_rate:.0%}"
            warnings.append(f"{shown}: more, but all of them at near ties")
    return conclude(
        answers,
        "lossless.differences",
        told={"limit": limit, "tie": tie},
        against=against,
        passed=f"{rate:.0%} of {len(gaps)} answers differ, none by more than {max(gaps, default=0):.2f} nat",
        measured=measured,
        warnings=[*warnings, *answers.notes],
    )


def _rate(gaps: Sequence[float]) -> float:
    return sum(gap > 0 for gap in gaps) / len(gaps) if gaps else 0.0


def _too_many(found: Agreement, tie: float) -> list[Reason]:
    null, observed = ([gap if gap > tie else 0.0 for gap in one] for one in (found.null_gaps, found.gaps))
    p = one_sided_excess(null, observed)
    if p >= SURE:
        return []
    shown = f"{sum(gap > 0 for gap in observed)} of {len(observed)} answers part at gaps above {tie:.2f} nat"
    return [(Verdict.FAIL, f"speculation is lossy: {shown}, more than plain ones (p = {p:.4f})")]


def _places(answers: CheckedCells, found: Agreement, against: list[Reason]) -> Finding:
    observed = [pairing for _, pairing in found.pairings]
    if not against and (cluster := find_cluster(observed, found.null)):
        against = [(Verdict.FAIL, f"speculation is lossy at a fixed place: {cluster}")]
    return conclude(
        answers,
        "lossless.places",
        against=against,
        passed=f"{sum(len(pairing.found) for pairing in observed)} differences are spread as by chance",
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
        "lossless.argmax",
        told={"limit": limit},
        against=against,
        passed=f"all of {len(gaps)} tokens are the most likely ones or near ties",
        measured={"tokens": len(gaps), "tokens that are not the most likely": len(odd)},
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


def _accuracy(tasks: CheckedCells) -> Finding:
    plain, main = (right_answers(o for o in tasks.sound if o.cell.arm == arm) for arm in ("baseline", "main"))
    solved = Solved.of(plain, main)
    lost, won, p = len(solved.lost), solved.won, solved.p
    against: list[Reason] = []
    shown = f"{solved.after} of {solved.total} tasks are solved, without speculation {solved.before}"
    if solved.total < FEW_TASKS:
        against.append((Verdict.INCONCLUSIVE, f"{solved.total} tasks are too few to tell"))
    elif p < TASKS_SURE and lost > won:
        against.append((Verdict.FAIL, f"{shown}: {lost} lost and {won} won (p = {p:.4f})"))
    elif solved.before < LEAST_RIGHT * solved.total:
        against.append((Verdict.INCONCLUSIVE, f"{shown}: too few for a difference to show"))
    return conclude(
        tasks,
        "lossless.tasks",
        against=against,
        passed=f"{shown}; {lost} lost, {won} won",
        measured={
            "solved": solved.after,
            "solved without": solved.before,
            "tasks": solved.total,
            "lost": lost,
            "won": won,
        },
    )


# Parity -------------------------------------------------------------------------------------------------

PARITY_LENGTH = 48
FEW_ANSWERS = 8


def _parity_cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the same prompts to both servers, one at a time and eight at a time, the main one's first.

    A smaller comparison, for servers that take a minute to start and compute as others do: one start of each,
    and no tasks, which a small model does not solve.
    """
    sizes, prompts = context.profile, _prompts(context, "parity")
    for arm in ("main", "baseline"):
        for level in LEVELS:
            yield context.cell(
                "parity",
                f"answers c={level}",
                prompts,
                arm=arm,
                tags={"level": str(level)},
                concurrency=level,
                max_tokens=min(PARITY_LENGTH, sizes.max_tokens),
                logprobs=ALTERNATIVES,
            )


def _judge_parity(_: Context, seen: CheckedCells) -> list[Finding]:
    """Return one finding on the first tokens at which answers differ."""
    seen = seen.without_failed_baseline()
    by_place = {(o.cell.arm, o.cell.load.concurrency): o for o in seen.sound}
    found, measured = Agreement(), Values()
    against = [(Verdict.INCONCLUSIVE, "there are no answers of the other server")]
    if (reference := by_place.get(("baseline", 1))) is not None:
        of_itself = by_place.get(("baseline", LEVELS[-1]))
        found = answers_agree(
            ((reference, o) for (arm, _), o in by_place.items() if arm == "main"),
            [(reference, of_itself)] if of_itself is not None else (),
        )
        against = list(found.against)
        if not against:
            parted = found.beyond(found.limit, "leave the other server's")
            against = [(Verdict.FAIL, parted)] if parted else []
            against = too_noisy("the other server differs from itself", found.usual) or against
            if found.fewest < FEW_ANSWERS:
                against = [(Verdict.INCONCLUSIVE, f"fewer than {FEW_ANSWERS} answers to compare")]
            measured = {**found.figures, "other server's largest gap nat": round(found.usual, 4)}
    return [
        conclude(
            seen,
            "lossless.parity",
            told={"limit": found.limit},
            against=against,
            passed=f"{measured.get('answers that differ', 0)} of {measured.get('answers', 0)} answers"
            f" differ, none by more than {measured.get('largest gap nat', 0)} nat",
            measured=measured,
            warnings=seen.notes,
        )
    ]


# In no profile: rehearsals run it, and --checks.
PARITY = Check("parity", _parity_cells, _judge_parity)
