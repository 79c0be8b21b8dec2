"""Recipes from commands, compose files and other tools' YAML: what is kept, and what is said of the rest."""

import time
from pathlib import Path

import pytest
from recipe_import import COMPOSE, CONTAINER, SCRIPT, SERVE, TEMPLATE, flags, levels

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.imported import import_recipe, without_dead
from sparkwright.recipes.recipe import Recipe, load_recipe, recipe_text
from sparkwright.recipes.release_options import Problem


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
        f"{SERVE} & {SERVE}",
        f"cat > run.sh <<'EOF'\n{SERVE}\nEOF\n{SERVE}",
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
        "pkill -f 'vllm serve'",
    ],
)
def test_what_only_names_a_command_is_none(beside: str) -> None:
    assert import_recipe(f"{beside}\nvllm serve org/m --seed 1")[0].model == "org/m"
    assert import_recipe("vllm serve org/m --tag a#b")[0].flags["tag"] == "a#b"
    assert import_recipe("vllm serve org/m --tag 'a&b' &> log & wait")[0].flags == {"tag": "a&b"}
    assert import_recipe("vllm serve org/m --seed 1 2>&1 |& tee log")[0].flags == {"seed": 1}


@pytest.mark.parametrize(
    "text",
    [
        "KEPT=hf_abcdefghijklmnopqrst vllm serve org/m",
        "HTTPS_PROXY=http://me:word@proxy:80 vllm serve org/m",
        "vllm serve org/m --otlp-traces-endpoint http://me:word@host:4317",
        """vllm serve org/m --x '{"list": [{"token": "word"}]}'""",
        """vllm serve org/m --x '{"list": [[{"token": "word"}]]}'""",
        "vllm serve org/m --api-key=one word",
    ],
)
def test_a_secret_is_known_by_its_value_and_in_a_list_too(text: str) -> None:
    written = recipe_text(import_recipe(text)[0])
    assert "word" not in written
    assert "hf_abc" not in written


@pytest.mark.parametrize("name", ["JWT", "X_AUTH", "DB_PWD", "BEARER", "PROXY_AUTHORIZATION"])
def test_a_secret_is_known_by_its_name(name: str) -> None:
    text = f"docker run --header '{name}: word' -e {name}=word -e AUTHOR=me vllm/vllm-openai org/m"
    recipe, remarks = import_recipe(text)
    assert recipe.environment == {"AUTHOR": "me"}
    assert name in {one.what for one in remarks}
    assert "word" not in f"{recipe_text(recipe)} {remarks}"


def test_a_secret_in_a_description_or_the_models_address_is_not_kept() -> None:
    token = "hf_abcdefghijklmnopqrst"  # noqa: S105 - made up, opens nothing
    text = "model: org/m\nname: {0}\ndescription: {0} of mine\n"
    assert import_recipe(text.format("Mine"))[0].title == "Mine of mine"
    recipe = import_recipe(text.format(token))[0]
    assert (recipe.title, recipe.name) == ("… of mine", "imported")
    for address in ("s3://me:word@host/m", "https://host/m?token=word"):
        with pytest.raises(ConfigError, match="holds a secret") as caught:
            import_recipe(f"vllm serve '{address}'")
        assert "word" not in str(caught.value)
    with pytest.raises(ConfigError, match="no recipe of vLLM") as caught:
        import_recipe(f"model: org/m\nruntime: {token}\n")
    assert "hf_abc" not in f"{caught.value} {caught.value.because}"
    assert import_recipe("vllm serve s3://bucket/m")[0].model == "s3://bucket/m"


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": [1e999]}', '{"a":' * 900 + "1" + "}" * 900])
def test_what_no_recipe_can_hold_stays_the_text_that_vllm_is_given(text: str) -> None:
    recipe, _ = import_recipe(f"vllm serve org/m --x '{text}'")
    assert recipe.flags == {"x": text}
    assert recipe_text(recipe)


@pytest.mark.parametrize("text", ["[" * 50_000, "- " * 50_000, f"# a{' ' * 200_000}x"])
def test_what_is_deep_or_wide_takes_no_time(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(ConfigError):
        import_recipe(text)
    assert time.process_time() - begun < 10
