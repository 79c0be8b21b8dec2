"""``sparkwright recipe``: list, show, new, and a check by a real release's parser."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from channel_kit import small_wheel
from checkpoint_kit import DENSE, write_checkpoint

from sparkwright.base.errors import IncompatibleOptionsError
from sparkwright.cli.main import main
from sparkwright.recipes.recipe import load_recipe, recipes

ROOT = Path(__file__).parents[3]
NAME = "qwen3.6-27b-dflash"


def test_list_has_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(recipes())
    assert rows[NAME]["evidence"] == "near A-"
    assert main(["recipe", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in rows)
    assert max(map(len, shown.splitlines())) <= 80, "a terminal of the usual width"


def test_show_gives_the_reason_of_each_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "show", NAME, "--use", "shared"]) == 0
    shown = capsys.readouterr().out
    recipe = load_recipe(NAME, "shared")
    assert all(f"--{flag}" in shown for flag in recipe.flags)
    assert all(reason in shown for reason in recipe.why.values())
    assert "16384" in shown


def test_show_command_is_one_for_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "show", "qwen3.5-35b-a3b-mtp", "--command"]) == 0
    words = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    assert words[:4] == ["VLLM_USE_DEEP_GEMM=0", "vllm", "serve", load_recipe("qwen3.5-35b-a3b-mtp").model]
    config = words[words.index("--speculative-config") + 1]
    assert json.loads(config) == {"method": "mtp", "num_speculative_tokens": 1}
    assert main(["recipe", "show", "qwen3.8-27b-dflash2-2x", "--command"]) == 0
    said = capsys.readouterr().out
    assert [said.count(word) for word in ("vllm serve", "--node-rank 1", "--headless")] == [2, 1, 1]


def test_new_overwrites_nothing_and_names_what_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_checkpoint(tmp_path / "model", DENSE)
    out = tmp_path / "mine.toml"
    out.write_text("mine")
    assert main(["recipe", "new", str(model), "--out", str(out), "--offline"]) == 10
    assert "exists" in capsys.readouterr().err
    assert main(["recipe", "new", str(tmp_path / "none"), "--offline"]) == 10
    assert "cannot be read" in capsys.readouterr().err
    assert main(["recipe", "new", str(model), "--speculative", "mtp"]) == 10
    assert "--speculative is no object of JSON" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.upstream
@pytest.mark.walk  # the release's own parser; changes with a lock
def test_new_writes_what_the_release_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_checkpoint(tmp_path / "model", {**DENSE, "model_type": "qwen3"})
    out = tmp_path / "mine.toml"
    words = ["recipe", "new", str(model), "--root", str(ROOT), "--out", str(out), "--set", "seed=1"]
    assert main(words) == 0, capsys.readouterr().err
    recipe = load_recipe(out)
    assert (recipe.flags["reasoning-parser"], recipe.flags["seed"]) == ("qwen3", 1)
    out.unlink()
    assert main([*words, "--set", "max-num-seqz=8"]) == IncompatibleOptionsError.exit_code
    assert "--max-num-seqz" in capsys.readouterr().err
    assert not out.exists()


def test_a_recipe_that_cannot_be_written_is_refused_before_the_release_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link.toml").symlink_to(tmp_path / "elsewhere")
    for out, said in (
        (tmp_path / "no" / "mine.toml", "there is no folder"),
        (tmp_path / "link.toml", "exists"),
    ):
        words = ["recipe", "import", "vllm serve org/model", "--out", str(out), "--root", str(ROOT)]
        assert main(words) == 10
        assert said in capsys.readouterr().err


def test_a_strangers_recipe_cannot_steer_the_terminal(tmp_path, capsys):
    path = tmp_path / "odd.toml"
    path.write_text('format = 1\nname = "a\\u001b]0;x\\u0007"\ntitle = "T"\nmodel = "m\\u001b[2J"\n')
    for words in ((), ("--command",), ("--json",)):
        main(["recipe", "show", str(path), *words])
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        assert "\x07" not in said.out + said.err


def test_a_dry_run_names_what_a_strangers_recipe_runs_and_knows(tmp_path, capsys):
    head = 'format = 1\nname = "a\\u001b]0;x\\u0007"\ntitle = "T"\nmodel = "m\\u001b[2J"\n'
    odd, twin = tmp_path / "odd.toml", tmp_path / "twin.toml"
    odd.write_text(
        head + "[flags]\ntrust-remote-code = true\nserved-model-name = 'n'\n"
        '[environment]\nVLLM_API_KEY = "known"\n'
        '[why]\ntrust-remote-code = "harmless"\nVLLM_API_KEY = "harmless"\n'
    )
    twin.write_text(head + "[flags]\ntrust-remote-code = false\nserved-model-name = 'n'\n")
    wheel = small_wheel(tmp_path, "0.24.0+spark.5")
    words = ("--dry-run", "--unlocked", "--wheel", str(wheel))
    assert main(["serve", str(odd), *words]) == 0
    said = capsys.readouterr().out
    assert "\ncode     --trust-remote-code: " in said
    assert "\nkeys     VLLM_API_KEY: stated in the recipe: its author knows it\n" in said
    assert not {"\x1b", "\x07"} & set(said)
    assert "known" not in said.replace("knows", "")
    assert main(["serve", str(twin), *words]) == 0
    said = capsys.readouterr().out
    assert "\ncode " not in said
    assert "\nkeys " not in said


@pytest.mark.parametrize("data", [b"vllm serve \xff", b"\x80" * 9])
def test_bytes_that_are_no_text_are_refused(data: bytes, tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    for source in ("-", str(file), "vllm serve \udcff"):
        with file.open(encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert main(["recipe", "import", source, "--root", str(ROOT)]) == 10
        told = capsys.readouterr().err
        assert "cannot be read" in told
