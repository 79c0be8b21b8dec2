r"""Record which Triton kernels vLLM launches on a GB10, compile them, and write what they take as JSON.

    python record_kernels.py --tree TREE --metadata FOLDER --launches FILE --report REPORT \
        [--known KNOWN] [--jobs 2] [--no-tests]

Runs inside the probe environment: standard library, Triton and the tree. Launches come from
`kernel_launches`, which asks upstream's own wrappers for what the recipes need, and from upstream's tests
of kernels. KNOWN has results by key, and those launches are not compiled again. Each new result is a line
beside REPORT at once.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import multiprocessing
import os
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
from compilekit import Launch, pretend
from kernel_tests import CutOff, cut_off, reason, run_file, stand_in

if TYPE_CHECKING:
    from collections.abc import Iterator

# Why kernels in some files are not compiled: no recipe for a GB10 comes to them. Of vllm/models, qwen4_exp is
# Qwen3.8-Flash-Next, which has one.
ELSEWHERE = {
    "for AMD cards": ("*rocm*", "*/amd/*", "*aiter*", "*rdna*", "*flydsl*", "*mxfp8/rocm*",
    "*mxfp8_native*"), "for Intel cards": ("*xpu*",), "for CPUs": ("*/cpu/*", "*cpu_*"),
    "for another capability": ("*sm90*", "*megamoe*", "*msa_cutlass*", "*deep_gemm*", "*deepgemm*"),
    "of a model without a recipe": ( "vllm/models/[!q]*", "*/kda.py", "*lightning_attn*", "*minimax*",
    "*mhc/*", "*bailing*", "*olmo*", "*diffusion_gemma*", "*cohere*", "*deepencoder*", "*attention/dsa/*",
    "*sparse*", "*mla/indexer.py", "*mla/compressor*", "*recoverssm*", "*fp8_mqa_logits*",
    "*engram*" ), "of LoRA, which no recipe uses": ("vllm/lora/*", "*lora*"),
    "of a cache or an option that no recipe uses": ( "*turboquant*", "*ultraquant*", "*int4_per_token*",
    "*diffkv*", "*batch_invariant*", "*kv_connector*", "*dcp*", "*cp_utils*", "*deepep*", "*swap_blocks*",
    "*flash_maxsim*", "*watermark*", "*xpress*", "*trace_replay*", "*replayssm*", "*prompt_embeds*",
    "*batch_shard*", "*int8_utils*", "*awq*", "*qutlass*", "*mxfp8*", "*mxfp4*", "*gpt_oss_triton*",
    "*spec_decode/fly*", "*emulation*", "*_ngram*", "*ngram/*" ), "checks Triton itself": ("*jit_monitor*",
    "*force_first_config*"),
}  # fmt: skip
TEST_SECONDS = 1.5  # of CPU time for one run of a test
FROM_TESTS = 12  # launches of one kernel that tests may add
COMPILE_SECONDS = 240


def functions_of(tree: Path) -> dict[str, str]:
    """Return every function with ``triton.jit`` in the tree by module and name, and its file."""
    found = {}
    for file in sorted((tree / "vllm").rglob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if "jit" not in text or "triton" not in text:
            continue
        path = file.relative_to(tree)
        for node, inside in _functions(ast.parse(text), ""):
            if any("triton.jit" in ast.unparse(mark) for mark in node.decorator_list):
                module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
                found[f"{module}.{inside}{node.name}"] = str(path)
    return found


def _functions(tree: ast.AST, inside: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, inside
        name = f"{inside}{node.name}." if isinstance(node, ast.ClassDef) else inside
        yield from _functions(
            node, f"{inside}{node.name}.<locals>." if isinstance(node, ast.FunctionDef) else name
        )


def why_elsewhere(path: str) -> str:
    """Return why no recipe comes to the kernels in *path*; empty if one may."""
    for why, patterns in ELSEWHERE.items():
        if any(fnmatch.fnmatch(path, pattern) for pattern in patterns):
            return why
    return ""


def tests_of(tree: Path, functions: dict[str, str]) -> list[Path]:
    """Return upstream's tests that name a module with a kernel that recipes may come to."""
    modules = {name.split("vllm.", 1)[0] + ".".join(Path(path).with_suffix("").parts)
               for name, path in functions.items() if not why_elsewhere(path)}  # fmt: skip
    found = []
    for file in sorted((tree / "tests").rglob("test_*.py")):
        path = str(file.relative_to(tree))
        if why_elsewhere(path) or any(part in path for part in ("distributed", "entrypoints", "compile/")):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if "cuda" in text and any(
            f"{module} import" in text or f"import {module}" in text for module in modules
        ):
            found.append(file)
    return found


def record(
    tree: Path, functions: dict[str, str], launches: Path, *, tests: bool
) -> tuple[dict[str, tuple[Launch, str, int]], dict[str, str]]:
    """Return launches by key with where each came from, and what could not be launched and why."""
    card = pretend(121)
    import torch
    from cpu_tensors import move_tensors

    torch.set_num_threads(1)
    move_tensors(card.arch)
    cases = runpy.run_path(str(launches))["cases"]
    found = Found()
    failed: dict[str, str] = {}
    for label, launch in cases(tree):
        try:
            with cut_off(60):
                launch()
        except (Exception, CutOff) as error:  # noqa: BLE001 - named in the report
            failed[label] = reason(error)
        found.add(card.taken(), label)
    if tests:
        stand_in()
        for file in tests_of(tree, functions):
            run_file(file, tree, TEST_SECONDS)
            known = [one for one in card.taken() if one.name in functions]
            found.add(known, f"upstream's {file.name}", most=FROM_TESTS)
    return found.launches, failed


class Found:
    """Launches by key, each with its origin and the autotuned launch that it is a configuration of."""

    def __init__(self) -> None:
        self.launches: dict[str, tuple[Launch, str, int]] = {}
        self._counts: Counter[tuple[str, bool]] = Counter()

    def add(self, launches: list[Launch], origin: str, *, most: int = 1 << 30) -> None:
        """Add those of *launches* that are new; *most* of one kernel, where autotuned ones come whole."""
        by_key = {one.key: one for one in launches}
        # Tuned once more, a kernel has the same configurations, and more where fewer were pruned.
        groups = {one.tuning: self.launches[key][2] for key, one in by_key.items() if key in self.launches}
        for key, one in by_key.items():
            counted = (one.name, most < 1 << 30)
            if key not in self.launches and (self._counts[counted] < most or one.tuning):
                self._counts[counted] += 1
                self.launches[key] = (one, origin, groups.get(one.tuning, one.tuning) if one.tuning else 0)


def described(launch: Launch, origin: str, tuning: int) -> dict[str, Any]:
    """Return what is said of *launch* beside its result."""
    return {
        "kernel": launch.name,
        "origin": origin,
        "constants": launch.constants,
        "warps": launch.options.get("num_warps"),
        "stages": launch.options.get("num_stages"),
        "tuning": tuning,
    }


def compile_one(key: str) -> tuple[str, dict[str, Any]]:
    """Compile the launch of that *key*; runs in a fork, which has all of them."""
    helpers: list[str] = []
    try:
        _note_helpers(helpers)
        with cut_off(COMPILE_SECONDS):
            usage = LAUNCHES[key].compile()
    except (Exception, CutOff) as error:  # noqa: BLE001 - named in the report
        return key, {"refused": reason(error)}
    return key, {**vars(usage), "helpers": sorted(set(helpers))}


LAUNCHES: dict[str, Launch] = {}


def _note_helpers(helpers: list[str]) -> None:
    """Note in *helpers* which other functions with ``triton.jit`` become part of the kernel."""
    from triton.compiler.code_generator import CodeGenerator

    call = getattr(CodeGenerator, "plain_call", CodeGenerator.call_JitFunction)

    def noted(self: Any, function: Any, *args: Any, **options: Any) -> Any:
        if function.__module__.startswith("vllm."):
            helpers.append(f"{function.__module__}.{function.__qualname__}")
        return call(self, function, *args, **options)

    CodeGenerator.plain_call, CodeGenerator.call_JitFunction = call, noted


def main() -> int:
    """Record, compile what is not known, and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--metadata", type=Path, required=True, help="holds a dist-info folder")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--launches", type=Path, required=True, help="a file that has cases(tree)")
    parser.add_argument("--known", type=Path, help="results by key")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-tests", action="store_true", help="without upstream's tests")
    args = parser.parse_args()
    tree = args.tree.resolve()
    sys.path[:0] = [str(tree), str(args.metadata)]
    functions = functions_of(tree)
    found, failed = record(tree, functions, args.launches, tests=not args.no_tests)
    known = json.loads(args.known.read_text(encoding="utf-8")) if args.known else {}
    LAUNCHES.update({key: launch for key, (launch, *_) in found.items()})
    results = {key: known[key] for key in found if key in known}
    fresh = [key for key in found if key not in known]
    with (
        multiprocessing.get_context("fork").Pool(args.jobs) as pool,
        args.report.with_suffix(".jsonl").open("w", encoding="utf-8") as lines,
    ):
        for key, result in pool.imap_unordered(compile_one, fresh):
            results[key] = result
            lines.write(json.dumps([key, result]) + "\n")
            lines.flush()
    import triton

    report = {
        "triton": triton.__version__,
        "functions": {name: [path, why_elsewhere(path)] for name, path in functions.items()},
        "failed": failed,
        "fresh": len(fresh),
        "launches": {key: described(*found[key]) | result for key, result in results.items()},
    }
    args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
