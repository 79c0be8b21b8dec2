"""The items: each returns what a checkout does in one respect, as JSON, with nothing that changes by itself.

Normalised, everywhere: folders of this run become ``SCRATCH``, the checkout ``ROOT``, the interpreter
``PYTHON``, the user's store ``STORE``. What an item leaves out besides is said in its text.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safety_net import product, serving, suites
from safety_net.product import call, inputs, plain, warm

SERIES = ("0.24", "0.33")
PLATFORMS = ("aarch64", "x86_64")
EXTENSIONS = {"0.24": ("_C_stable_libtorch", "_moe_C_stable_libtorch", "cumem_allocator", "spinloop")}
RELEASES = ("0.24.0", "0.28.0", "0.31.0", "0.33.0")


def wheels(scratch: Path) -> dict[str, Any]:
    """Digests of the wheels of both series and platforms with upstream's kernels, and their proofs' keys.

    Left out: where the wheel and its evidence lie, and whether a step's result was in the store.
    """
    root, found = inputs(scratch), {}
    for series, platform in itertools.product(SERIES, PLATFORMS):
        options = ("--series", series, "--platform", platform, "--kernels", "upstream", "--root", root)
        words = (*options, "--out", scratch / "dist", "--quiet", "--json")
        told = call("wheel", *words, folder=root, **warm(scratch)).require().json
        wheel = Path(told.pop("path"))
        del told["install"]
        told["name"], told["digest of the file"] = wheel.name, _sha256(wheel)
        wheel.unlink()
        steps = call("wheel", "--plan", *words, folder=root, **warm(scratch)).require().json["steps"]
        named = {step["name"]: [step["key"], step["evidence"]] for step in steps}
        told["keys"] = {name: key for name, key in named.items() if name not in {"place", "index"}}
        found[f"{series} {platform}"] = told
    return found


def native(scratch: Path) -> dict[str, Any]:
    """Keys of the steps of `plan --kernels native`, and of the units of four extensions of 0.24.

    Of the others the store had no toolchain or no sources: these are not recorded.
    Left out: whether a result or a proof was in the store, and estimates of what is left.
    """
    root, found = inputs(scratch), {}
    for series in SERIES:
        units = product.merge_into_store(root, series, "aarch64", EXTENSIONS.get(series, ()))
        words = ("--series", series, "--kernels", "native", "--offline", "--root", root, "--quiet", "--json")
        told = call("wheel", "--plan", *words, folder=root, **warm(scratch)).require().json
        steps = {step["name"]: [step["key"], step["code"]] for step in told.pop("steps")}
        known = {f"compile {name}" for name in units}
        told.pop("notice", None)
        steps = {
            name: key
            for name, key in steps.items()
            if name in known
            or not name.startswith(("compile", "binaries", "assemble", "audit", "place", "index"))
        }
        found[series] = {**told, "keys": steps, "units": units}
    return found


def merges(scratch: Path) -> dict[str, Any]:
    """Return the output of `merge --json` for both series on four releases.

    Left out: evidence from beyond the pin, which grows with the store.
    """
    root, found = inputs(scratch), {}
    for series, release in itertools.product(SERIES, RELEASES):
        words = ("merge", "--series", series, "--onto", release, "--kernels", "upstream", "--root", root)
        told = call(*words, "--quiet", "--json", folder=root, **warm(scratch)).require().json
        if not release.startswith(series):
            told.pop("evidence", None)
        found[f"{series} on {release}"] = told
    return found


def audits(scratch: Path) -> dict[str, Any]:
    """Verdicts of the audit on small wheels, healthy and tampered with in more than 90 ways."""
    return dict(product.audited(scratch))


def codes(_: Path) -> dict[str, Any]:
    """The exit code of every class of error."""
    return product.exit_codes()


def bisection(_: Path) -> dict[str, Any]:
    """The evaluations of planted bisections in order: changes applied as a mask, attempt, verdict."""
    names = [f"c{number}" for number in range(1, 18)]
    found: dict[str, Any] = {}

    def search(
        title: str, rule: Callable[[frozenset[str]], str], axis: str = "carries", **fields: Any
    ) -> None:
        rate, seed, many = fields.pop("rate", 1.0), fields.pop("seed", 0), fields.pop("many", len(names))
        weights, requires = fields.pop("weights", {}), fields.pop("requires", {})

        def evaluate(applied: frozenset[str], attempt: int) -> tuple[str, str]:
            chance = random.Random(f"{seed} {attempt} {sorted(applied)}").random()  # noqa: S311 - no secret
            verdict = rule(applied)
            verdict = "good" if verdict == "bad" and chance >= rate else verdict
            return verdict, "AssertionError: 3 of 4 answers differ" if verdict == "bad" else ""

        fields = {"deterministic": True, **fields}
        asked, result = product.searched(
            names[:many], axis, evaluate, weights=weights, requires=requires, **fields
        )
        found[title] = {"asked": " ".join(asked), "result": result}

    def has(*culprits: str, untestable: range = range(0)) -> Callable[[frozenset[str]], str]:
        judged = {True: "bad", False: "good"}
        return lambda a: "untestable" if len(a) in untestable else judged[a >= {*culprits}]

    def lacks(name: str) -> Callable[[frozenset[str]], str]:
        return lambda applied: "good" if name in applied else "bad"

    for number, name in enumerate(names):
        before = names[number - 1]
        search(f"one, {name}", has(name))
        search(f"suspected, {name}", has(name), weights={name: 100.0, before: 100.0})
        search(f"wrongly suspected, {name}", has(name), weights={before: 1000.0})
        search(f"commit, {name}", has(name), "upstream")
        search(f"requires, {name}", has(name), requires={name: (before,)} if number else {})
        search(f"fixed, {name}", lacks(name), direction="fixed")
        search(f"flake of 60 %, {name}", has(name), rate=0.6, seed=number, deterministic=False)
        search(f"flake of 30 %, {name}", has(name), rate=0.3, seed=number, deterministic=False)
        search(
            f"untestable middle, {name}",
            has(name, untestable=range(7, 10)),
            "upstream",
        )
    for pair in itertools.combinations(names, 2):
        search(f"pair, {' '.join(pair)}", has(*pair))
    for number in range(1, 10):
        search(f"commit of nine, c{number}", has(f"c{number}"), "upstream", many=9)
    search("none", lambda _: "good")
    search("always", lambda _: "bad")
    either = lambda applied: "bad" if applied & {"c3", "c11"} else "good"  # noqa: E731
    search("either", either)
    return found


def index(scratch: Path) -> dict[str, Any]:
    """Every page that `publish` writes over small wheels of both series, and what it prints."""
    dist = serving.small_wheels(scratch / "dist")
    told = call("publish", dist, "--root", inputs(scratch), "--quiet", "--json", folder=scratch)
    pages = {
        path.relative_to(dist).as_posix(): (
            _sha256(path) if path.suffix in {".txt", ".metadata"} else path.read_text(encoding="utf-8")
        )
        for path in sorted(dist.rglob("*"))
        if path.is_file() and path.suffix not in {".whl", ".lock"}
    }
    return {"status": told.status, "told": plain(told.json, scratch), "pages": plain(pages, scratch)}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


ITEMS: dict[str, Callable[[Path], dict[str, Any]]] = {
    # Those that take longest begin.
    "faults": suites.faults,
    "starts": serving.starts,
    "wheels": wheels,
    "attacks": suites.attacks,
    "native": native,
    "merges": merges,
    "judged": suites.judged,
    "keys": suites.keys,
    "audits": audits,
    "memory": serving.memory,
    "services": serving.services,
    "bisection": bisection,
    "index": index,
    "codes": codes,
}
