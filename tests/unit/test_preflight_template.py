"""Chat templates that vLLM cannot use, each planted beside its healthy twin."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import DENSE, write_checkpoint

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import read_checkpoint
from sparkwright.serve.preflight.files import check_files, check_template

WHOLE = "{% for m in messages %}{{ m.content }}{% endfor %}"
BROKEN = "{% for m in messages %}{{ m.content }}"


def found(folder: Path | None, **flags: Any) -> list[tuple[str, str]]:
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    recipe = Recipe(format=1, name="r", title="r", model="m", flags=given)
    checkpoint = None if folder is None else read_checkpoint("m", folder)
    return [(one.check, one.level) for one in check_template(recipe, checkpoint)]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkpoint without a template."""
    folder = write_checkpoint(tmp_path / "model", DENSE)
    (folder / "chat_template.jinja").unlink()
    return folder


WARNED, REFUSED = ("chat-template", "warn"), ("chat-template", "refuse")


class TestGiven:
    def test_a_file_that_parses(self, tmp_path: Path) -> None:
        (tmp_path / "t.jinja").write_text(WHOLE)
        assert found(None, chat_template=str(tmp_path / "t.jinja")) == []

    @pytest.mark.parametrize("name", ["none.jinja", "", "latin.jinja"])
    def test_what_vllm_cannot_open(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "latin.jinja").write_bytes(b"caf\xe9 {{ x }}")
        assert found(None, chat_template=str(tmp_path / name)) == [REFUSED]

    def test_a_relative_path_wherever_one_stands(self, tmp_path: Path, monkeypatch: Any) -> None:
        (tmp_path / "t.jinja").write_text(WHOLE)
        monkeypatch.chdir(tmp_path)
        assert found(None, chat_template="t.jinja") == [REFUSED]
        assert found(None, chat_template="template_chatml.jinja") == [], "vLLM has that one"

    def test_the_template_itself(self) -> None:
        assert found(None, chat_template=WHOLE * 500) == []
        assert found(None, chat_template=BROKEN) == [WARNED]

    def test_a_file_that_does_not_parse(self, tmp_path: Path) -> None:
        (tmp_path / "t.jinja").write_text(BROKEN)
        assert found(None, chat_template=str(tmp_path / "t.jinja")) == [WARNED]


class TestOwn:
    @pytest.mark.parametrize("text", [WHOLE, BROKEN])
    @pytest.mark.parametrize(
        "place",
        ["chat_template.jinja", "additional_chat_templates/tools.jinja", "tokenizer_config.json",
         "chat_template.json", "processor_config.json", "several"],
    )  # fmt: skip
    def test_wherever_it_is(self, bare: Path, place: str, text: str) -> None:
        path = bare / ("tokenizer_config.json" if place == "several" else place)
        path.parent.mkdir(exist_ok=True)
        stated = [{"name": "default", "template": text}] if place == "several" else text
        path.write_text(text if path.suffix == ".jinja" else json.dumps({"chat_template": stated}))
        assert found(bare) == ([] if text is WHOLE else [WARNED])

    def test_none(self, bare: Path, tmp_path: Path) -> None:
        assert found(bare) == [("no-template", "warn")]
        (tmp_path / "t.jinja").write_text(WHOLE)
        assert found(bare, chat_template=str(tmp_path / "t.jinja")) == []

    @pytest.mark.parametrize(
        "flags",
        [{"tokenizer": "other/model"}, {"tokenizer_mode": "mistral"}, {"runner": "pooling"},
         {"skip_tokenizer_init": True}],
    )  # fmt: skip
    def test_none_is_needed_of(self, bare: Path, flags: dict[str, Any]) -> None:
        assert found(bare, **flags) == []

    @pytest.mark.parametrize(
        "config", [{"architectures": ["DeepseekV32ForCausalLM"]}, {"model_type": "deepseek_ocr"}]
    )
    def test_none_is_needed_by_models_that_vllm_knows(self, bare: Path, config: dict[str, Any]) -> None:
        (bare / "config.json").write_text(json.dumps({**DENSE, **config}))
        assert found(bare) == []

    def test_mistrals_own_tokenizer_needs_none(self, bare: Path) -> None:
        (bare / "tekken.json").write_text("{}")
        assert found(bare) == []

    def test_tags_that_transformers_adds(self, bare: Path) -> None:
        text = "{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% break %}{% endfor %}"
        (bare / "chat_template.jinja").write_text(text)
        assert found(bare) == []
        (bare / "chat_template.jinja").write_text(text.replace("{% endgeneration %}", ""))
        assert found(bare) == [WARNED]


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_a_byte_order_mark_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "model", DENSE)
    text = json.dumps(DENSE).encode()
    (folder / name).write_bytes(text)
    assert [one.check for one in check_files(read_checkpoint("m", folder))] == []
    (folder / name).write_bytes(codecs.BOM_UTF8 + text)
    (finding,) = check_files(read_checkpoint("m", folder))
    assert (finding.check, finding.level) == ("unreadable", "refuse")
    assert "byte order mark" in finding.because
