"""Prometheus text and vLLM's series in it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.base.errors import EndpointError
from sparkwright.engine.client.endpoint import EndpointFacts
from sparkwright.engine.metrics.snapshot import MetricSample, parse_exposition, parse_snapshot
from sparkwright.engine.observations import BootFacts
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.setup import lacking_facts

NAME = 'served "as" a\\b'
ESCAPED = r"served \"as\" a\\b"


def read(text: str) -> list[MetricSample]:
    return list(parse_exposition(text))


# Exposition ----------------------------------------------------------------------------------


def test_reads_every_number() -> None:
    numbers = {"1.5e+22": 1.5e22, ".5": 0.5, "5.": 5.0, "-3": -3.0, "+Inf": math.inf, "-Inf": -math.inf}
    assert [point.value for number in numbers for point in read(f"a {number}\n")] == [*numbers.values()]
    assert math.isnan(read("a NaN\n")[0].value)


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        ("a{} 1", {}),
        ("a { } 1", {}),
        ('a{b=""} 1', {"b": ""}),
        ('a{b="c",} 1', {"b": "c"}),
        ('a{ b = "c" , d = "e" } 1', {"b": "c", "d": "e"}),
        ('a{b="c"}1', {"b": "c"}),
        ('a{b="x,y=\\"}{z # "} 1', {"b": 'x,y="}{z # '}),
        ('a{b="\\\\n"} 1', {"b": "\\n"}),
        ('a{b="\\n"} 1', {"b": "\n"}),
        ('a{b="\u2028\x0b\u6f22"} 1', {"b": "\u2028\x0b\u6f22"}),  # line ends for Python, not for Prometheus
        ('h_bucket{le="+Inf"} 1', {"le": "+Inf"}),
    ],
)
def test_reads_labels(line: str, labels: dict[str, str]) -> None:
    [point] = read(f"{line}\n")
    assert point.labels == labels
    assert point.value == 1


@pytest.mark.parametrize(
    "line",
    [
        "a 1 1395066363000",
        "a 1 1395066363.25",
        'a_bucket{le="1"} 1 # {trace_id="KOO"} 0.67',
        'a_bucket{le="1"} 1 # {} 0.67 1520879607.789',
        "  a\t1  ",
        "a 1\r",
    ],
)
def test_passes_over_timestamps_exemplars_and_blanks(line: str) -> None:
    assert [point.value for point in read(f"# HELP a {{x}} 1\n\n \t\r\n{line}\n#\n# EOF\n\n")] == [1]


@pytest.mark.parametrize(
    "line",
    [
        "<!doctype html>",
        '{"error": "no"}',
        "a",
        "a b",
        "a 1_000",
        "a 0x10",
        "a infinity",
        "a 1 2 3",
        'a{b="c} 1',
        'a{b="c"} ',
        "a{b=c} 1",
        'a{b="c" d="e"} 1',
        'a{b="c",,} 1',
        "a{,} 1",
        'a{b="\\q"} 1',
        'a{b="c",b="d"} 1',
        "1a 1",
        "a-b 1",
    ],
)
def test_refuses_what_is_no_sample_and_names_its_line(line: str) -> None:
    with pytest.raises(ValueError, match="line 3 of the metrics"):
        read(f"# HELP a b\nok 1\n{line}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a 12345\nb 123", "line 2 of the metrics is cut"),
        ("a 1\n# EOF\nb 1\n", "line 3 .* comes after # EOF"),
        ("a 1\n# EOF\n\nb 1\n", "line 4 .* comes after # EOF"),
    ],
)
def test_refuses_a_text_that_was_cut_or_goes_on_after_its_end(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(text)


def escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def pairs(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())


names = st.text("aZ_:", min_size=1, max_size=5)
label_values = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n,={}# '), max_size=8)
labels = st.dictionaries(st.text("aZ_", min_size=1, max_size=4), label_values, max_size=4)


@given(st.lists(st.tuples(names, labels, st.floats(allow_nan=False)), max_size=5))
def test_reads_back_whatever_was_written(points: list[tuple[str, dict[str, str], float]]) -> None:
    text = "".join(f"{name}{{{pairs(found)}}} {number!r}\n" for name, found, number in points)
    assert [(point.name, point.labels, point.value) for point in read(text)] == points


@given(st.text(alphabet='a1{}"=\\,#. \n\t'))
def test_never_fails_but_with_a_line(text: str) -> None:
    try:
        read(text)
    except ValueError as error:
        assert str(error).startswith("line ")  # noqa: PT017 - what is to be said of it is the point


# vLLM's series -------------------------------------------------------------------------------


def series(name: str, value: float, **more: str) -> str:
    found = {"engine": "0", "model_name": ESCAPED, **more}
    parts = [f'{key}="{label}"' for key, label in found.items()]
    return f"{name}{{{','.join(parts)}}} {value}\n"


def python_front_end(engine: str = "0", *, total: str = "_total") -> str:
    """As vLLM 0.24 and 0.33 write through prometheus_client: text 0.0.4, with traps."""
    counters = {
        "vllm:spec_decode_num_drafts": 100.0,
        "vllm:spec_decode_num_draft_tokens": 700.0,
        "vllm:spec_decode_num_accepted_tokens": 250.0,
        "vllm:generation_tokens": 360.0,
        "vllm:prompt_tokens": 1000.0,
        "vllm:prompt_tokens_cached": 99999.0,
        "vllm:prefix_cache_queries": 1000.0,
        "vllm:prefix_cache_hits": 320.0,
        "vllm:external_prefix_cache_queries": 99999.0,
        "vllm:external_prefix_cache_hits": 99999.0,
        "vllm:mm_cache_queries": 99999.0,
        "vllm:num_preemptions": 3.0,
    }
    lines = [series(name + total, value, engine=engine) for name, value in counters.items()]
    lines += [series(f"{name}_created", 1.79e9, engine=engine) for name in counters]
    lines += [
        series(
            f"vllm:spec_decode_num_accepted_tokens_per_pos{total}",
            100 - 10 * p,
            engine=engine,
            position=str(p),
        )
        for p in range(3)
    ]
    lines += [
        series(f"vllm:request_success{total}", value, engine=engine, finished_reason=reason)
        for reason, value in (("stop", 2.0), ("length", 7.0), ("abort", 1.0), ("error", 0.0))
    ]
    lines += [
        series("vllm:num_requests_running", 4.0, engine=engine),
        series("vllm:num_requests_waiting", 2.0, engine=engine),
        series("vllm:num_requests_waiting_by_reason", 99.0, engine=engine, reason="capacity"),
        series("vllm:kv_cache_usage_perc", 0.5, engine=engine),
        series("vllm:iteration_tokens_total_bucket", 12.0, engine=engine, le="+Inf"),
        series("vllm:iteration_tokens_total_sum", 99999.0, engine=engine),
        series("vllm:request_generation_tokens_sum", 99999.0, engine=engine),
        series("vllm:cache_config_info", 1.0, engine=engine, block_size="16", num_gpu_blocks="4096"),
    ]
    return "# HELP vllm:generation_tokens_total Number of generation tokens processed.\n" + "".join(lines)


PROCESS = "process_start_time_seconds 1.79e9\nprocess_resident_memory_bytes 2.5e+09\n"


def test_reads_the_series_of_python_s_front_end() -> None:
    snapshot = parse_snapshot(python_front_end() + PROCESS, at=5)
    assert snapshot.at == 5
    assert (snapshot.drafts, snapshot.draft_tokens, snapshot.accepted) == (100, 700, 250)
    assert snapshot.accepted_per_position == (100, 90, 80)
    assert (snapshot.generation_tokens, snapshot.prompt_tokens, snapshot.requests) == (360, 1000, 10)
    assert (snapshot.prefix_queries, snapshot.prefix_hits, snapshot.preemptions) == (1000, 320, 3)
    assert (snapshot.running, snapshot.waiting, snapshot.kv_usage) == (4, 2, 0.5)
    assert snapshot.start_s == 1.79e9
    assert snapshot.cache == {"engine": "0", "model_name": NAME, "block_size": "16", "num_gpu_blocks": "4096"}


def test_reads_the_open_metrics_of_the_rust_front_end() -> None:
    text = (
        "# HELP vllm:spec_decode_num_accepted_tokens Number of accepted tokens.\n"
        "# TYPE vllm:spec_decode_num_accepted_tokens counter\n"
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m",engine="0"} 12\n'
        'vllm:num_requests_running{model_name="m",engine="0"} 0\n'
        "# EOF\n"
    )
    snapshot = parse_snapshot(text, at=0)
    assert (snapshot.accepted, snapshot.running, snapshot.drafts) == (12, 0, -1)


def test_sums_engines_but_not_shares() -> None:
    one = parse_snapshot(python_front_end(), at=0)
    both = parse_snapshot(python_front_end("1") + python_front_end("0") + PROCESS, at=0)
    assert both.accepted == 2 * one.accepted
    assert both.requests == 2 * one.requests
    assert both.accepted_per_position == tuple(2 * count for count in one.accepted_per_position)
    assert both.running == 2 * one.running
    assert both.kv_usage == one.kv_usage
    assert both.start_s == 1.79e9
    assert both.cache["engine"] == "0"


def test_absent_series_are_minus_one() -> None:
    snapshot = parse_snapshot("# nothing of vLLM\nup 1\n", at=0)
    fields = (snapshot.drafts, snapshot.accepted, snapshot.generation_tokens, snapshot.prefix_hits)
    assert fields == (-1, -1, -1, -1)
    assert (snapshot.running, snapshot.kv_usage, snapshot.start_s) == (-1, -1, -1)
    assert snapshot.accepted_per_position == ()
    assert snapshot.cache == {}


TWICE = 'vllm:generation_tokens_total{a="1",b="2"} 3\nvllm:generation_tokens_total{b="2",a="1"} 3\n'
POSITION = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{}"}} {}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (f"ok 1\nvllm:spec_decode_num_drafts_total {value}\n", "line 2 of the metrics: vllm:spec_.* is")
            for value in ("NaN", "+Inf", "-Inf", "-1", "-5e300")
        ),
        (TWICE, "line 2 of the metrics repeats a series"),
        (POSITION.format(0, 1) + POSITION.format(2, 1), "with gaps"),
        (POSITION.format(1, 1), "with gaps"),
        (POSITION.format("x", 1), "line 1"),
    ],
)
def test_refuses_values_that_no_counter_has_and_series_that_do_not_fit(text: str, said: str) -> None:
    with pytest.raises(EndpointError, match=said):
        parse_snapshot(text, at=0)


def test_the_capabilities_of_a_server_with_such_values_are_no_internal_error() -> None:
    options = VerifyOptions(url="http://127.0.0.1:1")
    page = "ok 1\nvllm:spec_decode_num_drafts_total {}\n"
    for text in (page.format("NaN"), page.format("-5e300"), f"{page.format(3)}{'{' * 5000}\n"):
        known = EndpointFacts("0.24.0", "m", 100, text)
        with pytest.raises(EndpointError, match=r"127.0.0.1:1/metrics does not hold .* line [23]"):
            lacking_facts(options, known, BootFacts())
    assert "speculation" not in lacking_facts(options, EndpointFacts("", "m", 1, page.format(3)), BootFacts())


def test_puts_positions_in_order_of_number() -> None:
    text = "".join(POSITION.format(p, 20 - p) for p in (10, 2, *range(2), *range(3, 10)))
    assert parse_snapshot(text, at=0).accepted_per_position == tuple(range(20, 9, -1))
