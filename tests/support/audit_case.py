"""A healthy wheel with upstream's kernels, what it is held against, and ways to spoil its members."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wheelkit

from sparkwright.base.digests import to_json
from sparkwright.lock.model import Artifact, Lock, Release
from sparkwright.wheel.assemble import AssemblyPlan, assemble
from sparkwright.wheel.audit import audit
from sparkwright.wheel.binaries import Expectation

OURS = "0.24.0+spark.1a2b3c4d"
INFO = f"vllm-{OURS}.dist-info"
BIG = "vllm/_big.abi3.so"
RECORD_OF_OURS = {
    "point.json": wheelkit.point_of(OURS),
    "carries.json": {
        "format": 1,
        "carries": [
            {
                "name": "clamp", "title": "Clamp it", "evidence": {"level": "cpu"}, "outcome": "applied",
                "proof": {"key": "k1", "verdict": "proved"},
            },
            {"name": "align", "title": "Align it", "outcome": "applied", "unproved": ""},
            {"name": "old", "title": "Old", "outcome": "superseded"},
        ],
    },
}  # fmt: skip
CHANGES = {
    "vllm/core.py": b"def step(n: int) -> int:\n    return n + 2\n",
    "vllm/config/new.py": b"NEW = 1\n",
    "vllm/old.py": None,
    "tests/test_core.py": b"def test(): ...\n",
}
Files = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A healthy wheel and what it is held against."""

    wheel: Path
    expectation: Expectation
    plan: AssemblyPlan


def make_case(folder: Path) -> Case:
    """Return the healthy wheel, made in *folder*."""
    upstream = wheelkit.upstream_wheel(
        folder / "upstream", extra={BIG: wheelkit.elf(payload=b"big " * 400_000)}
    )
    artifact = Artifact(
        filename=upstream.name, sha256=wheelkit.sha256(upstream), size=upstream.stat().st_size
    )
    release = Release(
        version="0.24.0", commit="ee0da84ab", git="https://example.org/vllm", requires_python=">=3.10,<3.15",
        torch="2.11.0",
    )  # fmt: skip
    lock = Lock(format=1, release=release, sdist=artifact, wheels={"aarch64": artifact}, sources={})
    plan = AssemblyPlan(upstream, artifact.sha256, OURS, CHANGES, RECORD_OF_OURS, lock=lock)
    wheel = assemble(plan, folder / "dist").path
    return Case(wheel, Expectation(upstream, artifact, lock, CHANGES, OURS, record=RECORD_OF_OURS), plan)


def verdicts(wheel: Path, expectation: Expectation) -> dict[str, str]:
    """Return the verdict of each check."""
    report = audit(wheel, expectation)
    return {check.name: check.verdict for check in report.checks}


def failed(wheel: Path, expectation: Expectation) -> set[str]:
    """Return the checks that fail."""
    return {name for name, verdict in verdicts(wheel, expectation).items() if verdict == "fail"}


def put(name: str, content: bytes) -> Callable[[Files], object]:
    """Return a change that gives the member *name* that *content*."""
    return lambda files: files.update({name: content})


def edit(file: str, change: Callable[[Any], object]) -> Callable[[Files], object]:
    """Return a change of the JSON in a *file* of the record."""

    def spoil(files: Files) -> None:
        name = f"{INFO}/sparkwright/{file}"
        value = json.loads(files[name])
        change(value)
        files[name] = to_json(value)

    return spoil


def swap(name: str, old: bytes, new: bytes) -> Callable[[Files], object]:
    """Return a change that puts *new* for *old* in the member *name*, which has it."""

    def change(files: Files) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change
