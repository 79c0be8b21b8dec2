"""A stored reference of a checkpoint: recorded, or compared by probabilities and greedy answers.

Without a reference to compare with, the answers of this run are one, once they are complete: raw prompts,
chats and long documents, one at a time and again several at a time.

A wrong target model is seen by nothing that compares a server with itself: speculation that is lossless keeps
its errors too. The limits follow from the reference: how far its server was from itself at two batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ConfigError, EndpointError
from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.answers import Agreement, answers_agree, distances, mean_of, too_noisy
from sparkwright.verify.checks.common import Check, Values, conclude
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe
from sparkwright.verify.corpus import CATEGORIES
from sparkwright.verify.journal import read_journal
from sparkwright.verify.statistics import ratio_interval

NAME = "reference"
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
PROMPTS, TOKENS, TOP = 32, 64, 8
"""Prompts of a reference, tokens of each answer, and alternatives of each token."""
LEVELS = (1, 8)
"""Requests at a time: of the answers, and of those that show how far a server is from itself."""
_LONG_TOKENS = (600, 1200, 2400)
_MARGIN = 1.3  # documents are sized by an estimate
_UNKNOWN_LENGTH = 4096


@dataclass(frozen=True)
class Reference:
    """Greedy answers of one checkpoint.

    Attributes:
        answers: with log-probabilities, one request at a time.
        again: to the same prompts, several at a time.
        model: name of the model at an address; empty where a recipe was served.
    """

    answers: tuple[Observation, ...]
    again: tuple[Observation, ...]
    model: str = ""
    created: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the answers."""
        return sha256_bytes(msgspec.json.encode((self.answers, self.again)))


def load_reference(folder: Path) -> Reference:
    """Return what the run in *folder* recorded.

    Raises:
        ConfigError: it holds no run, or one that recorded no whole reference.
    """
    contents = read_journal(folder)
    verdicts = {one.verdict for one in contents.findings if one.check == NAME}
    if verdicts != {Verdict.PASS}:
        raise ConfigError(
            f"{folder} holds no reference that can be used",
            because="its check 'reference' did not pass" if verdicts else "it has no check 'reference'",
            next_step="record one: sparkwright verify --url URL --checks reference",
        )
    seen = [one for one in contents.measured.values() if one.cell.check == NAME]
    answers, again = (
        tuple(o for o in seen if (o.cell.load.concurrency > 1) is many) for many in (False, True)
    )
    manifest = contents.manifest
    return Reference(answers, again, manifest.identity.get("main-model", ""), manifest.created)


def require_same_model(reference: Reference, model: str, where: str) -> None:
    """Refuse the server at *where* if a comparison with *reference* would be one of two models.

    Other tokenizers and other weights under one name are left to the check itself.

    Raises:
        EndpointError: its *model* has another name; of a path, the last part counts.
    """
    made_on, found = (name.rstrip("/").rpartition("/")[2] for name in (reference.model, model))
    if made_on and made_on != found:
        raise EndpointError(
            f"{where} cannot be compared with this reference",
            because=f"the reference is of {reference.model}, and the server serves {model}",
            next_step="serve the checkpoint that it was made of under its name: --set served-model-name=N, or"
            " record a reference of this one",
        )


def reference_check(reference: Reference | None) -> Check:
    """Return the check that sends the prompts of *reference* once more, or records one."""
    return Check(NAME, partial(_cells, reference), partial(_judge, reference))


def _cells(reference: Reference | None, context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    if reference is not None:
        yield from (one.cell for one in (*reference.answers, *reference.again))
        return
    few = PROMPTS // 4
    longest = context.main.max_model_len if context.main.max_model_len > 0 else _UNKNOWN_LENGTH
    lengths = [length for length in _LONG_TOKENS if length * _MARGIN + TOKENS <= longest] or [200]
    kinds: tuple[tuple[str, tuple[Prompt, ...]], ...] = (
        ("raw", context.prompts_in_turn(PROMPTS - 2 * few, "reference raw", CATEGORIES)),
        ("chat", context.prompts_in_turn(few, "reference chat", CATEGORIES)),
        (
            "long",
            tuple(
                context.document(lengths[number % len(lengths)], context.profile.seed + number, NAME)
                for number in range(few)
            ),
        ),
    )
    for level in LEVELS:
        for kind, some in kinds:
            yield context.cell(
                NAME,
                f"{kind} c={level}",
                some,
                tags={"kind": kind},
                concurrency=level,
                max_tokens=TOKENS,
                logprobs=TOP,
                chat=kind == "chat",
                natural_stop=kind == "chat",
            )


def _judge(reference: Reference | None, _: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on probabilities, on greedy answers and on the tokens of prompts."""
    if reference is None:
        return [_recorded(seen)]
    compared = _Compared.of(reference, seen)
    return [_probabilities(compared, seen), _answers(compared, seen), _prompts(reference, seen)]


def _recorded(seen: CheckedCells) -> Finding:
    """Return the finding on answers that others are compared with later."""
    samples = [sample for one in seen.sound for sample in one.counted]
    bare = [sample.prompt for sample in samples if not sample.logprobs]
    against = [(Verdict.INVALID, f"the answer to {bare[0]} has no log-probabilities")] if bare else []
    tokens = sum(len(sample.logprobs) for sample in samples)
    return conclude(
        seen,
        "reference.recorded",
        against=against,
        passed=f"{len(samples)} answers, {tokens} tokens: compare servers with them by --reference",
        measured={"answers": len(samples), "tokens": tokens},
    )


# In no profile: --reference adds it, or --checks selects it.
CHECK = reference_check(None)


@dataclass(frozen=True)
class _Compared:
    """A server's answers beside the reference's.

    Attributes:
        agreed: greedy answers beside the reference's, and those of the reference's server beside its own.
        own: distances by prompt of the reference's server from itself.
        found: distances by kind of prompt, and by cell and prompt.
    """

    agreed: Agreement = field(default_factory=Agreement)
    own: Mapping[str, list[float]] = field(default_factory=dict)
    found: Mapping[str, Mapping[tuple[str, str], list[float]]] = field(default_factory=dict)
    against: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, reference: Reference, seen: CheckedCells) -> _Compared:
        base = {one.cell.tags["kind"]: one for one in reference.answers}
        null = [(base[one.cell.tags["kind"]], one) for one in reference.again]
        pairs = [(base[one.cell.tags["kind"]], one) for one in seen.sound]
        agreed = answers_agree(pairs, null)
        if agreed.against:
            return cls(against=agreed.against)
        own = {prompt: bounds for pair in null for prompt, bounds in distances(*pair).items()}
        found: dict[str, dict[tuple[str, str], list[float]]] = {}
        for of_kind, one in pairs:
            for prompt, bounds in distances(of_kind, one).items():
                if bounds:
                    found.setdefault(one.cell.tags["kind"], {})[describe(one.cell), prompt] = bounds
        if not found:
            return cls(against=((Verdict.INCONCLUSIVE, "there are no answers to compare"),))
        return cls(agreed, own, found)

    @property
    def noise(self) -> float:
        """Mean distance of the reference's server from itself."""
        return mean_of(self.own.values())

    @property
    def limit(self) -> float:
        """Mean distance that rounding does not explain."""
        return max(LIMIT_MEAN, NOISE_FACTOR * self.noise)

    @property
    def limit_one(self) -> float:
        """The same of one answer."""
        worst = max((mean_of([bounds]) for bounds in self.own.values()), default=0.0)
        return max(LIMIT_ONE, NOISE_FACTOR * worst)


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
        "reference.prompts",
        against=against,
        passed=f"{len(known)} prompts have the same number of tokens",
        measured={"prompts": len(known), "made of": reference.model, "made": reference.created},
        warnings=seen.notes,
    )


def _probabilities(compared: _Compared, seen: CheckedCells) -> Finding:
    against, measured = list(compared.against), Values()
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
    shown = ", ".join(f"{name} {value}" for name, value in measured.items() if "mean distance" in name)
    return conclude(
        seen,
        "reference.probabilities",
        told={"limit": compared.limit, "limit_one": compared.limit_one},
        against=against,
        passed=shown,
        measured=measured,
    )


def _judged(
    kind: str, answers: Mapping[tuple[str, str], list[float]], limit: float
) -> tuple[list[Reason], Values]:
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
    figures: Values = {f"{kind} mean distance": shown}
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
        (kind, *place): mean_of([bounds])
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
    agreed = compared.agreed
    gaps = agreed.gaps
    against, measured = list(compared.against), Values()
    if not against:
        against, measured = _parted(agreed)
        against = against or too_noisy("the reference's server differs from itself", agreed.usual)
    return conclude(
        seen,
        "reference.answers",
        told={"limit": agreed.limit},
        against=against,
        passed=f"{measured.get('answers that are the same %', 100)} % of {len(gaps)} answers are the same,"
        f" and none leaves the reference's by more than {max(gaps, default=0.0):.3f} nat",
        measured=measured,
    )


def _parted(agreed: Agreement) -> tuple[list[Reason], Values]:
    """Return the reasons against answers that leave the reference's, and the figures."""
    gaps = agreed.gaps
    same = sum(gap == 0 for gap in gaps)
    tokens = sum(length for _, pairing in agreed.pairings for length in pairing.lengths)
    measured: Values = {
        "answers": len(gaps),
        "answers that are the same %": round(100 * same / len(gaps), 1),
        "tokens to the first difference": round(tokens / max(1, len(gaps) - same), 1),
        "largest gap nat": round(max(gaps), 4),
        "reference's largest gap from itself nat": round(agreed.usual, 4),
    }
    if len(gaps) < FEW_PROMPTS:
        return [(Verdict.INCONCLUSIVE, f"{len(gaps)} answers are too few")], measured
    parted = agreed.beyond(agreed.limit, "leave the reference's")
    return [(Verdict.FAIL, parted)] if parted else [], measured
