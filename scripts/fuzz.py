"""Give every parser of what others may send many damaged inputs: each parses, or is refused by its own error.

Inputs are this repository's carries, lock, runtimes and recipes, a channel's state, a small wheel, and the
journal and report of a simulated run, damaged by one seed. A parser has two seconds and 1 GiB for an input.
An exception that is no `SparkwrightError`, or a limit passed, is a find, and its input goes to dist/fuzz/.
``--plant`` puts a fault in each parser's place, to see that it is found.

    python scripts/fuzz.py [--cases 10000] [--seed 1] [--only patch …] [--plant]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkwright.base.errors import SparkwrightError
from sparkwright.carries.model import load_carry
from sparkwright.carries.patch import parse_patch
from sparkwright.lock.model import read_lock
from sparkwright.lock.runtime import parse_runtime
from sparkwright.publish.channel import ChannelAction, ChannelState, ListedWheel, decode_state
from sparkwright.publish.owner_report import read_report, require_signed
from sparkwright.recipes.imported import import_recipe
from sparkwright.recipes.recipe import command_lines, load_recipe, recipes
from sparkwright.verify.journal import read_journal
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.source import parse_record

ROOT = Path(__file__).parents[1]
CARRY = "uma-clamp"
SECONDS, BYTES = 2.0, 1 << 30
JUNK = (
    *(b"1e999", b"NaN", b"-1", b"9" * 400, b"0x" + b"f" * 99, b"null", b"true", b"1979-05-27T07:32:00Z"),
    *(
        b"[" * 3000,
        b"{" * 3000,
        b"[]",
        b"{}",
        b'"',
        b"\\",
        b"=" * 99,
        b"@@ -1 +1 @@",
        b"../../etc/passwd",
        b"/",
    ),
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\r\n", "\u202e\u2028".encode()),
)


def damage(data: bytes, chance: random.Random) -> bytes:
    """Return *data* with one to four changes: of bits, bytes, lines, or values."""
    for _ in range(chance.randint(1, 4)):
        at, lines = chance.randrange(len(data) + 1), data.splitlines(keepends=True) or [b""]
        one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(8):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = b"".join([*lines[:one], *lines[one + 1 :]])
            case 3:
                data = b"".join([*lines[:one], lines[other], *lines[one:]])
            case 4:
                lines[one], lines[other] = lines[other], lines[one]
                data = b"".join(lines)
            case 5:
                data = data[:at] + data[at + chance.randint(1, 40) :]
            case 6:  # another value behind a separator
                places = [place for place, byte in enumerate(data) if byte in b"=:,[ "]
                at = chance.choice(places) + 1 if places else at
                data = data[:at] + chance.choice(JUNK) + data[at + chance.choice([0, 0, 1, 8]) :]
            case _:
                data = data[:at] + chance.choice(JUNK) + data[at:]
    return data


def in_file(parse: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """Return *parse*, given the bytes of a file called *name*."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm")) / name

    def given(data: bytes) -> object:
        path.write_bytes(data)
        return parse(path)

    return given


def in_carry(data: bytes) -> object:
    """Parse *data* as the description of a real carry, in a copy of its folder."""
    folder = Path(tempfile.gettempdir()) / f"fuzzed-{os.getpid()}" / CARRY
    if not folder.exists():
        shutil.copytree(ROOT / "carries" / CARRY, folder)
    (folder / "carry.toml").write_bytes(data)
    return load_carry(folder)


def wheel_in(path: Path) -> object:
    """Read every member of the wheel, and its RECORD."""
    with open_archive(path) as archive:
        return [
            parse_record(archive.read(name)) if name.endswith("RECORD") else archive.read(name)
            for name in archive.members
        ]


def small_wheel(folder: Path) -> bytes:
    """Return a wheel of three members."""
    path = folder / "small-1-py3-none-any.whl"
    record = "small.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nsmall-1.dist-info/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (
            ("small.py", "x = 1\n" * 99),
            ("small-1.dist-info/METADATA", "Name: small\n"),
            ("small-1.dist-info/RECORD", record),
        ):
            archive.writestr(zipfile.ZipInfo(name), text)
    return path.read_bytes()


def channel_state() -> bytes:
    """Return the state of a channel with one wheel."""
    name = "vllm-0.33.0+spark.6.0c90a0d0-cp38-abi3-manylinux_2_28_aarch64.whl"
    at, until = "2026-11-29T00:00:00Z", "2027-11-29T00:00:00Z"
    wheel = ListedWheel(
        name, "vllm", "0.33.0+spark.6.0c90a0d0", "a" * 64, 1, at, evidence={"audit": "b" * 64}
    )
    action = ChannelAction("promote", name)
    return ChannelState("stable", 1, "", at, until, action, (wheel,)).payload


def seeds_of(parser: str, folder: Path) -> list[bytes]:
    """Return the whole inputs of *parser*; a simulated run is made in *folder* where it needs one."""
    found = {
        "patch": lambda: ROOT.glob("carries/*/*.patch"),
        "carry": lambda: [ROOT / "carries" / CARRY / "carry.toml"],
        "lock": lambda: [ROOT / "upstream.lock"],
        "runtime": lambda: ROOT.glob("patchsets/*.requirements.txt"),
        "recipe": lambda: (ROOT / "build/sparkwright/recipes/shipped").glob("*.toml"),
    }
    if parser in found:
        return [path.read_bytes() for path in sorted(found[parser]())]
    if parser == "imported":
        return ["\n".join(command_lines(one)).encode() for one in recipes().values() if one.nodes == 1]
    if parser == "wheel":
        return [small_wheel(folder)]
    if parser == "channel":
        return [channel_state()]
    base = [sys.executable, "-m", "sparkwright"]
    run = [
        *base,
        "verify",
        "--demo",
        "--speed",
        "300",
        "--checks",
        "boot,sweep",
        "--levels",
        "1",
        "--out",
        "run",
        "--quiet",
    ]
    subprocess.run(run, cwd=folder, capture_output=True, check=False)
    if parser == "journal":
        return [(folder / "run/journal.jsonl").read_bytes()]
    subprocess.run(
        [*base, "report", "--run", "run", "--out", "report.json", "--yes"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return [(folder / "report.json").read_bytes()]


def parsers() -> dict[str, Callable[[bytes], object]]:
    """Return the parsers, by what they parse."""
    return {
        "patch": lambda data: parse_patch(data, name="fuzzed"),
        "carry": in_carry,
        "lock": in_file(read_lock, "upstream.lock"),
        "runtime": lambda data: parse_runtime(data.decode(errors="replace"), "fuzzed"),
        "recipe": in_file(load_recipe, "fuzzed.toml"),
        "imported": lambda data: import_recipe(data.decode(errors="replace")),
        "channel": lambda data: decode_state(data, "stable", "fuzzed"),
        "report": in_file(lambda path: require_signed(read_report(path), path.name), "report.json"),
        "journal": in_file(lambda path: read_journal(path.parent), "journal.jsonl"),
        "wheel": in_file(wheel_in, "small-1-py3-none-any.whl"),
    }


def planted(data: bytes) -> object:
    """Fail as a parser does that trusts its input."""
    return {b"": 1}[data[:1]]


def fuzz(parser: str, cases: int, seed: int, *, plant: bool) -> int:
    """Run one parser and print one line; returns the number of finds."""
    parse = planted if plant else parsers()[parser]
    chance, finds, parsed, slowest = random.Random(f"{seed} {parser}"), [], 0, 0.0  # noqa: S311 - damage, not secrets
    with tempfile.TemporaryDirectory() as scratch:
        seeds = seeds_of(parser, Path(scratch))
    if not plant:
        for whole in seeds:
            parse(whole)  # else nothing but a refusal would be tried
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    started = time.monotonic()
    for number in range(cases):
        data, begun = damage(chance.choice(seeds), chance), time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            parse(data)
            parsed += 1
        except SparkwrightError:
            pass
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever a parser lets through
            signal.setitimer(signal.ITIMER_REAL, 0)
            kind = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__} at {Path(kind.filename).name}:{kind.lineno}"
            if why not in finds:
                finds.append(why)
                path = ROOT / "dist/fuzz" / f"{parser}-{number}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                print(f"{parser}: {why}: {path}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        slowest = max(slowest, time.monotonic() - begun)
    seconds = time.monotonic() - started
    said = f"{parsed} parsed, {len(finds)} finds, slowest {slowest:.2f} s"
    print(f"{parser:9} {cases} cases in {seconds:.0f} s: {said}", flush=True)
    return len(finds)


def main(words: Sequence[str] | None = None) -> int:
    """Fuzz each parser in a process of its own."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--cases", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", nargs="+", choices=list(parsers()), default=list(parsers()))
    options.add_argument("--plant", action="store_true")
    given = options.parse_args(words)
    if len(given.only) == 1:
        return 1 if fuzz(given.only[0], given.cases, given.seed, plant=given.plant) else 0
    more = ["--cases", str(given.cases), "--seed", str(given.seed), *(["--plant"] if given.plant else [])]
    ended = [
        subprocess.run([sys.executable, __file__, "--only", name, *more], check=False).returncode
        for name in given.only
    ]
    return max(ended)


if __name__ == "__main__":
    sys.exit(main())
