"""Items that run whole suites: faults of servers, recorded runs judged again, attacks, shapes of output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from safety_net import product, serving
from safety_net.product import ROOT, call, inputs, plain, warm

# Where tests say which attack is refused with which class of error. What moves to another file is no
# difference: tests go by their own names.
ATTACKS = (
    "unit/test_carry_folder.py", "unit/test_carry_patch.py", "unit/test_channel_evidence.py",
    "unit/test_channel_faults.py", "unit/test_channel_keys.py", "unit/test_channel_promote.py",
    "unit/test_channel_roots.py", "unit/test_channel_runtime.py", "unit/test_folder_target.py",
    "unit/test_git_remotes.py", "unit/test_lock_check.py", "unit/test_preflight_hostile.py",
    "unit/test_publish_addresses.py", "unit/test_store_abandoned.py",
    "unit/test_store_remote.py", "unit/test_upstream_archive.py", "unit/test_upstream_folder.py",
    "unit/test_engine_client_sse.py", "unit/test_engine_exposition.py", "unit/test_verify_journal.py",
    "unit/test_wheel_archive.py", "unit/test_wheel_hostile.py",
    "integration/test_commit_index.py", "integration/test_upstream_sources.py",
    "integration/test_engine_client_endpoint.py",
)  # fmt: skip
_LEAST_KEYS = 4


def faults(scratch: Path) -> dict[str, Any]:
    """The fault table of `verify`: of each fault and of healthy servers, the verdict of every check.

    Left out: causes, whose figures differ from run to run.
    """
    named = os.environ.get("SAFETY_NET_FAULTS", "")
    return product.fault_table([name for name in named.split(",") if name], scratch / "cases")


def judged(scratch: Path) -> dict[str, Any]:
    """Verdicts and figures of ten recorded runs, judged again from their exchanges: `verify --resume`.

    Left out: how long the judging took, and digests of report files.
    """
    found = {}
    for run in sorted(product.recorded_runs(scratch / "runs").iterdir()):
        journal = run / "journal.jsonl"
        seen = _measured(journal)
        told = call("verify", "--resume", run, "--quiet", "--json", folder=scratch).json
        told.pop("files", None)
        told.get("run", {}).pop("seconds", None)
        found[run.name] = plain(
            {"told": told, "cells": product.figures(run), "measured again": _measured(journal) - seen},
            scratch,
        )
    return found


def _measured(journal: Path) -> int:
    """Return the number of servers and cells in *journal*: judging again adds none."""
    return sum(
        line.startswith(('{"kind":"boot"', '{"kind":"cell"')) for line in journal.open(encoding="utf-8")
    )


def attacks(scratch: Path) -> dict[str, Any]:
    """Return the outcome of every test of an attack, and the classes of error that it was refused with."""
    path = scratch / "attacks.json"
    places = (Path(name) for name in ATTACKS)
    files = [str(path) for at in places for path in (ROOT / "tests" / at.parent).rglob(at.name)]
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "safety_net.watching",
        "-p", "no:cacheprovider",
        "-m", "not slow and not walk", "--basetemp", str(scratch / "pytest"), *files,
    ]  # fmt: skip
    variables = {
        **os.environ,
        "SAFETY_NET_ATTACKS": str(path),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "build")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    if not path.exists():
        raise RuntimeError(done.stdout[-3000:])
    return dict(json.loads(path.read_text()))


def keys(scratch: Path) -> dict[str, Any]:
    """Keys of the output of commands with `--json`, and which have none recorded; values are left out."""
    root, dist, run = inputs(scratch), scratch / "dist", scratch / "runs"
    serving.write_models(scratch / "hub")
    stub = next(serving.small_wheels(scratch / "stubs").glob("vllm-0.33*.whl"))
    sweep = product.recorded_runs(run) / "sweep"
    again = shutil.copytree(sweep, scratch / "again")
    machine = serving.simulate(serving.HOSTS["spark"], scratch / "host")
    machine["PATH"] += os.pathsep + os.environ["PATH"]
    series = ("--series", "0.33", "--kernels", "upstream")
    wheel = call(
        "wheel", *series, "--out", dist, "--root", root, "--quiet", "--json", folder=root, **warm(scratch)
    )
    built = wheel.require().json["path"]
    target = ("--target", scratch / "published")
    published = (*target, "--root", root)
    recipe = "qwen3.6-27b-dflash"
    runs: dict[str, tuple[Any, ...]] = {
        "plan": ("wheel", "--plan", *series), "merge": ("merge", *series), "audit": ("audit", built),
        "publish": ("publish", dist), "status": ("status",),
        "recipe list": ("recipe", "list"), "recipe show": ("recipe", "show", recipe),
        "recipe check": ("recipe", "check", recipe), "preflight": ("doctor", recipe, "--wheel", stub),
        "serve": ("serve", recipe, "--wheel", stub, "--dry-run"),
        "service install": ("service", "install", recipe, "--dry-run"),
        "service status": ("service", "status"),
        "verify": ("verify", "--resume", sweep),
        "verify compare": ("verify", "compare", sweep, again, "--out", scratch / "compared"),
        "carry show": ("carry", "show", "uma-clamp", "--series", "0.33"),
        "doctor": ("doctor",),
        "store status": ("store", "status"),
        "store verify": ("store", "verify"),
        "store prune": ("store", "prune", "--older-than", "1", "--dry-run"),
        "companion list": ("companion", "--list", "--series", "0.33"),
        "channel promote": ("channel", "promote", built, "--to", "nightly", *published),
        "channel show": ("channel", "show", "nightly", *target),
        "channel verify": ("channel", "verify", scratch / "published/channels/nightly"),
        "channel renew": ("channel", "renew", "nightly", *published),
        "channel key show": ("channel", "key", "show", "nightly"),
        "bisect": ("bisect", "0.33@0.31.0", "0.33@0.33.0", "--list"),
    }  # fmt: skip
    cold = {"store verify", "store prune", "store status"}
    found: dict[str, Any] = {"wheel": {"status": wheel.status, "keys": _shape(wheel.json)}}
    declared = product.commands()
    for name, words in runs.items():
        called = (" ".join(map(str, words[:size])) for size in (3, 2, 1))
        options = next(declared[one] for one in called if one in declared)
        given = [
            *words,
            *(["--json"] if "--json" in options else []),
            *(["--quiet"] if "--quiet" in options else []),
        ]
        if "--root" in options and "--root" not in words:
            given += ["--root", root]
        if "--offline" in options:
            given += ["--offline"]
        store = {} if name in cold else warm(scratch)
        told = call(*given, folder=root, HF_HUB_CACHE=str(scratch / "hub"), **{**machine, **store})
        found[name] = {"status": told.status, "keys": _shape(told.json)}
    found["(not recorded)"] = sorted(
        name for name, options in declared.items() if "--json" in options and name not in found
    )
    return found


def _shape(value: Any) -> Any:
    """Return *value* with kinds of values for values, and one entry for the many of a list or a table."""
    if isinstance(value, list):
        merged: Any = None
        for one in map(_shape, value):
            merged = _merged(merged, one)
        return [merged]
    if isinstance(value, dict):
        shapes = {key: _shape(one) for key, one in value.items()}
        distinct = {json.dumps(one, sort_keys=True) for one in shapes.values()}
        if (
            len(shapes) >= _LEAST_KEYS
            and len(distinct) == 1
            and isinstance(next(iter(shapes.values())), dict)
        ):
            return {"*": next(iter(shapes.values()))}
        return shapes
    return "null" if value is None else type(value).__name__


def _merged(one: Any, other: Any) -> Any:
    if one is None or one == other:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _merged(one.get(key), other.get(key, one.get(key))) for key in {*one, *other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    return one if one != "null" else other
