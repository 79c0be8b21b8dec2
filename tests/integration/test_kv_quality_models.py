"""The arithmetic of `scripts/kv_quality`, where torch is, beside planted faults."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sparkwright.probe.environment import prepare_environment
from sparkwright.store import open_store

pytestmark = pytest.mark.upstream

CHECKS = Path(__file__).parents[1] / "support" / "kv_quality_checks.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    file = tmp_path_factory.mktemp("drafter") / "drafter.pt"
    command = [prepare_environment(open_store()), CHECKS, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nvfp4_is_rounded_as_by_the_coder_bit_for_bit(found):
    assert found["coder"] == {"1.0": True, "0.0371": True, "0.5": True}


def test_another_scale_is_not_the_coders_rounding(found):
    assert found["planted"] is False


def test_levels_are_those_of_lloyd_and_max(found):
    # Max (1960), table I, 16 levels
    right = [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733]
    assert found["levels"][8:] == pytest.approx(right, abs=6e-4)
    assert found["hadamard"] < 1e-6


def test_more_bits_lose_less(found):
    errors = found["errors"]
    assert errors["16 bits"] < errors["INT8 per token and head"] < errors["FP8"] < errors["NVFP4"] < 0.15
    assert errors["16 bits"] < errors["FP8 keys, NVFP4 values"] < errors["NVFP4 keys, FP8 values"]


def test_a_scale_far_from_the_values_loses_more(found):
    assert found["small"]["0.0001"] > 2 * found["small"]["1.0"]  # saturates


def test_four_over_six_takes_the_better_of_two_scales(found):
    assert found["four over six"]["NVFP4, 4 over 6"] < found["four over six"]["NVFP4"]


def test_the_divergence_of_identical_caches_is_none_and_follows_the_definition(found):
    assert found["divergences"]["16 bits"] == 0.0
    assert found["definition"] is True


def test_a_wrong_scale_raises_the_divergence(found):
    divergences = found["divergences"]
    for name in ("FP8", "NVFP4"):
        assert 0 < divergences[name] < divergences[f"{name}, scale 1000"] / 3
    assert divergences["FP8"] < divergences["NVFP4"]


def test_a_block_reads_its_window_and_itself(found):
    first, second = [0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert found["mask"]["window"] == [first] * 3 + [second] * 3
    assert found["mask"]["begin"] == [[0] * 6] * 3 + [[0, 0, 0, 0, 1, 0]] * 3


def test_drafts_depend_on_what_may_be_read_and_on_nothing_else(found):
    assert found["reads"] == {
        "the place itself": False,
        "before": True,
        "far before": True,
        "in the window": True,
        "before the window": False,
    }


def test_a_drafter_learns_a_pattern(found):
    assert found["learns"]["last"] < found["learns"]["first"] / 4
    assert found["learns"]["right"] > 0.9


def test_a_call_is_valid_json_or_none(found):
    assert found["calls"] == [{"name": "f", "arguments": {"city": "Rome"}}, None, None]


def test_drafts_are_looked_up_behind_the_longest_and_latest_match(found):
    assert found["look up"] == [[4, 9, 1, 2, 3], [5, 1, 2], []]


def test_steps_and_places_are_counted(found):
    assert found["perfect"] == {
        "steps": 3,
        "tokens": 14,
        "tried": [3, 3, 2, 2, 2],
        "accepted": [3, 3, 2, 2, 2],
    }
    assert found["wrong third"]["accepted"] == [5, 5, 0, 0, 0]
    assert found["none"] == {"steps": 14, "tokens": 14, "tried": [0] * 5, "accepted": [0] * 5}
