"""The entry point of the image: known variables onto a recipe, and one message for all that is wrong."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.recipes import load_recipe, recipes, serve_arguments, served_recipe
from sparkwright.serve.entrypoint import plan_entry, recipe_of, write_entry

DFLASH = {
    "MODEL_PATH": "/models/target",
    "SERVED_MODEL_NAME": "qwen35-dflash",
    "DFLASH_DRAFTER": "z-lab/Qwen3.5-27B-DFlash",
    "DFLASH_NUM_SPEC_TOKENS": "15",
    "MAX_MODEL_LEN": "65536",
    "MAX_NUM_SEQS": "16",
    "MAX_NUM_BATCHED_TOKENS": "32768",
    "GPU_MEMORY_UTILIZATION": "0.85",
    "ATTENTION_BACKEND": "flash_attn",
}
"""The variables that the README of an existing image gives."""


def refused(**variables: str) -> str:
    with pytest.raises(ConfigError, match="cannot be served as they are") as caught:
        recipe_of({"MODEL_PATH": "/models/x", **variables})
    return caught.value.because


def test_the_variables_of_an_existing_image_become_a_recipe() -> None:
    recipe = recipe_of(DFLASH)
    assert (recipe.served_names, recipe.model) == (("qwen35-dflash",), "/models/target")
    assert recipe.drafter == "z-lab/Qwen3.5-27B-DFlash"
    assert recipe.speculative == {"method": "dflash", "num_speculative_tokens": 15}
    assert recipe.flags == {
        "served-model-name": "qwen35-dflash",
        "max-model-len": 65536,
        "max-num-seqs": 16,
        "max-num-batched-tokens": 32768,
        "gpu-memory-utilization": 0.85,
        "attention-backend": "flash_attn",
    }
    words = serve_arguments(recipe, host="127.0.0.1", port=8000)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {**recipe.speculative, "model": recipe.drafter}


@pytest.mark.parametrize("off", ["off", "OFF", "none", "false"])
def test_a_drafter_can_be_off(off: str) -> None:
    recipe = recipe_of({**DFLASH, "DFLASH_DRAFTER": off, "DFLASH_NUM_SPEC_TOKENS": ""})
    assert (recipe.drafter, recipe.speculative) == ("", {})
    shipped = recipe_of({"RECIPE": "qwen3.6-27b-dflash", "DRAFTER": off})
    assert (shipped.drafter, shipped.speculative) == ("", {})


def test_a_recipe_is_the_base_and_variables_change_it() -> None:
    base = served_recipe("qwen3.6-27b-dflash")
    recipe = recipe_of(
        {"RECIPE": base.name, "MODEL_PATH": "/models/mine", "MAX_NUM_SEQS": "8", "SPEC_TOKENS": "5"}
    )
    assert recipe.model == "/models/mine"
    assert recipe.name == base.name
    assert recipe.drafter == base.drafter
    assert recipe.flags == {**base.flags, "max-num-seqs": 8}
    assert recipe.speculative == {**base.speculative, "num_speculative_tokens": 5}
    assert recipe_of({"RECIPE": base.name}) == base
    with pytest.raises(UnknownNameError):
        recipe_of({"RECIPE": "no-such"})


def test_mtp_needs_no_drafter() -> None:
    recipe = recipe_of({"MODEL_PATH": "m", "MTP_NUM_SPEC_TOKENS": "2"})
    assert recipe.speculative == {"method": "mtp", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("--enable-prefix-caching --no-x", {"enable-prefix-caching": True, "x": False}),
        ("--seed 0 --dtype=bfloat16", {"seed": 0, "dtype": "bfloat16"}),
        ("--chat_template '/srv/a b.jinja'", {"chat-template": "/srv/a b.jinja"}),
        ("--allowed-origins a b", {"allowed-origins": ["a", "b"]}),
        ('--hf-overrides \'{"a": {"b": 1}}\'', {"hf-overrides": {"a": {"b": 1}}}),
        ("--temperature -1", {"temperature": -1}),
    ],
)  # fmt: skip
def test_extra_arguments_become_flags(text: str, flags: dict[str, Any]) -> None:
    assert recipe_of({"MODEL_PATH": "m", "EXTRA_ARGS": text}).flags == flags


def test_a_tool_parser_turns_tools_on() -> None:
    flags = recipe_of({"MODEL_PATH": "m", "TOOL_CALL_PARSER": "hermes"}).flags
    assert flags == {"tool-call-parser": "hermes", "enable-auto-tool-choice": True}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"DFLASH_DRAFTR": "x"}, "did you mean DFLASH_DRAFTER?"),
        ({"MAX_NUM_SEQ": "4"}, "did you mean MAX_NUM_SEQS?"),
        ({"MAX_NUM_SEQS": "many"}, "MAX_NUM_SEQS=many is no whole number"),
        ({"MAX_NUM_SEQS": "2.5"}, "MAX_NUM_SEQS=2.5 is no whole number"),
        ({"GPU_MEMORY_UTILIZATION": "85"}, "GPU_MEMORY_UTILIZATION=85 is no share"),
        ({"SPEC_TOKENS": "15"}, "no DRAFTER"),
        ({"DRAFTER": "x"}, "SPEC_TOKENS is not"),
        ({"DRAFTER": "x", "SPEC_TOKENS": "0"}, "0 is no number of speculative tokens"),
        ({"DRAFTER": "x", "DFLASH_DRAFTER": "y", "SPEC_TOKENS": "3"}, "one variable under several names"),
        ({"DRAFTER": "off", "SPEC_TOKENS": "3"}, "speculation is off"),
        ({"DRAFTER": "x", "SPEC_TOKENS": "3", "MTP_SPEC_TOKENS": "2"}, "MTP head and a drafter"),
        ({"ENABLE_TURBOQUANT": "1", "TQ_MODE": "hybrid"}, "TurboQuant"),
        ({"MODEL": "other"}, "MODEL_PATH and MODEL are one variable"),
        ({"USE": "many"}, "RECIPE is not set"),
        ({"MAX_MODEL_LEN": "10", "EXTRA_ARGS": "--max-model-len 20"}, "sets max-model-len to 10"),
        ({"TENSOR_PARALLEL": "2", "TENSOR_PARALLEL_SIZE": "1"}, "one variable under several names"),
        ({"EXTRA_ARGS": "--api-key secret"}, "set API_KEY_FILE"),
        ({"EXTRA_ARGS": "--speculative-config '{}'"}, "set DRAFTER"),
        ({"EXTRA_ARGS": "-tp 2"}, "write the long form"),
        ({"EXTRA_ARGS": "stray --seed 0"}, "which is no flag"),
        ({"EXTRA_ARGS": "--a 'b"}, "cannot be split"),
        ({"SETTINGS": "seed=0"}, "SETTINGS is no JSON list"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(variables: dict[str, str], said: str) -> None:
    assert said in refused(**variables)


def test_everything_wrong_is_said_at_once() -> None:
    because = refused(DFLASH_DRAFTR="x", MAX_NUM_SEQS="many", ENABLE_TURBOQUANT="1")
    assert len(because.splitlines()) == 3


def test_variables_of_others_are_left_alone() -> None:
    assert recipe_of({"MODEL_PATH": "m", "HF_HOME": "/models", "PATH": "/bin", "MAX_JOBS": "2"}).flags == {}


# The program ---------------------------------------------------------------------------------------------


def test_the_key_stays_out_of_arguments_and_environment(tmp_path: Path) -> None:
    plan = plan_entry({**DFLASH, "VLLM_API_KEY": "sk-secret", "HF_HOME": "/models"}, runtime=tmp_path)
    assert "sk-secret" not in repr(plan)
    assert "sk-secret" not in " ".join(plan.argv)
    assert plan.environment == {"HF_HOME": "/models"}
    write_entry(plan, tmp_path)
    path = Path(plan.argv[plan.argv.index("--api-key-file") + 1])
    assert path.read_text() == "sk-secret\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = load_recipe(tmp_path / "recipe.toml")
    assert msgspec.structs.replace(written, why=plan.recipe.why) == plan.recipe


@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_that_ships_is_written_as_it_is_served(name: str, tmp_path: Path) -> None:
    plan = plan_entry({"RECIPE": name}, runtime=tmp_path)
    write_entry(plan, tmp_path)
    written = load_recipe(tmp_path / "recipe.toml")
    served = served_recipe(name)
    assert serve_arguments(written, host="h", port=1) == serve_arguments(served, host="h", port=1)
    assert written.environment == served.environment


def test_a_key_in_a_file_is_passed_on_and_two_keys_are_refused(tmp_path: Path) -> None:
    plan = plan_entry({**DFLASH, "API_KEY_FILE": "/run/secrets/key", "PORT": "9000"}, runtime=tmp_path)
    assert plan.argv[plan.argv.index("--api-key-file") + 1] == "/run/secrets/key"
    assert plan.argv[plan.argv.index("--port") + 1] == "9000"
    with pytest.raises(ConfigError, match="which API key"):
        plan_entry({**DFLASH, "API_KEY_FILE": "/run/secrets/key", "API_KEY": "sk"}, runtime=tmp_path)
    with pytest.raises(ConfigError, match="no port"):
        plan_entry({**DFLASH, "PORT": "http"}, runtime=tmp_path)


def test_arguments_are_flags_or_a_command(tmp_path: Path) -> None:
    plan = plan_entry(DFLASH, ["--seed", "7"], runtime=tmp_path)
    assert plan.recipe.flags["seed"] == 7
    command = plan_entry({"A": "b"}, ["python", "-V"], runtime=tmp_path)
    assert (command.argv, command.recipe, command.environment) == (("python", "-V"), None, {"A": "b"})


def entry(folder: Path, variables: dict[str, str], *arguments: str, **how: Any) -> subprocess.Popen[str]:
    """Start the entry point with a ``sparkwright`` of the test's own on its path."""
    program = folder / "bin" / "sparkwright"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\nimport json, os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        'print(json.dumps({"pid": os.getpid(), "argv": sys.argv, "env": dict(os.environ)}), flush=True)\n'
        "signal.pause()\n"
    )
    program.chmod(0o755)
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "SPARKWRIGHT_RUN": str(folder / "run"),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "sparkwright.serve.entrypoint", *arguments], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
    )  # fmt: skip


def test_signals_reach_the_server(tmp_path: Path) -> None:
    child = entry(tmp_path, {**DFLASH, "VLLM_API_KEY": "sk-secret"})
    told = json.loads(child.stdout.readline())
    assert told["pid"] == child.pid  # it is the same process
    assert told["argv"][1:3] == ["serve", str(tmp_path / "run" / "recipe.toml")]
    assert "sk-secret" not in json.dumps(told)
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 42
    child.communicate()


def test_a_refusal_is_one_message_and_a_status_of_its_own(tmp_path: Path) -> None:
    child = entry(tmp_path, {**DFLASH, "MAX_NUM_SEQS": "many", "DFLASH_DRAFTR": "x"})
    _, said = child.communicate(timeout=30)
    assert child.returncode == ConfigError.exit_code
    assert said.count("error:") == 1
    assert "MAX_NUM_SEQS=many" in said
    assert "DFLASH_DRAFTR" in said
    assert not (tmp_path / "run").exists()
    missing = entry(tmp_path, {}, "no-such-program")
    _, said = missing.communicate(timeout=30)
    assert (missing.returncode, "was not found" in said) == (14, True)
