"""Chat templates that vLLM cannot use, each planted beside its healthy twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import DENSE, write_checkpoint

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import read_checkpoint
from sparkwright.serve.preflight.files import check_template

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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("@/whole.jinja", []),
        ("@/broken.jinja", [WARNED]),
        # What vLLM cannot open
        ("@/none.jinja", [REFUSED]),
        ("@/", [REFUSED]),
        ("@/latin.jinja", [REFUSED]),
        # A relative path wherever one stands, but for those of vLLM's own
        ("whole.jinja", [REFUSED]),
        ("template_chatml.jinja", []),
        # The template itself
        (WHOLE * 500, []),
        (BROKEN, [WARNED]),
    ],
)
def test_a_template_that_is_given(tmp_path, monkeypatch, given, expected) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole.jinja").write_text(WHOLE)
    (tmp_path / "broken.jinja").write_text(BROKEN)
    (tmp_path / "latin.jinja").write_bytes(b"caf\xe9 {{ x }}")
    assert found(None, chat_template=given.replace("@", str(tmp_path))) == expected


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
        ("flags", "files"),
        [
            ({"tokenizer": "other/model"}, {}),
            ({"tokenizer_mode": "mistral"}, {}),
            ({"runner": "pooling"}, {}),
            ({"skip_tokenizer_init": True}, {}),
            # Models that vLLM knows, and Mistral's own tokenizer
            ({}, {"config.json": {**DENSE, "architectures": ["DeepseekV32ForCausalLM"]}}),
            ({}, {"config.json": {**DENSE, "model_type": "deepseek_ocr"}}),
            ({}, {"tekken.json": {}}),
        ],
    )
    def test_none_is_needed_of(self, bare, flags, files) -> None:
        for name, content in files.items():
            (bare / name).write_text(json.dumps(content))
        assert found(bare, **flags) == []

    def test_tags_that_transformers_adds(self, bare: Path) -> None:
        text = "{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% break %}{% endfor %}"
        (bare / "chat_template.jinja").write_text(text)
        assert found(bare) == []
        (bare / "chat_template.jinja").write_text(text.replace("{% endgeneration %}", ""))
        assert found(bare) == [WARNED]
