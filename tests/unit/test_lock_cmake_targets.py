"""Reading extensions, and the files that are listed of a dependency, without CMake."""

from sparkwright.lock.cmake import CMakeExtension, listed_files, oldest_gxx, read_extensions

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
  if(VLLM_GPU_ARCHES MATCHES "gfx942|gfx1100")
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
