"""Recipes from commands, scripts and units as people publish them: the shell's syntax, and loose forms."""

import pytest
from recipe_import import COMPOSE, CONTAINER, SERVE, TEMPLATE, flags, levels

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.imported import import_recipe


def test_variables_behind_env_are_of_the_server() -> None:
    recipe, remarks = import_recipe("sudo env HF_TOKEN=secret A=1 vllm serve org/m")
    assert (recipe.environment, [one.what for one in remarks]) == ({"A": "1"}, ["HF_TOKEN"])


def test_a_compose_file_has_defaults_dollar_signs_and_long_volumes() -> None:
    service = "services: {s: {image: vllm/vllm, command: '--model ${PLACE:-/models/m} --x A$$', volumes: %s}}"
    recipe, _ = import_recipe(service % "[{type: bind, source: '${DATA:-/data}', target: /models}]")
    assert (recipe.model, recipe.flags) == ("/data/m", {"x": "A$"})
    assert import_recipe(service % "['${DATA:-/data}:/models']")[0].model == "/data/m"
    mount = "docker run --mount type=bind,source=/data,target=/models vllm/vllm --model /models/m"
    assert import_recipe(mount)[0].model == "/data/m"


def test_a_table_in_defaults_is_one() -> None:
    recipe, remarks = import_recipe("model: org/m\ndefaults: {speculative_config: {method: mtp}}\n")
    assert (recipe.speculative, remarks) == ({"method": "mtp"}, ())


@pytest.mark.parametrize(
    "text",
    [
        "docker exec -it $NODE /bin/bash -c 'vllm serve org/m --seed 1'",
        "export A=1 \\\n# B=2 \\\nvllm serve org/m --seed 1",
        "vllm serve --seed 1 org/m",
        "vllm serve org/m \\  # a model\n  --seed 1",
        "vllm serve org/m  # a model \\\n  --seed 1",
    ],
)
def test_a_server_in_a_running_container_behind_a_comment_or_an_option_is_found(text: str) -> None:
    recipe = import_recipe(text)[0]
    assert (recipe.model, recipe.flags) == ("org/m", {"seed": 1})


SPREAD = """
export MODEL=org/m KEPT=1 VLLM_LENGTH=8
more=()
args=(
  # what is served
  "$MODEL" --seed 1   # a number
  # --seed 2
)
args+=(--max-model-len "$VLLM_LENGTH")
vllm serve "${args[@]}" ${more[@]+"${more[@]}"} --dtype auto "$@" > log
"""


def test_options_in_an_array_are_several_words() -> None:
    recipe, remarks = import_recipe(SPREAD)
    assert recipe.model == "org/m"
    assert recipe.flags == {"seed": 1, "max-model-len": 8, "dtype": "auto"}
    assert remarks == ()


def test_a_variable_that_the_command_uses_is_not_the_servers() -> None:
    assert import_recipe(SPREAD)[0].environment == {"KEPT": "1", "VLLM_LENGTH": "8"}
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
        ("${A:+yes}", "yes"),
    ],
)
def test_a_variable_is_read_as_the_shell_does(word: str, value: str) -> None:
    assert import_recipe(f"A=org\nA+=\nvllm serve org/m --x {word} ${{N:+--y}} ${{N:-}}")[0].flags == {
        "x": value
    }


CONDITIONS = """
: "${MODEL:=org/m}"
if [ -z "$LENGTH" ]; then
  LENGTH=8
fi
args=(--max-model-len "$LENGTH")
if [[ "$EAGER" == 1 ]]; then
  args+=(--enforce-eager --x "$EAGER")
else args=(--dtype auto); fi
[ -n "$NAME" ] && args+=(--served-model-name=word)
MODE=first
case $1 in second) MODE=second;; esac
if true; then MODE=third; more=(--seed 1); fi
case $1 in
  a) MODE=fourth HF_TOKEN=first ;;
esac
vllm serve "$MODEL" "${args[@]}" "${more[@]}" --mode $MODE
"""


def test_what_a_condition_decides_sets_only_what_has_no_value() -> None:
    recipe, remarks = import_recipe(CONDITIONS)
    assert (recipe.model, recipe.flags) == ("org/m", {"max-model-len": 8, "seed": 1, "mode": "first"})
    modes = {"MODE=second", "MODE=third", "MODE=fourth"}
    options = {"--enforce-eager", "--x", "--dtype", "--served-model-name"}
    assert {one.what for one in remarks} == options | modes
    assert {one.because for one in remarks} == {"a condition of the script decides it"}


def test_a_server_in_a_subshell_is_one() -> None:
    recipe, remarks = import_recipe("(cd /x && vllm serve org/m --seed 1 --port-of $(id))")
    assert (recipe.model, recipe.flags) == ("org/m", {"seed": 1})
    assert [one.what for one in remarks] == ["--port-of $(id)"]


def test_the_old_short_option_for_compilation_is_the_long_one_and_said() -> None:
    for text in ("-O.mode=none", "-O.mode none", """-O '{"mode": "none"}'"""):
        assert flags(text) == {"compilation-config": {"mode": "none"}}
        assert [level for level, what in levels(f"vllm serve org/m {text}") if what.startswith("-O")] == [
            "wrong"
        ]
    assert levels("vllm serve org/m -O 2") == levels("vllm serve org/m -O2") == set()


UNIT = """
[Unit]
Description=vllm serve org/other
[Service]
Environment=FIRST=1 "SECOND=a b"
EnvironmentFile=-/etc/default/server
ExecStartPre=-/usr/bin/docker rm -f server
ExecStart=/opt/venv/bin/vllm serve org/m \\
    --seed 1 \\
    # --seed 2 \\
    --dtype auto
ExecStop=/bin/kill $MAINPID
"""


def test_a_systemd_unit_is_one_more_form() -> None:
    recipe, remarks = import_recipe(UNIT)
    assert (recipe.model, recipe.flags) == ("org/m", {"seed": 1, "dtype": "auto"})
    assert recipe.environment == {"FIRST": "1", "SECOND": "a b"}
    assert [one.what for one in remarks] == ["source /etc/default/server"]


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


def test_an_array_that_grows_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read as a command"):
        import_recipe("A=(--x yyyyyyyy)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 40 + 'vllm serve "${A[@]}"')
