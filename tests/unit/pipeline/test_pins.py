"""The wheel of another commit serves only where no native input differs, by tree ids."""

import pytest
from kit import UpstreamRepository
from packaging.version import Version

from sparkwright.base.errors import FetchError, NativeInputsError, RefError
from sparkwright.git.remotes import fetch
from sparkwright.pipeline.pins import native_differences, nearest_wheel
from sparkwright.upstream.commits import version_ahead
from sparkwright.wheel.names import local_version

START = {
    "CMakeLists.txt": "project(vllm)\n",
    "README.md": "vLLM\n",
    "cmake/utils.cmake": "set(A 1)\n",
    "csrc/kernel.cu": "// one\n",
    "pyproject.toml": "[project]\n",
    "requirements/cuda.txt": "torch==2.11.0\n",
    "requirements/test/cuda.txt": "pytest\n",
    "setup.py": "one\n",
    "vllm/_custom_ops.py": "OPS = 1\n",
    "vllm/engine.py": "ENGINE = 1\n",
}
NATIVE = [
    "CMakeLists.txt", "cmake/utils.cmake", "cmake/external_projects/new.cmake", "csrc/kernel.cu",
    "csrc/deep/new.cuh", "pyproject.toml", "requirements/cuda.txt", "requirements/build/cuda.txt",
    "rust/src/main.rs", "setup.py", "tools/build_deepgemm_C.py", "vllm/_custom_ops.py",
]  # fmt: skip
HARMLESS = ["README.md", "docs/csrc.md", "requirements/test/cuda.txt", "tests/csrc/t.py", "vllm/engine.py"]


@pytest.fixture
def upstream(tmp_path):
    made = UpstreamRepository(tmp_path / "upstream")
    made.commit("The start (#1)", START)
    return made


@pytest.fixture
def first(upstream):
    return upstream.git("rev-parse", "HEAD")


def brought(repository, upstream):
    """The store's *repository* with all of upstream's main branch; returns its newest commit."""
    newest = upstream.git("rev-parse", "main")
    fetch(repository, upstream.address, [newest], depth=None)
    return newest


def test_its_own_wheel_comes_first(repository, upstream, first):
    upstream.commit("Native (#2)", {"csrc/kernel.cu": "// two\n"})
    newest = brought(repository, upstream)
    assert nearest_wheel(repository, newest, lambda _: True) == newest


@pytest.mark.parametrize("path", NATIVE)
def test_a_native_change_between_them_refuses_the_wheel(repository, upstream, first, path):
    upstream.commit("Native (#2)", {path: "planted\n"})
    upstream.commit("Python (#3)", {"vllm/engine.py": "ENGINE = 3\n"})
    newest = brought(repository, upstream)
    with pytest.raises(NativeInputsError, match=path):
        nearest_wheel(repository, newest, lambda commit: commit == first)
    assert native_differences(repository, first, newest) == (path,)


@pytest.mark.parametrize("path", HARMLESS)
def test_any_other_change_does_not(repository, upstream, first, path):
    upstream.commit("Python (#2)", {path: "changed\n"})
    newest = brought(repository, upstream)
    assert nearest_wheel(repository, newest, lambda commit: commit == first) == first
    assert native_differences(repository, first, newest) == ()


def test_a_native_change_that_was_taken_out_again_does_not_count(repository, upstream, first):
    upstream.commit("Native (#2)", {"csrc/kernel.cu": "// two\n"})
    upstream.commit('Revert "Native (#2)"', {"csrc/kernel.cu": "// one\n"})
    newest = brought(repository, upstream)
    assert nearest_wheel(repository, newest, lambda commit: commit == first) == first


def test_a_file_that_becomes_executable_is_another_tree(repository, upstream, first):
    (upstream.folder / "csrc/kernel.cu").chmod(0o755)
    upstream.commit("Mode (#2)", {})
    newest = brought(repository, upstream)
    with pytest.raises(NativeInputsError, match=r"csrc/kernel\.cu"):
        nearest_wheel(repository, newest, lambda commit: commit == first)


def test_the_nearest_of_several_serves(repository, upstream, first):
    second = upstream.commit("Python (#2)", {"vllm/engine.py": "ENGINE = 2\n"})
    upstream.commit("Python (#3)", {"vllm/engine.py": "ENGINE = 3\n"})
    newest = brought(repository, upstream)
    assert nearest_wheel(repository, newest, lambda commit: commit in {first, second}) == second


def test_only_first_parents_are_candidates(repository, upstream, first):
    upstream.git("checkout", "--quiet", "-b", "side")
    side = upstream.commit("On a branch", {"vllm/side.py": "SIDE = 1\n"})
    upstream.git("checkout", "--quiet", "main")
    upstream.commit("Python (#2)", {"vllm/engine.py": "ENGINE = 2\n"})
    upstream.git("merge", "--quiet", "--no-ff", "-m", "Merge", "side")
    newest = brought(repository, upstream)
    with pytest.raises(FetchError):
        nearest_wheel(repository, newest, lambda commit: commit == side)
    assert nearest_wheel(repository, newest, lambda commit: commit == first) == first


@pytest.mark.parametrize(("distance", "serves"), [(20, True), (21, False)])
def test_the_search_ends_after_twenty_ancestors(repository, upstream, first, distance, serves):
    for number in range(distance):
        upstream.commit(f"Python (#{number})", {"vllm/engine.py": f"ENGINE = {number + 2}\n"})
    newest = brought(repository, upstream)
    if serves:
        assert nearest_wheel(repository, newest, lambda commit: commit == first) == first
        return
    with pytest.raises(FetchError, match=newest[:12]):
        nearest_wheel(repository, newest, lambda commit: commit == first)


def test_an_option_is_no_commit(repository):
    with pytest.raises(RefError):
        nearest_wheel(repository, "--all", lambda _: True)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("0.33.1.dev12+g{}", "0.33.1.dev14+g{}"),
        ("0.33.1rc1.dev12+g{}", "0.33.1rc1.dev14+g{}"),
        ("0.33.1.dev12+g{}.cu130", "0.33.1.dev14+g{}.cu130"),
        ("0.33.0", "0.33.1.dev2+g{}"),
        ("0.33.0rc1", "0.33.0rc2.dev2+g{}"),
    ],
)
def test_the_version_of_a_commit_whose_wheel_is_an_earlier_ones(
    repository, upstream, first, stated, expected
):
    upstream.commit("Python (#2)", {"vllm/engine.py": "ENGINE = 2\n"})
    upstream.commit("Python (#3)", {"vllm/engine.py": "ENGINE = 3\n"})
    newest = brought(repository, upstream)
    version = version_ahead(repository, stated.format(first[:9]), first, newest)
    assert version == expected.format(newest[:9])
    assert Version(version) > Version(stated.format(first[:9]))


def test_versions_of_builds_of_commits_are_ordered():
    one, two = "0.33.1.dev12+gabcdef123", "0.33.1.dev13+g012345678"
    ours = local_version(one, "spark", "1a2b3c4d")
    assert ours == "0.33.1.dev12+gabcdef123.spark.0.1a2b3c4d"
    order = [
        "0.33.0", local_version("0.33.0", "spark", "f" * 8, revision=9), one, ours,
        local_version(one, "spark", "0a0b0c0d", revision=1),
        local_version(one, "spark", "0a0b0c0d", revision=12), two, local_version(two, "spark", "0a0b0c0d"),
        "0.33.1",
    ]  # fmt: skip
    assert sorted(order, key=Version) == order
