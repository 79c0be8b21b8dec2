"""Flags of the command line, and the file with the key."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.cli.main import main
from sparkwright.recipes.recipe import Recipe, serve_arguments
from sparkwright.serve.caches import cache_key
from sparkwright.serve.settings import SET_BY_USER, as_head, read_key, shell_key, with_settings

RECIPE = Recipe(format=1, name="r", title="R", model="m", flags={"max-num-seqs": 4, "enforce-eager": True})


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "name", "value"),
        [
            ("max-num-seqs=8", "max-num-seqs", 8),
            ("--max_num_seqs=8", "max-num-seqs", 8),
            ("enforce-eager=false", "enforce-eager", False),
            ("enable-x", "enable-x", True),
            ("gpu-memory-utilization=.6", "gpu-memory-utilization", 0.6),
            ("hf-token=null", "hf-token", "null"),
            ("x=\udcff", "x", "\udcff"),
            ("max-model-len=1e999", "max-model-len", "1e999"),
            ('x={"a": NaN}', "x", '{"a": NaN}'),
            ("kv-cache-dtype=fp8_e4m3", "kv-cache-dtype", "fp8_e4m3"),
            ('attention-config={"backend": "TRITON_ATTN"}', "attention-config", {"backend": "TRITON_ATTN"}),
            ("chat-template=a=b", "chat-template", "a=b"),
        ],
    )
    def test_a_setting_replaces_the_recipes_flag(self, setting: str, name: str, value: Any) -> None:
        changed = with_settings(RECIPE, [setting])
        assert changed.flags[name] == value
        assert changed.why[name] == SET_BY_USER
        assert RECIPE.flags == {"max-num-seqs": 4, "enforce-eager": True}

    @pytest.mark.parametrize(
        ("value", "names"),
        [("aeon", ("aeon",)), ('["aeon", "gpt-4o"]', ("aeon", "gpt-4o")), ("4", ("4",)), (None, ("r",))],
    )
    def test_clients_ask_by_the_names_of_the_user(self, value: str | None, names: tuple[str, ...]) -> None:
        changed = with_settings(RECIPE, [f"served-model-name={value}"] if value else [])
        words = serve_arguments(changed, host="h", port=1)
        first = words.index("--served-model-name") + 1
        assert changed.served_names == words[first : words.index("--host")] == names
        assert words.count("--served-model-name") == 1
        assert cache_key("", changed, "") == cache_key("", RECIPE, "")

    @pytest.mark.parametrize("value", ["=-x", "=a b", '=["a", ""]', "=[]", "="])
    def test_what_no_client_could_ask_for_is_refused(self, value: str) -> None:
        with pytest.raises(ConfigError, match="cannot be the name of a served model"):
            serve_arguments(with_settings(RECIPE, [f"served-model-name{value}"]), host="h", port=1)

    @pytest.mark.parametrize("setting", ["port=1", "--host=0.0.0.0", "api_key=x", "model=m", "=1", ""])
    def test_what_is_decided_otherwise_is_refused(self, setting: str) -> None:
        with pytest.raises(ConfigError):
            with_settings(RECIPE, [setting])


class TestTwoMachines:
    PAIR = Recipe(format=1, name="p", title="P", model="m", nodes=2)

    @pytest.mark.parametrize(("recipe", "address"), [(PAIR, ""), (RECIPE, "10.0.0.1")])
    def test_an_address_goes_with_two_machines(self, recipe: Recipe, address: str) -> None:
        with pytest.raises(ConfigError, match="--head"):
            as_head(recipe, address)


class TestKey:
    def test_a_file_of_its_owner_alone_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        path.write_text("sk-1234\n")
        for mode in (0o600, 0o400):
            path.chmod(mode)
            assert read_key(path) == "sk-1234"

    @pytest.mark.parametrize(
        ("mode", "text", "said"),
        [
            *((mode, "sk-1234\n", "lets others in") for mode in (0o644, 0o640, 0o604, 0o620)),
            *((0o600, text, "one word") for text in ("", "\n", "two words", "kä", "a\nb", "x" * 5000)),
        ],
    )
    def test_one_that_others_reach_or_without_one_word_is_refused(self, tmp_path, mode, text, said):
        path = tmp_path / "key"
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(ConfigError, match=said) as caught:
            read_key(path)
        assert "sk-1234" not in str(caught.value)

    def test_a_folder_and_a_missing_file_are_refused(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "none"):
            with pytest.raises(ConfigError):
                read_key(path)


def test_a_credential_of_systemd_s_may_be_the_group_s(tmp_path, monkeypatch):
    path = tmp_path / "api-key"
    path.write_text("sk-one\n")
    path.chmod(0o440)
    with pytest.raises(ConfigError):
        read_key(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_key(path) == "sk-one"
    path.chmod(0o444)
    with pytest.raises(ConfigError):
        read_key(path)


def test_the_key_of_a_shell_is_one_word_or_none() -> None:
    assert shell_key({}) == shell_key({"VLLM_API_KEY": ""}) == ""
    assert shell_key({"VLLM_API_KEY": "sk-1234"}) == "sk-1234"
    with pytest.raises(ConfigError, match="VLLM_API_KEY cannot be used") as caught:
        shell_key({"VLLM_API_KEY": "sk-1234 # mine"})
    assert "sk-1234" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("serve qwen3.6-27b-nvfp4-kv-d", "plain,qwen3.6-27b-nvfp4-kv-dflash\n"),
        ("service install smo", "plain,smoke\n"),
        ("doctor ./mine.to", "file,./mine.to\n"),
        ("serve smoke --dry", "plain,--dry-run\n"),
    ],
)
def test_a_shell_completes_recipes_and_options(words, completed, monkeypatch, capsys):
    variables = {"COMP_WORDS": f"sparkwright {words}", "COMP_CWORD": str(len(words.split()))}
    for name, value in {"_SPARKWRIGHT_COMPLETE": "bash_complete", **variables}.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    assert capsys.readouterr().out == completed
