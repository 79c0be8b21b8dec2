"""A search among the patchset's carries beside ``git bisect run`` that builds the wheel at each step.

Both search the same commits, each of which adds one carry, and judge by the same command: it looks for the
planted line in ``vllm/v1/sample/sampler.py``. ``git bisect run`` starts each step with a store that holds the
downloads and nothing else, makes no proofs, and takes both ends on trust.

    python scripts/bench/rebuild.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edits import copy_checkout

from sparkwright.pipeline import open_checkout, open_job
from sparkwright.store import open_store

FILE = "vllm/v1/sample/sampler.py"
MARK = "# planted"
PLANTED = "planted"
START = "without-carries"
PATCHSET = "patchsets/spark.toml"
_BROKEN = 255  # ends git bisect, which takes 1 for a bad commit
SPARKWRIGHT = (sys.executable, "-m", "sparkwright")


@dataclass(frozen=True)
class Taken:
    """Wall-clock and CPU seconds of a search, and its steps."""

    wall: float
    cpu: float
    steps: int

    def __str__(self) -> str:
        """Return the time of one step."""
        return f"{self.steps} steps of {self.wall / self.steps:.1f} s (CPU {self.cpu / self.steps:.1f} s)"


def run(words: Sequence[str], root: Path, **variables: str) -> str:
    """Return what a command in *root* prints."""
    environment = {**os.environ, **variables}
    return subprocess.run(words, cwd=root, env=environment, check=True, capture_output=True, text=True).stdout


def timed(words: Sequence[str], root: Path) -> tuple[str, float, float]:
    """Return what a command prints, and its wall-clock and CPU seconds with those of its children."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    said = run(words, root)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return said, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def carries_of(root: Path) -> list[str]:
    """Return the carries that change Python, in order; those on how kernels are compiled are left out."""
    checkout = open_checkout(root)
    return [carry.name for carry in checkout.build_spec("spark").carries if carry.spec.scope != "build"]


def plant(root: Path) -> None:
    """Write a carry that appends a line to one file of the pinned release."""
    with open_job(root) as job:
        repository, pristine, lock = job.repository, job.pristine.tree, job.spec.lock
        old = repository.files(pristine, [FILE])[FILE]
        blob = repository.objects.write("blob", repository.blob(old.blob) + f"{MARK}\n".encode())
        tree = repository.objects.edit(pristine, {FILE: type(old)(blob=blob, mode=old.mode)})
        patch = repository.diff(pristine, tree or pristine, context=0)
    folder = root / "carries" / PLANTED
    folder.mkdir()
    version = lock.release.version
    (folder / f"{version}.patch").write_bytes(patch)
    (folder / "carry.toml").write_text(
        f'format = 2\nname = "{PLANTED}"\ntitle = "Append a line"\nkind = "own"\nscope = "runtime"\n'
        'runner = "both"\nrequires = []\nwhy = "to be found"\nsymptom = "none"\ndrop-when = "never"\n'
        '[evidence]\nlevel = "cpu"\ndemonstrated = []\nclaimed = []\n'
        f'[[revision]]\nrelease = "{version}"\npatch = "{version}.patch"\n'
        f'sdist-sha256 = "{lock.required_sdist().sha256}"\n'
    )


def commit_each(root: Path, names: Sequence[str]) -> None:
    """Commit a patchset without carries, and then one carry more each time."""
    git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost")
    run((*git, "init", "--quiet"), root)
    (root / ".gitignore").write_text(".sparkwright/\ndist/\n")
    path = root / PATCHSET
    text = path.read_text()
    for count in range(len(names) + 1):
        listed = re.sub(r"(?ms)^carries = \[.*?^\]", f"carries = {json.dumps(list(names[:count]))}", text)
        path.write_text(listed)
        run((*git, "add", "--all"), root)
        run((*git, "commit", "--quiet", "--message", f"{count} carries {''.join(names[:count][-1:])}"), root)
        if not count:
            run(("git", "tag", START), root)


def searched(root: Path) -> Taken:
    """Search with ``sparkwright bisect``; both ends are judged as well."""
    look = f"import sys; sys.exit({MARK!r} in open(sys.argv[1]).read())"
    judge = f"run {shlex.join((sys.executable, '-c', look))} {{tree}}/{FILE}"
    words = ("bisect", START, "HEAD", f"--judge={judge}", "--deterministic", "--json")
    said, wall, cpu = timed((*SPARKWRIGHT, *words), root)
    found = json.loads(said)
    if found["changes"] != [f"{PLANTED}:added"]:
        raise SystemExit(f"sparkwright bisect found {found['changes']}")
    return Taken(wall, cpu, len(found["steps"]))


def rebuilt(root: Path) -> Taken:
    """Search with ``git bisect run``, where each step builds the wheel in a store of downloads alone."""
    run(("git", "bisect", "start", "HEAD", START), root)
    step = (sys.executable, str(Path(__file__).absolute()), "--step")
    said, wall, cpu = timed(("git", "bisect", "run", *step), root)
    found = run(("git", "log", "-1", "--format=%s", "refs/bisect/bad"), root).strip()
    if not found.endswith(PLANTED):
        raise SystemExit(f"git bisect found {found}")
    run(("git", "bisect", "reset"), root)
    return Taken(wall, cpu, said.count("running "))


def build_and_look(root: Path) -> int:
    """Build the wheel of the work tree in a new store, and return 1 if it has the planted line."""
    store = open_store()
    with tempfile.TemporaryDirectory(dir=store.home.parent) as scratch:
        clean = open_store(Path(scratch, "store"))
        shutil.copytree(store.files, clean.files, copy_function=os.link, dirs_exist_ok=True)
        unproved = [f"--allow-unproved={name}" for name in carries_of(root)]
        words = ("wheel", "--quiet", "--offline", *unproved, "--out", str(Path(scratch, "dist")))
        _ = run((*SPARKWRIGHT, *words), root, SPARKWRIGHT_HOME=str(clean.home))
        (wheel,) = Path(scratch, "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return MARK.encode() in archive.read(FILE)


def report(results: Mapping[str, Taken]) -> None:
    """Print a line for each search, and the ratio of the times of their steps."""
    for name, taken in results.items():
        print(f"{name:20} {taken}; {taken.wall:.0f} s in all")
    ours, theirs = results.values()
    wall = (theirs.wall / theirs.steps) / (ours.wall / ours.steps)
    cpu = (theirs.cpu / theirs.steps) / (ours.cpu / ours.steps)
    print(f"a step with a rebuild takes {wall:.1f} times as long, and {cpu:.1f} times the CPU time")


def main() -> int:
    """Search by both, and print their times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().step:
        try:
            return build_and_look(Path.cwd())
        except (OSError, subprocess.CalledProcessError) as error:
            print(error, getattr(error, "stderr", ""), file=sys.stderr)
            return _BROKEN
    original = open_checkout(Path(__file__).parent).root
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        copy_checkout(original, root)
        names = carries_of(root)
        plant(root)
        middle = len(names) // 2
        commit_each(root, [*names[:middle], PLANTED, *names[middle:]])
        report({"sparkwright bisect": searched(root), "git bisect run": rebuilt(root)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
