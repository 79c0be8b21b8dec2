"""The memory budget of made-up Sparks and of a card: what does not fit is refused; what fits is silent."""

import pytest
from checkpoint_kit import (
    DENSE,
    MODELOPT,
    QWEN_27B,
    QWEN_27B_DFLASH,
    Tensors,
    dflash_27b,
    nvfp4_27b,
    write_checkpoint,
)
from preflight_kit import GIB, H200, SPARK_TOTAL, recipe, spark, start

from sparkwright.base.errors import PreflightError
from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes.recipe import load_recipe, recipes
from sparkwright.serve.preflight.finding import refusals, require_clear
from sparkwright.serve.preflight.run import inspect_start, run_preflight

SPECULATIVE = {"method": "dflash", "num_speculative_tokens": 12}


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "27b", QWEN_27B, nvfp4_27b(), modelopt=MODELOPT)


@pytest.fixture
def drafter(tmp_path):
    return write_checkpoint(tmp_path / "dflash", QWEN_27B_DFLASH, dflash_27b(), tokenizer=False)


def levels(request) -> dict[str, str]:
    return {one.check: one.level for one in run_preflight(request)}


def found(request, check):
    return next(one for one in run_preflight(request) if one.check == check)


def heavy(tmp_path, gib: int):
    """A checkpoint of so many GiB."""
    tensors: Tensors = {f"t{one}": ("BF16", (1 << 19, 1 << 10)) for one in range(gib)}
    return write_checkpoint(tmp_path / f"{gib}", {**DENSE, "max_position_embeddings": 1 << 24}, [tensors])


def test_a_27b_with_its_drafter_fits_a_spark(model, drafter):
    served = recipe(
        model, drafter=str(drafter), speculative=SPECULATIVE, weights="modelopt", flags={"max-num-seqs": 4}
    )
    assert levels(start(served)) == {}
    report = inspect_start(start(served))
    rows = {row.part: row for row in report.rows}
    assert rows["weights"].gib == pytest.approx(report.budget.weights / GIB)
    assert rows["the server may take"].gib == pytest.approx(0.7 * SPARK_TOTAL / GIB, abs=0.01)
    assert rows["memory of CPU and GPU"].gib == pytest.approx(121.69, abs=0.01)
    parts = [rows[part].gib for part in ("weights", "drafter", "activations", "CUDA graphs", "KV cache, all")]
    taken = sum(parts) + rows["CUDA, engine's host memory"].gib
    assert taken == pytest.approx(rows["the server may take"].gib, abs=0.01)
    pool = rows["KV cache, all"]
    assert pool.low < pool.gib < pool.high


ONE = {"max-num-seqs": 1}


# GiB of weights, flags, the machine and what others take, and what is found.
@pytest.mark.parametrize(
    ("gib", "flags", "host", "sidecars", "expected"),
    [
        (60, {}, {}, 0, {}),
        (85, {}, {}, 0, {"weights": "refuse"}),
        (130, {}, {}, 0, {"weights": "refuse"}),
        (40, {"max-model-len": 65_536, **ONE}, {}, 0, {}),
        (40, {"max-model-len": 8_000_000, **ONE}, {}, 0, {"kv-cache": "refuse"}),
        (40, {"max-model-len": 1_000_000, "max-num-seqs": 64}, {}, 0, {"kv-requests": "note"}),
        (20, {"gpu-memory-utilization": 0.88}, {"available": 121}, 0, {}),
        (20, {"gpu-memory-utilization": 0.9}, {"available": 121}, 0, {"host-reserve": "refuse"}),
        (20, {"gpu-memory-utilization": 0.98}, {"available": 121}, 0, {"host-reserve": "refuse"}),
        (20, {"gpu-memory-utilization": 1e308}, {}, 0, {"host-reserve": "refuse", "available": "refuse"}),
        (20, {}, {"available": 121}, 30, {"host-reserve": "refuse"}),
        (20, {"gpu-memory-utilization": 0.6}, {"available": 121}, 30, {}),
        (20, {}, {"available": 80}, 0, {"available": "refuse"}),
        (20, {}, {"available": 90}, 0, {}),
        (20, {}, {"cached": 60}, 0, {"page-cache": "warn"}),
        (20, {}, {"cached": 20}, 0, {}),  # what is free is enough
        (20, {}, {"swap": 3}, 0, {"swap": "warn"}),
        (20, {}, {"swap": 0.5}, 0, {}),
    ],
)
def test_what_does_not_fit_is_found(tmp_path, gib, flags, host, sidecars, expected):
    request = start(recipe(heavy(tmp_path, gib), flags=flags), spark(**host), sidecars_gib=sidecars)
    assert levels(request) == expected


@pytest.mark.parametrize(("utilization", "sidecars"), [(0.9, 0), (0.98, 0), (0.7, 30)])
def test_what_is_advised_leaves_the_host_enough(tmp_path, utilization, sidecars):
    def started(share):
        served = recipe(heavy(tmp_path, 20), flags={"gpu-memory-utilization": share})
        return start(served, spark(available=121), sidecars_gib=sidecars)

    finding = found(started(utilization), "host-reserve")
    assert finding.liftable
    assert levels(started(float(finding.next_step.split()[3]))) == {}


def test_weights_that_do_not_fit_at_all_are_no_prediction(tmp_path):
    assert found(start(recipe(heavy(tmp_path, 85))), "weights").liftable
    assert not found(start(recipe(heavy(tmp_path, 130))), "weights").liftable


@pytest.mark.parametrize(
    ("length", "config", "fires"),
    [
        (65536, {}, False),
        (65537, {}, True),
        ("66K", {}, True),
        ("64K", {}, False),
        ("auto", {}, False),
        (
            131072,
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            False,
        ),
        (131073, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, True),
    ],
)
def test_a_context_that_the_model_has_not(tmp_path, length, config, fires):
    folder = write_checkpoint(tmp_path / "m", {**DENSE, **config})
    flags = {"max-model-len": length, "max-num-seqs": 1}
    assert levels(start(recipe(folder, flags=flags))) == ({"context": "refuse"} if fires else {})
    assert levels(start(recipe(folder, flags={**flags, "hf-overrides": {}}))) == {}


def test_a_context_within_the_error_of_the_estimates_is_a_warning(tmp_path):
    folder = heavy(tmp_path, 40)
    budget = inspect_start(start(recipe(folder))).budget
    length = (budget.pool("low") + budget.pool()) // 2 // (8 * 2048)
    flags = {"max-model-len": length, "max-num-seqs": 1}
    assert levels(start(recipe(folder, flags=flags))) == {"kv-cache": "warn"}


def test_states_of_too_many_requests(model):
    flags = {"max-num-seqs": 64, "enable-prefix-caching": True, "max-model-len": 32768}
    request = start(recipe(model, weights="modelopt", flags=flags))
    assert levels(request) == {"kv-requests": "note"}
    drafting = {"method": "mtp", "num_speculative_tokens": 15}
    more = start(recipe(model, weights="modelopt", flags=flags, speculative=drafting))
    assert levels(more)["kv-states"] == "warn"


def test_a_card_of_its_own_needs_no_reserve(tmp_path):
    served = recipe(heavy(tmp_path, 20), flags={"gpu-memory-utilization": 0.95})
    engine = start(served).engine
    request = start(served, spark(card=H200), engine=type(engine)(version="0.24.0"))
    assert levels(request) == {}
    budget = inspect_start(request).budget
    assert (budget.memory.kind, budget.limit) == ("card", int(0.95 * 140 * GIB))


def test_a_pool_that_the_recipe_fixes(tmp_path):
    flags = {"kv-cache-memory-bytes": 10 * GIB, "gpu-memory-utilization": 0.98}
    request = start(recipe(heavy(tmp_path, 20), flags=flags))
    assert levels(request) == {}
    assert inspect_start(request).budget.asked < 40 * GIB
    more = start(recipe(heavy(tmp_path, 20), flags={**flags, "kv-cache-memory-bytes": 95 * GIB}))
    assert levels(more)["host-reserve"] == "refuse"


def test_what_is_not_known_is_said_so(tmp_path):
    odd = write_checkpoint(tmp_path / "odd", {**DENSE, "layer_types": ["conv"] * 8})
    report = inspect_start(start(recipe(odd)))
    assert any("conv" in row.source for row in report.rows)
    assert report.findings == ()
    turbo = recipe(write_checkpoint(tmp_path / "m", DENSE), flags={"kv-cache-dtype": "turboquant_k8v4"})
    assert any("turboquant_k8v4" in row.source for row in inspect_start(start(turbo)).rows)
    absent = inspect_start(start(recipe("org/absent"), environment={"HOME": "/nonexistent"}))
    assert [row.gib for row in absent.rows if row.part in {"weights", "KV cache"}] == [None, None]
    assert [one.check for one in absent.findings] == ["model-fetched"]


def test_states_of_mamba_in_the_mode_of_older_releases(tmp_path):
    nemotron = {
        **DENSE, "hybrid_override_pattern": "M*M*M*M*", "mamba_num_heads": 64, "mamba_head_dim": 64,
        "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    }  # fmt: skip
    folder = write_checkpoint(tmp_path / "m", nemotron)

    def plan(version, *, prefixes):
        served = recipe(folder, flags={"enable-prefix-caching": prefixes})
        engine = EngineFacts(version=version, packages={"torch": "2.11"})
        return inspect_start(start(served, engine=engine)).budget.plan

    assert plan("0.24.0", prefixes=True) is None
    assert plan("0.24.0", prefixes=False) is not None
    assert plan("0.33.0", prefixes=True).groups[1].states == 2


@pytest.mark.parametrize(
    ("method", "carries", "windows"),
    [
        ("dflash", {"dflash-sliding-window"}, 0),
        ("dflash", {"draft-kv-dtype"}, 1),
        ("eagle3", {"dflash-sliding-window"}, 1),
    ],
)
def test_a_dflash_drafter_with_windows_keeps_the_whole_history(tmp_path, model, method, carries, windows):
    kinds = ["sliding_attention"] * 4 + ["full_attention"]
    config = {**QWEN_27B_DFLASH, "layer_types": kinds, "sliding_window": 2048, "use_sliding_window": True}
    drafter = write_checkpoint(tmp_path / "windows", config, dflash_27b(), tokenizer=False)
    served = recipe(model, drafter=str(drafter), speculative={**SPECULATIVE, "method": method})
    engine = EngineFacts(version="0.24.0", carries=frozenset(carries), packages={"torch": "2.11"})
    plan = inspect_start(start(served, engine=engine)).budget.plan
    assert sum(1 for group in plan.groups if group.window) == windows
    drafted = sum(group.layers for group in plan.groups if group.what.startswith("drafter's"))
    assert drafted == 5


@pytest.mark.parametrize("name", [one for one, shipped in recipes().items() if shipped.capability == "12.1"])
def test_the_recipes_that_ship_leave_a_spark_enough(name):
    for use in ("", *load_recipe(name).uses):
        served = load_recipe(name, use)
        engine = EngineFacts(packages={"flashinfer-jit-cache": "0.6"})
        # The link has its own tests.
        report = inspect_start(start(served, engine=engine, environment={"HOME": "/nonexistent"}, nodes=1))
        assert not refusals(report.findings), (name, use, report.findings)


# Refusal --------------------------------------------------------------------------------------------


def test_force_lifts_predictions_and_no_facts(tmp_path):
    predicted = run_preflight(start(recipe(heavy(tmp_path, 20), flags={"gpu-memory-utilization": 0.98})))
    assert refusals(predicted)
    assert refusals(predicted, force=True) == ()
    with pytest.raises(PreflightError) as caught:
        require_clear(predicted)
    assert "--force" in caught.value.next_step
    require_clear(predicted, force=True)
    broken = write_checkpoint(tmp_path / "broken", DENSE, tokenizer=False)
    facts = run_preflight(start(recipe(broken)))
    with pytest.raises(PreflightError) as caught:
        require_clear(facts, force=True)
    assert caught.value.exit_code == 76
    assert "--force" not in caught.value.next_step


def test_every_refusal_is_in_the_message(tmp_path):
    broken = write_checkpoint(tmp_path / "broken", DENSE, tokenizer=False)
    served = recipe(broken, flags={"gpu-memory-utilization": 0.98})
    with pytest.raises(PreflightError) as caught:
        require_clear(run_preflight(start(served)))
    assert {"[host-reserve]", "[tokenizer]"} <= set(caught.value.because.split())
    require_clear(run_preflight(start(recipe(write_checkpoint(tmp_path / "whole", DENSE)))))
