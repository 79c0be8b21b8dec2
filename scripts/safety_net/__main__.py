"""Record what this checkout does, or compare it with what was recorded.

    python scripts/safety_net compare [--only NAME …]       # exit status 1 if anything differs
    python scripts/safety_net record [--only NAME …]
    python scripts/safety_net list

Every item is a program of its own, two at a time, with a scratch folder of its own. What it returns is JSON:
``tests/safety-net/NAME.json.xz`` has it as recorded. An item that fails is one difference. Differences that a
step intends are listed in ``tests/safety-net/accepted.toml``; an entry that matches none is an error.

Carries, patchsets and locks are those of the commit in `product.START`, whatever the work tree has, so that
differences are the code's. Adapters to modules of the product are all in ``product.py``.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from collections.abc import Iterable

from safety_net.differences import FAILED, Accepted, Difference, differences
from safety_net.items import ITEMS
from safety_net.product import START

ROOT = Path(__file__).parents[2]
NET = ROOT / "tests" / "safety-net"
_SHOWN = 25


def main() -> int:
    """Record or compare; return 1 if anything differs, or could not be recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare", "list", "item"))
    parser.add_argument("--only", action="append", choices=tuple(ITEMS), metavar="NAME", default=[])
    parser.add_argument("--net", type=Path, default=NET, help="folder of the recordings")
    parser.add_argument("--all", action="store_true", help="print every difference")
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)  # of `item`
    given = parser.parse_args()
    names = given.only or [*ITEMS]
    if given.action == "list":
        for name, item in ITEMS.items():
            print(f"{name:12} {(item.__doc__ or '').splitlines()[0]}")
        return 0
    if given.action == "item":
        return _item(names[0], given.scratch)
    with ThreadPoolExecutor(2) as pool:
        found = zip(names, pool.map(_made, names), strict=True)
        if given.action == "record":
            return _record(found, given.net)
        return _compare(found, given.net, most=sys.maxsize if given.all else _SHOWN)


def _item(name: str, scratch: Path) -> int:
    """Make one item; write it to *scratch*."""
    try:
        value = ITEMS[name](scratch)
    except BaseException:  # noqa: BLE001 - whatever it is, it is what became of the item
        value = {FAILED: traceback.format_exc()}
    (scratch / "item.json").write_text(json.dumps(value, sort_keys=True), encoding="utf-8")
    return 0


def _made(name: str) -> Any:
    """Return what the item *name* returns in a process of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"net-{name}-") as folder:
        scratch = Path(folder)
        command = [sys.executable, "-P", __file__, "item", "--only", name, "--scratch", folder]
        log = scratch / "log.txt"
        with log.open("wb") as stream:
            done = subprocess.run(
                command, cwd=folder, env=_environment(scratch), stdin=subprocess.DEVNULL,
                stdout=stream, stderr=stream, check=False,
            )  # fmt: skip
        path = scratch / "item.json"
        told = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        value = json.loads(path.read_bytes()) if path.exists() else {FAILED: f"{done.returncode}\n{told}"}
        for one in scratch.rglob("*"):  # some tests leave folders that cannot be removed
            if one.is_dir() and not one.is_symlink():
                one.chmod(0o755)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(exist_ok=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return value


def _environment(scratch: Path) -> dict[str, str]:
    """Return variables with nothing of the user's but what installs packages; folders are in *scratch*."""
    kept = (
        "PATH",
        "SAFETY_NET_",
        "PIP_",
        "UV_",
        "SSL_",
        "REQUESTS_",
        "HTTP",
        "http",
        "NO_PROXY",
        "no_proxy",
        "TMPDIR",
    )
    home = scratch / "home"
    home.mkdir()
    return {
        **{name: value for name, value in os.environ.items() if name.startswith(kept)},
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "200",
        "HOME": str(home),
        "SPARKWRIGHT_HOME": str(scratch / "store"),
        "SPARKWRIGHT_STORE_CONFIG": os.devnull,
        "SAFETY_NET_STORE": os.environ.get("SPARKWRIGHT_HOME") or str(Path.home() / ".cache" / "sparkwright"),
        "PYTHONPATH": str(ROOT / "build"),
    }


def _record(found: Iterable[tuple[str, Any]], net: Path) -> int:
    net.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, value in found:
        if FAILED in value:
            print(f"{name} is not recorded: {value[FAILED]}", flush=True)
            failed += 1
            continue
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        path = net / f"{name}.json.xz"
        path.write_bytes(lzma.compress(text.encode(), preset=6))
        print(f"{name}: {len(text)} bytes, {path.stat().st_size} compressed", flush=True)
    return int(failed > 0)


def _compare(found: Iterable[tuple[str, Any]], net: Path, *, most: int) -> int:
    accepted = Accepted.read(net / "accepted.toml")
    wrong, items = 0, []
    for name, value in found:
        items.append(name)
        path = net / f"{name}.json.xz"
        if not path.exists():
            print(f"== {name}: there is no record of it; make one with the commit {START[:12]}", flush=True)
            wrong += 1
            continue
        before = json.loads(lzma.decompress(path.read_bytes()))
        every = (
            [Difference(f"{name}/{FAILED}", "an item", " | ".join(reversed(value[FAILED].split("\n"))))]
            if FAILED in value
            else [*differences(name, before, value)]
        )
        left = accepted.take(every)
        for one in left[:most]:
            print(one)
        more = f", {len(left) - most} more with --all" if len(left) > most else ""
        print(f"== {name}: {len(left)} differences{more}, {len(every) - len(left)} accepted", flush=True)
        wrong += len(left)
    for pattern, count in accepted.used.items():
        if count:
            print(f"accepted {count} of {pattern}: {accepted.reasons[pattern]}")
    unused = accepted.unused(items)
    for pattern in unused:
        print(f"accepted.toml: nothing matches {pattern}")
    return int(bool(wrong or unused))


if __name__ == "__main__":
    sys.exit(main())
