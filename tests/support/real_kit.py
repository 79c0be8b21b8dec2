"""A real vLLM for the CPU with faults planted in its Python, and `sparkwright verify` at its address.

Faults are patches in ``planted/``: made for the files of the release, which no carry of the series changes.
"""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sparkwright.carries.patch import parse_patch
from sparkwright.engine.server.launch import start_server
from sparkwright.merge.engine import merge_patchset
from sparkwright.pipeline.job import Job, open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.recipes.recipe import load_recipe
from sparkwright.rehearsal.model import ServedTree
from sparkwright.rehearsal.run import pin_of, python_changes
from sparkwright.rehearsal.stock import prepare_model, write_recipe
from sparkwright.rehearsal.tree import prepare

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).parent / "planted"
TEMPLATE = PLANTED / "tools.jinja"
"""A chat template that describes tools, which the model's own has no place for."""
SERIES = "0.24"
BOOT_S = 900.0
"""Limit of a start: half a minute on two idle cores, and many times that where other programs run."""

REPAIR = "repair-ngram"
"""The release's sampler passes an argument that its kernel for the CPU does not take; later ones take it."""

SEEDED = "repair-seeded"
"""The release takes back draws of seeded requests in a way that generators for the CPU do not offer."""


@dataclass(frozen=True)
class RealServer:
    """The environment and recipe that a server is started from.

    Attributes:
        tree: the installed vLLM.
        model: folder of the model.
        recipe: the recipe without speculation.
        speculative: the same with n-gram drafts.
        tools: the recipe with a chat template that describes tools.
        pieces: the recipe with so small a budget of tokens that every prompt is read in several pieces.
    """

    tree: ServedTree
    model: Path
    recipe: Path
    speculative: Path
    tools: Path
    pieces: Path


def make_server(*patches: str) -> RealServer:
    """Return the merged Python with the *patches* of `PLANTED`, and the recipes that serve it."""
    with open_job(ROOT, BuildOptions(series=SERIES, platform="x86_64")) as job:
        report = merge_patchset(
            job.repository, job.merge_request(job.pristine, job.spec.lock.release.version)
        )
        assert not report.failed
        changes = python_changes(job, report) | dict(_planted(job, report.tree, patches))
        tree = prepare(job, changes, report.version)
        model = prepare_model(job.access, pin_of(job).model, tree.python)
        speculative = write_recipe(job.store, model, speculative=True)
    exact = _exact(tree.recipe)
    tools = _changed(exact, "tools", "[flags]\n", f"[flags]\nchat-template = {json.dumps(str(TEMPLATE))}\n")
    budget = "max-num-batched-tokens = "
    pieces = _changed(exact, "pieces", f"{budget}256", f"{budget}32")
    return RealServer(tree, model, exact, _exact(speculative), tools, pieces)


def _exact(recipe: Path) -> Path:
    """Return the same recipe in single precision, whose rounding hides no fault."""
    return _changed(recipe, "float32", 'dtype = "bfloat16"', 'dtype = "float32"')


def _changed(recipe: Path, name: str, old: str, new: str) -> Path:
    """Write the same recipe with *new* in place of *old*, which it has once, beside it; return the path."""
    text = recipe.read_text()
    assert text.count(old) == 1
    path = recipe.with_name(f"{recipe.stem}-{name}.toml")
    path.write_text(text.replace(old, new))
    return path


def _planted(job: Job, tree: str, patches: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    def read(path: str) -> bytes:
        return job.repository.blob(job.repository.files(tree, [path])[path].blob)

    for name in patches:
        patch = parse_patch((PLANTED / f"{name}.patch").read_bytes(), name=name)
        for path, change in patch.apply(read).items():
            assert change is not None
            yield path, change[1]


@dataclass
class Standing:
    """A server that stands while the block runs, in a thread of its own.

    Attributes:
        server: what is started.
        folder: for its log.
        recipe: what is served; the server's recipe without speculation by default.
        url: its root, once the block has begun.
    """

    server: RealServer
    folder: Path
    recipe: Path | None = None
    url: str = ""
    _ready: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _failed: list[BaseException] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failed:
            raise self._failed[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failed.append(error)
        finally:
            self._ready.set()

    async def _hold(self) -> None:
        recipe = load_recipe(self.recipe or self.server.recipe)
        python = self.server.tree.python
        async with start_server(recipe, folder=self.folder, python=python, boot_s=BOOT_S) as process:
            self.url = process.endpoint.url
            self._ready.set()
            await asyncio.to_thread(self._over.wait)


@dataclass(frozen=True)
class Verified:
    """The result of one ``sparkwright verify``.

    Attributes:
        status: its exit status.
        told: what it printed.
        verdict: ``verdict.json`` of the run.
    """

    status: int
    told: str
    verdict: dict[str, Any]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.verdict["findings"])

    def causes(self, verdict: str) -> list[str]:
        """Check, conclusion and cause of each finding with this verdict."""
        return [
            f"{one['check']}: {one['name']}: {one['cause']}"
            for one in self.findings
            if one["verdict"] == verdict
        ]


def verify(folder: Path, *words: str | Path) -> Verified:
    """Run ``sparkwright verify`` with *words* and the folder *folder* for its results."""
    argv = [sys.executable, "-m", "sparkwright", "verify", "--out", str(folder), *map(str, words)]
    done = subprocess.run(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    path = folder / "verdict.json"
    assert path.is_file(), told
    return Verified(done.returncode, told, json.loads(path.read_text()))


def show(name: str, run: Verified) -> None:
    """Print verdict and coverage, which `make test-verify-real` shows."""
    lines = [line for line in run.told.splitlines() if line.startswith(("Coverage", "not applicable"))]
    print(f"\n{name}: {run.verdict['verdict']}", *lines, sep="\n  ")  # noqa: T201
