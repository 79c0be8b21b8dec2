"""Long-running traffic over shared prefixes, and the course of acceptance over its time.

Traffic is sent in rounds. Around them the same questions are repeated, once after a text that the prefix
cache holds and once after one that it does not: the questions stay the same, so only the server can change
their acceptance. Each round is a few cells, so that an interrupted soak can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.capabilities import METRICS, PREFIX_CACHE, SPECULATION
from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.metrics import SeriesAbsentError, counter_delta
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.acceptance import drafter, not_speculating
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, main_facts, triage
from sparkwright.verify.checks.drift import TimedValue, clock, elapsed, find_fall, find_onset, windows
from sparkwright.verify.checks.memory import lives, longest_life, memory_figures, memory_warnings
from sparkwright.verify.checks.paired import paired_ratio
from sparkwright.verify.checks.probes import HOLD, SURE, Probes
from sparkwright.verify.checks.rounds import LEAST_ROUNDS, plan_rounds
from sparkwright.verify.checks.states import state_findings

LEAST_HITS = 0.20
"""Share of prompt tokens from the prefix cache below which a soak does not test that cache. Half of the
traffic begins with one of four shared texts, so that about 60 % can come from it."""
TREND = 0.9
HALF = 0.5


@dataclass(frozen=True)
class Soak:
    """Mixed traffic over shared prefixes for a long time, with the same probes between its rounds."""

    name: str = "soak"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the cells of `plan_rounds`."""
        return plan_rounds(context)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on service, cache hits, decay of acceptance, and cached against cold prompts."""
        seen = triage(self, context, observations)
        speed = context.profile.speed
        by_name = {observation.cell.name: observation for observation in observations}
        made = [by_name[cell.name] for cell in seen.planned if cell.name in by_name]
        begun = elapsed(made, speed)
        traffic = seen.tagged(kind="traffic")
        points = windows(traffic.sound, begun, context.profile.soak_window_s, speed)
        probes = Probes.of(seen, begun)
        unfit = not_speculating(main_facts(context))
        return [
            _served(seen, made, context),
            _exercised(traffic),
            _holds(seen, points, probes, context, unfit),
            _cached(seen, probes, unfit),
            *state_findings(seen, made, speed),
        ]


# Early in the demo: a decay with the server's age would be over once all other cells are measured.
CHECK = RegisteredCheck(Soak(), profiles={"full": 70, "smoke": 50, "demo": 30})


# Service -------------------------------------------------------------------------------------------------


def _served(seen: CheckedCells, made: Sequence[Observation], context: Context) -> Finding:
    """Return a finding on service by one process throughout, with the trends of memory."""
    speed = context.profile.speed
    unmetered = METRICS in context.lacks  # so that no start of a process is reported
    longest = sum(o.seconds for o in made) * speed if unmetered else longest_life(made, speed)
    against: list[Reason] = []
    warnings = [*memory_warnings(made, speed), *_preemptions(seen), *seen.notes]
    if longest < context.profile.soak_s * HALF and len(lives(made)) > 1:
        shown = f"the server was restarted during the soak: no process lived longer than {clock(longest)}"
        against.append((Verdict.INCONCLUSIVE, shown))
    elif len(lives(made)) > 1:
        warnings.append(f"the server was restarted during the soak; the longest life was {clock(longest)}")
    requests = sum(len(observation.samples) for observation in seen.sound)
    return conclude(
        seen,
        "requests are answered throughout",
        "Every request of the soak is answered in full, by one process that runs throughout.",
        against=against,
        passed=f"{requests} requests over {clock(longest)} were answered in full",
        threshold="no failed request; one process for at least half of the soak",
        measured={"requests": requests, "longest life s": round(longest, 1)} | memory_figures(made, speed),
        warnings=warnings,
    )


def _preemptions(seen: CheckedCells) -> list[str]:
    total = 0.0
    for observation in seen.sound:
        if observation.before is not None and observation.after is not None:
            total += max(observation.after.preemptions, 0) - max(observation.before.preemptions, 0)
    return [f"{total:.0f} requests were preempted: the KV cache was full"] if total > 0 else []


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
    measured: dict[str, float | str] = {}
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
    return conclude(
        traffic,
        "the prefix cache is exercised",
        "Share of the traffic's prompt tokens that the prefix cache held, by the server's counters; half of"
        " the traffic begins with one of four texts that were sent before.",
        against=against,
        passed=shown,
        threshold=f"more than {LEAST_HITS:.0%}",
        measured=measured,
        lenient=True,
        needs=(METRICS, PREFIX_CACHE),
    )


def _unused(traffic: CheckedCells, share: float) -> Reason:
    setting = next((o.after.cache.get("enable_prefix_caching", "") for o in traffic.sound if o.after), "")
    if setting.lower() == "false":
        return Verdict.INVALID, "cache not exercised: prefix caching is off on this server"
    if share > 0:
        return Verdict.INVALID, f"cache not exercised: only {share:.1%} of prompt tokens came from it"
    return Verdict.FAIL, "cache not exercised: prefixes were sent again and again, and none was ever found"


# Acceptance ----------------------------------------------------------------------------------------------


def _holds(
    seen: CheckedCells, points: Sequence[TimedValue], probes: Probes, context: Context, unfit: list[Reason]
) -> Finding:
    """Return a finding on decay of acceptance, with its onset."""
    against, warnings = list(unfit), list[str]()
    measured: dict[str, float | str] = {}
    if not against:
        against += drafter(main_facts(context), seen.sound) if seen.sound else []
    if not unfit:
        fallen, figures = _fallen_probes(probes)
        fall = find_fall(points, context.profile.seed)
        decays, notes = _traffic_decays(points, probes, context.profile.seed)
        measured = figures | _figures(points)
        warnings += notes
        cause = fallen or decays
        if cause:
            onset = find_onset(points)
            since = f"; in the traffic {onset}" if onset is not None else ""
            against.append((Verdict.FAIL, f"acceptance decays: {cause}{since}"))
            measured |= {"onset s": round(onset.at_s, 1)} if onset is not None else {}
        elif fall is None or probes.rounds < LEAST_ROUNDS:
            few = f"{len(points)} windows and {probes.rounds} probes are too few"
            against.append((Verdict.INCONCLUSIVE, f"{few} to detect a decay"))
    return conclude(
        seen,
        "acceptance does not decay",
        "Accepted tokens a draft over time: of the same questions, before, between and after rounds of"
        " traffic, and of the traffic itself by windows. The questions decide; the windows give the onset.",
        against=against,
        passed=f"the same questions are drafted for at the end as at the beginning ({_last_figures(probes)})",
        threshold=f"fails where questions fall surely below {HOLD:.0%} of their first round (1 % error over"
        f" all rounds), where the traffic falls surely below {HOLD:.0%} and they follow, or below {HALF:.0%}",
        measured=measured,
        warnings=warnings,
        lenient=True,
        needs=(SPECULATION,),
    )


def _fallen_probes(probes: Probes) -> tuple[str, dict[str, float | str]]:
    """Return the first round of probes with a significant fall, in words, and all rounds' figures."""
    measured: dict[str, float | str] = {}
    fallen: list[tuple[float, str]] = []
    for kind, probe, of_first in probes.over_first():
        name = f"{kind} probes at {clock(probe.at_s)}"
        measured[f"{name} over the first"] = round(of_first.value, 3)
        if of_first.high < HOLD:
            fallen.append((probe.at_s, f"{name} have {of_first} of the accepted tokens of the first"))
    return min(fallen, default=(0.0, ""))[1], measured


def _traffic_decays(points: Sequence[TimedValue], probes: Probes, seed: int) -> tuple[str, list[str]]:
    """Return the evidence for a decay in the traffic, in words, and warnings that are no proof of one."""
    fall = find_fall(points, seed)
    if fall is None:
        return "", []
    follow = min(probes.last_over_first().values())
    shown = f"traffic fell to {fall.remains:.2f} of its acceptance (p = {fall.p:.4f})"
    if fall.p < SURE and (fall.remains < HALF or (fall.remains < HOLD and follow < TREND)):
        return shown, []
    drifting = fall.trend_high < 1 and fall.trend < TREND
    if drifting and follow < TREND:
        return f"traffic drifts down to {fall.trend:.2f} of its odds, and the probes to {follow:.2f}", []
    if fall.p < SURE and fall.remains < HOLD:
        return "", [f"{shown}, but the same questions did not: the prompts differ, not the server"]
    return "", []


def _figures(points: Sequence[TimedValue]) -> dict[str, float | str]:
    if not points:
        return {}
    rates = sorted(point.rate for point in points)
    return {
        "windows": len(points),
        "lowest window, accepted a draft": round(rates[0], 3),
        "median window, accepted a draft": round(rates[len(rates) // 2], 3),
    }


def _last_figures(probes: Probes) -> str:
    return ", ".join(f"{kind} {value:.2f}" for kind, value in probes.last_over_first().items())


def _cached(seen: CheckedCells, probes: Probes, unfit: list[Reason]) -> Finding:
    """Return a finding on acceptance after cached tokens compared with prefilled ones."""
    against = list(unfit)
    measured: dict[str, float | str] = {}
    probing = _Pair(seen, probes)
    if not unfit:
        against += probing.impure()
        found, measured = probing.compare()
        against += [] if against else found
    return conclude(
        seen,
        "cached prompts are drafted for as well as cold ones",
        "Accepted tokens a draft of the same questions after texts that the prefix cache holds, over those"
        " after new copies of these texts.",
        against=against,
        passed=f"{measured.get('cached over cold', 'n/a')} times as well",
        threshold=f"fails where the interval over all rounds, or that of one round, lies below {HOLD};"
        " decides nothing where it is on both sides; 1 % error over all comparisons",
        measured=measured,
        lenient=True,
        needs=(SPECULATION, PREFIX_CACHE),
    )


@dataclass(frozen=True)
class _Pair:
    """Cached and cold probes, side by side."""

    seen: CheckedCells
    probes: Probes

    def impure(self) -> list[Reason]:
        """Return reasons if probes were not cached or cold as their name states."""
        for kind, low, high in (("cached", 0.5, 1.0), ("cold", 0.0, 0.1)):
            shares = []
            for observation in self.seen.tagged(kind=kind).sound:
                try:
                    hits, queries = _hit_share(observation)
                except SeriesAbsentError as error:
                    return [(Verdict.INVALID, f"cached and cold cannot be told apart: {error}")]
                shares.append(hits / queries if queries else 0.0)
            middle = sorted(shares)[len(shares) // 2] if shares else low
            if not low <= middle <= high:
                shown = f"{middle:.0%} of the tokens of {kind} probes came from the prefix cache"
                return [(Verdict.INVALID, f"cached and cold cannot be compared: {shown}")]
        return []

    def compare(self) -> tuple[list[Reason], dict[str, float | str]]:
        """Return reasons and figures of the ratio over all rounds and in each of them."""
        pairs = self.probes.steady_pairs()
        if not pairs:
            few = "cold prompts lose their acceptance too" if self.probes.rounds else "there are no probes"
            return [(Verdict.INCONCLUSIVE, f"cached and cold cannot be compared: {few}")], {}
        comparisons = len(pairs) + 1
        cold, cached = ([pair[i].seen for pair in pairs] for i in (0, 1))
        overall = paired_ratio(cached, cold, comparisons, SURE)
        if overall is None:
            return [(Verdict.INCONCLUSIVE, "nothing is accepted after cold prompts either")], {}
        measured: dict[str, float | str] = {
            "cached over cold": round(overall.value, 3),
            "low": round(overall.low, 3),
            "high": round(overall.high, 3),
            "rounds": len(pairs),
        }
        shown = f"cached prompts get {overall} of the accepted tokens of cold ones"
        spoilt = [
            (probe, ratio)
            for base, probe in pairs
            if (ratio := paired_ratio([probe.seen], [base.seen], comparisons, SURE)) is not None
            and ratio.high < HOLD
        ]
        if spoilt and spoilt[0][0].number > pairs[0][0].number:
            probe, ratio = spoilt[0]
            since = (
                f"since {clock(probe.at_s)} cached prompts get {ratio} of the accepted tokens of cold ones"
            )
            return [(Verdict.FAIL, since)], measured
        if spoilt or overall.high < HOLD:
            return [(Verdict.FAIL, f"{shown}, from the beginning")], measured
        if overall.low < HOLD:
            return [(Verdict.INCONCLUSIVE, f"{shown}, which may be less than {HOLD}")], measured
        return [], measured
