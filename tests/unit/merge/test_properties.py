"""Properties of whole merges, on random trees and carries, with real git."""

import itertools

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from kit import Scene, make_tree, read_tree

from sparkwright.carries.model import Carry
from sparkwright.git.repository import open_repository
from sparkwright.merge.engine import MergeRequest, merge_patchset
from sparkwright.merge.report import MergeReport, OutcomeKind

pytestmark = pytest.mark.slow  # each example is several merges in a real repository

PATHS = ("vllm/a.py", "vllm/b.py", "csrc/c.cu")
BLOCK = 6  # lines between two places that a carry may change: far enough apart for any diff
PLACES = [(path, place) for path in PATHS for place in range(3)]


def text(edits: dict[int, str]) -> str:
    """A file of distinct lines, some of them replaced."""
    return "".join(f"{edits.get(number, f'line_{number} = {number}')}\n" for number in range(3 * BLOCK))


def files(edits: dict[tuple[str, int], str]) -> dict[str, str]:
    return {
        path: text(
            {
                place * BLOCK + 2: f"at_{place}_{edit}"
                for (found, place), edit in edits.items()
                if found == path
            }
        )  # names of their own: one name that is given two values is refused
        for path in PATHS
    }


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory):
    """Makes a scene a call, all in one repository: examples then cost merges and no set-up."""
    repository = open_repository(tmp_path_factory.mktemp("store") / "git")
    numbers = itertools.count()

    def make() -> Scene:
        return Scene(
            repository, tmp_path_factory.getbasetemp() / f"carries-{next(numbers)}", base=dict(files({}))
        )

    yield make
    repository.close()


def merge(scene: Scene, carries: list[Carry], target: dict[str, str]) -> MergeReport:
    base = make_tree(scene.repository, scene.base)
    tree = make_tree(scene.repository, target)
    return merge_patchset(
        scene.repository,
        MergeRequest(pristine=tree, version="1.1.0", carries=carries, find_base=lambda _: base),
    )


places = st.sampled_from(PLACES)
# Each has a name of its own: two values of one name are a broken merge.
edit = st.integers(100, 999).map(lambda number: f"edited_{number} = {number}")
disjoint = st.dictionaries(places, edit, min_size=2, max_size=5)


@examples(max_examples=12)
@given(data=st.data(), edits=disjoint)
def test_disjoint_carries_commute(scenes, data: st.DataObject, edits: dict[tuple[str, int], str]) -> None:
    scene = scenes()
    upstreams = data.draw(st.sampled_from(sorted(edits)))
    target = files({upstreams: edits[upstreams]})
    mine = [place for place in edits if place != upstreams]
    carries = [scene.add(f"c{number}", files({place: edits[place]})) for number, place in enumerate(mine)]
    order = data.draw(st.permutations(carries))
    one, other = merge(scene, carries, target), merge(scene, list(order), target)
    assert one.tree == other.tree == make_tree(scene.repository, files(edits))
    assert {outcome.kind for outcome in (*one.outcomes, *other.outcomes)} == {OutcomeKind.APPLIED}


@examples(max_examples=12)
@given(edits=disjoint, data=st.data())
def test_an_absorbed_carry_leaves_the_tree_and_a_second_merge_absorbs_all(scenes, edits, data):
    scene = scenes()
    half = data.draw(st.sets(st.sampled_from(sorted(edits)), min_size=1))
    carries = [
        scene.add("theirs-too", files({place: edits[place] for place in half})),
        scene.add("all", files(edits)),
    ]
    target = files({place: edits[place] for place in half})
    first = merge(scene, carries, target)
    assert first.outcome("theirs-too").kind is OutcomeKind.ABSORBED
    assert first.outcome("theirs-too").tree == first.pristine
    assert first.outcome("all").kind is (
        OutcomeKind.ABSORBED if half == edits.keys() else OutcomeKind.APPLIED
    )
    merged = read_tree(scene.repository, first.tree)
    assert merged == files(edits)
    second = merge(scene, carries, merged)
    assert [outcome.kind for outcome in second.outcomes] == [OutcomeKind.ABSORBED] * 2
    assert second.tree == first.tree
