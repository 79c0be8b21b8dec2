"""Reading CMake's pins, extensions and listed files without CMake."""

import pytest

from sparkwright.lock.cmake import (
    CMakeExtension,
    Pin,
    is_cmake_file,
    listed_files,
    oldest_gxx,
    read_extensions,
    read_pins,
)

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


# Extensions, and the files listed of a dependency --------------------------------------------------


ROOT = """\
# define_extension_target(_commented DESTINATION vllm LANGUAGE CXX USE_SABI 3)
define_extension_target(
  spin
  DESTINATION vllm
  LANGUAGE CXX
  SOURCES csrc/spin.cpp
  USE_SABI 3.11
  WITH_SOABI)
if(VLLM_GPU_LANG STREQUAL "HIP")
  if(VLLM_GPU_ARCHES MATCHES "gfx942" AND (X OR (Y AND (Z))))
    set(X ON)
  endif()
  define_extension_target(_C DESTINATION vllm LANGUAGE ${VLLM_GPU_LANG} USE_SABI 3)
else()
  define_extension_target(_other DESTINATION vllm LANGUAGE ${VLLM_GPU_LANG})
endif()
if(VLLM_GPU_LANG STREQUAL "CUDA" OR VLLM_GPU_LANG STREQUAL "HIP")
  define_extension_target(_both DESTINATION vllm/deep LANGUAGE ${VLLM_GPU_LANG} USE_SABI 3)
endif()
define_extension_target(${NAME} DESTINATION vllm)
"""


def test_each_extension_for_cuda_is_read_once():
    found = read_extensions({"CMakeLists.txt": ROOT, "cmake/cpu_extension.cmake": ROOT, "setup.py": ROOT})
    assert found == {
        "spin": CMakeExtension("spin", "vllm", host_only=True, abi3=True, declared_in="CMakeLists.txt"),
        "_other": CMakeExtension("_other", "vllm", host_only=False, abi3=False, declared_in="CMakeLists.txt"),
        "_both": CMakeExtension(
            "_both", "vllm/deep", host_only=False, abi3=True, declared_in="CMakeLists.txt"
        ),
    }
    assert found["_both"].member == "vllm/deep/_both.abi3.so"


def test_listed_files_are_literal_and_of_that_source():
    text = """\
set(S ${duck_SOURCE_DIR}/csrc/a.cu "${duck_SOURCE_DIR}/csrc/b.cpp" ${goose_SOURCE_DIR}/c.cu)
file(GLOB T ${duck_SOURCE_DIR}/csrc/*.cu) # ${duck_SOURCE_DIR}/d.cu
include_directories(${duck_SOURCE_DIR}/csrc) # a folder needs no stand-in
list(APPEND S ${duck_SOURCE_DIR}/csrc/a.cu ${duck_SOURCE_DIR}/${X}/e.cu)
"""
    assert listed_files("duck", text) == ("csrc/a.cu", "csrc/b.cpp")


GXX = """\
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS "9.3")
  message(FATAL_ERROR "too old")
endif()
if (VLLM_GPU_LANG STREQUAL "CUDA"
    AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
    AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS "13")
  message(FATAL_ERROR "too old")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS "15")
  message(STATUS "old")
endif()
# if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS "16")
#  message(FATAL_ERROR "too old")
"""


def test_the_oldest_gxx_is_the_highest_that_ends_with_an_error():
    assert oldest_gxx({"CMakeLists.txt": GXX, "cmake/cpu_extension.cmake": GXX.replace("13", "17")}) == "13"
    assert oldest_gxx({"CMakeLists.txt": GXX.partition("if (")[0]}) == "9.3"
    assert oldest_gxx({"CMakeLists.txt": ROOT, "setup.py": GXX}) == ""
