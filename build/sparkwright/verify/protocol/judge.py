"""Findings of a run by the protocol: it was answered, prompts had the lengths, and the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.engine.capabilities import TOKEN_COUNTS
from sparkwright.engine.findings import Verdict
from sparkwright.verify.checks.common import conclude, main_facts, triage
from sparkwright.verify.checks.machine import told_of
from sparkwright.verify.protocol.figures import DEFINITIONS
from sparkwright.verify.protocol.table import group_tests, latency_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.engine.cell import Cell
    from sparkwright.engine.findings import Finding
    from sparkwright.engine.observations import Observation
    from sparkwright.verify.check import Context
    from sparkwright.verify.checks.common import CheckedCells
    from sparkwright.verify.protocol.check import ProtocolCheck
    from sparkwright.verify.protocol.table import ProtocolTest

WRONG_LENGTH, ROUGH_LENGTH = 0.20, 0.05
"""Share that prompts may be off the protocol's length: beyond, the test is another one; a warning."""
FROM_CACHE = 0.02
"""Share of prompt tokens from the prefix cache, where none should be, above which a rate of prompts means
nothing. The chat template's own block is the same in all requests."""
_TEMPLATE_TOKENS = 64


def conclude_protocol(
    check: ProtocolCheck, context: Context, observations: Sequence[Observation], planned: Sequence[Cell]
) -> list[Finding]:
    """Return the findings on the *planned* cells."""
    seen = triage(check, context, observations, planned)
    speed, options = context.profile.speed, check.options
    latency = latency_ms(seen.sound, options.latency, speed)
    tests = group_tests(seen.sound, latency, speed, cached=options.cached)
    longest = main_facts(context).max_model_len
    left_out = [
        f"pp{pp} tg{tg} @ d{depth} was left out: the server takes {longest} tokens at the most"
        for depth in options.depths
        for pp in options.pp
        for tg in options.tg
        if not fits(depth, pp, tg, longest)
    ]
    return [_answered(seen, tests, latency, left_out), _lengths(seen, tests, cached=options.cached)]


def fits(depth: int, pp: int, tg: int, longest: int) -> bool:
    """Tell if a server that takes *longest* tokens, or an unknown number, takes a test's requests."""
    return longest <= 0 or depth + pp + tg <= longest


def _answered(
    seen: CheckedCells, tests: Sequence[ProtocolTest], latency: float, left_out: Sequence[str]
) -> Finding:
    requests = sum(test.requests for test in tests)
    against = [] if len(seen.planned) > 1 else [(Verdict.INCONCLUSIVE, "no batch was measured")]
    short = [
        f"{test.name('tg', levels=True)}: answers end by themselves after {test.output_tokens:.0f} tokens"
        for test in tests
        if test.output_tokens < test.tg * (1 - ROUGH_LENGTH)
    ]
    return conclude(
        seen,
        "the protocol was carried out",
        f"t/s of prompts: {DEFINITIONS['pp t/s']} t/s of outputs: {DEFINITIONS['tg t/s']} e2e_ttft:"
        f" {DEFINITIONS['e2e_ttft']}",
        against=against,
        passed=f"{requests} requests in {len(tests)} tests were answered",
        threshold="no failed request, no batch left out",
        needs=(TOKEN_COUNTS,),
        measured={"latency ms": round(latency, 2), **_figures(tests)},
        warnings=[
            *left_out,
            *short,
            *seen.notes,
            *(f"{told}: its times are not the usual ones" for one in seen.sound for told in told_of(one)),
        ],
    )


def _figures(tests: Sequence[ProtocolTest]) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for test in tests:
        of = test.figures
        names = {"pp": ("t/s", of.pp), "tg": ("t/s", of.tg)}
        for phase, (unit, metric) in names.items():
            if metric is not None:
                found[f"{test.name(phase, levels=True)} {unit}"] = round(metric.mean, 2)
        if of.e2e_ttft is not None:
            found[f"{test.name('pp', levels=True)} e2e_ttft ms"] = round(of.e2e_ttft.mean, 2)
    return found


def _lengths(seen: CheckedCells, tests: Sequence[ProtocolTest], *, cached: bool) -> Finding:
    against, warnings, largest = [], [], 0.0
    for test in tests:
        if not test.prompt_tokens:
            continue
        off = test.prompt_tokens / test.expected - 1
        largest = max(largest, abs(off))
        shown = f"{test.name('pp', levels=True)}: prompts have {test.prompt_tokens:.0f} tokens, not"
        shown += f" {test.expected}"
        if abs(off) > WRONG_LENGTH:
            against.append((Verdict.INCONCLUSIVE, shown))
        elif abs(off) > ROUGH_LENGTH:
            warnings.append(shown)
        template = _TEMPLATE_TOKENS / test.expected
        if not cached and test.cached_share > FROM_CACHE + template:
            of = f"{test.name('pp', levels=True)}: {test.cached_share:.0%} of the prompts' tokens came from"
            against.append((Verdict.INVALID, f"{of} the prefix cache, so its rate of prompts means nothing"))
    return conclude(
        seen,
        "prompts are as long as the protocol says, and cold",
        "Mean of the server's counts of prompt tokens for each test, context included, against the"
        " protocol's; and the share of them that came from the prefix cache, unless contexts were put there.",
        against=against,
        passed=f"off by {largest:.1%} at the most",
        threshold=f"{WRONG_LENGTH:.0%} of the length, a warning from {ROUGH_LENGTH:.0%}; {FROM_CACHE:.0%}"
        f" from the cache beyond {_TEMPLATE_TOKENS} tokens of a template",
        measured={"largest deviation": round(largest, 4)},
        warnings=warnings,
        lenient=True,
        needs=(TOKEN_COUNTS,),
    )
