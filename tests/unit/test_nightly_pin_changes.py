"""Pins and architecture lists that differ between two trees."""

import pytest
from kit import make_tree
from small_release import sdist_files

from sparkwright.git import Repository
from sparkwright.nightly.model import ArchMove, PinMove
from sparkwright.nightly.pin_changes import arch_moves, pin_moves

FILES = {path: data.decode() for path, data in sdist_files().items()}
CMAKE = FILES["CMakeLists.txt"]
ARCHS = """\
if (A)
  set(CUDA_SUPPORTED_ARCHS "9.0;10.0;12.0")
elseif (B)
  set(CUDA_SUPPORTED_ARCHS "8.0;9.0")
endif()
# set(CUDA_SUPPORTED_ARCHS "1.0")
cuda_archs_loose_intersection(MARLIN_ARCHS "8.0+PTX;12.0f" "${CUDA_ARCHS}")
set(HIP_SUPPORTED_ARCHS "gfx942")
"""


@pytest.fixture
def trees(repository: Repository):
    def make(**changed: str) -> tuple[str, str]:
        before = {**FILES, "CMakeLists.txt": CMAKE + ARCHS}
        named = {"cuda": "requirements/cuda.txt", "cmake": "CMakeLists.txt"}
        return make_tree(repository, before), make_tree(
            repository, before | {named[name]: value for name, value in changed.items()}
        )

    return make


class TestPins:
    def test_what_moved_is_named_with_its_file(self, repository: Repository, trees) -> None:
        cuda = "torch==2.13.0\nflashinfer-python==0.7.2\n"
        cmake = CMAKE.replace("v4.4.2", "v4.7.1") + ARCHS
        old, new = trees(cuda=cuda, cmake=cmake)
        where = "requirements/cuda.txt"
        assert pin_moves(repository, old, new) == (
            PinMove(name="cutlass", before="v4.4.2", after="v4.7.1", declared_in="CMakeLists.txt"),
            PinMove(name="flashinfer-python", before="", after="==0.7.2", declared_in=where),
            PinMove(name="torch", before="==2.11.0", after="==2.13.0", declared_in=where),
        )

    def test_other_packages_and_equal_pins_are_not(self, repository: Repository, trees) -> None:
        cuda = FILES["requirements/cuda.txt"].replace("torchvision==9.9", "torchvision==10.0") + "# more\n"
        old, new = trees(cuda=cuda)
        assert old != new
        assert pin_moves(repository, old, new) == ()


class TestArchs:
    def test_entries_of_a_list_that_changed(self, repository: Repository, trees) -> None:
        old, new = trees(cmake=CMAKE + ARCHS.replace("10.0;12.0", "11.0;12.0;12.1"))
        assert arch_moves(repository, old, new) == (
            ArchMove(
                name="CUDA_SUPPORTED_ARCHS",
                declared_in="CMakeLists.txt",
                added=("11.0", "12.1"),
                removed=("10.0",),
            ),
        )

    def test_a_list_that_came_beside_equal_ones(self, repository: Repository, trees) -> None:
        more = ARCHS.replace("if (A)", 'if (C)\n  set(CUDA_SUPPORTED_ARCHS "13.0")\nelseif (A)')
        old, new = trees(cmake=CMAKE + more)
        (move,) = arch_moves(repository, old, new)
        assert (move.added, move.removed) == (("13.0",), ())

    def test_another_order_of_branches_comments_and_other_makers_cards_are_no_change(self, repository, trees):
        swapped = (
            ARCHS.replace("9.0;10.0;12.0", "@").replace("8.0;9.0", "9.0;10.0;12.0").replace("@", "8.0;9.0")
        )
        old, new = trees(cmake=CMAKE + swapped.replace('"1.0"', '"2.0"').replace("gfx942", "gfx950"))
        assert old != new
        assert arch_moves(repository, old, new) == ()
