"""Long-running traffic over shared prefixes, and the course of acceptance over its time.

Traffic is sent in rounds. Around them the same questions are repeated, once after a text that the prefix
cache holds and once after one that it does not: the questions stay the same, so only the server can change
their acceptance. That of the traffic itself is judged by nothing, since its texts change. Each round is a few
cells, so that an interrupted soak can be resumed.
"""

from __future__ import annotations

import dataclasses

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.metrics.counters import SeriesAbsentError, counter_delta
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, Values, conclude
from sparkwright.verify.checks.figures import DECAYS, drafter, not_speculating, paired_ratio
from sparkwright.verify.checks.machine import state_findings
from sparkwright.verify.checks.soak_rounds import (
    HOLD,
    LEAST_ROUNDS,
    SURE,
    Probes,
    cells,
    clock,
    elapsed,
    lives,
    longest_life,
    memory_trends,
)
from sparkwright.verify.checks.triage import CheckedCells, Reason

LEAST_HITS = 0.20
"""Share of prompt tokens from the prefix cache below which a soak does not test that cache. Half of the
traffic begins with one of four shared texts, so that about 60 % can come from it."""
HALF = 0.5


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on service, cache hits, decay of acceptance, and cached against cold prompts."""
    speed = context.profile.speed
    by_name = {observation.cell.name: observation for observation in seen.made}
    made = tuple(by_name[cell.name] for cell in seen.planned if cell.name in by_name)
    seen = dataclasses.replace(seen, made=made)
    probes = Probes.of(seen, elapsed(made, speed))
    unfit = not_speculating(context.main)
    return [
        _served(seen, context),
        _exercised(seen.tagged(kind="traffic")),
        _holds(seen, probes, context, unfit),
        _cached(seen, probes, unfit),
        *state_findings(seen, speed),
    ]


CHECK = Check("soak", cells, judge)


# Service -------------------------------------------------------------------------------------------------


def _served(seen: CheckedCells, context: Context) -> Finding:
    """Return a finding on service by one process throughout, with the trends of memory."""
    made, speed = seen.made, context.profile.speed
    longest = longest_life(made, speed)
    figures, growing = memory_trends(made, speed)
    counted = [(o.before, o.after) for o in seen.sound if o.before is not None and o.after is not None]
    preempted = sum(max(after.preemptions, 0) - max(before.preemptions, 0) for before, after in counted)
    full = [f"{preempted:.0f} requests were preempted: the KV cache was full"] if preempted > 0 else []
    warnings = [*growing, *full, *seen.notes]
    against: list[Reason] = []
    if longest < context.profile.soak_s * HALF and len(lives(made)) > 1:
        shown = f"the server was restarted during the soak: no process lived longer than {clock(longest)}"
        against.append((Verdict.INCONCLUSIVE, shown))
    elif len(lives(made)) > 1:
        warnings.append(f"the server was restarted during the soak; the longest life was {clock(longest)}")
    requests = sum(len(observation.samples) for observation in seen.sound)
    return conclude(
        seen,
        "soak.served",
        against=against,
        passed=f"{requests} requests over {clock(longest)} were answered in full",
        measured={"requests": requests, "longest life s": round(longest, 1)} | figures,
        warnings=warnings,
    )


# The cache -----------------------------------------------------------------------------------------------


def _hit_share(observation: Observation) -> tuple[float, float]:
    """Return prompt tokens that were found in the prefix cache, and those that were looked up.

    Raises:
        SeriesAbsentError: the server does not count them.
    """
    if observation.before is None or observation.after is None:
        return 0.0, 0.0
    return (
        counter_delta(observation.before, observation.after, "prefix_hits"),
        counter_delta(observation.before, observation.after, "prefix_queries"),
    )


def _exercised(traffic: CheckedCells) -> Finding:
    against: list[Reason] = []
    measured: Values = {}
    shown = ""
    try:
        pairs = [_hit_share(observation) for observation in traffic.sound]
    except SeriesAbsentError as error:
        against.append((Verdict.INVALID, f"cache not exercised, by the available counters: {error}"))
    else:
        hits, queries = sum(hit for hit, _ in pairs), sum(query for _, query in pairs)
        share = hits / queries if queries else 0.0
        measured = {"hit rate": round(share, 4), "hits": hits, "queries": queries}
        shown = f"{share:.0%} of prompt tokens came from the prefix cache"
        if pairs and share <= LEAST_HITS:
            against.append(_unused(traffic, share))
    return conclude(traffic, "soak.exercised", against=against, passed=shown, measured=measured)


def _unused(traffic: CheckedCells, share: float) -> Reason:
    setting = next((o.after.cache.get("enable_prefix_caching", "") for o in traffic.sound if o.after), "")
    if setting.lower() == "false":
        return Verdict.INVALID, "cache not exercised: prefix caching is off on this server"
    if share > 0:
        return Verdict.INVALID, f"cache not exercised: only {share:.1%} of prompt tokens came from it"
    return Verdict.FAIL, "cache not exercised: prefixes were sent again and again, and none was ever found"


# Acceptance ----------------------------------------------------------------------------------------------


def _holds(seen: CheckedCells, probes: Probes, context: Context, unfit: list[Reason]) -> Finding:
    """Return a finding on decay of acceptance, with the first round that surely has less of it."""
    against = unfit or (drafter(context.main, seen.sound) if seen.sound else [])
    measured: Values = {}
    fallen: list[tuple[float, str]] = []
    last: dict[str, float] = {}
    for kind, probe, of_first in probes.over_first() if not unfit else ():
        name = f"{kind} probes at {clock(probe.at_s)}"
        measured[f"{name} over the first"] = round(of_first.value, 3)
        last[kind] = of_first.value
        if of_first.high < HOLD:
            fallen.append((probe.at_s, f"{name} have {of_first} of the accepted tokens of the first"))
    if fallen:
        against = [*against, (Verdict.FAIL, f"{DECAYS}: {min(fallen)[1]}")]
    elif not unfit and probes.rounds < LEAST_ROUNDS:
        few = f"{probes.rounds} probes are too few to detect a decay"
        against = [*against, (Verdict.INCONCLUSIVE, few)]
    return conclude(
        seen,
        "soak.holds",
        against=against,
        passed="the same questions are drafted for at the end as at the beginning"
        f" ({', '.join(f'{kind} {value:.2f}' for kind, value in last.items())})",
        measured=measured,
    )


def _cached(seen: CheckedCells, probes: Probes, unfit: list[Reason]) -> Finding:
    """Return a finding on acceptance after cached tokens compared with prefilled ones."""
    against = list(unfit)
    measured: Values = {}
    if not unfit:
        found, measured = _cached_over_cold(probes)
        against = _impure(seen) or found
    return conclude(
        seen,
        "soak.cached",
        against=against,
        passed=f"{measured.get('cached over cold', 'n/a')} times as well",
        measured=measured,
    )


def _impure(seen: CheckedCells) -> list[Reason]:
    """Return reasons if probes were not cached or cold as their name states."""
    for kind, low, high in (("cached", 0.5, 1.0), ("cold", 0.0, 0.1)):
        try:
            counts = [_hit_share(observation) for observation in seen.tagged(kind=kind).sound]
        except SeriesAbsentError as error:
            return [(Verdict.INVALID, f"cached and cold cannot be told apart: {error}")]
        shares = sorted(hits / queries if queries else 0.0 for hits, queries in counts)
        middle = shares[len(shares) // 2] if shares else low
        if not low <= middle <= high:
            shown = f"{middle:.0%} of the tokens of {kind} probes came from the prefix cache"
            return [(Verdict.INVALID, f"cached and cold cannot be compared: {shown}")]
    return []


def _cached_over_cold(probes: Probes) -> tuple[list[Reason], Values]:
    """Return reasons and figures of the ratio over all rounds and in each of them."""
    pairs = probes.steady_pairs()
    if not pairs:
        few = "cold prompts lose their acceptance too" if probes.rounds else "there are no probes"
        return [(Verdict.INCONCLUSIVE, f"cached and cold cannot be compared: {few}")], {}
    comparisons = len(pairs) + 1
    cold, cached = ([pair[i].seen for pair in pairs] for i in (0, 1))
    overall = paired_ratio(cached, cold, comparisons, SURE)
    if overall is None:
        return [(Verdict.INCONCLUSIVE, "nothing is accepted after cold prompts either")], {}
    measured: Values = {
        "cached over cold": round(overall.value, 3),
        "low": round(overall.low, 3),
        "high": round(overall.high, 3),
        "rounds": len(pairs),
    }
    shown = "cached prompts get {} of the accepted tokens of cold ones"
    spoilt = [
        (probe, ratio)
        for base, probe in pairs
        if (ratio := paired_ratio([probe.seen], [base.seen], comparisons, SURE)) is not None
        and ratio.high < HOLD
    ]
    if spoilt and spoilt[0][0].number > pairs[0][0].number:
        probe, ratio = spoilt[0]
        return [(Verdict.FAIL, f"since {clock(probe.at_s)} {shown.format(ratio)}")], measured
    if spoilt or overall.high < HOLD:
        return [(Verdict.FAIL, f"{shown.format(overall)}, from the beginning")], measured
    if overall.low < HOLD:
        cause = f"{shown.format(overall)}, which may be less than {HOLD}"
        return [(Verdict.INCONCLUSIVE, cause)], measured
    return [], measured
