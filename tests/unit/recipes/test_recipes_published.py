"""Recipes from commands, scripts and units as people publish them: the shell's syntax, and loose forms."""

import pytest
from recipe_import import COMPOSE, CONTAINER, SERVE, TEMPLATE, levels

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.imported import import_recipe


def test_variables_behind_env_are_of_the_server() -> None:
    recipe, remarks = import_recipe("sudo env HF_TOKEN=secret A=1 vllm serve org/m")
    assert (recipe.environment, [one.what for one in remarks]) == ({"A": "1"}, ["HF_TOKEN"])


def test_a_compose_file_has_defaults_and_dollar_signs() -> None:
    service = "services: {s: {image: vllm/vllm, command: '--model ${PLACE:-/models/m} --x A$$', volumes: %s}}"
    recipe, _ = import_recipe(service % "['${DATA:-/data}:/models']")
    assert (recipe.model, recipe.flags) == ("/data/m", {"x": "A$"})


def test_a_table_in_defaults_is_one() -> None:
    recipe, remarks = import_recipe("model: org/m\ndefaults: {speculative_config: {method: mtp}}\n")
    assert (recipe.speculative, remarks) == ({"method": "mtp"}, ())


@pytest.mark.parametrize(
    "text",
    [
        "/bin/bash -c 'vllm serve org/m --seed 1'",
        "export A=1 \\\n# B=2 \\\nvllm serve org/m --seed 1",
        "vllm serve --seed 1 org/m",
        "vllm serve org/m \\  # a model\n  --seed 1",
        "vllm serve org/m  # a model \\\n  --seed 1",
    ],
)
def test_a_server_in_a_shell_behind_a_comment_or_an_option_is_found(text: str) -> None:
    recipe = import_recipe(text)[0]
    assert (recipe.model, recipe.flags) == ("org/m", {"seed": 1})


@pytest.mark.parametrize("text", ["args=(--seed 1)\nvllm serve org/m ${args[@]}", "A+=(1)\nvllm serve org/m"])
def test_an_array_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="arrays"):
        import_recipe(text)
    assert import_recipe(text.replace("(", "x").replace(")", "x").replace("A+=", "A="))[0].model == "org/m"


def test_a_variable_that_the_command_uses_is_not_the_servers() -> None:
    script = "export MODEL=org/m KEPT=1 VLLM_LENGTH=8\nvllm serve $MODEL --max-model-len $VLLM_LENGTH"
    assert import_recipe(script)[0].environment == {"KEPT": "1", "VLLM_LENGTH": "8"}
    assert import_recipe("export A=org/m\nB=$A\nvllm serve $B")[0].environment == {}
    assert import_recipe("A=1 vllm serve org/m")[0].environment == {"A": "1"}
    assert import_recipe('export A=1\necho "$A"\nvllm serve org/m')[0].environment == {"A": "1"}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("$A-FP8", "org-FP8"),
        ("${A}x", "orgx"),
        ("${A:?no}", "org"),
        ("${N:-${A}}", "org"),
    ],
)
def test_a_variable_is_read_as_the_shell_does(word: str, value: str) -> None:
    assert import_recipe(f"A=org\nvllm serve org/m --x {word} ${{N:-}}")[0].flags == {"x": value}


def test_a_variable_grows_as_in_the_shell() -> None:
    script = 'export A="--seed 1"\nB=$A\nB+=" --x 2"\nA+=" --y 3" A+=" --z 4"\nvllm serve org/m $B $A'
    assert import_recipe(script)[0].flags == {"seed": 1, "x": 2, "y": 3, "z": 4}


def test_a_condition_is_said_and_not_decided() -> None:
    script = 'A=1\nif [ "$1" = x ]; then A=2; fi\n[ -n "$B" ] && C=3\n'
    script += 'test -n "$B" && D=4\nvllm serve org/m --a $A --c $C'
    recipe, remarks = import_recipe(script)
    assert recipe.flags == {"a": 2, "c": 3}
    assert [(one.level, one.what) for one in remarks] == [
        ("wrong", 'if [ "$1" = x ]; then A=2; fi'),
        ("wrong", '[ -n "$B" ] && C=3'),
        ("wrong", 'test -n "$B" && D=4'),
    ]
    assert import_recipe("A=2\nvllm serve org/m --a $A # if [ x ]")[1] == ()


def test_a_server_in_a_subshell_is_one() -> None:
    recipe, remarks = import_recipe("(cd /x && vllm serve org/m --seed 1 --port-of $(id))")
    assert (recipe.model, recipe.flags) == ("org/m", {"seed": 1})
    assert [one.what for one in remarks] == ["--port-of $(id)"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONTAINER.format(SERVE).replace("--rm", "--label key=word"), "--label, -it, --gpus"),
        (CONTAINER.format(SERVE).replace("--rm", "--env-file my.env"), "--env-file my.env"),
        (
            f"pip install --index-url https://me:word@host/simple x\n{SERVE}",
            "pip install --index-url https…host/simple x",
        ),
        (COMPOSE.replace("environment:", "env_file: my.env\n    environment:"), "env_file my.env"),
        (TEMPLATE.replace("mods:", "pre_exec: [ls]\nmods:"), "pre_exec: ls"),
        (TEMPLATE.replace("mods:", "pre_exec: [export HF_TOKEN=word]\nmods:"), "pre_exec: export HF_TOKEN=…"),
        (f"set -a; . ./my.env; set +a\nsource venv/bin/activate\n{SERVE}", ". ./my.env"),
        (f"VLLM_SERVER_DEV_MODE=1 {SERVE}", "VLLM_SERVER_DEV_MODE"),
        ("vllm serve org/m -sc 'word'", "--speculative-config"),
    ],
)
def test_what_is_not_read_is_said_without_secrets(text: str, said: str) -> None:
    remarks = import_recipe(text)[1]
    assert said in {one.what for one in remarks}
    assert "word" not in str(remarks)


def test_files_are_the_hosts_and_relative_ones_are_wrong() -> None:
    options = "--model /models/m/one --chat-template /models/m/t.jinja --root-path /v1"
    options += " --lora-modules a=/models/m/a b=/b"
    recipe, remarks = import_recipe(CONTAINER.format(options))
    lora = ["a=/data/model/a", "b=/b"]
    assert recipe.flags == {"chat-template": "/data/model/t.jinja", "root-path": "/v1", "lora-modules": lora}
    here = CONTAINER.format("/models/m").replace("/data", "$(pwd)")
    assert ("wrong", "$(pwd)/model") in levels(here)
    home = CONTAINER.format("/models/m").replace("/data", "${HOME}")
    assert (import_recipe(home)[0].model, import_recipe("vllm serve $HOME/m")[0].model) == ("~/model", "~/m")
    assert [one.what for one in remarks if one.level == "wrong"] == ["/b"]
    assert levels("vllm serve org/m --chat-template t.jinja") == {("wrong", "--chat-template t.jinja")}
    assert levels("vllm serve org/m --chat-template /data/t.jinja") == set()


def test_tokens_of_text_are_no_secrets() -> None:
    options = """--hf-overrides '{"sign_from_token": ["no", "yes"], "use_token": true, "keys": ["word"]}'"""
    recipe, remarks = import_recipe(f"vllm serve org/m {options}")
    assert recipe.flags == {"hf-overrides": {"sign_from_token": ["no", "yes"], "use_token": True}}
    assert [one.what for one in remarks] == ["--hf-overrides.keys"]


@pytest.mark.parametrize("text", ["-O.mode=none", "-O.mode none", """-O '{"mode": "none"}'"""])
def test_the_old_short_option_for_compilation_is_the_long_one_and_said(text: str) -> None:
    """`--optimization-level` with a table passes the release's parser, and the engine does not start."""
    recipe, remarks = import_recipe(f"vllm serve org/m {text}")
    assert recipe.flags == {"compilation-config": {"mode": "none"}}
    assert [(one.level, "-O is the level alone" in one.because) for one in remarks] == [("wrong", True)]


def test_the_short_option_with_a_level_is_one() -> None:
    for text in ("-O 2", "-O2"):
        recipe, remarks = import_recipe(f"vllm serve org/m {text}")
        assert (recipe.flags, remarks) == ({"optimization-level": 2}, ())
