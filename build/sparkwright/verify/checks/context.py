"""Long prompts, cold and from the cache: acceptance beside that of short ones, and retrieval of a needle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.metrics.counters import SeriesAbsentError, hit_rate
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, Values, answered, conclude, not_applicable
from sparkwright.verify.checks.figures import acceptance, drafter_finding, not_speculating, ratio, surely
from sparkwright.verify.checks.triage import CheckedCells, Reason
from sparkwright.verify.corpus import holds

SHORT_TOKENS = 400
"""Of the control: the same kind of document and question, so that length alone differs."""
OUTPUT_TOKENS = 256
MARGIN, ESTIMATED_MARGIN = 1.02, 1.25
"""Allowed ratio of a document's tokens to those asked for: sized by the server's own tokenizer, and where
that cannot be had by what common tokenizers make of English."""
OFF = 0.20
"""Largest share by which a document's tokens, as the server counts them, may differ from those asked for:
beyond, nothing is known of that length."""
WARN, FAIL = 0.75, 0.40
"""Of the mean acceptance length after a short prompt. Healthy models on GB10 keep 0.82 to 1.35 at 16k and
33k; a broken image had an acceptance of 0 to 7 % there."""
FAIL_ACCEPTED = 0.25
"""The same of accepted tokens a draft: a mean acceptance length cannot fall below 1, so that a drafter which
brings little to begin with would never fall below 0.4."""
KEPT = 0.80
"""Accepted tokens a draft with a prompt from the cache, over those with the same prompt cold."""
UNSURE = 0.50
LEAST_HITS = 0.5


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield a short control, then documents of each length, first cold and then again from the cache."""
    each = max(1, context.profile.context_requests)
    yield _cell(context, "short", SHORT_TOKENS, "control", _documents(context, SHORT_TOKENS, 2 * each))
    for tokens in filter(lambda tokens: _fits(context, tokens), context.profile.contexts):
        cold = _documents(context, tokens, each)
        again = tuple(msgspec.structs.replace(prompt, name=f"{prompt.name} again") for prompt in cold)
        yield _cell(context, f"{tokens} cold", tokens, "cold", cold)
        yield _cell(context, f"{tokens} cached", tokens, "cached", again)


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on service, then for each length on acceptance, cache and needles."""
    definition = "After short prompts, tokens are drafted and more than next to none of them are accepted."
    short = seen.tagged(cache="control")
    findings = [_served(seen, context), drafter_finding(short, context.main, definition)]
    for tokens in context.profile.contexts:
        if not _fits(context, tokens):
            longest = context.main.max_model_len
            why = f"{tokens} tokens were not tried: the server takes {longest} at the most"
            findings.append(not_applicable(seen, "context.fits", why, {"tokens": tokens}))
            continue
        findings += [_hold(seen, context, tokens), _cached(seen, context, tokens)]
        # Models with random weights find no needle, and smoke runs have no others.
        findings += [_needle(seen, tokens)] if context.profile.name != "smoke" else []
    return findings


CHECK = Check("context", cells, judge)


def _fits(context: Context, tokens: int) -> bool:
    longest = context.main.max_model_len
    margin = MARGIN if context.main.words_per_token > 0 else ESTIMATED_MARGIN
    return longest < 0 or tokens * margin + OUTPUT_TOKENS <= longest


def _documents(context: Context, tokens: int, count: int) -> tuple[Prompt, ...]:
    first = 1000 * context.profile.seed
    return tuple(context.document(tokens, first + i, "context") for i in range(count))


def _cell(context: Context, name: str, tokens: int, cache: str, prompts: tuple[Prompt, ...]) -> Cell:
    tags = {"tokens": str(tokens), "cache": cache}
    return context.cell("context", name, prompts, tags=tags, max_tokens=OUTPUT_TOKENS, chat=True, seed=0)


# Findings ------------------------------------------------------------------------------------------------


def _served(seen: CheckedCells, context: Context) -> Finding:
    against = [reason for tokens in context.profile.contexts for reason in _missized(seen, tokens)]
    if failed := context.main.uncounted:
        against.append((Verdict.INCONCLUSIVE, f"documents could not be sized by POST /tokenize: {failed}"))
    lengths = [o.samples[0].prompt_tokens for o in seen.sound]
    return conclude(
        seen,
        "context.served",
        against=against,
        passed=f"prompts of up to {max(lengths, default=0)} tokens were answered",
        measured={f"{o.cell.name} prompt tokens": o.samples[0].prompt_tokens for o in seen.sound},
        warnings=[*seen.notes, *_sizes(seen, context)],
    )


def _sizes(seen: CheckedCells, context: Context) -> list[str]:
    """Return warnings on lengths that are estimated, or that differ from the planned ones."""
    warnings = []
    if context.main.words_per_token <= 0:
        warnings.append("documents are sized by an estimate: the server did not count their tokens")
    for observation in seen.tagged(cache="cold").sound:
        meant, came = int(observation.cell.tags["tokens"]), observation.samples[0].prompt_tokens
        if came > 0 and abs(came - meant) > (MARGIN - 1) * meant:
            warnings.append(f"documents of {meant} tokens came to {came}")
    return warnings


def _missized(seen: CheckedCells, tokens: int) -> list[Reason]:
    """Return reasons if documents of *tokens* had another length, or if the server did not count them."""
    found: list[Reason] = []
    for observation in seen.tagged(tokens=str(tokens)).sound:
        came = [sample.prompt_tokens for sample in observation.counted]
        odd = max(came, key=lambda count: abs(count - tokens))
        if abs(odd - tokens) > OFF * tokens:
            shown = f"came to {odd} by the server's own count" if odd else "were not counted by the server"
            found.append(
                (Verdict.INCONCLUSIVE, f"{observation.cell.name}: documents of {tokens} tokens {shown}")
            )
    return found


def _hold(seen: CheckedCells, context: Context, tokens: int) -> Finding:
    """Return a finding on acceptance at this length, without the cache."""
    pair = _only(seen, (str(SHORT_TOKENS), "control"), (str(tokens), "cold"))
    against: list[Reason] = []
    measured: Values = {}
    warnings = []
    short, cold = (acceptance(o) if o else None for o in _both(pair))
    if short is not None and cold is not None:
        width = surely()
        whole, part = ratio(cold, short, width), ratio(cold, short, width, accepted=True)
        measured = {
            "MAL": round(cold.mal, 3),
            "MAL after short prompts": round(short.mal, 3),
            "MAL ratio": str(whole),
            "accepted ratio": str(part),
        }
        shown = f"at {tokens} tokens MAL is {cold.mal:.2f}, {whole.value:.2f} of that after short prompts"
        if short.accepted <= 0:
            nothing = "nothing is accepted after short prompts: there is nothing to compare with"
            against.append((Verdict.INCONCLUSIVE, nothing))
        elif whole.high < FAIL or part.high < FAIL_ACCEPTED:
            against.append(
                (Verdict.FAIL, f"acceptance is lost: {shown}; accepted tokens are {part} of theirs")
            )
        elif whole.low < FAIL or part.low < FAIL_ACCEPTED:
            against.append((Verdict.INCONCLUSIVE, f"{shown}; its interval {whole} decides nothing"))
        elif whole.low < WARN:
            warnings.append(f"{shown}, and may be as low as {whole.low:.2f}")
    return conclude(
        pair,
        "context.holds",
        told={"tokens": tokens},
        against=[*_missized(pair, tokens), *against] or _undrafted(pair, context, short, cold),
        passed=f"MAL ratio {measured.get('MAL ratio', '')}",
        measured=measured,
        warnings=warnings,
    )


def _cached(seen: CheckedCells, context: Context, tokens: int) -> Finding:
    """Return a finding on acceptance with the prompt from the cache, which the drafter must use too."""
    pair = _only(seen, (str(tokens), "cold"), (str(tokens), "cached"))
    cold_seen, cached_seen = _both(pair)
    against: list[Reason] = []
    measured: Values = {}
    warnings: list[str] = []
    cold, cached = (acceptance(o) if o else None for o in (cold_seen, cached_seen))
    unused = _unused(cached_seen) if cached_seen else []
    if cold is not None and cached is not None and not unused and cold_seen and cached_seen:
        kept = ratio(cached, cold, surely(), accepted=True, same_texts=True)
        measured = {
            "MAL cold": round(cold.mal, 3),
            "MAL cached": round(cached.mal, 3),
            "accepted ratio": str(kept),
            "TTFT cold ms": _median_ttft(cold_seen, context),
            "TTFT cached ms": _median_ttft(cached_seen, context),
        }
        shown = f"at {tokens} tokens from the cache, accepted tokens are {kept} of those with the prompt cold"
        if cold.accepted <= 0:
            nothing = f"nothing is accepted at {tokens} tokens cold: there is nothing to compare with"
            against.append((Verdict.INCONCLUSIVE, nothing))
        elif kept.high < KEPT:
            against.append((Verdict.FAIL, f"cached against cold: {shown}"))
        elif kept.low < UNSURE:
            against.append((Verdict.INCONCLUSIVE, f"cached against cold: {shown}"))
        elif kept.value < KEPT:
            warnings.append(shown)
    return conclude(
        pair,
        "context.cached",
        told={"tokens": tokens},
        against=[*_missized(pair, tokens), *against] or unused or _undrafted(pair, context, cold, cached),
        passed=f"accepted tokens are {measured.get('accepted ratio', '')} of those when cold",
        measured=measured,
        warnings=warnings,
    )


def _needle(seen: CheckedCells, tokens: int) -> Finding:
    """Return a finding on the retrieval of a code from each document."""
    long = str(tokens)
    three = _only(seen, (str(SHORT_TOKENS), "control"), (long, "cold"), (long, "cached"))
    against = _missized(seen, tokens)
    answered = {o.cell.name: _found(o) for o in three.sound}
    short = next((_found(o) for o in three.sound if o.cell.tags["cache"] == "control"), (0, 0))
    for observation in three.sound:
        found, of = _found(observation)
        if observation.cell.tags["cache"] == "control":
            if 2 * found < of:
                shown = f"only {found} of {of} codes were found after short documents"
                against.append((Verdict.INCONCLUSIVE, f"{shown}: this model cannot be tested so"))
        elif 2 * found < of and 2 * short[0] >= short[1]:
            shown = f"{observation.cell.name}: {found} of {of} codes were found"
            against.append((Verdict.FAIL, f"{shown}, and {short[0]} of {short[1]} after short documents"))
    return conclude(
        three,
        "context.needle",
        told={"tokens": tokens},
        against=against,
        passed="; ".join(f"{name}: {found} of {of}" for name, (found, of) in answered.items()),
        measured={f"{name} codes found": f"{found} of {of}" for name, (found, of) in answered.items()},
        warnings=[
            f"{name}: {of - found} of {of} codes were not found"
            for name, (found, of) in answered.items()
            if found < of
        ],
    )


# Parts ---------------------------------------------------------------------------------------------------


def _only(seen: CheckedCells, *tags: tuple[str, str]) -> CheckedCells:
    """Return the part of *seen* with these lengths and states of the cache."""
    return seen.where(lambda cell: (cell.tags["tokens"], cell.tags["cache"]) in tags)


def _both(pair: CheckedCells) -> tuple[Observation | None, Observation | None]:
    """Return the sound observations of two cells, in order of the plan."""
    by_key = {observation.cell.key: observation for observation in pair.sound}
    first, second = (by_key.get(cell.key) for cell in pair.planned)
    return first, second


def _undrafted(pair: CheckedCells, context: Context, *of: object) -> list[Reason]:
    """Return the reason for a missing comparison, unless trouble of a cell is the reason."""
    if unfit := not_speculating(context.main):
        return unfit
    if None in of and not pair.troubles:
        return [(Verdict.INCONCLUSIVE, "nothing was drafted: there is no acceptance to judge")]
    return []


def _unused(cached: Observation) -> list[Reason]:
    """Return reasons if the prefix cache was not used."""
    if cached.before is None or cached.after is None:
        return []
    if cached.after.cache.get("enable_prefix_caching") == "False":
        return [(Verdict.INCONCLUSIVE, "this server has no prefix cache")]
    try:
        share = hit_rate(cached.before, cached.after)
    except SeriesAbsentError:
        return [(Verdict.INCONCLUSIVE, "the server exposes no counters of the prefix cache")]
    if share < LEAST_HITS:
        shown = f"{share:.0%} of the prompt tokens of {cached.cell.name} came from it"
        return [(Verdict.INVALID, f"cache not exercised: {shown}, though they were sent just before")]
    return []


def _median_ttft(observation: Observation, context: Context) -> float:
    times = sorted(sample.ttft_ms * context.profile.speed for sample in observation.counted)
    return round(times[len(times) // 2], 3)


def _found(observation: Observation) -> tuple[int, int]:
    """Return the number of answers that hold the expected string, and of all with one."""
    answers = answered(observation)
    return sum(holds(expect, sample.text) for sample, expect in answers), len(answers)
