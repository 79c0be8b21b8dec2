"""Every recipe that ships, parsed by the own parsers of the releases that it is for, and planted faults."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from kit import Recorder

from sparkwright.base.events import subscribe
from sparkwright.cli.main import main
from sparkwright.engine.release import CheckedRecipe, check_recipes
from sparkwright.git.repository import open_repository
from sparkwright.pipeline.checkout import open_checkout, series_names
from sparkwright.recipes.imported import import_recipe
from sparkwright.recipes.recipe import Recipe, load_recipe, recipes
from sparkwright.store.paths import open_store

ROOT = Path(__file__).parents[3]
SHIPPED = recipes()
DFLASH = {"method": "dflash", "num_speculative_tokens": 7}
AUTO = {"enable-auto-tool-choice": True}
# What is planted, what has to be named, and its healthy twin.
PLANTED: dict[str, tuple[dict[str, Any], str | tuple[str, ...], dict[str, Any]]] = {
    "dead-flag": (
        {"flags": {"speculative-disable-by-batch-size": 8}},
        "flag --speculative-disable-by-batch-size",
        {"flags": {"max-num-seqs": 8}},
    ),
    "dead-variable": (
        {"environment": {"VLLM_FP8_MOE_BACKEND": "throughput"}},
        "variable VLLM_FP8_MOE_BACKEND",
        {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
    ),
    "wrong-choice": (
        {"flags": {"kv-cache-dtype": "fp9"}},
        "value --kv-cache-dtype fp9",
        {"flags": {"kv-cache-dtype": "fp8_e4m3"}},
    ),
    "unknown-parser": (
        {"flags": {**AUTO, "tool-call-parser": "qwen3-coder"}},
        "value --tool-call-parser qwen3-coder",
        {"flags": {**AUTO, "tool-call-parser": "qwen3_coder"}},
    ),
    "utilization-in-percent": (
        {"flags": {"gpu-memory-utilization": 95}},
        "parser vllm serve: --gpu-memory-utilization: Input should be less than or equal to 1",
        {"flags": {"gpu-memory-utilization": 0.95}},
    ),
    "template-missing": (
        {"flags": {"chat-template": "unsloth.jinja"}},
        (
            "parser vllm serve: ValueError: The supplied",
            "parser vllm serve: VLLMValidationError: The supplied",
        ),
        {"flags": {"chat-template": "{{ messages }}"}},
    ),
    "config-missing": (
        {"flags": {"config": "missing.yaml"}},
        "parser vllm serve: FileNotFoundError: [Errno 2] No such file or directory: 'missing.yaml'",
        {"flags": {"max-num-seqs": 8}},
    ),
    "wrong-type": (
        {"flags": {"max-num-seqs": "many"}},
        "parser vllm serve: argument --max-num-seqs",
        {"flags": {"enable-prefix-caching": False}},
    ),
    "parser-missing": (
        {"flags": AUTO},
        "parser vllm serve: TypeError",
        {"flags": {**AUTO, "tool-call-parser": "mistral"}},
    ),
    "speculative-key": (
        {"drafter": "a/b", "speculative": {**DFLASH, "draft_tp": 2}},
        "speculative key draft_tp",
        {"drafter": "a/b", "speculative": {**DFLASH, "draft_tensor_parallel_size": 1}},
    ),
    "speculative-type": (
        {"drafter": "a/b", "speculative": {**DFLASH, "num_speculative_tokens": "seven"}},
        "parser vllm serve: speculative-config: num_speculative_tokens",
        {"drafter": "a/b", "speculative": DFLASH},
    ),
}

# What 0.33 dropped and 0.24 takes, and what neither has: the option, what has to be named, and what instead.
DROPPED: dict[str, tuple[dict[str, Any], str, str]] = {
    "mamba-mode": (
        {"flags": {"mamba-cache-mode": "all"}},
        "value --mamba-cache-mode all",
        "use nothing: states are cached by enable-prefix-caching",
    )
}
RENAMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "mamba-prefix": (
        {"flags": {"enable-mamba-fine-grained-prefix-cache": True}},
        "flag --enable-mamba-fine-grained-prefix-cache",
        "use enable-mamba-shared-prefix-checkpoint",
    ),
    "ple-offload": (
        {"environment": {"VLLM_PLE_CPU_OFFLOAD": "1"}},
        "variable VLLM_PLE_CPU_OFFLOAD",
        "use the flag engram-config",
    ),
    "nvfp4-gemm": (
        {"environment": {"VLLM_NVFP4_GEMM_BACKEND": "cutlass"}},
        "variable VLLM_NVFP4_GEMM_BACKEND",
        "use the flag linear-backend",
    ),
}
SUCCESSORS = {
    "flags": {"enable-mamba-shared-prefix-checkpoint": True, "linear-backend": "flashinfer_cutlass"}
}

HEALTHY = ROOT / "build" / "sparkwright" / "recipes" / "shipped" / "llama-3.3-70b.toml"
DEAD = '[environment]\nVLLM_FP8_MOE_BACKEND = "x"\n\n'
IMPORTED = "VLLM_USE_V1=1 HF_TOKEN=secret vllm serve org/model --use-v2-block-manager --max-num-seqs 4"
"""A command for ``recipe import``; `results` has the releases check it along with all recipes."""

Results = dict[tuple[str, str], list[CheckedRecipe]]

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


def made(name: str, changes: dict[str, Any]) -> Recipe:
    return Recipe(**({"format": 1, "name": name, "title": "Made up", "model": "some/model"} | changes))


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a shipped recipe and a variable that its release does not read."""
    path = tmp_path_factory.mktemp("ill") / "ill.toml"
    text = HEALTHY.read_text(encoding="utf-8").replace("\n[why]", f"\n{DEAD}[why]")
    path.write_text(text.replace('name = "', 'name = "ill-', 1), encoding="utf-8")
    return path


def check_all(*more: Recipe) -> Results:
    """Return outcomes by recipe and series."""
    ill = [made(f"ill-{name}", planted) for name, (planted, _, _) in PLANTED.items()]
    twins = [made(f"twin-{name}", twin) for name, (_, _, twin) in PLANTED.items()]
    ill += [made(f"dropped-{name}", planted) for name, (planted, _, _) in {**DROPPED, **RENAMED}.items()]
    twins.append(made("successors", SUCCESSORS))
    ill.append(made("several", {"flags": {"past": 1, "load-format": "none", "max-num-seqs": "many"}}))
    store = open_store()
    with contextlib.closing(open_repository(store.git)) as repository:
        checked = check_recipes(
            open_checkout(ROOT), store, repository, [*SHIPPED.values(), *ill, *twins, *more]
        )
    found: Results = {}
    for one in checked:
        found.setdefault((one.recipe, one.series), []).append(one)
    return found


@pytest.fixture(scope="module")
def results(ill: Path) -> Results:
    """Everything asked at once: starting vLLM's parser takes a minute."""
    return check_all(load_recipe(ill), import_recipe(IMPORTED)[0])


@pytest.mark.parametrize("series", series_names(ROOT))
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_what_ships_is_taken_by_the_releases_that_it_is_for(results: Any, name: str, series: str) -> None:
    recipe = SHIPPED[name]
    if recipe.series and series not in recipe.series:
        assert (name, series) not in results
        return
    found = results[name, series]
    assert len(found) == 1 + len(recipe.uses)
    assert [one.refused for one in found] == [()] * len(found)
    assert not [problem for one in found for problem in one.problems], "nor deprecated"


@pytest.mark.parametrize("series", series_names(ROOT))
@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_named_and_its_twin_is_silent(results: Any, name: str, series: str) -> None:
    (ill,), (twin,) = results[f"ill-{name}", series], results[f"twin-{name}", series]
    (said,) = [str(problem) for problem in ill.problems]
    assert said.startswith(PLANTED[name][1])
    assert (twin.problems, twin.refused) == ((), ())


@pytest.mark.parametrize("series", series_names(ROOT))
def test_one_refused_option_does_not_hide_another(results: Any, series: str) -> None:
    (ill,) = results["several", series]
    named = ("flag --past", "value --load-format none", "parser vllm serve: argument --max-num-seqs")
    for problem, name in zip(ill.problems, named, strict=True):
        assert str(problem).startswith(name)


@pytest.mark.parametrize("name", [*DROPPED, *RENAMED])
def test_what_a_release_dropped_is_refused_and_its_successor_named(results: Any, name: str) -> None:
    _, named, instead = {**DROPPED, **RENAMED}[name]
    (ill,) = results[f"dropped-{name}", "0.33"]
    (said,) = ill.refused
    assert said.startswith(named)
    assert instead in said
    assert results["successors", "0.33"][0].refused == ()
    (before,) = results[f"dropped-{name}", "0.24"]
    assert bool(before.refused) == (name in RENAMED), "0.24 has what 0.33 alone dropped"


def test_what_was_asked_once_is_answered_by_the_store(results: Results) -> None:
    recorder = Recorder()
    with subscribe(recorder):
        again = check_all()
    assert all(results[name] == found for name, found in again.items())
    assert [data["name"] for data in recorder.of("task.started") if "ask vllm" in data["name"]] == []


def test_the_command_names_a_dead_variable_and_is_silent_on_its_twin(results, ill, capsys):
    words = ["recipe", "check", "--root", str(ROOT), "--series", "0.24", "--json"]
    assert main([*words, str(HEALTHY)]) == 0
    assert [one["problems"] for one in json.loads(capsys.readouterr().out)] == [[], [], [], []]
    assert main([*words, str(ill)]) == 10
    said = json.loads(capsys.readouterr().out.partition("\n]")[0] + "]")
    assert {problem["name"] for one in said for problem in one["problems"]} == {"VLLM_FP8_MOE_BACKEND"}


def test_an_import_leaves_out_what_the_release_lacks_and_says_so(results, tmp_path, capsys):
    out = tmp_path / "mine.toml"
    words = ["recipe", "import", IMPORTED, "--out", str(out), "--root", str(ROOT)]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["remarks"]
    left = {"VLLM_USE_V1", "HF_TOKEN", "--use-v2-block-manager"}
    assert {(one["level"], one["what"]) for one in said} == {("left out", name) for name in left}
    recipe = load_recipe(out)
    assert (recipe.model, recipe.flags, recipe.environment) == ("org/model", {"max-num-seqs": 4}, {})
    assert main(words) != 0
    assert "exists" in capsys.readouterr().err
