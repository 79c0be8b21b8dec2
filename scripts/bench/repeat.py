"""A repeated ``sparkwright wheel``, whole processes: nothing changed, and after edits of one carry.

A copy of the checkout is edited, never the checkout itself. An edit of prose changes what the wheel says
of itself; an edit of a patch changes the code, and with it the proof that has to be made.

    python scripts/bench/repeat.py [--runs 5]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparkwright.carry import load_carry
from sparkwright.git import FileEntry, open_repository, patch_tree
from sparkwright.merge.prepare import prepare
from sparkwright.plan import open_checkout
from sparkwright.store import open_store
from sparkwright.upstream import Access, open_source, read_settings

CARRY = "tie-weights"
COPIED = ("upstream.lock", "patchsets", "carries")


def wheel(root: Path, *options: str) -> float:
    """Seconds that one whole ``sparkwright wheel`` in *root* takes."""
    command = [sys.executable, "-m", "sparkwright", "wheel", "--quiet", "--root", str(root), *options]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def never_seen() -> str:
    """A text that no earlier run of this script has used: the store would know its results."""
    return str(time.time_ns())


def edit_prose(root: Path) -> None:
    """Change the carry's title."""
    path = root / "carries" / CARRY / "carry.toml"
    text = path.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("title = "))
    path.write_text(text.replace(line, f'title = "Edited: {never_seen()}"'), encoding="utf-8")


def edit_patch(root: Path) -> None:
    """Add a comment to the end of the file that the carry changes, as a new form of its revision."""
    checkout, store = open_checkout(root), open_store()
    repository = open_repository(store.git)
    lock, carry = checkout.lock, load_carry(root / "carries" / CARRY)
    pristine = open_source("index", Access(store, repository, read_settings())).pristine(lock).tree
    ready = prepare(
        repository, [carry], version=lock.release.version, find_base=lambda _: pristine, offline=True
    )[0]
    if ready.change is None:
        raise SystemExit(ready.refusal)
    path = carry.patch(carry.spec.revision[0]).paths[0]
    data = repository.blob(repository.files(ready.change.theirs, [path])[path].blob)
    edited = FileEntry("100644", data + f"\n# edited: {never_seen()}\n".encode())
    tree = patch_tree(repository, ready.change.theirs, {path: edited})
    patch = carry.folder / carry.spec.revision[0].patch
    patch.write_bytes(repository.diff(pristine, tree, context=0))
    repository.close()


def report(what: str, seconds: list[float]) -> None:
    """One line: the median and its range."""
    print(f"{what:44} {statistics.median(seconds):5.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")


def main() -> None:
    """Time each kind of repetition and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    runs = range(1, parser.parse_args().runs + 1)
    original = open_checkout(Path(__file__).parent).root
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name in COPIED:
            source = original / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, root / name)
        wheel(root)
        report("nothing changed", [wheel(root) for _ in runs])
        prose, unproved, proved = [], [], []
        for _ in runs:
            edit_prose(root)
            prose.append(wheel(root))
        report("a carry's prose edited", prose)
        for _ in runs:
            edit_patch(root)
            unproved.append(wheel(root, "--allow-unproved", CARRY))
        report("a carry's patch edited, proof not asked for", unproved)
        for _ in runs:
            edit_patch(root)
            proved.append(wheel(root))
        report("a carry's patch edited, and proved", proved)


if __name__ == "__main__":
    main()
