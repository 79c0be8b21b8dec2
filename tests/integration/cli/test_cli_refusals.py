"""What ``sparkwright wheel`` refuses: each fault with its exit code, beside its healthy twin."""

import json
import re

import pytest
from tiny_release import CLAMP, CLAMPED
from wheelkit import unpack
from world import CLAMP_PROBE, World


def refused(world: World, code: int, *words: str, says: tuple[str, ...] = ()) -> str:
    """Run ``wheel``, which has to end with *code*, say all of *says* and leave nothing in dist."""
    ran = world.call("wheel", *words)
    assert ran.status == code, ran.said
    assert world.wheels == []
    for text in says:
        assert text in ran.err, ran.err
    assert ran.err.count("error: ") == 1
    return ran.err


class TestProofs:
    def test_it_can_be_allowed_and_the_wheel_says_so(self, world: World) -> None:
        world.carry("words", {"vllm/words.py": "WORDS = ()\n"})
        ran = world.good("wheel", "--allow-unproved", "words")
        assert "none, allowed" in ran.out
        (wheel,) = world.wheels
        text = next(data for path, data in unpack(wheel).items() if path.endswith("sparkwright/carries.json"))
        told = {carry["name"]: carry.get("unproved") for carry in json.loads(text)["carries"]}
        assert told == {"clamp": None, "align": None, "words": "allowed by the builder"}
        assert world.call("wheel").status == 30, "it is not taken for a proved one"

    def test_a_name_to_allow_has_to_be_in_the_patchset(self, world: World) -> None:
        refused(world, 10, "--allow-unproved", "clam", says=("spark.toml 'clam'", "'clamp'"))
        world.carry("words", {"vllm/words.py": "WORDS = ()\n"}, listed=False)
        refused(world, 10, "--allow-unproved", "words", says=("carry words is not in",))

    def test_what_is_told_of_a_refuted_carry_is_found_on_the_tree_with_it(self, world: World) -> None:
        probe = CLAMP_PROBE.replace('"clamp(99) is not 10"', 'f"clamp(99) is {clamp(99)}"')
        world.list_carries(["align"])
        world.carry("clamp", {"vllm/clamp.py": CLAMP.replace("return value", "return -value")}, probe=probe)
        refused(world, 30, says=("clamp(99) is -99",))
        prove = world.call("carry", "prove", "clamp")
        assert re.search(r"clamp +refuted +clamp\(99\) is -99", prove.out)
        assert "merged tree: clamp: clamp(99) is -99" in prove.err
        assert not (world.root / "carries" / "clamp" / "proofs").exists()

    def test_not_needed(self, world: World) -> None:
        probe = CLAMP_PROBE.replace("clamp(99) == 10", "clamp(9) == 9")
        world.list_carries(["align"])
        world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe=probe)
        refused(
            world, 30, says=("carry clamp is not proved", "passes on the pristine tree", "not needed here")
        )
        prove = world.call("carry", "prove", "clamp")
        assert prove.status == 30
        assert "not needed here" in prove.err


class TestMerging:
    def test_a_conflict(self, world: World) -> None:
        other = CLAMP.replace("return value", "return max(value, 0)")
        world.carry("rival", {"vllm/clamp.py": other}, probe=CLAMP_PROBE)
        refused(world, 30, says=("rival: conflict", "vllm/clamp.py"))
        merge = world.call("merge")
        assert merge.status == 30
        assert re.search(r"clamp +applied", merge.out)
        assert re.search(r"rival +conflict", merge.out)
        assert "sparkwright carry refresh rival" in merge.err
        assert world.call("carry", "prove").status == 30

    def test_a_native_input(self, world: World) -> None:
        world.carry("kernel", {"csrc/kernel.cu": "// mine\n"})
        refused(
            world, 50, "--allow-unproved", "kernel",
            says=("upstream's binaries may not be used", "csrc/kernel.cu"),
        )  # fmt: skip

    def test_a_patch_that_reaches_outside(self, world: World) -> None:
        patch = world.root / "carries" / "clamp" / "1.2.0.patch"
        patch.write_bytes(patch.read_bytes().replace(b"vllm/clamp.py", b"../clamp.py"))
        refused(world, 30, says=("reaches outside the tree", "../clamp.py"))
        merge = world.call("merge")
        assert (merge.status, "change clamp as the table says" in merge.err) == (30, True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--patchset", "spork"), 10, "did you mean 'spark'?"),
        (("--patchset", "../spark"), 10, "no patchset '../spark'"),
        (("--platform", "riscv64"), 10, "known: aarch64, x86_64"),
        (("--source", "--upload-pack=touch pwned"), 10, "would be read as an option"),
        (("--source", "ext::sh -c true"), 10, "neither a folder here nor"),
        (("--source", "/no/such/folder"), 10, "there is no source"),
        (("--frobnicate",), 2, "No such option"),
    ],
)
def test_names_that_mean_nothing(world: World, words: tuple[str, ...], code: int, says: str) -> None:
    ran = world.call("wheel", *words)
    assert ran.status == code, ran.said
    assert says in ran.err
    assert world.wheels == []
    assert world.index.requests == []
    assert not (world.root / "pwned").exists()


def test_outside_a_checkout(world: World) -> None:
    (world.folder / "elsewhere").mkdir()
    ran = world.call("wheel", "--root", world.folder / "elsewhere")
    assert ran.status == 10
    assert "is not in a checkout" in ran.err
