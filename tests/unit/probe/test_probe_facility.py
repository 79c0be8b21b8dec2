"""Probes that need something from the outside: what they are told, what a proof hangs on, what goes wrong.

A few lines of Python stand in for CMake: they read a list of units out of the tree's CMakeLists.txt and
write the compiler calls down as CMake does.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit import VERSION, Content, make_tree, share_library, write_carry, write_diff

from sparkwright.base.errors import BusyError, NotInStoreError
from sparkwright.carries.model import Carry, load_carry
from sparkwright.git.repository import Repository
from sparkwright.merge.report import MergedSource
from sparkwright.probe import environment as environment_module
from sparkwright.probe.judge import Prover
from sparkwright.probe.proof import ProbeVerdict
from sparkwright.store.paths import Store

STAND_IN = """
import json, os, pathlib, sys
work = pathlib.Path(sys.argv[1])
assert (work / "build" / "chain.txt").read_text() == f"in {work}"
assert (work / "deps" / "plain" / "here").exists()
assert os.environ["CHAIN"] == f"{work}/chain", "the environment is given whole"
assert "PATH" not in os.environ
arch = os.environ["TORCH_CUDA_ARCH_LIST"]
commands = []
for place in ("source", "deps/flash"):
    lists = work / place / "CMakeLists.txt"
    for line in lists.read_text().splitlines() if lists.exists() else ():
        if line == "fail":
            sys.exit(f"CMake Error in {lists}")
        unit, _, known = line.partition(": ")
        code = arch if arch in known.split() else known.split()[0]
        file = f"{work}/{place}/{unit}"
        argv = f"nvcc -gencode arch=compute_{code},code=sm_{code} -I{work}/source -c {file} -o {unit}.o"
        output = f"{place}/CMakeFiles/_{place[:4]}_C.dir/{unit}.o"
        commands.append({"file": file, "output": output, "command": argv})
(work / "source" / "generated.cu").write_text("configuring writes beside the sources")
(work / "build" / "compile_commands.json").write_text(json.dumps(commands))
"""
PROBE = """
from buildkit import configure, differences, facility
from probekit import expect

def probe():
    units = [unit for unit in configure("121a") if unit.target == "{target}"]
    wrong = [unit.source for unit in units if unit.code != {{"sm_121a"}}]
    arch = facility("toolchain")["arch"]
    expect(units and not wrong, f"{{wrong}} of {{len(units)}} are for others, for {{arch}}")
    changed = differences(configure("80", pristine=True), configure("80"))
    expect(not changed, f"for 80 {{changed}} changed")
    rest = [[unit.rest for unit in configure("121a", pristine=side)] for side in (True, False)]
    expect(rest[0] == rest[1], "more than architectures")
"""
OWN = PROBE.format(target="_sour_C")
FLASH = PROBE.format(target="_deps_C")
LISTS = "CMakeLists.txt"
TREE: dict[str, Content] = {
    LISTS: "a.cu: 80\nb.cu: 80 121a\n",
    "csrc/a.cu": "// a\n",
    "cmake/utils.cmake": "# utils\n",
    "vllm/a.py": "raise SystemExit\n",
}
FIXED = "a.cu: 80 121a\nb.cu: 80 121a\n"
SOURCE: dict[str, Content] = {LISTS: "fa.cu: 80\n", "csrc/fa.cu": "// fa\n"}
NEEDS = {"seconds": 300, "needs": ["toolchain"], "reads": ["cmake/*"]}


@dataclass
class Chain:
    """A facility; it counts how often it had to be made."""

    plain: Path
    key: str = "k1"
    inputs: tuple[str, ...] = (LISTS, "csrc", "cmake", "not there")
    problem: Exception | None = None
    made: list[str] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        self.made.append("made")
        if self.problem is not None:
            raise self.problem
        return {
            "arch": "12.1a",
            "argv": [sys.executable, "-c", STAND_IN, "{work}"],
            "environment": {"CHAIN": "{work}/chain", "TORCH_CUDA_ARCH_LIST": "none"},
            "files": {"build/chain.txt": "in {work}"},
            "links": {"deps/plain": str(self.plain), "deps/flash": str(self.plain)},
        }

    def versions(self) -> dict[str, str]:
        return {"cuda": "13.0"}


@dataclass
class Bench:
    """Proves a change of how `TREE` or `SOURCE` is configured."""

    store: Store
    repository: Repository
    root: Path
    chain: Chain

    def carry(
        self, probe: str = OWN, *, before: Mapping[str, Content] = TREE, lists: str = FIXED, **changes: Any
    ) -> Carry:
        patch = write_diff(self.repository, before, {**before, LISTS: lists})
        folder = write_carry(
            self.root, "fix", patches={VERSION: patch}, probe=probe, probing=NEEDS, scope="build", **changes
        )
        return load_carry(folder)

    def flash(self, probe: str = FLASH) -> Carry:
        based = {"release": VERSION, "source-ref": "v1", "patch": f"{VERSION}.patch"}
        return self.carry(probe, before=SOURCE, lists="fa.cu: 80 121a\n", source="flash", revision=[based])

    def prover(self, lists: str = FIXED, sources: Sequence[MergedSource] = (), **more: Content) -> Prover:
        trees = [
            make_tree(self.repository, {**TREE, **more, LISTS: text}) for text in (str(TREE[LISTS]), lists)
        ]
        facilities = {"toolchain": self.chain}
        return Prover(self.store, self.repository, *trees, "1.0.0", sources=sources, facilities=facilities)

    def source(self, lists: str = "fa.cu: 80 121a\n") -> MergedSource:
        trees = [make_tree(self.repository, {**SOURCE, LISTS: text}) for text in (str(SOURCE[LISTS]), lists)]
        return MergedSource(name="flash", pristine=trees[0], tree=trees[1])


@pytest.fixture
def bench(store: Store, repository: Repository, tmp_path: Path) -> Bench:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "here").touch()
    return Bench(store, repository, tmp_path / "carries", Chain(plain))


@pytest.fixture(autouse=True)
def no_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment with torch is none of this one's business."""

    def refuse() -> str:
        raise AssertionError("the environment for probes was asked for")

    monkeypatch.setattr(environment_module, "requirements", refuse)
    share_library(store)


def test_proved(bench: Bench) -> None:
    proof = bench.prover().prove(bench.carry(), [LISTS])
    assert proof.verdict is ProbeVerdict.PROVED, proof
    assert proof.pristine.message == "['source/a.cu'] of 2 are for others, for 12.1a"
    assert [entry.path for entry in proof.touched] == [LISTS, "cmake/utils.cmake"]
    assert proof.environment["cuda"] == "13.0"
    assert bench.prover().find(bench.carry(), [LISTS]) == proof


@pytest.mark.parametrize(
    ("lists", "verdict", "message"),
    [
        ("a.cu: 80\nb.cu: 80 121a\n", ProbeVerdict.REFUTED, "are for others"),
        ("a.cu: 121a 80\nb.cu: 121a\n", ProbeVerdict.REFUTED, "for 80 ['_sour_C: source/b.cu'] changed"),
        (FIXED + "c.cu: 121a\n", ProbeVerdict.REFUTED, "for 80 ['_sour_C: source/c.cu'] changed"),
        ("fail\n", ProbeVerdict.BROKEN, "ended with status 1: CMake Error in {work}/source/CMakeLists.txt"),
    ],
)
def test_a_change_that_does_not_do_or_does_more(bench, lists, verdict, message):
    proof = bench.prover(lists).prove(bench.carry(), [LISTS])
    assert proof.verdict is verdict
    assert message in proof.merged.message


def test_a_dependencys_source_is_tried_in_the_merged_tree(bench: Bench) -> None:
    proof = bench.prover(sources=[bench.source()]).prove(bench.flash(), [LISTS])
    assert proof.verdict is ProbeVerdict.PROVED, proof
    assert proof.pristine.message.startswith("['deps/flash/fa.cu'] of 1 are for others")
    # The tree that it is tried in decides too, so its files are named; those of the source are marked.
    assert [entry.path for entry in proof.touched] == ["cmake/utils.cmake", f"flash:{LISTS}"]
    lists = proof.touched[1]
    assert lists.pristine != lists.merged
    unchanged = bench.prover(sources=[bench.source("fa.cu: 80\n")]).prove(bench.flash(), [LISTS])
    assert unchanged.verdict is ProbeVerdict.REFUTED


def test_a_source_that_is_not_at_hand_breaks_the_proof(bench: Bench) -> None:
    proof = bench.prover().prove(bench.flash(), [LISTS])
    assert proof.verdict is ProbeVerdict.BROKEN
    assert proof.merged.message == "the source of flash is not in the store"
    assert bench.prover().find(bench.flash(), [LISTS]) is None


def test_a_facility_that_cannot_be_had_breaks_the_proof(bench: Bench) -> None:
    bench.chain.problem = NotInStoreError("the toolchain is not there", because="the network is off")
    proof = bench.prover().prove(bench.carry(), [LISTS])
    assert proof.verdict is ProbeVerdict.BROKEN
    assert proof.merged.message == "the toolchain is not there, because the network is off"
    assert bench.prover().find(bench.carry(), [LISTS]) is None
    trees = bench.prover()
    without = Prover(bench.store, bench.repository, trees.pristine, trees.merged, "1.0.0")
    assert "nothing provides it here" in without.prove(bench.carry(), [LISTS]).merged.message
    bench.chain.problem = BusyError("another run holds the toolchain")
    with pytest.raises(BusyError):
        bench.prover().prove(bench.carry(), [LISTS])


def test_a_key_costs_nothing_and_hangs_on_the_facility_and_what_is_read(bench: Bench) -> None:
    carry = bench.carry()
    plain = bench.prover().key(carry, [LISTS])
    assert bench.chain.made == []
    assert bench.prover().key(carry, [LISTS]) == plain
    bench.chain.key = "k2"
    assert bench.prover().key(carry, [LISTS]) != plain
    bench.chain.key = "k1"
    assert bench.prover(**{"cmake/utils.cmake": "# others\n"}).key(carry, [LISTS]) != plain
    assert bench.prover(**{"csrc/a.cu": "// b\n"}).key(carry, [LISTS]) == plain


def test_the_sources_key_hangs_on_its_trees_and_on_the_one_around_it(bench: Bench) -> None:
    carry = bench.flash()
    plain = bench.prover(sources=[bench.source()]).key(carry, [LISTS])
    assert bench.prover(sources=[bench.source("fa.cu: 121a\n")]).key(carry, [LISTS]) != plain
    other = bench.prover(sources=[bench.source()], **{"cmake/utils.cmake": "# others\n"})
    assert other.key(carry, [LISTS]) != plain
