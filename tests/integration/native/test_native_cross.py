"""Compiler commands that CMake generates for the merged tree of vLLM; `make test-native` runs them."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.base.errors import ToolError
from sparkwright.merge.engine import merge_patchset
from sparkwright.native.build import Builder, configured, device_code
from sparkwright.native.host import find_compiler
from sparkwright.native.model import Target
from sparkwright.native.sources import gather_sources
from sparkwright.native.toolchain import prepare_toolchain
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.kernels import inputs_of, not_native
from sparkwright.pipeline.options import BuildOptions
from sparkwright.pipeline.state import BuildState
from sparkwright.store.paths import open_store

ROOT = Path(__file__).parents[3]
TARGET = Target("aarch64", "12.1a")
FA2 = "_vllm_fa2_C"


def lacking() -> str:
    """Why nothing can be compiled for the Spark here; empty if it can."""
    try:
        find_compiler(TARGET)
    except ToolError as error:
        return str(error)
    return ""


# To configure vLLM takes half a minute; a kernel is compiled for the card in test_native_real.py.
pytestmark = [
    pytest.mark.upstream,
    pytest.mark.slow,
    pytest.mark.walk,
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]


@pytest.fixture(scope="module")
def job():
    options = BuildOptions(series="0.24", platform=TARGET.machine, kernels="native", arch=TARGET.arch)
    with open_job(ROOT, options) as job:
        yield job


@pytest.fixture(scope="module")
def inputs(job):
    """What a build of the patchset compiles: the merged tree, sources as far as they can be had."""
    lock = job.spec.lock
    state = BuildState(sources=gather_sources(lock, job.access))
    state.report = merge_patchset(job.repository, job.merge_request(job.pristine, lock.release.version))
    state.toolchain = prepare_toolchain(lock, job.target, job.access)
    return inputs_of(job, state)


@pytest.fixture(scope="module")
def builder(job, tmp_path_factory):
    """Configures into a store of its own, whatever the machine has configured before."""
    home = tmp_path_factory.mktemp("native")
    lock = job.spec.lock
    return Builder(open_store(home / "store"), job.repository, lock, lock.native, home / "logs")


def test_every_unit_of_ours_asks_for_the_cards_own_code(builder, inputs):
    units = configured(builder, inputs).configuration.units
    own = {"_C_stable_libtorch", "_moe_C_stable_libtorch"}
    cuda = [one for one in units if one.target in own and one.language == "CUDA"]
    others = {Path(one.source).name: one.arches for one in cuda if one.arches != (TARGET.sm,)}
    assert len(cuda) > 90
    assert others == {"scaled_mm_c2x.cu": ("sm_89", "compute_89")}


@pytest.mark.parametrize(("arch", "native"), [("12.1a", True), ("9.0a", False)])
def test_flash_attention_2_is_named_where_its_own_build_leaves_the_card_out(
    job, builder, inputs, arch, native
):
    if not inputs.sources["vllm-flash-attn"].at_hand:
        pytest.skip(inputs.sources["vllm-flash-attn"].missing)
    units = configured(builder, replace(inputs, target=Target("aarch64", arch))).configuration.units_of(FA2)
    code = device_code(units)
    assert code == ({"sm_121a": 52} if native else {"compute_80": 52, "sm_80": 52})
    assert ("from PTX" in not_native(code, arch)) == (not native)
