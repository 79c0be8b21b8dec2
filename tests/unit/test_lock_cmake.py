"""Reading CMake's pins without CMake."""

from __future__ import annotations

import pytest

from sparkwright.lock.cmake import Pin, is_cmake_file, read_pins

A = "GIT_REPOSITORY https://a.org/a.git"
HEAD = "# $ENV{A_SRC_DIR}\n"


def pins(text, **others):
    files = {"CMakeLists.txt": HEAD + text} | {f"cmake/{name}.cmake": data for name, data in others.items()}
    return read_pins(files)


def refs(text, **others):
    found, problems = pins(text, **others)
    assert problems == []
    return {pin.name: pin.ref for pin in found}


def test_a_pin_has_name_repository_ref_file_and_override():
    found, problems = pins(f"FetchContent_Declare(\n  a # name\n  {A}\n  GIT_TAG v1 GIT_PROGRESS TRUE)")
    assert found == [Pin("a", "https://a.org/a.git", "v1", "CMakeLists.txt", "A_SRC_DIR")]
    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        f"set(R v1)\nFetchContent_Declare(a {A} GIT_TAG ${{R}})",
        f'set(R "v1")\nFetchContent_Declare(a {A} GIT_TAG "${{R}}")',
        f"set(N 1)\nset(R v${{N}})\nFetchContent_Declare(a {A} GIT_TAG ${{R}})",
        f"set(R v0)\nset(R v1)\nFetchContent_Declare(a {A} GIT_TAG ${{R}})",
        f"fetchcontent_populate(a SUBBUILD_DIR x {A} GIT_TAG v1)",
        f"FetchContent_Declare(a {A} GIT_TAG [[v1]])",
        f"#[[ FetchContent_Declare(b {A} GIT_TAG v2) ]]\nFetchContent_Declare(a {A} GIT_TAG v1)",
        f'message("FetchContent_Declare(b {A} GIT_TAG v2)")\nFetchContent_Declare(a {A} GIT_TAG v1)',
        f"FetchContent_Declare(a SOURCE_DIR ${{X}})\nFetchContent_Declare(a {A} GIT_TAG v1)",
        (
            f"if(X)\nFetchContent_Declare(a {A} GIT_TAG v1)\n"
            f"else()\nFetchContent_Declare(a {A} GIT_TAG v1)\nendif()"
        ),
        f"foreach(x ${{l}})\nset(y (z))\nendforeach()\nFetchContent_Declare(a {A} GIT_TAG v1)",
    ],
)
def test_reads_one_pin_however_it_is_written(text):
    assert refs(text) == {"a": "v1"}


@pytest.mark.parametrize(
    ("condition", "runs"),
    [
        ('VLLM_TARGET_DEVICE STREQUAL "cuda"', True),
        ('VLLM_TARGET_DEVICE STREQUAL "rocm"', False),
        ('"${VLLM_GPU_LANG}" STREQUAL "CUDA"', True),
        ('NOT VLLM_TARGET_DEVICE STREQUAL "cuda"', False),
        ('VLLM_GPU_LANG STREQUAL "CUDA" OR VLLM_GPU_LANG STREQUAL "HIP"', True),
        ('VLLM_GPU_LANG STREQUAL "HIP" AND SOMETHING', False),
        ('NOT (VLLM_GPU_LANG STREQUAL "CUDA" OR SOMETHING)', False),
        ('NOT VLLM_GPU_LANG STREQUAL "CUDA" AND\n NOT VLLM_GPU_LANG STREQUAL "HIP"', False),
        ('(VLLM_GPU_LANG STREQUAL "HIP") OR (VLLM_GPU_LANG STREQUAL "CUDA")', True),
    ],
)
def test_conditions_on_the_target_choose_the_branch(condition, runs):
    text = f"if({condition})\nset(R yes)\nelse()\nset(R no)\nendif()\n"
    assert refs(text + f"FetchContent_Declare(a {A} GIT_TAG ${{R}})") == {"a": "yes" if runs else "no"}


def test_elseif_runs_only_if_nothing_before_did():
    text = (
        'if(VLLM_GPU_LANG STREQUAL "HIP")\nset(R hip)\n'
        'elseif(VLLM_GPU_LANG STREQUAL "CUDA")\nset(R cuda)\nelse()\nset(R none)\nendif()\n'
    )
    assert refs(text + f"FetchContent_Declare(a {A} GIT_TAG ${{R}})") == {"a": "cuda"}


def test_includes_are_followed_with_their_variables():
    text = (
        'set(R v1)\nif(VLLM_TARGET_DEVICE STREQUAL "cpu")\n'
        "include(${CMAKE_CURRENT_LIST_DIR}/cmake/cpu.cmake)\nendif()\n"
        "include(FetchContent)\ninclude(cmake/gpu.cmake)\ninclude(cmake/gpu.cmake)\n"
    )
    gpu = (
        HEAD + f"FetchContent_Declare(a {A} GIT_TAG ${{R}})\ninclude(${{CMAKE_CURRENT_LIST_DIR}}/more.cmake)"
    )
    more = HEAD + f"FetchContent_Declare(m {A} GIT_TAG v9)"
    cpu = HEAD + f"FetchContent_Declare(c {A} GIT_TAG v8)"
    assert refs(text, gpu=gpu, more=more, cpu=cpu) == {"a": "v1", "m": "v9"}


UNREADABLE = {
    "unknown-variable": (f"FetchContent_Declare(a {A} GIT_TAG ${{R}})", "no single repository and tag"),
    "two-values": (
        f"if(X)\nset(R v1)\nelse()\nset(R v2)\nendif()\nFetchContent_Declare(a {A} GIT_TAG ${{R}})",
        "no single repository and tag",
    ),
    "list-value": (f"set(R v1 v2)\nFetchContent_Declare(a {A} GIT_TAG ${{R}})", "no single repository"),
    "from-environment": (f"FetchContent_Declare(a {A} GIT_TAG $ENV{{R}})", "no single repository"),
    "no-tag": (f"FetchContent_Declare(a {A})", "no single repository"),
    "two-pins": (
        (f"if(X)\nFetchContent_Declare(a {A} GIT_TAG v1)\nelse()\n"
        f"FetchContent_Declare(a {A} GIT_TAG v2)\nendif()"),
        "several pins",
    ),
    "not-git": ("FetchContent_Declare(a URL https://a.org/a.zip)", "does not come from git"),
    "other-command": (f"CPMAddPackage(NAME a {A} GIT_TAG v1)", "not understood"),
    "download": ("file(DOWNLOAD https://a.org/a.zip a.zip)", "not understood"),
    "in-a-function": (
        f"function(get ref)\nFetchContent_Declare(a {A} GIT_TAG ${{ref}})\nendfunction()",
        "no single repository",
    ),
    "two-overrides": (f"# ENV{{B_SRC_DIR}}\nFetchContent_Declare(a {A} GIT_TAG v1)", "*_SRC_DIR"),
    "missing-include": ("include(cmake/gone.cmake)", "is not there"),
    "variable-include": ("include(${DIR}/x.cmake)", "cannot be followed"),
    "unclosed": ("FetchContent_Declare(a", "not closed"),
    "no-cmake": ('"lonely"', "a command was expected"),
    "open-quote": ('set(R "v1)\n', "no CMake"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "why"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_reports_what_it_cannot_read(text, why):
    found, problems = pins(text)
    assert found == []
    assert len(problems) == 1
    assert why in problems[0].why


def test_a_problem_names_file_and_line():
    _, (problem,) = pins('\n\nset(x "a\nb")\nFetchContent_Declare(a URL x)')
    assert (problem.path, problem.line) == ("CMakeLists.txt", 6)


def test_a_tree_without_cmake_is_a_problem():
    assert read_pins({})[1][0].path == "CMakeLists.txt"


def test_knows_which_files_it_wants():
    assert is_cmake_file("CMakeLists.txt")
    assert is_cmake_file("cmake/external_projects/x.cmake")
    assert not is_cmake_file("csrc/CMakeLists.txt")
    assert not is_cmake_file("docs/x.cmake")
