"""Layouts of KV caches beside vLLM's own planning; a real start is predicted in test_rehearsal_real.py."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import DENSE, GEMMA_26B, GPT_OSS, QWEN_27B, QWEN_35B

from sparkwright.engine.installed import EngineFacts
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport
from sparkwright.pipeline.job import Job, open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.rehearsal.model import ServedTree
from sparkwright.rehearsal.run import serve_nearest
from sparkwright.rehearsal.tree import prepare
from sparkwright.serve.preflight.drafter import check_draft_cache
from sparkwright.serve.preflight.kv_plan import KvOptions, KvPlan, plan_kv
from sparkwright.serve.preflight.shape import Attention, ModelShape, model_shape

ROOT = Path(__file__).parents[3]
ASK = ROOT / "tests" / "support" / "ask_planner.py"
MEMORY, LENGTH = 20 << 30, 32768

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Job, MergeReport, ServedTree]]:
    with open_job(ROOT, BuildOptions(series="0.24", platform="x86_64")) as job:
        release = job.spec.lock.release.version
        report = merge_patchset(job.repository, job.merge_request(job.pristine, release))
        served = serve_nearest(job, report)
        assert served is not None
        yield job, report, served


DRAFTERS = ((), (Attention(5, 8, 128),), (Attention(4, 8, 128, 2048), Attention(1, 8, 128)))
TYPES = (("auto", ""), ("fp8", ""), ("nvfp4", ""), ("fp8", "bfloat16"), ("nvfp4", "bfloat16"))


def asked(config: dict[str, Any], drafter: tuple[Attention, ...], options: KvOptions) -> dict[str, Any]:
    """A case for vLLM's planning: what the worker would hand it, with the block size that it would choose."""
    shape = model_shape(config.get("text_config", config))
    plan = plan_kv(replace(shape, attention=shape.attention[:1]), (), options)
    layers: list[dict[str, Any]] = [
        {"kind": "attention", "count": one.layers, "heads": one.kv_heads, "size": one.head_size}
        | {"window": one.window, "dtype": dtype}
        for one, dtype in (
            *((one, options.dtype) for one in shape.attention),
            *((one, options.draft_dtype or options.dtype) for one in drafter),
        )
    ]
    for one in shape.states:
        page = plan.groups[0].page
        layers.append(
            {"kind": "state", "count": one.layers, "bytes": one.bytes(options.drafts, 2), "page": page}
        )
    # Those of a DFlash drafter whose layers keep the whole history, in the order of a worker's.
    drafted = [layers.pop(len(shape.attention)) | {"window": 0} for _ in drafter] if options.together else []
    return {
        "layers": layers,
        "drafter": drafted,
        "block": plan.groups[0].block,
        "batch": options.batch,
        "drafts": options.drafts,
        "prefix_caching": options.prefix_caching,
        "length": LENGTH,
        "memory": MEMORY,
    }


def mixtures(*, saves: bool) -> list[tuple[dict[str, Any], tuple[Attention, ...], KvOptions]]:
    """Models, drafters, types of cache, and prefix caching with drafts or without both."""
    models = (DENSE, QWEN_27B, QWEN_35B, GPT_OSS, GEMMA_26B)
    return [
        (
            config,
            drafter,
            KvOptions(
                dtype=dtype,
                draft_dtype=draft,
                prefix_caching=prefixes,
                drafts=12 if prefixes and drafter else 0,
                batch=2048,
                saves=saves,
            ),
        )
        for config, drafter, (dtype, draft), prefixes in product(models, DRAFTERS, TYPES, (False, True))
    ]


def answers(python: Path, cases: list[tuple[dict[str, Any], tuple[Attention, ...], KvOptions]]) -> list[Any]:
    """What the vLLM of *python* plans for them."""
    done = subprocess.run(
        [python, ASK],
        input=json.dumps([asked(*case) for case in cases]),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def planned(config: dict[str, Any], drafter: tuple[Attention, ...], options: KvOptions) -> dict[str, int]:
    """What preflight plans."""
    plan = plan_kv(model_shape(config.get("text_config", config)), drafter, options)
    return {
        "blocks": MEMORY // plan.block_bytes,
        "tokens": plan.tokens(MEMORY, LENGTH),
        "groups": sum(group.tables for group in plan.groups),
    }


def test_layouts_are_those_of_vllms_planning(opened: tuple[Job, MergeReport, ServedTree]) -> None:
    """Of 150 mixtures of models, drafters and types, and of drafters in one group; by the merged tree."""
    pairs, together = grouped()
    cases = [*mixtures(saves=True), *((*pair, together) for pair in pairs)]
    for case, answer in zip(cases, answers(opened[2].python, cases), strict=True):
        assert answer == planned(*case), case


def short_gpt_oss() -> dict[str, Any]:
    """gpt-oss' layers, twelve of each kind, as in its smaller model."""
    kinds = GPT_OSS["layer_types"][:24]
    return {**GPT_OSS, "num_hidden_layers": 24, "layer_types": kinds}


WINDOWS = (Attention(7, 8, 128, 2048), Attention(1, 8, 128))
ALIKE = (Attention(8, 8, 64),)


def grouped() -> tuple[list[tuple[dict[str, Any], tuple[Attention, ...]]], KvOptions]:
    """DFlash drafters beside targets with fewer layers of a kind, or that have layers like their own."""
    pairs = [
        (config, drafter)
        for config in (DENSE, QWEN_27B, QWEN_35B, GPT_OSS, short_gpt_oss(), GEMMA_26B)
        for drafter in (WINDOWS, ALIKE, (Attention(1, 8, 64),))
    ]
    return pairs, KvOptions(dtype="fp8", batch=2048, together=True)


def test_the_layers_of_a_dflash_drafter_are_in_one_group() -> None:
    """Compare where the sizes differ; the test before this one compares the plan with vLLM's."""
    pairs, together = grouped()
    changed = [pair for pair in pairs if plan_kv(*layout(*pair), together) != without(*pair, together)]
    assert changed == [(short_gpt_oss(), ALIKE), (GEMMA_26B, WINDOWS), (GEMMA_26B, ALIKE)]


def layout(
    config: dict[str, Any], drafter: tuple[Attention, ...]
) -> tuple[ModelShape, tuple[Attention, ...]]:
    """The target's sizes, and the drafter's layers without windows."""
    return model_shape(config.get("text_config", config)), tuple(replace(one, window=0) for one in drafter)


def without(config: dict[str, Any], drafter: tuple[Attention, ...], options: KvOptions) -> KvPlan:
    """Plan the KV cache without the drafter's own group: its layers are dealt out as any others."""
    return plan_kv(*layout(config, drafter), replace(options, together=False))


@pytest.mark.walk  # changes with a lock
def test_what_upstream_refuses_is_refused_before_loading(opened: tuple[Job, MergeReport, ServedTree]) -> None:
    """Upstream's own 0.24.0 cannot plan 28 of them, and preflight refuses exactly these."""
    job, report, _ = opened
    cases = mixtures(saves=False)
    found = answers(prepare(job, {}, report.version).python, cases)
    refused = 0
    for case, answer in zip(cases, found, strict=True):
        config, drafter, options = case
        shape = model_shape(config.get("text_config", config))
        findings = check_draft_cache(shape, drafter, options, EngineFacts(version=report.version))
        assert any(one.check == "draft-kv-pages" and one.level == "refuse" for one in findings) is (
            answer == {}
        )
        assert answer in ({}, planned(*case)), case
        refused += not answer
    assert refused == 28
