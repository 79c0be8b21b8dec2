"""Recipes from commands, compose files and other tools' YAML: what is kept, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.recipes import Recipe, load_recipe
from sparkwright.recipes.imported import import_recipe, without_dead
from sparkwright.recipes.release_options import Problem
from sparkwright.recipes.write import recipe_text

DRAFTS = '{"method": "dflash", "model": "org/drafter", "num_speculative_tokens": 15}'
SERVE = f"vllm serve org/Model-FP8 --max-model-len 65536 --speculative-config '{DRAFTS}'"


def levels(text: str) -> set[tuple[str, str]]:
    """Return level and subject of each remark."""
    return {(one.level, one.what) for one in import_recipe(text)[1]}


def flags(text: str) -> dict[str, object]:
    return import_recipe(f"vllm serve org/model {text}")[0].flags


CONTAINER = "docker run --rm -it --gpus all -v /data/model:/models/m -e FIRST=1 vllm/vllm-openai:v0.30 {}"
COMPOSE = f"""
services:
  cache: {{image: redis}}
  chat:
    image: vllm/vllm-openai:v0.30
    environment: [FIRST=1, HF_TOKEN=secret]
    command: ["org/Model-FP8", "--max-model-len", "65536", "--speculative-config", '{DRAFTS}']
"""
TEMPLATE = f"""
recipe_version: "1"
name: Model FP8
model: org/Model-FP8
container: vllm-node
mods: [mods/fix]
defaults: {{port: 8000, max_model_len: 65536}}
env: {{FIRST: 1}}
command: |
  vllm serve org/Model-FP8 --port {{port}} \\
    --max-model-len {{max_model_len}} \\
    --speculative-config '{DRAFTS.replace("{", "{{").replace("}", "}}")}'
"""
BARE = """
model: org/Model-FP8
defaults: {max_model_len: 65536, tensor_parallel: 1}
env: {FIRST: "1"}
"""
SCRIPT = f"""#!/bin/bash
pip install -U something
export FIRST=1
MODEL=org/Model-FP8
docker stop x > /dev/null 2>&1 && sleep 1
exec vllm serve $MODEL \\
  --max-model-len=${{LENGTH:-65536}} -sc '{DRAFTS}' 2>&1 | tee log  # what was said
"""


@pytest.mark.parametrize(
    "text",
    [
        f"FIRST=1 {SERVE}",
        CONTAINER.format(SERVE),
        CONTAINER.format(SERVE[11:]),
        COMPOSE,
        TEMPLATE,
        SCRIPT,
        f"FIRST=1 python3 -m vllm.entrypoints.openai.api_server --model {SERVE[11:]}",
    ],
    ids=["line", "container", "entry point", "compose", "template", "script", "module"],
)
def test_every_form_gives_the_same_recipe(text: str, tmp_path: Path) -> None:
    recipe, _ = import_recipe(text)
    assert (recipe.model, recipe.drafter, recipe.nodes) == ("org/Model-FP8", "org/drafter", 1)
    assert recipe.flags == {"max-model-len": 65536}
    assert recipe.speculative == {"method": "dflash", "num_speculative_tokens": 15}
    assert recipe.environment == {"FIRST": "1"}
    path = tmp_path / "written.toml"
    path.write_text(recipe_text(recipe))
    written = load_recipe(path)
    assert (written.name, written.flags) == ("model-fp8", recipe.flags)


def test_defaults_without_a_command_become_flags() -> None:
    assert import_recipe(BARE)[0].flags == {"max-model-len": 65536}


def test_options_get_their_names_and_types() -> None:
    assert flags("-tp 1 --a.b_c on --a.d 2 --no-enable-x --y true --z 0.5 -O3 --names one two") == {
        "a": {"b_c": "on", "d": 2},
        "enable-x": False,
        "y": True,
        "z": 0.5,
        "optimization-level": 3,
        "names": ["one", "two"],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SERVE} --trust-remote-code", ("dangerous", "--trust-remote-code")),
        (f"{SERVE} --gpu-memory-utilization 0.95", ("dangerous", "--gpu-memory-utilization 0.95")),
        (f"{SERVE} --host 0.0.0.0", ("dangerous", "--host 0.0.0.0")),
        (f"{SERVE} --api-key secret", ("left out", "--api-key")),
        (f"HF_TOKEN=secret {SERVE}", ("left out", "HF_TOKEN")),
        (f"AWS_SECRET_ACCESS_KEY=secret {SERVE}", ("left out", "AWS_SECRET_ACCESS_KEY")),
        (f"{SERVE} --hf-token secret", ("left out", "--hf-token")),
        (f"OPENAI_KEY=secret {SERVE}", ("left out", "OPENAI_KEY")),
        (f"db_passwd=secret {SERVE}", ("left out", "db_passwd")),
        (f"{SERVE} --kv-transfer-config.api_key secret", ("left out", "--kv-transfer-config.api_key")),
        (CONTAINER.format(SERVE).replace("-e FIRST", "-eA_TOKEN=secret -e FIRST"), ("left out", "A_TOKEN")),
        (f"LD_PRELOAD=/x.so {SERVE}", ("dangerous", "LD_PRELOAD")),
        (f"MAX_JOBS=4 {SERVE}", ("left out", "MAX_JOBS=4")),
        (CONTAINER.format(SERVE), ("left out", "vllm/vllm-openai:v0.30")),
        (CONTAINER.format(SERVE).replace("--rm", "--privileged"), ("dangerous", "--privileged")),
        (CONTAINER.format("/models/n"), ("wrong", "/models/n")),
        (
            CONTAINER.format(SERVE).replace("/models/m", "/usr/dist-packages/vllm/a.py"),
            ("left out", "/data/model"),
        ),
        (TEMPLATE, ("left out", "mods: mods/fix")),
        (SCRIPT, ("left out", "pip install -U something")),
    ],
)
def test_what_a_recipe_does_not_hold_is_said(text: str, said: tuple[str, str]) -> None:
    assert said in levels(text)
    assert "secret" not in recipe_text(import_recipe(text)[0])


def test_a_plain_line_gives_no_remark() -> None:
    assert levels(SERVE) == set()


def test_a_folder_of_the_container_is_the_hosts() -> None:
    assert import_recipe(CONTAINER.format("/models/m/one --max-num-seqs 4"))[0].model == "/data/model/one"


def test_two_cards_are_two_machines_and_more_are_refused() -> None:
    assert import_recipe(f"{SERVE} -tp 2 --distributed-executor-backend ray")[0].nodes == 2
    with pytest.raises(ConfigError, match="needs 4 machines"):
        import_recipe(f"{SERVE} -tp 2 -pp 2")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "docker run ghcr.io/x/image",  # whose own script decides
        "docker run --entrypoint /bin/bash org/vllm:v1",  # a shell, not the server
        f"{SERVE}\n{SERVE}",
        "vllm serve --max-model-len 4",
        "vllm serve $MODEL",
        ': "${MODEL:?say which}"\nvllm serve $MODEL',
        "vllm serve ...",
        "vllm serve 'org/model",
        TEMPLATE.replace("port: 8000, ", ""),
        TEMPLATE.replace("env: {FIRST: 1}", "env: 7"),
        "services: []",
        "model: a/b\nx: 2020-02-31",
        "vllm serve a/b " * 20_000,
        "model: null",
    ],
)
def test_what_names_no_server_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        import_recipe(text)


def test_what_a_release_lacks_is_left_out_and_what_it_refuses_is_wrong() -> None:
    recipe = Recipe(
        format=1, name="x", title="x", model="m", flags={"old": 1, "kv": 2, "past": False},
        environment={"VLLM_OLD": "1"}, speculative={"method": "mtp", "old": 1},
    )  # fmt: skip
    problems = [
        Problem("flag", "--old", "gone"),
        Problem("flag", "--no-past", "gone"),
        Problem("variable", "VLLM_OLD", "unread"),
        Problem("speculative key", "old", "gone"),
        Problem("value", "--kv 2", "no choice"),
        Problem("deprecated", "--kv", "later"),
    ]
    left, remarks = without_dead(recipe, problems)
    assert (left.flags, left.environment, left.speculative) == ({"kv": 2}, {}, {"method": "mtp"})
    assert [(one.level, one.what) for one in remarks] == [
        ("left out", "--old"), ("left out", "--no-past"), ("left out", "VLLM_OLD"), ("left out", "old"),
        ("wrong", "--kv 2"),
    ]  # fmt: skip


# What hostile or careless texts hold ----------------------------------------------------------------


def test_a_secret_is_not_written_in_place_of_its_variable() -> None:
    text = "export HF_TOKEN=hf_abc MODEL=org/m; vllm serve $MODEL --revision $HF_TOKEN"
    recipe, remarks = import_recipe(text)
    assert (recipe.model, recipe.flags) == ("org/m", {})
    assert ("--revision $HF_TOKEN", "its value is set elsewhere") in [
        (one.what, one.because) for one in remarks
    ]


def test_a_null_in_a_list_is_refused(tmp_path: Path) -> None:
    recipe, _ = import_recipe("vllm serve org/m --limit '{\"a\": [1, null]}'")
    with pytest.raises(ConfigError, match="null"):
        recipe_text(recipe)


def test_a_long_name_becomes_that_of_a_file() -> None:
    recipe, _ = import_recipe(f"vllm serve org/m --served-model-name {'x' * 500}")
    assert recipe.name == "x" * 64


def test_what_grows_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read as a command"):
        import_recipe("A=xxxxxxxx\n" + "A=$A$A\n" * 40 + "vllm serve $A")
    bomb = "a: &a [x, x]\n" + "".join(
        f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(ConfigError):
        import_recipe(bomb + "model: org/m\ndefaults: {x: *i}\n")
    shared = "x: &x {A: '1'}\nservices: {s: {image: vllm/vllm, environment: *x, command: [org/m]}}"
    assert import_recipe(shared)[0].environment == {"A": "1"}


def test_a_variable_without_a_value_is_the_shells() -> None:
    recipe, remarks = import_recipe("docker run -e FOO vllm/vllm-openai org/m")
    assert "FOO" not in recipe.environment
    assert ("FOO=$FOO", "its value is set elsewhere") in {(one.what, one.because) for one in remarks}


def test_an_option_and_one_behind_its_dot_clash() -> None:
    assert ("left out", "--a.b") in levels("vllm serve org/m --a 1 --a.b 2")


@pytest.mark.parametrize(
    "beside",
    [
        "# stop; vllm serve org/other",
        "true # vllm serve org/other; vllm serve org/third",
        "echo vllm serve org/other",
        "cat > run.sh <<'EOF'\nvllm serve org/other\nEOF",
        "pkill -f 'vllm serve'",
    ],
)
def test_what_only_names_a_command_is_none(beside: str) -> None:
    assert import_recipe(f"{beside}\nvllm serve org/m --seed 1")[0].model == "org/m"
    assert import_recipe("vllm serve org/m --tag a#b")[0].flags["tag"] == "a#b"


def test_yaml_without_a_model_names_none() -> None:
    with pytest.raises(ConfigError, match="names no model"):
        import_recipe("model:\ndefaults: {port: 8000}\n")


@pytest.mark.parametrize(
    "text",
    [
        "KEPT=hf_abcdefghijklmnopqrst vllm serve org/m",
        "HTTPS_PROXY=http://me:word@proxy:80 vllm serve org/m",
        "vllm serve org/m --otlp-traces-endpoint http://me:word@host:4317",
        """vllm serve org/m --x '{"list": [{"token": "word"}]}'""",
        "vllm serve org/m --api-key=one word",
    ],
)
def test_a_secret_is_known_by_its_value_and_in_a_list_too(text: str) -> None:
    written = recipe_text(import_recipe(text)[0])
    assert "word" not in written
    assert "hf_abc" not in written


# What public commands hold --------------------------------------------------------------------------


def test_variables_behind_env_are_of_the_server() -> None:
    recipe, remarks = import_recipe("sudo env HF_TOKEN=secret A=1 vllm serve org/m")
    assert (recipe.environment, [one.what for one in remarks]) == ({"A": "1"}, ["HF_TOKEN"])


def test_options_in_a_variable_are_several_words() -> None:
    recipe, _ = import_recipe("ARGS='--max-num-seqs 4 --seed 1'\nvllm serve org/m $ARGS")
    assert recipe.flags == {"max-num-seqs": 4, "seed": 1}


def test_a_compose_file_has_defaults_dollar_signs_and_long_volumes() -> None:
    service = "services: {s: {image: vllm/vllm, command: '--model ${PLACE:-/models/m} --x A$$', volumes: %s}}"
    recipe, _ = import_recipe(service % "[{type: bind, source: '${DATA:-/data}', target: /models}]")
    assert (recipe.model, recipe.flags) == ("/data/m", {"x": "A$"})
    assert import_recipe(service % "['${DATA:-/data}:/models']")[0].model == "/data/m"
    mount = "docker run --mount type=bind,source=/data,target=/models vllm/vllm --model /models/m"
    assert import_recipe(mount)[0].model == "/data/m"


def test_braces_of_json_and_of_the_shell_stay_where_a_template_does_not_double_them() -> None:
    command = """vllm serve org/m --x '{"a": {"b": {c}}}' --root-path "${PLACE:-${D}}" """
    text = f"model: org/m\ndefaults: {{c: 1}}\ncommand: |\n  D=/d\n  {command}\n"
    assert import_recipe(text)[0].flags == {"x": {"a": {"b": 1}}, "root-path": "/d"}


def test_a_recipe_of_another_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="no recipe of vLLM"):
        import_recipe("model: org/m\nruntime: sglang\ndefaults: {mem_fraction_static: 0.8}\n")


def test_a_table_in_defaults_is_one() -> None:
    recipe, remarks = import_recipe("model: org/m\ndefaults: {speculative_config: {method: mtp}}\n")
    assert (recipe.speculative, remarks) == ({"method": "mtp"}, ())


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000], ids=["digits", "nested"])
def test_what_python_cannot_read_as_a_value_stays_text(value: str) -> None:
    assert import_recipe(f"vllm serve org/m --x {value}")[0].flags == {"x": value}


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


def test_a_short_option_with_a_dot_is_the_long_one() -> None:
    assert flags("-cc.mode=none") == {"compilation-config": {"mode": "none"}}


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
vllm serve "$MODEL" "${args[@]}" "${more[@]}" --mode $MODE
"""


def test_what_a_condition_decides_sets_only_what_has_no_value() -> None:
    recipe, remarks = import_recipe(CONDITIONS)
    assert (recipe.model, recipe.flags) == ("org/m", {"max-model-len": 8, "seed": 1, "mode": "first"})
    assert {one.what for one in remarks} == {"--enforce-eager", "--x", "--dtype", "--served-model-name"}
    assert {one.because for one in remarks} == {"a condition of the script decides it"}


def test_a_setting_that_the_text_does_not_hold_is_left_out() -> None:
    recipe, remarks = import_recipe('vllm serve org/m --seed $SEED --dtype auto $MORE --x \'{"y": "$Y"}\'')
    assert recipe.flags == {"dtype": "auto"}
    assert {one.what for one in remarks} == {"--seed $SEED", "$MORE", "--x {'y': '$Y'}"}
    recipe, remarks = import_recipe("vllm serve org/m -sc $DRAFTS")
    assert (recipe.speculative, [one.what for one in remarks]) == ({}, ["--speculative-config"])
    with pytest.raises(ConfigError, match="names no model"):
        import_recipe("vllm serve org/$NAME")


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


def test_a_list_of_json_is_one_word_of_the_command() -> None:
    assert flags("""--allowed-origins '["*"]'""") == {"allowed-origins": '["*"]'}


def test_the_model_behind_an_option_without_a_value_is_found() -> None:
    recipe = import_recipe("vllm serve --enforce-eager --enable-x org/m --seed 1")[0]
    assert (recipe.model, recipe.flags) == ("org/m", {"enforce-eager": True, "enable-x": True, "seed": 1})


def test_an_image_of_any_name_is_a_server_by_its_options() -> None:
    assert import_recipe("docker run own/image --model org/m --max-model-len 8")[0].model == "org/m"
    with pytest.raises(ConfigError):
        import_recipe("docker run own/image --model org/m --ctx-size 8")


def test_an_array_that_grows_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read as a command"):
        import_recipe("A=(--x yyyyyyyy)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 40 + 'vllm serve "${A[@]}"')
