"""The difference of two specs as changes, and the candidates that sets of them make."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import write_carry

from sparkwright.base.errors import BisectionError, BusyError
from sparkwright.carries.model import Carry, load_carry
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.search import candidates, specs
from sparkwright.search.changes import SpecDifference, UpstreamStep, difference
from sparkwright.search.specs import ResolvedSpec, UpstreamPoint
from sparkwright.store.disk import hold
from sparkwright.store.paths import open_store
from sparkwright.wheel.names import parse_name

VERSION = "1.2.0"


class Shelf:
    """Carries by name and content, written when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def carry(self, name: str, content: str = "a", requires: tuple[str, ...] = ()) -> Carry:
        root = self.folder / f"{content}-{'-'.join(requires)}"
        patch = (
            f"diff --git a/vllm/{name}.py b/vllm/{name}.py\nnew file mode 100644\n"
            f"index {'0' * 40}..{content * 40}\n--- /dev/null\n+++ b/vllm/{name}.py\n"
            f"@@ -0,0 +1 @@\n+{content}\n"
        )
        if not (root / name).exists():
            write_carry(root, name, patches={VERSION: patch.encode()}, requires=list(requires))
        return load_carry(root / name)

    def spec(self, *carries: Carry, version: str = VERSION, **more) -> ResolvedSpec:
        return ResolvedSpec("SPEC", "spark", UpstreamPoint(version), carries, **more)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def names(found: SpecDifference, *applied: str) -> list[str]:
    return [carry.name for carry in found.candidate(frozenset(applied)).carries]


def ids(found: SpecDifference) -> dict[str, tuple[str, ...]]:
    return {change.id: change.requires for change in found.changes}


def test_added_removed_revised_and_reordered(shelf: Shelf) -> None:
    a, b, c, d = (shelf.carry(name) for name in "abcd")
    start, end = shelf.spec(a, b, c), shelf.spec(c, shelf.carry("b", "f"), d)
    found = difference(start, end)
    assert ids(found) == {"a:removed": (), "b:revised": (), "d:added": (), "reordered": ()}
    assert [change.title.split(" (")[0] for change in found.changes[:3]] == [
        "Removing a",
        "Revising b",
        "Change d",
    ]
    assert names(found) == ["a", "b", "c"]
    assert names(found, *ids(found)) == ["c", "b", "d"]
    assert found.candidate(frozenset(ids(found))).carries == end.carries
    assert found.candidate(frozenset()).carries == start.carries
    assert names(found, "d:added") == ["a", "b", "d", "c"]
    assert {change.files for change in found.changes if change.id == "d:added"} == {("vllm/d.py",)}


def test_what_a_carry_requires_comes_with_it_and_leaves_after_it(shelf: Shelf) -> None:
    base, top = shelf.carry("base"), shelf.carry("top", requires=("base",))
    found = difference(shelf.spec(), shelf.spec(base, top))
    assert ids(found) == {"base:added": (), "top:added": ("base:added",)}
    found = difference(shelf.spec(base, top), shelf.spec())
    assert ids(found) == {"base:removed": ("top:removed",), "top:removed": ()}
    free = shelf.carry("top", "f")
    found = difference(shelf.spec(base, top), shelf.spec(free))
    assert ids(found) == {"base:removed": ("top:revised",), "top:revised": ()}
    bound = shelf.carry("top", "b", requires=("base",))
    found = difference(shelf.spec(free), shelf.spec(base, bound))
    assert ids(found)["top:revised"] == ("base:added",)
    assert names(found, "base:added", "top:revised") == ["base", "top"]


def test_upstream_is_a_chain_and_a_beginning_of_it_is_a_point(shelf: Shelf) -> None:
    carry = shelf.carry("a")
    path = [UpstreamStep(UpstreamPoint(f"1.{n}.0"), f"release {n}") for n in (3, 4, 5)]
    found = difference(shelf.spec(carry), shelf.spec(carry, version="1.5.0"), path)
    changes = [change.id for change in found.changes]
    assert changes == ["1.3.0", "1.4.0", "1.5.0"]
    assert [change.requires for change in found.changes] == [(), ("1.3.0",), ("1.4.0",)]
    assert found.candidate(frozenset()).point == UpstreamPoint(VERSION)
    assert found.candidate(frozenset(changes[:2])).point == UpstreamPoint("1.4.0")


def test_the_provider_of_kernels_is_an_axis(shelf: Shelf) -> None:
    found = difference(shelf.spec(), shelf.spec(arch="12.1a"))
    assert ids(found) == {"kernels": ()}
    assert found.candidate(frozenset()).arch is None
    assert found.candidate(frozenset({"kernels"})).arch == "12.1a"


def test_an_axis_narrows_and_the_others_stay_as_at_the_start(shelf: Shelf) -> None:
    start, end = shelf.spec(), shelf.spec(shelf.carry("a"), arch="12.1a")
    found = difference(start, end, axes=("carries",))
    assert ids(found) == {"a:added": ()}
    assert found.left_out == ("kernels",)
    assert found.candidate(frozenset({"a:added"})).arch is None
    with pytest.raises(BisectionError):
        difference(start, end, axes=("upstream",))


ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> specs.Resolver:
    access: Any = None  # neither releases nor wheels here are looked for in the store
    return specs.Resolver(open_checkout(ROOT), access, tmp_path_factory.mktemp("ends"), "", "")


def test_an_end_names_its_own_patchset(resolver: specs.Resolver) -> None:
    with_own, default = (resolver.resolve(text) for text in ("0.24@0.24.0", "0.33.0"))
    assert "hybrid-hit" in {carry.name for carry in with_own.carries}
    assert "hybrid-hit" not in {carry.name for carry in default.carries}


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
def test_upstreams_wheel_has_the_lock_of_its_release(resolver: specs.Resolver, release: str) -> None:
    name = parse_name(f"vllm-{release}-cp38-abi3-manylinux_2_28_x86_64.whl")
    found = resolver._stock_wheel("x.whl", name)
    assert found.lock.release.version == release
    assert resolver._stock_wheel("x.whl", parse_name("vllm-0.9.0-py3-none-any.whl")).lock is None


def test_the_wheel_of_a_candidate_is_made_while_no_other_run_makes_one_of_its_build_spec(
    tmp_path, monkeypatch
):
    store = open_store(tmp_path)
    job = SimpleNamespace(
        spec=SimpleNamespace(digest="d" * 64), options=SimpleNamespace(platform="p"), store=store
    )

    def assembled(job: Any, _take: object) -> Any:
        (lock,) = (job.store.home / "locks").iterdir()
        with pytest.raises(BusyError), hold(lock, "the build spec", patience_s=0):
            pass
        return SimpleNamespace(wheel=SimpleNamespace(sha256="f" * 64, filename="made.whl"))

    monkeypatch.setattr(candidates, "assemble", assembled)
    monkeypatch.setattr(candidates.Realiser, "exact_job", lambda *_: job)
    monkeypatch.setattr(type(store), "named_file", lambda _store, _sha256, filename: Path(filename))
    realiser = candidates.Realiser(None, None, SimpleNamespace(store=store), None)
    assert realiser.wheel(None) == Path("made.whl")
