"""Reading CMake's pins without CMake."""

import pytest

from sparkwright.lock.cmake import Pin, is_cmake_file, read_pins

A = "GIT_REPOSITORY https://a.org/a.git"
HEAD = "set(A $ENV{A_SRC_DIR})\n"


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
        f'set(R "v1" CACHE STRING "")\nFetchContent_Declare(a {A} GIT_TAG ${{R}})',
        f"fetchcontent_populate(a SUBBUILD_DIR x {A} GIT_TAG v1)",
        f"#[[ FetchContent_Declare(b {A} GIT_TAG v2) ]]\nFetchContent_Declare(a {A} GIT_TAG v1)",
        f"# set(R v0)\nset(R v1)\nFetchContent_Declare(a {A} GIT_TAG ${{R}})",
        f"FetchContent_Declare(a SOURCE_DIR ${{X}})\nFetchContent_Declare(a {A} GIT_TAG v1)",
        (
            f"if(X)\nFetchContent_Declare(a {A} GIT_TAG v1)\n"
            f"else()\nFetchContent_Declare(a {A} GIT_TAG v1)\nendif()"
        ),
        (
            'if (VLLM_TARGET_DEVICE STREQUAL "rocm")\nset(R v0)\nelse()\nset(R v1)\nendif()\n'
            f"FetchContent_Declare(a {A} GIT_TAG ${{R}})"
        ),
    ],
)
def test_reads_one_pin_however_it_is_written(text):
    assert refs(text) == {"a": "v1"}


def test_every_file_is_read():
    other = HEAD + f"FetchContent_Declare(b {A} GIT_TAG v2)"
    assert refs(f"FetchContent_Declare(a {A} GIT_TAG v1)", other=other) == {"a": "v1", "b": "v2"}


UNREADABLE = {
    "unknown-variable": f"FetchContent_Declare(a {A} GIT_TAG ${{R}})",
    "two-values": (
        f"if(X)\nset(R v1)\nelse()\nset(R v2)\nendif()\nFetchContent_Declare(a {A} GIT_TAG ${{R}})"
    ),
    "list-value": f"set(R v1 v2)\nFetchContent_Declare(a {A} GIT_TAG ${{R}})",
    "part-of-a-value": f"set(R 1)\nFetchContent_Declare(a {A} GIT_TAG v${{R}})",
    "from-environment": f"FetchContent_Declare(a {A} GIT_TAG $ENV{{R}})",
    "no-tag": f"FetchContent_Declare(a {A})",
    "two-pins": (
        f"if(X)\nFetchContent_Declare(a {A} GIT_TAG v1)\n"
        f"else()\nFetchContent_Declare(a {A} GIT_TAG v2)\nendif()"
    ),
    "not-git": "FetchContent_Declare(a URL https://a.org/a.zip)",
    "other-command": "CPMAddPackage(NAME a GIT_REPOSITORY https://a.org/a.git)",
    "download": "file(DOWNLOAD https://a.org/a.zip a.zip)",
    "in-a-function": f"function(get ref)\nFetchContent_Declare(a {A} GIT_TAG ${{ref}})\nendfunction()",
    "two-overrides": f"# x\nset(B $ENV{{B_SRC_DIR}})\nFetchContent_Declare(a {A} GIT_TAG v1)",
    "unclosed": "FetchContent_Declare(a URL",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_reports_what_it_cannot_read(text):
    found, problems = pins(text)
    assert found == []
    assert [problem.path for problem in problems] == ["CMakeLists.txt"]


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
    assert not is_cmake_file("cmake/cpu_extension.cmake")
