"""Moving [native]: what a program can find out is found out, and the rest is listed."""

import msgspec
import pytest
from kit import UpstreamRepository, make_tree
from native_kit import (
    CU,
    HERE,
    OTHER,
    lock_text,
    make_wheel,
    native_tables,
    offer_toolkit,
    tree_of,
    with_native,
    with_pins,
)
from small_release import make_release

from sparkwright.base.errors import ConfigError, FetchError, LockMismatchError
from sparkwright.lock.bump import rewrite
from sparkwright.lock.check import check_native
from sparkwright.lock.model import Binary, Candidate, Dependency, ExtensionSpec, SourcePin
from sparkwright.native.bump import NextSources, next_extensions, propose_native
from sparkwright.native.packages import next_toolkit
from sparkwright.native.sources import gather_sources

pytest_plugins = ["package_access"]


def offer_next(index, *, cuda="13.1.0", runtime="13.1.5", torch="2.12.0"):
    """The wheels of a later torch, and of the CUDA that it pins, for both machines."""
    requires = f"Requires-Dist: cuda-toolkit[cublas]=={cuda}; platform_system == 'Linux'\n"
    metadata = f"Name: torch\nVersion: {torch}\n{requires}"
    libraries = {"torch/include/ATen.h": "", "torch/lib/libtorch.so": "", "torch/utils/cpp_extension.py": ""}
    release = (
        f"Name: cuda-toolkit\nRequires-Dist: nvidia-cuda-runtime=={runtime}.*; extra == 'all'\n"
        "Requires-Dist: nvidia-cublas==13.2.0.*; extra == 'all'\n"
    )
    name = f"cuda_toolkit-{cuda}.0"  # as PEP 440 has it, 13.1.0.0 is what torch calls 13.1.0
    index.add(f"{name}-py3-none-any.whl", make_wheel({f"{name}.dist-info/METADATA": release}))
    for machine in (HERE, OTHER):
        tag = f"manylinux_2_28_{machine}.whl"
        index.add(
            f"torch-{torch}-cp312-cp312-{tag}",
            make_wheel({**libraries, f"torch-{torch}.dist-info/METADATA": metadata}),
        )
        header = {f"{CU}/include/cublas_v2.h": f"// cublas {cuda}"}
        index.add(f"nvidia_cublas-13.2.0.1-py3-none-{tag}", make_wheel({**header, "lib.so": "x"}))
        for version in (runtime, "13.9.9"):
            index.add(f"nvidia_cuda_runtime-{version}-py3-none-{tag}", make_wheel({"a": version}))
        for version in ("4.0.0", "3.32.1", "3.33.0rc1"):
            index.add(f"cmake_pkg-{version}-py3-none-{tag}", make_wheel({"cmake": version}))
        index.add(f"ninja_pkg-1.13.9-py3-none-musllinux_1_2_{machine}.whl", make_wheel({"ninja": ""}))
        index.add(f"ninja_pkg-1.13.9-cp39-abi3-{tag}", make_wheel({"ninja": ""}))
    return tree_of({f"{CU}/include/cublas_v2.h": f"// cublas {cuda}"})


class TestToolkit:
    def test_follows_torch_and_the_rest_is_the_newest_of_its_major_version(self, access, index):
        old = offer_toolkit(index)
        tree = offer_next(index)
        new, decisions = next_toolkit(access, old, "2.12.0")
        assert (new.cuda, new.release.version) == ("13.1", "13.1.0.0")
        for machine in (HERE, OTHER):
            found = {**new.builder[machine], **new.target[machine]}
            versions = {name: package.version for name, package in found.items()}
            assert versions == {
                "torch": "2.12.0",
                "cuda-runtime": "13.1.5",
                "cublas": "13.2.0.1",
                "cmake": "3.32.1",
                **{name: old.builder[machine][name].version for name in ("nvcc", "nvvm", "crt")},
                **{name: old.builder[machine][name].version for name in ("cuobjdump", "ninja", "jinja2")},
            }
            assert found["ninja"] == old.builder[machine]["ninja"]
            assert found["torch"].folders == old.target[machine]["torch"].folders
            assert found["cublas"].tree == tree
            assert found["cublas"].sha256 == index.digests[found["cublas"].filename]
        assert [decision.key for decision in decisions] == ["native.toolkit.link-only"]

    def test_stays_byte_for_byte_for_the_same_torch(self, access, index):
        old = offer_toolkit(index)
        assert next_toolkit(access, old, "2.11.0") == (old, [])

    def test_names_the_folder_that_a_newer_package_lacks(self, access, index):
        old = offer_toolkit(index)
        offer_next(index)
        name = f"nvidia_cublas-13.2.0.1-py3-none-manylinux_2_28_{HERE}.whl"
        index.add(name, make_wheel({"elsewhere/cublas_v2.h": ""}))
        with pytest.raises(LockMismatchError, match=r"nvidia_cublas-13\.2\.0\.1.*include"):
            next_toolkit(access, old, "2.12.0")

    def test_refuses_two_cudas_and_a_torch_that_is_not_there(self, access, index):
        old = offer_toolkit(index)
        offer_next(index)
        with pytest.raises(FetchError, match=r"torch 9\.9\.9"):
            next_toolkit(access, old, "9.9.9")
        name = f"torch-2.12.0-cp312-cp312-manylinux_2_28_{OTHER}.whl"
        index.add(name, make_wheel({"torch-2.12.0.dist-info/METADATA": "Name: torch\n", **dict.fromkeys(
            ("torch/include/a", "torch/lib/b", "torch/utils/cpp_extension.py"), ""
        )}))  # fmt: skip
        with pytest.raises(LockMismatchError) as caught:
            next_toolkit(access, old, "2.12.0")
        assert OTHER in caught.value.because


@pytest.fixture
def remote(tmp_path):
    """A repository of `cutlass` with a submodule in it, at a later tag than the lock's."""
    made = UpstreamRepository(tmp_path / "remote")
    made.commit("One", {"include/a.h": "// older\n", "CMakeLists.txt": "define_gpu_extension_target(_C"})
    made.git("update-index", "--add", "--cacheinfo", f"160000,{'5' * 40},csrc/inner")
    made.git("commit", "--quiet", "-m", "a submodule")
    made.git("tag", "v4.5.0")
    return made


def sources(lock, access, copies=(), texts=()):
    return NextSources(access, lock, dict(texts), dict(copies)).move(lock.native.sources)


@pytest.fixture
def lock(index, remote):
    """A lock whose `cutlass` has moved to v4.5.0, with `inner` mounted in it and a new source `duck`."""
    base = make_release().lock
    inner = SourcePin(
        ref="4" * 40,
        tree="2" * 40,
        paths=("include",),
        repository="file:///nowhere",
        mount="cutlass:csrc/inner",
    )
    native = native_tables(offer_toolkit(index))
    pins = {**native.sources, "inner": inner}
    native = msgspec.structs.replace(native, sources=pins)
    cutlass = msgspec.structs.replace(base.sources["cutlass"], ref="v4.5.0", repository=remote.address)
    duck = Dependency(repository="file:///duck", ref="v1", declared_in="cmake/duck.cmake", override="DUCK")
    return with_native(base, native, cutlass=cutlass, duck=duck)


class TestSources:
    def test_a_tree_comes_from_git_and_is_in_the_store_afterwards(self, lock, access, index):
        found = sources(lock, access, texts={"cmake/duck.cmake": "${duck_SOURCE_DIR}/a.cu"})
        tree = make_tree(access.repository, {"include/a.h": "// older\n"})
        assert found.pins["cutlass"] == SourcePin(ref="v4.5.0", tree=tree, paths=("include",))
        assert found.pins["quack"] == lock.native.sources["quack"]
        assert found.pins["duck"] == SourcePin(ref="v1", stand_in=("a.cu",))
        # The submodule's commit is known now, and its own remote cannot be reached.
        assert (found.pins["inner"].ref, found.pins["inner"].tree) == ("5" * 40, None)
        assert [one.key for one in found.decisions] == ["native.sources.duck", "native.sources.inner.tree"]
        moved = msgspec.structs.replace(lock.native, sources=found.pins)
        assert check_native(with_native(lock, moved)) == []
        assert moved.unreached == {"inner": ("_C",)}
        gathered = gather_sources(with_native(lock, moved), access)
        assert gathered["cutlass"].at_hand
        assert not gathered["inner"].at_hand

    def test_a_copy_is_a_repository_that_has_the_commit(self, lock, access, remote, tmp_path):
        found = sources(lock, access, {"cutlass": remote.folder}).pins["cutlass"]
        assert found.tree == make_tree(access.repository, {"include/a.h": "// older\n"})
        bare = tmp_path / "bare"
        remote.git("clone", "--quiet", "--bare", str(remote.folder), str(bare))
        assert sources(lock, access, {"cutlass": bare}).pins["cutlass"] == found

    def test_a_copy_without_the_commit_or_a_history_is_refused(self, lock, access, remote, tmp_path):
        remote.git("tag", "--delete", "v4.5.0")
        with pytest.raises(FetchError, match=r"v4\.5\.0"):
            sources(lock, access, {"cutlass": remote.folder})
        (tmp_path / "plain" / "include").mkdir(parents=True)
        (tmp_path / "plain" / "include" / "a.h").write_text("// older\n")
        with pytest.raises(ConfigError, match="no clone of cutlass"):
            sources(lock, access, {"cutlass": tmp_path / "plain"})
        with pytest.raises(ConfigError, match="goose"):
            sources(lock, access, {"goose": remote.folder})

    def test_a_source_that_cannot_be_reached_is_left_without_a_tree(self, lock, access):
        gone = msgspec.structs.replace(lock.sources["cutlass"], repository="file:///nowhere")
        lock = with_native(lock, lock.native, cutlass=gone)
        found = sources(lock, access)
        assert {name: found.pins[name].tree for name in ("cutlass", "inner")} == {
            "cutlass": None,
            "inner": None,
        }
        asked = {one.key: one.command for one in found.decisions}
        assert "--copy cutlass=FOLDER" in asked["native.sources.cutlass.tree"]
        assert "native.sources.inner.ref" in asked
        moved = msgspec.structs.replace(lock.native, sources=found.pins)
        assert moved.unreached == {"cutlass": ("_C",), "inner": ("_C",)}
        again = with_native(lock, moved)
        assert sources(again, access, texts={}).pins == found.pins

    @pytest.mark.parametrize("same", [True, False])
    def test_the_package_with_the_same_files_is_found(self, lock, access, index, same):
        def release(version, text):
            return index.add(
                f"headers_pkg-{version}-py3-none-any.whl", make_wheel({"data/include/a.h": text})
            )

        old = "headers_pkg-1.0-py3-none-any.whl"
        digest = release("1.0", "// the oldest\n")
        wanted = release("1.1", "// older\n" if same else "// another\n")
        release("1.2", "// newest\n")
        package = {"filename": old, "sha256": digest, "size": len(index.files[old])}
        pin = msgspec.convert(
            {"ref": "v4.4.2", "tree": "1" * 40, "paths": ["include"], "folder": "data", "package": package},
            SourcePin,
        )
        lock = with_pins(lock, cutlass=pin)
        found = sources(lock, access)
        chosen = found.pins["cutlass"].package
        assert (chosen.sha256 if chosen else None) == (wanted if same else None)
        assert ("native.sources.cutlass.package" in {one.key for one in found.decisions}) is not same

    def test_a_copy_of_a_submodule_is_read_though_nothing_moved(self, lock, access, tmp_path):
        """The store may lack it: the pin was written on another machine."""
        made = UpstreamRepository(tmp_path / "inner")
        made.commit("One", {"include/b.h": "// inner\n"})
        commit, tree = (made.git("rev-parse", name).strip() for name in ("HEAD", "HEAD^{tree}"))
        inner = msgspec.structs.replace(lock.native.sources["inner"], ref=commit, tree=tree)
        pinned = msgspec.structs.replace(lock.sources["cutlass"], ref=lock.native.sources["cutlass"].ref)
        lock = with_pins(with_native(lock, lock.native, cutlass=pinned), inner=inner)
        assert sources(lock, access).pins["inner"] == inner
        assert not access.repository.has(tree)
        assert sources(lock, access, {"inner": made.folder}).pins["inner"] == inner
        assert access.repository.has(tree)


CMAKE = {
    "CMakeLists.txt": (
        "define_extension_target(fresh_io DESTINATION vllm LANGUAGE CXX USE_SABI 3)\n"
        "define_extension_target(_fresh_C DESTINATION vllm LANGUAGE ${L} USE_SABI 3)\n"
        "define_extension_target(_kept_C DESTINATION vllm/moved LANGUAGE ${L} USE_SABI 3)\n"
    ),
    "cmake/duck.cmake": "define_extension_target(_duck_C DESTINATION vllm LANGUAGE ${L} USE_SABI 3)\n",
    "cmake/external_projects/quack.cmake": "define_extension_target(_quack_C DESTINATION vllm USE_SABI 3)\n",
}


def test_extensions_are_those_of_cmake(lock, access):
    found = sources(lock, access, texts=CMAKE)
    old = {
        "_kept_C": ExtensionSpec(member="vllm/_kept_C.abi3.so", sources=("cutlass",)),
        "_gone_C": ExtensionSpec(member="vllm/_gone_C.abi3.so"),
    }
    new, decisions = next_extensions(lock, found, old)
    assert new == {
        "_kept_C": ExtensionSpec(member="vllm/moved/_kept_C.abi3.so", sources=("cutlass",)),
        "fresh_io": ExtensionSpec(member="vllm/fresh_io.abi3.so", host_only=True),
    }
    # That of `quack` was left alone before: nothing is compiled from it.
    assert [one.key.rpartition(".")[2] for one in decisions] == ["_gone_C", "_fresh_C", "_duck_C"]


def test_an_extension_of_a_dependencys_own_project_stays_while_that_names_it(lock, access):
    pin = msgspec.structs.replace(lock.native.sources["cutlass"], paths=("include", "CMakeLists.txt"))
    lock = with_pins(lock, cutlass=pin)
    old = {name: ExtensionSpec(member=f"vllm/{name}.so", sources=("cutlass",)) for name in ("_C", "_D")}
    new, decisions = next_extensions(lock, sources(lock, access, texts=CMAKE), old)
    assert "_C" in new
    assert "native.extensions._D" in {one.key for one in decisions}


def test_a_proposal_keeps_measurements_with_the_release_that_they_are_of(lock, access, index):
    measured = msgspec.structs.replace(
        lock.native, binaries={"vllm/_C.abi3.so": Binary(cubins={"sm_121a": 1})}
    )
    later = msgspec.structs.replace(lock.release, version="1.3.0")
    new = msgspec.structs.replace(lock, release=later)
    once = propose_native(access, new, measured, CMAKE)
    assert (once.native.release, once.native.measured) == ("1.3.0", "1.2.0")
    assert once.native.binaries == measured.binaries
    assert not once.native.is_measured
    assert check_native(msgspec.structs.replace(new, native=once.native)) == []
    back = propose_native(access, lock, once.native, CMAKE)
    assert (back.native.release, back.native.measured, back.native.is_measured) == ("1.2.0", "", True)


def test_a_candidate_goes_with_the_release_whose_wheel_attests_it(lock, access):
    candidate = Candidate(ref="v4.4.0", tree="7" * 40, attested={"_C": (2, 2)})
    inner = msgspec.structs.replace(lock.native.sources["inner"], candidate=candidate)
    old = with_pins(lock, inner=inner).native
    assert propose_native(access, lock, old, CMAKE).native.candidates == {"inner": candidate}
    new = msgspec.structs.replace(lock, release=msgspec.structs.replace(lock.release, version="1.3.0"))
    moved = propose_native(access, new, old, CMAKE).native
    assert moved.candidates == {}
    before, after = (msgspec.structs.replace(lock, native=native) for native in (old, moved))
    assert "v4.4.0" not in rewrite(lock_text(before), after).text
