"""Compare device code compiled from candidate sources with that of upstream's wheel, unit by unit.

    python scripts/attest_sources.py _C_stable_libtorch --code sm_120f sm_120 --source cutlass=CLONE@v4.7.0

A source is a clone with a commit or tag, or a folder; a second one of the same name is laid over the first,
as for headers out of a wheel. Each verdict is kept in the store, so that an interrupted run goes on.
`--arches` has to be upstream's own list: it is right when as many units are for each architecture as the
binary has images. First, and after every change of the compiler, the control: units that read no candidate
are equal, and with `--planted FILE OLD NEW` the one that reads FILE is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import zipfile
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.git import FileEntry, open_repository
from sparkwright.native.attest import Image, Verdict, attest_unit, read_images, summary
from sparkwright.native.build import Builder, configured
from sparkwright.native.model import Inputs, SourceTree, Target, Unit
from sparkwright.native.sources import gather_sources, keep_source, read_clone, read_copy
from sparkwright.native.toolchain import configure_environment, prepare_toolchain
from sparkwright.native.workspace import open_workspace
from sparkwright.pipeline import BuildOptions, make_job, open_checkout
from sparkwright.pipeline.job import Job
from sparkwright.store import open_store
from sparkwright.upstream import fetch_artifact

ROOT = Path(__file__).parents[1]
ARCHES = "8.0 8.7 8.9 9.0 10.0 11.0 12.0"
"""The list that gives as many units for each architecture as 0.33.0's aarch64 wheel has images."""
_KIND = "attested-unit"
_RULES = 1
"""Part of a verdict's key: raised when the comparison changes."""


def main() -> int:
    """Compile, compare and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extension")
    parser.add_argument("--series", default="0.33")
    parser.add_argument("--machine", default="aarch64")
    parser.add_argument("--arches", default=ARCHES)
    parser.add_argument(
        "--code", nargs="+", default=["sm_120f", "sm_120"], help="of each unit, the first it has"
    )
    parser.add_argument("--source", action="append", default=[], metavar="NAME=PLACE[@REF]")
    parser.add_argument("--units", nargs="+", default=["*"], help="patterns of their names")
    parser.add_argument("--planted", nargs=3, metavar=("FILE", "OLD", "NEW"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    store = open_store()
    with contextlib.closing(open_repository(store.git)) as repository:
        options = BuildOptions(series=args.series, platform=args.machine)
        job = make_job(open_checkout(ROOT, args.series), store, repository, options)
        verdicts = _attest(job, args)
    print(summary(verdicts))
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in verdicts], indent=1) + "\n", encoding="utf-8")
    return 0


def _attest(job: Job, args: argparse.Namespace) -> list[Verdict]:
    lock, access, target = job.spec.lock, job.access, Target(args.machine, args.arches)
    native = lock.native
    if native is None:
        raise SystemExit(f"{args.series} has no [native] tables")
    sources = gather_sources(lock, access) | _candidates(job, args.source)
    inputs = Inputs(job.pristine.tree, sources, prepare_toolchain(lock, target, access), target)
    builder = Builder(job.store, job.repository, lock, native, ROOT / ".sparkwright" / "compile")
    known = configured(builder, inputs)
    chosen = _chosen(known.configuration.units_of(args.extension), args.code, args.units)
    images = {
        code: _images(job, args, code, inputs.toolchain.cuobjdump) for code in {code for _, code in chosen}
    }
    verdicts, wheel = [], lock.wheels[args.machine].sha256
    with open_workspace(job.store, job.repository, known.tree, inputs.toolchain) as work:
        if args.planted:
            name, old, new = args.planted
            text = (work.root / name).read_text(encoding="utf-8")
            if text.count(old) != 1:
                raise SystemExit(f"{name} does not have {old!r} exactly once")
            (work.root / name).write_text(text.replace(old, new), encoding="utf-8")
        environment = configure_environment(inputs.toolchain, target, work.root, lock)
        for unit, code in chosen:
            asked = [_RULES, known.tree, to_builtins(unit), code, inputs.toolchain.key, wheel, args.planted]
            one = _known(job, key := digest_of(asked))
            if one is None:
                (work.root / unit.output).parent.mkdir(parents=True, exist_ok=True)
                one = attest_unit(unit, code, work, environment, images[code])
                job.store.put_record(_KIND, key, asdict(one))
            verdicts.append(one)
            read = ", ".join(f"{count} of {name}" for name, count in one.read.items())
            print(
                f"{one.outcome:12} {code:8} {one.kernels:5} {one.seconds:6.1f} s  {one.unit}  "
                f"[{read}] {one.why}"
            )
            sys.stdout.flush()
    return verdicts


def _known(job: Job, key: str) -> Verdict | None:
    """Return the verdict that an earlier run kept under *key*."""
    record = job.store.find_record(_KIND, key)
    return None if record is None else Verdict(**record)


def _candidates(job: Job, words: list[str]) -> dict[str, SourceTree]:
    """Return the sources that the command line names, as trees of the store."""
    native = job.spec.lock.native
    files: dict[str, dict[str, FileEntry]] = {}
    origins: dict[str, str] = {}
    for word in words:
        name, _, place = word.partition("=")
        folder, _, ref = place.partition("@")
        pin = native.sources[name] if native else None
        if pin is None:
            raise SystemExit(f"no source {name}")
        found = read_clone(Path(folder), ref, pin.paths).files if ref else read_copy(Path(folder), pin.paths)
        files.setdefault(name, {}).update(found)
        origins[name] = f"{origins[name]} and {place}" if name in origins else place
    return {
        name: SourceTree(
            name=name, tree=keep_source(job.access, content, origins[name]), origin=origins[name]
        )
        for name, content in files.items()
    }


def _chosen(units: tuple[Unit, ...], codes: list[str], patterns: list[str]) -> list[tuple[Unit, str]]:
    counts = Counter(arch for unit in units for arch in unit.arches)
    print("units by architecture:", ", ".join(f"{arch} {count}" for arch, count in sorted(counts.items())))
    pairs = [(unit, next((code for code in codes if code in unit.arches), "")) for unit in units]
    return [
        (unit, code)
        for unit, code in pairs
        if code and any(fnmatch(unit.name, pattern) for pattern in patterns)
    ]


def _images(job: Job, args: argparse.Namespace, code: str, cuobjdump: Path) -> list[Image]:
    """Return the images for *code* of the extension in upstream's wheel."""
    wheel = fetch_artifact(job.store, job.spec.lock.wheels[args.machine], job.access.settings)
    native = job.spec.lock.native
    member = native.extensions[args.extension].member if native else ""
    with job.store.scratch() as scratch, zipfile.ZipFile(wheel) as archive:
        (scratch / "images").mkdir()
        return read_images(Path(archive.extract(member, scratch)), cuobjdump, code, scratch / "images")


if __name__ == "__main__":
    sys.exit(main())
