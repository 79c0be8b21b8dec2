"""The lock of this repository against vLLM's real releases, fetched once into the user's store."""

from pathlib import Path

import pytest

from sparkwright.git.repository import open_repository
from sparkwright.lock.check import check
from sparkwright.lock.cmake import read_pins
from sparkwright.lock.model import read_lock
from sparkwright.lock.statements import is_evidence
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.store.paths import open_store
from sparkwright.upstream.evidence import gather
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access, open_source, other_release

pytestmark = pytest.mark.upstream

LOCK = open_checkout(Path(__file__).parents[3], "0.24").lock_path


@pytest.fixture(scope="module")
def access():
    store = open_store()
    access = Access(store, open_repository(store.git), read_settings())
    yield access
    access.repository.close()


def test_the_pinned_sdist_gives_the_same_tree_everywhere(access):
    pristine = open_source("index", access).pristine(read_lock(LOCK))
    assert pristine.tree == "f9489caea0f0c665533ecb03f6b026a2979abecd"
    assert len(access.repository.files(pristine.tree)) == 5664


@pytest.mark.slow
def test_the_lock_says_what_the_release_says(access):
    lock = read_lock(LOCK)
    assert check(lock, gather(access, lock)) == []


ALWAYS = {"cutlass", "deepgemm", "flashmla", "fmha_sm100", "qutlass", "triton_kernels", "vllm-flash-attn"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "cutlass", "more"),
    [
        ("0.24.0", "v4.4.2", set()),
        ("0.25.1", "v4.4.2", set()),
        ("0.26.0", "v4.4.2", {"tml_fa4"}),
        ("0.27.1", "v4.4.2", {"tml_fa4", "flashkda"}),
        ("0.33.0", "v4.7.1", {"tml_fa4", "flashkda", "deepselect"}),
    ],
)
def test_every_pin_of_every_release_can_be_read(access, version, cutlass, more):
    files = access.repository.files(other_release(access, version).tree)
    texts = {
        path: access.repository.blob(entry.blob).decode()
        for path, entry in files.items()
        if is_evidence(path)
    }
    pins, problems = read_pins(texts)
    assert problems == []
    assert {pin.name for pin in pins} == ALWAYS | more
    assert {pin.ref for pin in pins if pin.name == "cutlass"} == {cutlass}
    assert all(pin.repository.startswith("https://") for pin in pins)
