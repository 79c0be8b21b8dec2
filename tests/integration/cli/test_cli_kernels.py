"""Where kernels come from, on the command line: what is chosen, what is left out for it, and who is told."""

import dataclasses
import json
import platform
from pathlib import Path

import msgspec
import pytest
from kit import Content, make_tree, write_diff, write_program
from native_kit import native_tables, offer_toolkit, with_native
from wheelkit import elf, pack, sha256, unpack
from world import World

from sparkwright.base.digests import to_json
from sparkwright.base.errors import MissingSourceError, WheelError
from sparkwright.cli.build import native_hint
from sparkwright.git.repository import open_repository
from sparkwright.lock.model import Candidate, SourcePin
from sparkwright.native.build import record_extension
from sparkwright.native.model import Extension, Target
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, assemble
from sparkwright.wheel.binaries import Expectation
from sparkwright.wheel.kernels import KERNELS, kernels_record
from sparkwright.wheel.names import parse_name

pytestmark = pytest.mark.usefixtures("proved")

C = "vllm/_C.abi3.so"
KERNEL = {"csrc/kernel.cu": "// a kernel for the card\n"}
LISTS = "CMakeLists.txt"
QUACK: dict[str, Content] = {LISTS: "set(ARCHS 8.0)\n", "duck.cu": "// a duck\n"}
FED: dict[str, Content] = {**QUACK, LISTS: "set(ARCHS 8.0 12.1a)\n"}
REF = "89abcdef0123456789abcdef0123456789abcdef"
NOT_COMPILED = "it changes how kernels are compiled; kernels come from upstream's wheel"


def outcomes(world: World, *words: str) -> dict[str, tuple[str, str]]:
    told = world.good("merge", "--json", *words).json["outcomes"]
    return {outcome["carry"]: (outcome["kind"], outcome["detail"]) for outcome in told}


def bring(world: World) -> str:
    """Put the source that `feed` changes into the store, as fetching it would; returns its tree."""
    repository = open_repository(world.store.git)
    try:
        return make_tree(repository, QUACK)
    finally:
        repository.close()


@pytest.fixture
def taking(world: World) -> World:
    """A patchset with a carry for those who compile, and a lock that does not say with what."""
    world.carry("card", KERNEL, scope="build")
    return world


@pytest.fixture
def compiling(world: World, tmp_path: Path) -> World:
    """A lock that says what kernels are compiled with, and two carries for those who do."""
    scratch = open_repository(tmp_path / "elsewhere")
    try:
        pin = SourcePin(ref=REF, tree=make_tree(scratch, QUACK), paths=(LISTS, "duck.cu"))
        patch = write_diff(scratch, QUACK, FED)
    finally:
        scratch.close()
    native = native_tables(offer_toolkit(world.index))
    native = msgspec.structs.replace(native, sources={**native.sources, "quack": pin})
    world.pin(dataclasses.replace(world.release, lock=with_native(world.release.lock, native)))
    world.carry("card", KERNEL, scope="build")
    based = {"release": world.release.version, "source-ref": REF, "patch": "quack.patch"}
    folder = world.carry("feed", {}, scope="build", source="quack", requires=["card"], revision=[based])
    (folder / "quack.patch").write_bytes(patch)
    return world


class TestUpstream:
    def test_they_are_left_out_and_said_to_be(self, compiling: World) -> None:
        found = outcomes(compiling)
        assert found["card"] == found["feed"] == ("left-out", NOT_COMPILED)
        assert found["clamp"][0] == "applied"
        assert NOT_COMPILED in compiling.good("merge").out
        planned = compiling.good("wheel", "--plan")
        assert f"left out card: {NOT_COMPILED}" in planned.out
        assert "upstream's kernels" in planned.out.splitlines()[0]
        rows = {row["name"]: row for row in compiling.good("status", "--json").json["carries"]}
        assert (rows["card"]["outcome"], rows["card"]["proof"]) == ("left-out", "no proof needed")

    def test_the_wheel_is_the_one_without_them(self, taking: World) -> None:
        ran = taking.good("wheel")
        (wheel,) = taking.wheels
        made = wheel.read_bytes()
        assert "left-out" in ran.out
        assert "KERNELS=native" not in ran.out  # the lock does not say with what
        (point,) = (data for path, data in unpack(wheel).items() if path.endswith("/point.json"))
        assert json.loads(point)["kernels"] == "upstream"
        taking.list_carries(["clamp", "align"])
        taking.new_store("another")
        wheel.unlink()
        taking.good("wheel")
        assert taking.wheels == [wheel]
        assert wheel.read_bytes() == made

    def test_native_ones_are_suggested_where_the_lock_says_what_compiles_them(self, compiling: World) -> None:
        assert "KERNELS=native" in native_hint(open_checkout(compiling.root))

    def test_they_need_no_proof(self, compiling: World) -> None:
        told = compiling.good("carry", "prove", "--json").json
        assert told["needless"] == dict.fromkeys(["card", "feed"], f"left-out: {NOT_COMPILED}")
        assert [proof["carry"] for proof in told["proofs"]] == ["clamp", "align"]


class TestNative:
    def test_a_source_that_is(self, compiling: World) -> None:
        tree = bring(compiling)
        told = compiling.good("merge", "--kernels", "native", "--json").json
        (source,) = told["sources"]
        assert (source["name"], source["pristine"]) == ("quack", tree)
        (feed,) = [outcome for outcome in told["outcomes"] if outcome["carry"] == "feed"]
        assert (feed["kind"], feed["source"], feed["paths"]) == ("applied", "quack", [LISTS])
        out = compiling.good("merge", "--kernels", "native").out
        assert f"quack:{LISTS}" in out
        assert source["tree"] in out

    @pytest.mark.parametrize(("attested", "kind"), [((2, 2), "applied"), ((1, 2), "left-out")])
    def test_a_candidate_is_changed_if_anything_is_compiled_from_it(self, compiling, attested, kind):
        tree, lock = bring(compiling), compiling.release.lock
        assert lock.native is not None
        candidate = Candidate(ref="v1", tree=tree, attested={"_duck": attested})
        quack = msgspec.structs.replace(lock.native.sources["quack"], tree=None, candidate=candidate)
        native = msgspec.structs.replace(lock.native, sources={**lock.native.sources, "quack": quack})
        compiling.pin(dataclasses.replace(compiling.release, lock=with_native(lock, native)))
        told = compiling.good("merge", "--kernels", "native", "--json").json
        (feed,) = [outcome for outcome in told["outcomes"] if outcome["carry"] == "feed"]
        changed = [(source["name"], source["pristine"]) for source in told["sources"]]
        assert (feed["kind"], changed) == (kind, [("quack", tree)] if kind == "applied" else [])

    def test_another_point(self, compiling: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def planned(*words: str) -> dict[str, object]:
            found: dict[str, object] = compiling.good("wheel", "--plan", "--json", *words).json
            return found

        upstream, native = planned("--kernels", "upstream"), planned("--kernels", "native")
        hopper = planned("--arch", "9.0a")
        assert len({found["point"] for found in (upstream, native, hopper)}) == 3
        assert [found["arch"] for found in (upstream, native, hopper)] == [None, "12.1a", "9.0a"]
        assert (native["kernels"], native["left-out"]) == ("native", {})
        assert set(upstream["left-out"]) == {"card", "feed"}
        monkeypatch.setitem(compiling.environment, "SPARKWRIGHT_KERNELS", "native")
        assert planned()["point"] == native["point"]
        assert planned("--kernels", "upstream")["point"] == upstream["point"]

    def test_a_plan_says_what_there_is_to_compile(self, compiling: World) -> None:
        def planned(*words: str) -> dict[str, dict[str, str]]:
            steps = compiling.good("wheel", "--plan", "--kernels", "native", "--json", *words).json["steps"]
            return {step["name"]: step for step in steps}

        unproved = ("--allow-unproved", "card", "--allow-unproved", "feed")
        compiling.good("merge")
        compiling.call("wheel", "--kernels", "native", "--offline", *unproved)  # as far as it goes
        step = planned()["compile _C"]
        assert step["state"] == "in store"
        assert step["detail"].startswith("upstream's own: ")
        assert "the network is off" in step["detail"]
        assert f"compile _C: {step['detail']}" in compiling.good("wheel", "--plan", "--kernels", "native").out
        assert planned("--require-native")["compile _C"]["state"] == "waits"

    def test_a_source_that_the_lock_has_no_tree_of(self, compiling: World) -> None:
        lock = compiling.release.lock
        assert lock.native is not None
        pins = {name: msgspec.structs.replace(pin, tree=None) for name, pin in lock.native.sources.items()}
        unknown = with_native(lock, msgspec.structs.replace(lock.native, sources=pins))
        for stated in (unknown, lock):
            compiling.pin(dataclasses.replace(compiling.release, lock=stated))
            compiling.good("merge")
            ran = compiling.call("wheel", "--kernels", "native", "--require-native", "--offline")
            assert ran.status == MissingSourceError.exit_code, ran.said
            assert "sparkwright lock bump 1.2.0 --copy cutlass=FOLDER" in ran.err

    def test_binaries_that_only_say_that_they_were_compiled(self, compiling, tmp_path, monkeypatch):
        stock = compiling.release.lock.wheels["aarch64"].filename
        planned = compiling.good(
            "wheel", "--plan", "--kernels", "native", "--json", "--platform", "aarch64"
        ).json
        name, key = parse_name(stock).with_version(planned["version"]), "0123" * 16
        ours = Extension(target="_C", key=key, sha256="0" * 64, size=1, arches={})
        because = "sparkwright compiles no such extension"
        kernels = kernels_record(
            Target("aarch64", "12.1a"),
            "t",
            compiled={C: ours},
            upstream={"vllm/vllm-rs": because},
            attested={},
            left_out=(),
            packages={},
        )
        held: list[Expectation] = []

        def taken(wheel: Path, expectation: Expectation) -> None:
            held.append(expectation)
            raise WheelError(wheel.name)

        with monkeypatch.context() as patch:  # what a wheel of that version is held against
            patch.setattr("sparkwright.cli.audit.audit", taken)
            said = {f"{name.dist_info}/sparkwright/{KERNELS}": to_json(kernels)}
            compiling.call("audit", pack(tmp_path / name.filename, said))
        (expectation,) = held
        record = dict(expectation.record or {})
        assert record.pop(KERNELS) is None
        (tmp_path / "_C.so").write_bytes(elf("aarch64", b"other code"))
        forged = assemble(
            AssemblyPlan(
                expectation.upstream_wheel, expectation.artifact.sha256, planned["version"],
                expectation.changes or {}, {**record, KERNELS: kernels},
                {C: BinarySource(tmp_path / "_C.so", "compiled", key)}, {"vllm/vllm-rs": because},
                lock=expectation.lock,
            ),
            tmp_path / "forged",
        )  # fmt: skip

        def verdicts() -> dict[str, str]:
            ran = compiling.call("audit", forged.path, "--json")
            assert (ran.status, ran.json[0]["passed"]) == (50, False)
            return {check["name"]: check["verdict"] for check in ran.json[0]["checks"]}

        found = verdicts()
        assert (found["binaries-identical"], found["provenance-agrees"]) == ("unverified", "unverified")
        assert found["members-differ-exactly"] == "pass", "as far as it can be told from its own words"
        for code, verdict in ((b"the code", "fail"), (b"other code", "pass")):
            made = tmp_path / "made.so"
            made.write_bytes(elf("aarch64", code))
            true = msgspec.structs.replace(ours, sha256=sha256(made), size=made.stat().st_size)
            compiling.store.adopt_file(made, true.sha256)
            record_extension(compiling.store, true)
            assert verdicts()["binaries-identical"] == verdict

    def test_on_the_card_itself_it_is_the_default(self, compiling: World, tmp_path: Path) -> None:
        program = write_program(tmp_path / "bin" / "nvidia-smi", "echo 12.1")
        compiling.environment["PATH"] = f"{program.parent}:/usr/bin:/bin"
        here = ("--platform", platform.machine())
        assert compiling.good("wheel", "--plan", "--json", *here).json["kernels"] == "native"
        other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
        assert compiling.good("wheel", "--plan", "--json", "--platform", other).json["kernels"] == "upstream"
        write_program(program, "echo 12.0")
        assert compiling.good("wheel", "--plan", "--json", *here).json["kernels"] == "upstream"


class TestAuthoring:
    def test_show(self, compiling: World) -> None:
        assert "+set(ARCHS 8.0 12.1a)" in compiling.good("carry", "show", "feed").out, "without its source"
        assert "+// a kernel for the card" in compiling.good("carry", "show", "card").out

    @pytest.mark.parametrize("words", [("refresh", "feed"), ("edit", "TREE", "--carry", "feed")])
    def test_it_is_not_edited_in_vllms_tree(self, compiling: World, words: tuple[str, ...]) -> None:
        ran = compiling.call("carry", *words)
        assert ran.status == 10, ran.said
        assert f"it changes quack, as pinned at {REF}" in ran.said
        assert "source-ref" in ran.said
        assert not (compiling.root / "TREE").exists()
