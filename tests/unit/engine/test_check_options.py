"""The child that asks a release: each planted option is named, and its healthy twin is silent."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recipe_kit import of

from sparkwright.cli.recipe import _described
from sparkwright.engine.child import check_options
from sparkwright.engine.release import AskedRelease, CheckedRecipe
from sparkwright.recipes.recipe import Recipe
from sparkwright.recipes.release_options import Problem, Question, question_of
from sparkwright.store.paths import Store

# Answers as the child does: refuses a template that is not there.
PROGRAM = """
import json, os, sys
request, report = sys.argv[2], sys.argv[4]
none = {"kind": "parser", "name": "vllm serve", "because": "no template"}
problems = [[none] if "--chat-template" in one["line"] and not os.path.exists(one["line"][-1]) else []
            for one in json.load(open(request))]
json.dump(problems, open(report, "w"))
"""
PLAIN = (
    "max-num-seqs", "kv-cache-dtype", "quantization", "attention-backend", "attention-config",
    "tool-call-parser", "tool-parser-plugin", "reasoning-parser", "reasoning-parser-plugin", "load-format",
    "enable-prefix-caching", "no-enable-prefix-caching",
)  # fmt: skip
RELEASE = check_options.Release(
    flags={
        **{name: ([], "") for name in PLAIN},
        "moe-backend": (["auto", "marlin", "triton"], ""),
        "mamba-cache-mode": ([], "it has no effect"),
    },
    variables={"VLLM_USE_V2_MODEL_RUNNER", "VLLM_DIST_IDENT"},
    speculative={"method": ["dflash", "mtp"], "num_speculative_tokens": [], "attention_backend": []},
    registries={
        "attention-backend": ["TRITON_ATTN", "FLASHINFER"],
        "kv-cache-dtype": ["auto", "fp8_e4m3", "nvfp4"],
        "quantization": ["fp8", "compressed-tensors"],
        "tool-call-parser": ["qwen3_coder", "mistral"],
        "reasoning-parser": ["qwen3"],
        "load-format": ["auto", "safetensors"],
    },
)


def problems(
    changes: dict[str, Any], *, error: str = "", part: str = "some/model", user: tuple[str, ...] = ()
) -> list[Problem]:
    """Return the problems of a recipe, where the parser says *error* of a line with *part* in it."""
    recipe = Recipe(**({"format": 1, "name": "made", "title": "Made up", "model": "some/model"} | changes))
    question = msgspec.to_builtins(question_of(recipe, user))

    def refusal(line: list[str]) -> str:
        return error if part in line else ""

    return msgspec.convert(check_options.problems(RELEASE, question, refusal), list[Problem])


def found(changes: dict[str, Any], **keys: Any) -> list[str]:
    return [str(one) for one in problems(changes, **keys)]


NONE = "this release has none of that name"
DEAD = "no code of this release reads it: it would change nothing"
BY_LOAD = "num_speculative_tokens_per_batch_size"
OLD, SHARED = "enable-mamba-fine-grained-prefix-cache", "enable-mamba-shared-prefix-checkpoint (vllm#57382)"
NOT_TAKEN = "this release does not take that value"
NEAR = "the nearest name is"
# A recipe with a planted option, what is said of it, and its healthy twin.
PLANTED = [
    ("--quantization=compressed_tensors",
     f"value --quantization compressed_tensors: {NOT_TAKEN}; {NEAR} compressed-tensors",
     "--quantization=compressed-tensors"),
    ("--max-num-sequences=4", f"flag --max-num-sequences: {NONE}; {NEAR} max-num-seqs", "--max-num-seqs=4"),
    ("--speculative-disable-by-batch-size=8",
     f"flag --speculative-disable-by-batch-size: {NONE}; use {BY_LOAD} in [speculative]",
     "--enable-prefix-caching=false"),
    (f"--{OLD}=true", f"flag --{OLD}: {NONE}; use {SHARED}", "--enable-prefix-caching=true"),
    ("VLLM_PLE_CPU_OFFLOAD=1", f"variable VLLM_PLE_CPU_OFFLOAD: {DEAD}; use the flag engram-config",
     "VLLM_DIST_IDENT=1"),
    ("--kv-cache-dtype=fp8_e4m4", f"value --kv-cache-dtype fp8_e4m4: {NOT_TAKEN}; {NEAR} fp8_e4m3",
     "--kv-cache-dtype=fp8_e4m3"),
    ("--attention-backend=TRITON", f"value --attention-backend TRITON: {NOT_TAKEN}; {NEAR} TRITON_ATTN",
     "--attention-backend=triton_attn"),
    ("--moe-backend=cutlas", f"value --moe-backend cutlas: {NOT_TAKEN}", "--moe-backend=marlin"),
    ("--tool-call-parser=qwen3-coder",
     f"value --tool-call-parser qwen3-coder: {NOT_TAKEN}; {NEAR} qwen3_coder",
     "--tool-call-parser=my_own --tool-parser-plugin=my_own.py"),
    ("--reasoning-parser=qwen4", f"value --reasoning-parser qwen4: {NOT_TAKEN}; {NEAR} qwen3",
     "--reasoning-parser=my_own --reasoning-parser-plugin=my_own.py"),
    ("--load-format=bitsandbytes", f"value --load-format bitsandbytes: {NOT_TAKEN}",
     "--load-format=safetensors"),
    ("VLLM_FP8_MOE_BACKEND=flashinfer", f"variable VLLM_FP8_MOE_BACKEND: {DEAD}; use the flag moe-backend",
     "VLLM_DIST_IDENT=x NCCL_SOCKET_IFNAME=eth0"),
    ("draft.method=dflash draft.num_spec_tokens=3",
     f"speculative key num_spec_tokens: {NONE}; {NEAR} num_speculative_tokens",
     "draft.method=dflash draft.num_speculative_tokens=3"),
    ("draft.method=dflash3", f"value speculative method dflash3: {NOT_TAKEN}; {NEAR} dflash",
     "draft.method=mtp"),
    ("draft.method=dflash draft.attention_backend=XFORMERS",
     f"value speculative attention_backend XFORMERS: {NOT_TAKEN}",
     "draft.method=dflash draft.attention_backend=auto"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("planted", "said", "healthy"), PLANTED, ids=[said.split(":")[0] for _, said, _ in PLANTED]
)
def test_planted_option_is_named_and_its_twin_is_silent(planted, said, healthy):
    assert found(of(planted)) == [said]
    assert found(of(healthy)) == []


def test_the_parsers_own_error_is_reported_where_nothing_else_explains_it() -> None:
    assert found({"flags": {"max-num-seqs": "many"}}, error="invalid int value: 'many'") == [
        "parser vllm serve: invalid int value: 'many'"
    ]
    unknown = {"flags": {"max-num-sequences": 4}}
    assert len(found(unknown, error="unrecognized arguments", part="--max-num-sequences")) == 1
    dead = found({"flags": {"max-num-seqs": "many"}}, error="invalid", user=("VLLM_GONE",))
    assert dead[0] == "parser vllm serve: invalid"
    assert dead[1].startswith("shell variable VLLM_GONE")


def test_an_option_that_needs_a_refused_one_is_not_refused_for_it() -> None:
    flags = {"tool-call-parser": "none", "enable-auto-tool-choice": True}
    options = {**RELEASE.flags, "enable-auto-tool-choice": ([], "")}
    recipe = Recipe(format=1, name="made", title="Made up", model="some/model", flags=flags)
    question = msgspec.to_builtins(question_of(recipe))
    lines: list[list[str]] = []
    found = check_options.problems(
        replace(RELEASE, flags=options), question, lambda line: lines.append(line) or ""
    )
    assert [one["name"] for one in found] == ["--tool-call-parser none"]
    assert lines == [["some/model", "--served-model-name", "made", "--host", "localhost", "--port", "8000"]]


def test_what_still_works_does_not_refuse() -> None:
    (one,) = problems({"flags": {"mamba-cache-mode": "align"}})
    assert (one.kind, one.refuses, one.because) == ("deprecated", False, "it has no effect")
    assert found({"flags": {"attention-config.backend": "TRITON_ATTN"}}) == []
    assert found({}, user=("VLLM_DIST_IDENT", "OTHER_GONE")) == []


class OddError(Exception):
    """An error of a kind that no version of sparkwright knows."""


class Parser(argparse.ArgumentParser):
    """Parses well what it is not told to fail on."""

    def validate(self, parsed: argparse.Namespace) -> None:
        if isinstance(parsed.fails, BaseException):
            raise parsed.fails

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return argparse.Namespace(fails=args[0])


@pytest.mark.parametrize(
    "error",
    [OddError("template is missing"), FileNotFoundError("missing.yaml"), SystemExit(2), RuntimeError("x"),
     check_options.RefusedError("template is missing")],
)  # fmt: skip
def test_one_command_lines_error_is_its_own(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_options, "refused_values", lambda _: "")
    parser = Parser()
    lines: list[Any] = [[error], ["good"]]
    bad, good = (check_options.parse(parser, line) for line in lines)
    assert str(error) in bad
    assert good == ""


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("chat_template", "@", ["--chat-template: @ is no file"]),
        ("chat_template", "@/here", []),
        ("chat_template", "{{ messages }}" * 400, []),
        ("ssl_certfile", "@", ["--ssl-certfile: @ is no file"]),
        ("ssl_keyfile", "@/gone", ["--ssl-keyfile: @/gone is no file"]),
        ("ssl_ca_certs", "@/here", []),
        ("ssl_ca_certs", None, []),
    ],
)
def test_files_that_open_once_the_model_is_loaded(
    tmp_path: Path, name: str, given: str | None, said: list[str]
) -> None:
    (tmp_path / "here").write_text("{{ messages }}")
    path = given and given.replace("@", str(tmp_path))
    wrong = check_options.unopened(argparse.Namespace(**{name: path}))
    assert [one.replace(str(tmp_path), "@") for one in wrong] == said


def test_an_answer_is_recorded_by_the_files_that_it_names(store: Store, tmp_path: Path) -> None:
    """A template that was not there when the release was asked may be there now."""
    template = tmp_path / "t.jinja"
    line, other = Question(("m", "--chat-template", str(template)), {}, {}), Question(("m",), {}, {})
    calls: list[Any] = []

    def start(_: Path) -> list[str | Path]:
        calls.append(1)
        return [sys.executable, "-c", PROGRAM]

    asked = AskedRelease(store, "1", ("tree",), start)
    assert [one.because for one in asked.ask([line, other]).problems[0]] == ["no template"]
    asked.ask([line, other])
    assert len(calls) == 1
    template.write_text("{{ x }}")
    assert asked.recorded([line]) is None
    assert asked.recorded([other]) is not None
    assert asked.ask([line]).problems == ((),)
    template.write_text("{{ y }}")
    assert asked.recorded([line]) is None


def test_a_problem_is_told_with_what_stands_in_its_place() -> None:
    wrong = Problem("variable", "VLLM_FP8_MOE_BACKEND", DEAD)
    (told,) = _described(CheckedRecipe("r", "", "0.24", "0.24.0", (wrong,)))["problems"]
    assert (told["instead"], told["refuses"]) == ("the flag moe-backend", True)
    assert {"kind", "name", "because", "nearest"} < told.keys()
