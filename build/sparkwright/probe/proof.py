"""The record of a proof, and its key.

A proof is kept beside its carry as ``proofs/VERSION.json``, one for each release. Its key is a digest of
the probe, of the harness that ran it, and of both forms of every file of upstream's that it touches: the
files that the carry changes and the modules that the probe names in its imports. When any of them differs,
the proof does not count and is made again.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.store.disk import storing, write_atomically

PROOF_FORMAT = 1
STOPPED = "it was stopped: "  # what the message of a run begins with that was killed at a limit
DISTURBED = "it wrote to the tree under test"  # the message of a run during which its tree changed
_FOLDER = "proofs"


class ProbeVerdict(StrEnum):
    """The verdict on a probe's two runs."""

    PROVED = "proved"
    """Fails on the pristine tree, passes on the merged one."""

    NOT_NEEDED = "not needed here"
    """Passes on both: this upstream does not have the defect. Of an absorbed carry, it has to be so."""

    NOT_ABSORBED = "not absorbed"
    """Fails on the pristine tree, though upstream seems to have the carry: the defect is still there."""

    REFUTED = "refuted"
    """Fails on the merged tree: the carry does not do what it says."""

    BROKEN = "broken"
    """The probe could not run to an end on one of the trees."""


class Touched(Model, frozen=True):
    """A file of upstream's that the proof hangs on: path, and blob id in either tree."""

    path: str
    pristine: str | None
    merged: str | None


class ProbeRun(Model, frozen=True):
    """One run of a probe; `message` is what it found, or why it could not run."""

    verdict: Literal["passes", "fails", "error"]
    message: str

    @property
    def stopped(self) -> bool:
        """Return True for a run that was killed at its limit of time or memory: it judges no tree."""
        return self.verdict == "error" and self.message.startswith(STOPPED)

    @property
    def disturbed(self) -> bool:
        """Return True for a run whose tree changed meanwhile, by the probe or by another run."""
        return self.verdict == "error" and self.message == DISTURBED


class Proof(Model, frozen=True):
    """A judged pair of runs.

    Attributes:
        environment: versions of the interpreter and the packages that matter.
    """

    format: int
    carry: str
    key: str
    verdict: ProbeVerdict
    pristine: ProbeRun
    merged: ProbeRun
    touched: tuple[Touched, ...]
    environment: dict[str, str]

    @property
    def finding(self) -> str:
        """Return what the verdict rests on: what the run with the carry said if that one failed or broke.

        Of a proved carry it is the defect, as the run without it found it; of a needless one, nothing.
        """
        if self.verdict is ProbeVerdict.NOT_ABSORBED:
            return self.pristine.message
        if self.verdict is ProbeVerdict.REFUTED or self.merged.verdict == "error":
            return self.merged.message
        return self.pristine.message


def proof_key(
    probe: bytes, harness: Iterable[bytes], settings: dict[str, Any], touched: Iterable[Touched]
) -> str:
    """Return the key of a proof; see the module's text."""
    return digest_of(
        {
            "format": PROOF_FORMAT,
            "probe": probe.decode(errors="surrogateescape"),
            "harness": [text.decode() for text in harness],
            "settings": settings,
            "touched": [to_builtins(entry) for entry in touched],
        }
    )


def named_modules(probe: bytes, package: str) -> set[str]:
    """Return where files of *package* would be that a probe's import statements name, wherever they stand."""
    stems = [name.replace(".", "/") for name in _imported(probe) if name.split(".")[0] == package]
    return {path for stem in stems for path in (f"{stem}.py", f"{stem}/__init__.py")}


@lru_cache(maxsize=256)  # a plan looks at each probe several times
def _imported(probe: bytes) -> frozenset[str]:
    """Return the names that import statements of *probe* could mean a module by."""
    try:
        left: list[ast.AST] = [ast.parse(probe)]
    except (SyntaxError, ValueError):
        return frozenset()  # running it will tell
    names: set[str] = set()
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        # Expressions hold no imports, and are most of a tree.
        left += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
    return frozenset(names)


def read_proofs(folder: Path) -> tuple[Proof, ...]:
    """Return the proofs recorded in a carry's *folder*, one a release, by the names of their files."""
    return tuple(_read(path) for path in sorted((folder / _FOLDER).glob("*.json")))


def proof_file(version: str) -> str:
    """Return the path of the proof on upstream *version*, relative to the carry's folder."""
    return f"{_FOLDER}/{version}.json"


def _read(path: Path) -> Proof:
    try:
        return decode_json(path.read_bytes(), Proof)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} is not a recorded proof",
            because=str(error),
            next_step="remove it and run 'sparkwright carry prove' to make it again",
        ) from error


def write_proof(folder: Path, proof: Proof, version: str) -> Path:
    """Record *proof*, on upstream *version*, in a carry's *folder*; equal proofs give equal bytes."""
    path = folder / proof_file(version)
    text = json.dumps(to_builtins(proof), indent=1, ensure_ascii=False) + "\n"
    with storing(f"recording the proof of {proof.carry}"):
        write_atomically(path, text.encode())
    return path
