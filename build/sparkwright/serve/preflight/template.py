"""Findings about chat templates: vLLM stops over one that is missing, and no chat works with a broken one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.finding import Finding

_FILE = "chat_template.jinja"
_JSON = ("tokenizer_config.json", "chat_template.json", "processor_config.json")
_MOST = 4 << 20
_LITERAL = frozenset("{}\n")  # what vLLM takes a template itself by, where no file of that name is
_BUNDLED = "template_"  # names of the templates in vLLM's own folder
# vLLM writes their chats without a template, or has one for them.
_OWN_ENCODERS = ("Alpamayo2", "DeepseekV32", "DeepseekV4", "Inkling", "KimiK3", "MoonshotKimia")
_FALLBACKS = ("blip-2", "colpali", "deepseek_ocr", "deepseek_vl_v2", "minicpm", "paligemma", "unlimited")
_ABSOLUTE = "give the template's absolute path, or leave the flag out if the checkpoint has one"


def check_template(recipe: Recipe, checkpoint: Checkpoint | None) -> Iterator[Finding]:
    """Yield findings about the chat template that *recipe* names, else about that of *checkpoint*."""
    given = recipe.flags.get("chat-template")
    if isinstance(given, str) and given:
        yield from _given(given)
    elif checkpoint is not None and not recipe.flags.get("tokenizer"):
        templates = dict(_templates(checkpoint))
        if not templates and _needs_one(recipe, checkpoint):
            yield Finding(
                "no-template",
                "warn",
                f"{checkpoint.name} has no chat template",
                f"neither {_FILE} nor {_JSON[0]} has one, and the flag chat-template names none: "
                "vLLM starts, and answers every chat with status 400",
                "name a template with the flag chat-template, or send completions instead of chats",
            )
        for place, text in templates.items():
            yield from _parsed(f"{place} of {checkpoint.name}", text)


def _given(given: str) -> Iterator[Finding]:
    path = Path(given)
    literal = bool(_LITERAL & set(given))
    try:
        there, file = path.exists(), path.is_file()
    except (OSError, ValueError):  # such as a whole template, which is too long for a name
        there = file = False
    if literal and not there:
        yield from _parsed("the flag chat-template", given)
    elif there and not file:
        yield _refused(given, "it is no file")
    elif not path.is_absolute() and not given.startswith(_BUNDLED):
        because = "a relative path is looked up in the working folder of the server, which each start makes"
        yield _refused(given, because)
    elif not there and path.is_absolute():
        yield _refused(given, "there is no such file")
    elif there:
        try:
            text = _read(path)
        except (OSError, UnicodeDecodeError) as error:
            yield _refused(given, f"it cannot be read: {error}")
        else:
            yield from _parsed(given, text)


def _refused(given: str, because: str) -> Finding:
    return Finding(
        "chat-template", "refuse", f"the chat template {given} cannot be used",
        f"{because}; vLLM stops at its start", _ABSOLUTE,
    )  # fmt: skip


def _templates(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield each template of *checkpoint* with its place; files that cannot be read are others' findings."""
    more = sorted((checkpoint.folder / "additional_chat_templates").glob("*.jinja"))
    for path in (checkpoint.folder / _FILE, *more):
        try:
            yield path.name, _read(path)
        except (OSError, UnicodeDecodeError):
            continue
    for name in _JSON:
        try:
            found = json.loads(_read(checkpoint.folder / name))
        except (OSError, ValueError, RecursionError):
            continue
        stated: Any = found.get("chat_template") if isinstance(found, dict) else None
        several = stated if isinstance(stated, list) else [{"template": stated}]
        for entry in several:
            if isinstance(entry, dict) and isinstance(text := entry.get("template"), str) and text:
                yield f"{name} {entry.get('name', '')}".strip(), text


def _needs_one(recipe: Recipe, checkpoint: Checkpoint) -> bool:
    """Tell if chats of *checkpoint* need a template, unlike those that a tokenizer writes by itself."""
    flags = recipe.flags
    if flags.get("tokenizer-mode", "auto") not in {"auto", "hf", "slow"} or flags.get("runner") == "pooling":
        return False
    if checkpoint.mistral or "tekken.json" in checkpoint.tokenizer or flags.get("skip-tokenizer-init"):
        return False
    kind = str(checkpoint.config.get("model_type") or "")
    own = any(name.startswith(_OWN_ENCODERS) for name in checkpoint.architectures)
    return checkpoint.has_vocabulary and not own and not kind.startswith(_FALLBACKS)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST).decode()


def _parsed(place: str, text: str) -> Iterator[Finding]:
    """Yield a finding where the template *text* does not parse as transformers parses it."""
    if why := _fault(text):
        yield Finding(
            "chat-template",
            "warn",
            f"the chat template in {place} does not parse",
            f"{why}; vLLM starts, and fails every chat",
            "fetch the file again, or name another template with the flag chat-template",
        )


def _fault(text: str) -> str:
    from jinja2 import Environment, TemplateSyntaxError, nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """The tag by which transformers marks what an assistant said."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own form

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    environment = Environment(  # noqa: S701 - nothing is rendered
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    try:
        environment.parse(text)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deep"
    return ""
