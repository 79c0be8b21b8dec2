"""The protocol of llama-benchy: its cells, its aggregates worked out by hand, its table, and its findings."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from field_kit import answered, carried_out, counterless, protocol_context, sample, with_samples
from verify_kit import boot_facts, failing

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import FailureKind
from sparkwright.verify.capacity.options import CapacityOptions
from sparkwright.verify.check import Context
from sparkwright.verify.options import VerifyOptions, profile_of
from sparkwright.verify.protocol.check import ProtocolCheck
from sparkwright.verify.protocol.figures import peak, protocol_figures
from sparkwright.verify.protocol.options import PROTOCOLS, parse_protocol
from sparkwright.verify.protocol.results import protocol_files, protocol_tests
from sparkwright.verify.protocol.texts import USUAL, fit_tokens, sizing_prompts
from sparkwright.verify.setup import _asked, require_possible


def test_a_protocol_is_read_with_its_changes() -> None:
    assert parse_protocol("t1") == PROTOCOLS["t1"]
    assert parse_protocol("t1").depths == (0, 32_768, 131_072)
    changed = parse_protocol("llama-benchy pp=128,4096 depth=0,512 c=8 runs=1 latency=none exact cached")
    assert (changed.pp, changed.tg, changed.depths, changed.levels) == ((128, 4096), (32,), (0, 512), (8,))
    assert (changed.runs, changed.latency, changed.exact, changed.cached) == (1, "none", True, True)


@pytest.mark.parametrize(
    "text", ["t1 pp=", "t1 pp=1", "t1 depth=3", "t1 runs=0", "t1 latency=far", "t1 fast"]
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_protocol(text)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="t9"):
        parse_protocol("t9")


def test_checks_that_are_not_registered_ask_for_no_capability() -> None:
    searching = VerifyOptions(url="http://127.0.0.1:1", capacity=CapacityOptions(slo="ttft_p95=2s"))
    carrying_out = VerifyOptions(url="http://127.0.0.1:1", protocol="t1")
    for options in (searching, carrying_out):
        assert _asked(options, profile_of(options)) == frozenset()


def test_the_deepest_contexts_are_waited_for() -> None:
    def waits(protocol: str) -> float:
        return profile_of(VerifyOptions(simulator=True, protocol=protocol)).deadlines.first_token_s

    assert waits("llama-benchy") == profile_of(VerifyOptions()).deadlines.first_token_s
    assert waits("t1 depth=32768 c=8") == 8 * (32_768 + 4096) / 200
    assert waits("t1") == 3600


@pytest.mark.parametrize("other", [{"checks": ("boot",)}, {"against": "simulator"}])
def test_a_protocol_is_carried_out_by_itself(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="by itself"):
        require_possible(VerifyOptions(simulator=True, profile="demo", protocol="t1", **other))


# Aggregates ---------------------------------------------------------------------------------------------


def test_one_request_at_a_time_is_worked_out_by_hand() -> None:
    # 100 tokens in 200 ms less 10 ms latency; five tokens after the first chunk's two within 100 ms.
    one = sample(0, 200, [250, 300], [2, 2, 3], responded=195_000_000)
    found = protocol_figures([[one]], 1, 100, 0.010, 1.0)
    assert found.pp is not None
    assert found.tg is not None
    assert found.pp.mean == pytest.approx(100 / 0.185)
    assert found.tg.mean == pytest.approx(5 / 0.1)
    assert found.pp_req == found.pp
    assert found.ttfr is not None
    assert found.est_ppt is not None
    assert found.e2e_ttft is not None
    assert (found.ttfr.mean, found.est_ppt.mean, found.e2e_ttft.mean) == pytest.approx((195, 185, 200))
    assert found.peak is not None
    assert found.peak.mean == pytest.approx(7 / 0.1)  # all within a second: over their duration


def test_a_batch_is_rated_from_its_first_request_to_its_last_token() -> None:
    first, second = sample(0, 100, [200, 300]), sample(10, 310, [410, 510])
    found = protocol_figures([[first, second]], 2, 100, 0.0, 1.0)
    assert found.pp is not None
    assert found.tg is not None
    assert found.pp.mean == pytest.approx(200 / 0.310)
    assert found.tg.mean == pytest.approx(4 / 0.410)
    assert found.pp_req is not None
    assert found.tg_req is not None
    assert found.pp_req.values == pytest.approx((100 / 0.1, 100 / 0.3))
    assert found.tg_req.values == pytest.approx((10, 10))


def test_a_faster_clock_shortens_nothing() -> None:
    slow = protocol_figures([[sample(0, 1000, [2000])]], 1, 100, 0.0, 1.0)
    fast = protocol_figures([[sample(0, 100, [200])]], 1, 100, 0.0, 10.0)
    assert slow == fast


def test_a_count_far_from_the_protocols_is_not_used() -> None:
    near = protocol_figures([[sample(0, 100, [200], prompt_tokens=110)]], 1, 100, 0.0, 1.0)
    far = protocol_figures([[sample(0, 100, [200], prompt_tokens=130)]], 1, 100, 0.0, 1.0)
    assert near.pp is not None
    assert far.pp is not None
    assert (near.pp.mean, far.pp.mean) == pytest.approx((1100, 1000))


def test_without_counts_in_chunks_tokens_are_spread_evenly() -> None:
    one = sample(0, 100, [200, 400], [0, 0, 0], output_tokens=7)
    found = protocol_figures([[one]], 1, 100, 0.0, 1.0)
    assert found.tg is not None
    assert found.tg.mean == pytest.approx(6 / 0.3)


def test_an_answer_in_one_piece_has_no_rate() -> None:
    found = protocol_figures([[sample(0, 100, [], [9])]], 1, 100, 0.0, 1.0)
    assert found.tg is None
    assert found.pp is not None


def test_the_peak_is_that_of_any_second() -> None:
    assert peak([0, 0.4, 0.9, 2.0, 2.1, 2.2, 2.9, 5.0]) == 4
    assert peak([0, 0.25]) == 8
    assert peak([3.0]) == 1


# Cells --------------------------------------------------------------------------------------------------


def test_each_test_has_a_batch_that_is_not_counted_and_its_runs() -> None:
    check = ProtocolCheck(parse_protocol("llama-benchy pp=128 tg=8 depth=0,256 c=1,4 runs=2"))
    to = protocol_context()
    before = [answered(cell) for cell in check.plan(to)]
    cells = check.extend(to, before)
    assert len(cells) == 2 * 2 * 3
    assert {cell.load.requests for cell in cells} == {1, 4}
    assert all(cell.load.shape == "burst" and cell.load.plain and cell.load.natural_stop for cell in cells)
    texts = [str(prompt.history) + prompt.text for cell in cells for prompt in cell.prompts]
    assert len(set(texts)) == len(texts)
    assert check.extend(to, [*before, answered(cells[0])]) == ()
    assert cells == check.extend(to, before)  # a resumed run sends the same


def test_prompts_are_as_long_as_the_servers_counts_say() -> None:
    tests = protocol_tests(carried_out())
    assert [test.prompt_tokens for test in tests] == pytest.approx([test.expected for test in tests], abs=2)


def test_contexts_are_sent_before_where_they_are_to_be_cached() -> None:
    run = carried_out("llama-benchy pp=128 tg=8 depth=256 runs=1 cached exact")
    cells = [seen.cell for seen in run.observations[1:]]
    assert [cell.tags.get("phase", "") for cell in cells] == ["context", "", "context", ""]
    assert cells[2].prompts[0].history == cells[3].prompts[0].history
    names = [test.name("pp", levels=False) for test in protocol_tests(run)]
    assert names == ["ctx_pp @ d256", "pp128 @ d256"]


def test_what_the_server_is_too_short_for_is_left_out_and_said() -> None:
    text = "llama-benchy pp=128 tg=8 depth=0,8192,65536 runs=1"
    check = ProtocolCheck(parse_protocol(text))
    to = counterless(protocol_context(facts=boot_facts(max_model_len=8192)))
    before = [answered(cell) for cell in check.plan(to)]
    cells = check.extend(to, before)
    assert {cell.tags["depth"] for cell in cells} == {"0"}
    finding = check.judge(to, [*before, *(answered(cell) for cell in cells)])[0]
    assert finding.verdict is Verdict.PASS
    assert [text for text in finding.warnings if "left out" in text] == [
        f"pp128 tg8 @ d{depth} was left out: the server takes 8192 tokens at the most"
        for depth in (8192, 65_536)
    ]


def test_a_server_that_is_too_short_for_everything_does_not_pass() -> None:
    check = ProtocolCheck(parse_protocol("llama-benchy pp=4096 tg=8 runs=1"))
    to = counterless(protocol_context(facts=boot_facts(max_model_len=2048)))
    before = [answered(cell) for cell in check.plan(to)]
    assert check.extend(to, before) == ()
    assert check.judge(to, before)[0].verdict is Verdict.INCONCLUSIVE


def test_a_server_that_counts_nothing_gets_prompts_by_an_estimate() -> None:
    counted = [sample(0, 1, [], prompt=prompt.name, prompt_tokens=0) for prompt in sizing_prompts(0)]
    assert fit_tokens(counted, 0) == USUAL


# Findings -----------------------------------------------------------------------------------------------


def judged(text: str, *, change: object = None, at: int = -1) -> dict[str, tuple[Verdict, str]]:
    run = carried_out(text)
    seen = list(run.observations)
    if callable(change):
        seen[at] = change(seen[at])
    findings = ProtocolCheck(parse_protocol(text)).judge(counterless(protocol_context()), seen)
    return {one.name: (one.verdict, one.cause) for one in findings}


TEXT = "llama-benchy pp=512 tg=8 c=2 runs=1 exact"


def test_a_healthy_server_passes() -> None:
    assert {verdict for verdict, _ in judged(TEXT).values()} == {Verdict.PASS}


def test_a_failed_request_fails_it() -> None:
    found = judged(TEXT, change=lambda seen: failing(seen, FailureKind.STALL, "no token for 60 s"))
    assert found["the protocol was carried out"][0] is Verdict.FAIL


def test_prompts_from_the_cache_are_no_measurement_of_prefill() -> None:
    found = judged(TEXT, change=lambda seen: with_samples(seen, cached_tokens=400))
    verdict, cause = found["prompts are as long as the protocol says, and cold"]
    assert verdict is Verdict.INVALID
    assert "78%" in cause


def test_prompts_of_another_length_decide_nothing() -> None:
    found = judged(TEXT, change=lambda seen: with_samples(seen, prompt_tokens=300))
    verdict, cause = found["prompts are as long as the protocol says, and cold"]
    assert verdict is Verdict.INCONCLUSIVE
    assert "300 tokens, not 512" in cause


def test_nothing_measured_is_no_pass() -> None:
    check, to = ProtocolCheck(parse_protocol(TEXT)), counterless(protocol_context())
    assert {one.verdict for one in check.judge(to, ())} == {Verdict.INCONCLUSIVE}


# Forms --------------------------------------------------------------------------------------------------


def test_the_table_has_the_programs_form() -> None:
    files = protocol_files(carried_out())
    lines = files["llama-benchy.md"].decode().splitlines()
    assert [head.strip() for head in lines[0].split("|")[1:4]] == ["model", "test", "t/s (total)"]
    assert lines[1].startswith("|:--")
    assert lines[1].endswith("-:|")
    assert [line.split("|")[2].strip() for line in lines[2:6]] == [
        "pp128 (c1)", "tg8 (c1)", "pp128 (c4)", "tg8 (c4)",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(files["llama-benchy.csv"].decode())))
    report = json.loads(files["llama-benchy.json"])
    assert float(rows[0]["t_s_mean"]) == report["benchmarks"][0]["pp_throughput"]["mean"]
    assert report["latency_ms"] == 3.0
    assert len(report["benchmarks"]) == 4


def test_one_level_has_no_columns_of_single_requests() -> None:
    head = protocol_files(carried_out(TEXT.replace("c=2", "c=1")))["llama-benchy.md"].decode().splitlines()[0]
    assert "(req)" not in head
    assert "(total)" not in head


def test_a_server_that_counts_no_tokens_has_no_rates() -> None:
    run = carried_out(TEXT)
    lacks = {"metrics": "there is none", "token-counts": "streams bring no usage"}
    to = Context(protocol_context().profile, protocol_context().corpus, run.facts, lacks=lacks)
    findings = ProtocolCheck(parse_protocol(TEXT)).judge(to, run.observations)
    assert {one.verdict for one in findings} == {Verdict.NOT_APPLICABLE}
    assert protocol_files(type(run)(**{**vars(run), "lacks": lacks})) == {}


def test_a_run_without_the_protocol_has_no_such_files() -> None:
    run = carried_out()
    assert protocol_tests(type(run)(manifest=run.manifest)) == ()
    assert protocol_files(type(run)(manifest=run.manifest)) == {}
